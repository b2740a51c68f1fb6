"""The broker as a whole: overview, nodes, names, features."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any, cast

from fastapi import APIRouter

from leveret.broker import Broker, User, VirtualHost
from leveret.broker.metrics import TOTAL_FIELDS, VHOST_FIELDS, SeriesSum, sums, vhost_values
from leveret.broker.runtime import process
from leveret.exchange import known_kinds
from leveret.http_admin.auth import (
    AppBroker,
    CurrentUser,
    require_tag,
    sees_everything,
    visible_vhosts,
)
from leveret.http_admin.context import AppContext, Context
from leveret.http_admin.errors import not_found
from leveret.http_admin.product import (
    EXCHANGE_TYPES,
    PRODUCT,
    product_version,
    runtime_version,
)
from leveret.http_admin.responses import ERROR_RESPONSES
from leveret.http_admin.routes.operations import alarm_row, disk_usage_row
from leveret.http_admin.rows.stats import message_stats, queue_totals, rate_details, total_stats
from leveret.http_admin.rows.totals import BrokerTotals, Totals
from leveret.http_admin.samples import SampleRange, Samples
from leveret.http_admin.schemas.broker import (
    ChurnRates,
    ClusterName,
    ComponentRow,
    DeprecatedFeature,
    Extension,
    FeatureFlag,
    ListenerRow,
    NodeContextRow,
    NodeMemory,
    NodeRow,
    ObjectTotals,
    OverviewNames,
    OverviewRow,
)
from leveret.http_admin.schemas.common import MessageStats, QueueTotals
from leveret.model import form
from leveret.model.compatibility import RABBITMQ_VERSION

router = APIRouter(prefix="/api", tags=["overview"], responses=ERROR_RESPONSES)
CHURN = (
    "connection_created", "connection_closed", "channel_created", "channel_closed",
    "queue_declared", "queue_created", "queue_deleted",
)  # fmt: skip
_MONITORING = [require_tag("monitoring")]
_AUTH_MECHANISMS: list[ComponentRow] = [
    {"name": "PLAIN", "description": "SASL PLAIN", "enabled": True},
    {"name": "AMQPLAIN", "description": "AMQPLAIN", "enabled": True},
]


@router.get("/overview")
async def overview(
    broker: AppBroker, user: CurrentUser, context: Context, samples: Samples, totals: BrokerTotals
) -> OverviewRow:
    """The broker at a glance: versions, totals, rates, listeners."""
    vhosts = visible_vhosts(broker, user)
    if sees_everything(user):
        stats = total_stats(broker, totals.values, samples)
        lengths = _all_queue_totals(broker, totals, samples)
        objects = _all_object_totals(broker, totals)
    else:
        stats, lengths = _visible_totals(broker, vhosts, samples)
        objects = _visible_object_totals(broker, user, vhosts)
    return {
        **_names(broker),
        "message_stats": stats,
        "queue_totals": lengths,
        "object_totals": objects,
        "churn_rates": _churn_rates(broker, totals.values, samples),
        "listeners": listener_rows(broker, context),
        "contexts": [
            {**row, "node": broker.settings.node_name, "ssl_opts": []}
            for row in context_rows(context)
        ],
    }


def _names(broker: Broker) -> OverviewNames:
    return {
        "management_version": RABBITMQ_VERSION,
        "rates_mode": "basic",
        "sample_retention_policies": {
            "global": [600, 3600, 28800],
            "basic": [600],
            "detailed": [600],
        },
        "exchange_types": exchange_types(),
        "product_name": PRODUCT,
        "product_version": product_version(),
        "form": form.current(),
        "rabbitmq_version": RABBITMQ_VERSION,
        "cluster_name": broker.cluster_name,
        "cluster_tags": {},
        "node": broker.settings.node_name,
        "node_tags": {},
        "erlang_version": f"Python {runtime_version()}",
        "erlang_full_version": f"Python {runtime_version()} (this broker has no Erlang)",
        "default_queue_type": "classic",
        "release_series_support_status": "supported",
        "disable_stats": False,
        "is_op_policy_updating_enabled": True,
        "enable_queue_totals": False,
        "statistics_db_event_queue": 0,
    }


def exchange_types() -> list[ComponentRow]:
    return [
        {"name": kind, "description": EXCHANGE_TYPES.get(kind, ""), "enabled": True}
        for kind in known_kinds()
    ]


def _all_queue_totals(broker: Broker, totals: Totals, samples: SampleRange | None) -> QueueTotals:
    ready, unacked = totals.of("messages_ready"), totals.of("messages_unacknowledged")
    return queue_totals(ready, unacked, broker.metrics.totals, TOTAL_FIELDS, samples)


def _all_object_totals(broker: Broker, totals: Totals) -> ObjectTotals:
    return {
        "connections": len(broker.connections),
        "channels": broker.counters.channels_opened - broker.counters.channels_closed,
        "queues": sum(len(vhost.queues) for vhost in broker.vhosts.values()),
        "exchanges": sum(len(vhost.exchanges) for vhost in broker.vhosts.values()),
        "consumers": totals.consumers,
    }


def _visible_totals(
    broker: Broker, vhosts: list[VirtualHost], samples: SampleRange | None
) -> tuple[MessageStats, QueueTotals]:
    """Counters and queue lengths of the vhosts that the user may access."""
    traffic = broker.metrics.traffic()
    values = sums([vhost_values(vhost, traffic) for vhost in vhosts], len(VHOST_FIELDS))
    by_vhost = broker.metrics.vhosts
    series = SeriesSum([by_vhost[vhost] for vhost in vhosts if vhost in by_vhost])
    ready = values[VHOST_FIELDS.index("messages_ready")]
    unacked = values[VHOST_FIELDS.index("messages_unacknowledged")]
    stats = message_stats(VHOST_FIELDS, values, series, samples)
    return stats, queue_totals(ready, unacked, series, VHOST_FIELDS, samples)


def _visible_object_totals(broker: Broker, user: User, vhosts: list[VirtualHost]) -> ObjectTotals:
    connections = [entry for entry in broker.connections if entry.user.name == user.name]
    return {
        "connections": len(connections),
        "channels": sum(len(entry.channels) for entry in connections),
        "queues": sum(len(vhost.queues) for vhost in vhosts),
        "exchanges": sum(len(vhost.exchanges) for vhost in vhosts),
        "consumers": sum(len(q.consumers) for vhost in vhosts for q in vhost.queues.values()),
    }


def _churn_rates(
    broker: Broker, values: Sequence[int], samples: SampleRange | None = None
) -> ChurnRates:
    row: dict[str, Any] = {}
    for name in CHURN:
        index = TOTAL_FIELDS.index(name)
        row[name] = values[index]
        row[f"{name}_details"] = rate_details(broker.metrics.totals, index, samples)
    return cast(ChurnRates, row)


def listener_rows(broker: Broker, context: AppContext) -> list[ListenerRow]:
    return [
        {
            "node": broker.settings.node_name,
            "protocol": listener.protocol,
            "ip_address": listener.host,
            "port": listener.port,
            "socket_opts": [],
        }
        for listener in context.listeners
    ]


def context_rows(context: AppContext) -> list[NodeContextRow]:
    """The HTTP listeners; tools find the port of the management API here."""
    return [
        {
            "description": "RabbitMQ Management",
            "path": "/",
            "port": str(listener.port),
            "cowboy_opts": "[]",
        }
        for listener in context.listeners
        if listener.protocol in ("http", "https")
    ]


# Names and features ------------------------------------------------------------------------------


@router.get("/cluster-name")
async def get_cluster_name(broker: AppBroker, user: CurrentUser) -> ClusterName:
    """The name of the cluster."""
    return {"name": broker.cluster_name}


@router.get("/version")
async def get_version(user: CurrentUser) -> str:
    """The version of RabbitMQ whose API this one follows."""
    return RABBITMQ_VERSION


@router.get("/extensions")
async def extensions(user: CurrentUser) -> list[Extension]:
    """Extensions of the web UI: there are none."""
    return []


_FEATURE_FLAGS = {
    "classic_mirrored_queue_version": "Queues may name a version of their storage",
    "drop_unroutable_metric": "Dropped unroutable messages are counted",
    "empty_basic_get_metric": "Gets on an empty queue are counted",
    "implicit_default_bindings": "Bindings of the default exchange are not stored",
    "quorum_queue": "Queues of type quorum may be declared",
    "stream_queue": "Queues of type stream may be declared",
    "stream_filtering": "Streams may be filtered",
    "user_limits": "Connections and channels of a user may be limited",
    "virtual_host_metadata": "Virtual hosts have a description and tags",
}


@router.get("/feature-flags")
async def feature_flags(user: CurrentUser) -> list[FeatureFlag]:
    """RabbitMQ's feature flags that tools ask for; all are enabled."""
    return [
        {
            "name": name,
            "desc": text,
            "doc_url": "",
            "state": "enabled",
            "stability": "stable",
            "provided_by": "leveret",
        }
        for name, text in _FEATURE_FLAGS.items()
    ]


@router.get("/deprecated-features")
@router.get("/deprecated-features/used")
async def deprecated_features(user: CurrentUser) -> list[DeprecatedFeature]:
    """Deprecated features: there are none."""
    return []


# Nodes -------------------------------------------------------------------------------------------


@router.get("/nodes", dependencies=_MONITORING)
async def list_nodes(broker: AppBroker, totals: BrokerTotals, context: Context) -> list[NodeRow]:
    """Nodes of the cluster: this one."""
    return [node_row(broker, totals, context)]


@router.get("/nodes/{name:seg}", dependencies=_MONITORING)
async def get_node(name: str, broker: AppBroker, totals: BrokerTotals, context: Context) -> NodeRow:
    """One node: memory, disk, file descriptors, alarms, uptime."""
    _require_node(broker, name)
    return node_row(broker, totals, context)


@router.get("/nodes/{name:seg}/memory", dependencies=_MONITORING)
async def get_node_memory(name: str, broker: AppBroker) -> NodeMemory:
    """The memory use of a node."""
    _require_node(broker, name)
    used = process.resident_bytes()
    messages = min(broker.resource_monitor.message_memory(), used)
    return {
        "memory": {
            "queue_procs": messages,
            "other_proc": used - messages,
            "strategy": "rss",
            "total": {"rss": used, "allocated": used, "erlang": used},
        }
    }


def _require_node(broker: Broker, name: str) -> None:
    if name != broker.settings.node_name:
        raise not_found()


def node_row(broker: Broker, totals: Totals, context: AppContext) -> NodeRow:
    alarms = broker.alarms.raised
    return {
        "name": broker.settings.node_name,
        "type": "disc",
        "running": True,
        "being_drained": False,
        "os_pid": str(os.getpid()),
        "uptime": broker.clock.wall_ms() - broker.started_ms,
        "run_queue": 0,
        "processors": os.cpu_count() or 1,
        "proc_used": threading.active_count(),
        "proc_total": 1048576,
        "fd_used": process.open_files(),
        "fd_total": process.max_open_files(),
        "sockets_used": len(broker.connections),
        "sockets_total": process.max_open_files(),
        "mem_used": process.resident_bytes(),
        "mem_limit": broker.resource_monitor.memory_limit,
        "mem_alarm": "memory" in alarms,
        "mem_calculation_strategy": "rss",
        "disk_free": broker.resource_monitor.free_disk(),
        "disk_free_limit": broker.settings.disk_free_limit,
        "disk_free_alarm": "disk" in alarms or "store" in alarms,
        "disk_usage": None if broker.settings.memory else disk_usage_row(broker),
        "alarms": [alarm_row(broker, name, reason) for name, reason in alarms.items()],
        "partitions": [],
        "rates_mode": "basic",
        "exchange_types": exchange_types(),
        "auth_mechanisms": _AUTH_MECHANISMS,
        "applications": [
            {"name": "leveret", "description": "message broker", "version": product_version()}
        ],
        "contexts": context_rows(context),
        "enabled_plugins": ["rabbitmq_management", "rabbitmq_prometheus"],
        "log_files": [],
        "db_dir": "" if broker.settings.memory else str(broker.settings.data_dir),
        "config_files": [],
        "net_ticktime": 60,
        "cluster_links": [],
        **_churn_rates(broker, totals.values),
    }
