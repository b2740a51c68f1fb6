"""The broker as a whole: overview, nodes, what it is called, what it can do."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter
from pydantic import BaseModel

from exchange import known_kinds
from http_admin import process
from http_admin.auth import CurrentUser, Hub, require_tag, sees_everything, visible_vhosts
from http_admin.errors import not_found
from http_admin.product import (
    EXCHANGE_TYPES,
    PRODUCT,
    RABBITMQ_VERSION,
    product_version,
    runtime_version,
)
from http_admin.samples import SampleRange, Samples
from http_admin.shapes_broker import (
    DeprecatedFeature,
    Extension,
    FeatureFlag,
    NodeMemory,
    NodeRow,
    OverviewRow,
)
from http_admin.surroundings import Around, Surroundings
from http_admin.totals import Sums, Totals
from http_admin.views import Row, lengths, message_stats, rate, total_stats
from leveret.broker import Broker, User, VirtualHost
from leveret.broker.metrics import TOTAL_FIELDS, VHOST_FIELDS, SeriesSum, sums, vhost_values

router = APIRouter(prefix="/api", tags=["overview"])
CHURN = (
    "connection_created", "connection_closed", "channel_created", "channel_closed",
    "queue_declared", "queue_created", "queue_deleted",
)  # fmt: skip


@router.get("/overview", response_model=OverviewRow)
def overview(hub: Hub, user: CurrentUser, around: Around, samples: Samples, sums: Sums) -> Row:
    """The broker at a glance: versions, totals, rates, listeners."""
    vhosts = visible_vhosts(hub, user)
    row = _names(hub)
    if sees_everything(user):
        row["message_stats"] = total_stats(hub, sums.values, samples)
        row["queue_totals"] = _whole_queue_totals(hub, sums, samples)
        row["object_totals"] = _whole_object_totals(hub, sums)
    else:
        row["message_stats"], row["queue_totals"] = _part(hub, vhosts, samples)
        row["object_totals"] = _part_of_objects(hub, user, vhosts)
    row["churn_rates"] = _churn(hub, sums.values, samples)
    row["listeners"] = listener_rows(hub, around)
    row["contexts"] = []
    return row


def _names(hub: Broker) -> Row:
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
        "rabbitmq_version": RABBITMQ_VERSION,
        "cluster_name": hub.cluster_name,
        "cluster_tags": {},
        "node": hub.settings.node_name,
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


def exchange_types() -> list[Row]:
    return [
        {"name": kind, "description": EXCHANGE_TYPES.get(kind, ""), "enabled": True}
        for kind in known_kinds()
    ]


def _whole_queue_totals(hub: Broker, sums: Totals, samples: SampleRange | None) -> Row:
    ready, unacked = sums.of("messages_ready"), sums.of("messages_unacknowledged")
    return lengths(ready, unacked, hub.metrics.totals, TOTAL_FIELDS, samples)


def _whole_object_totals(hub: Broker, sums: Totals) -> Row:
    return {
        "connections": len(hub.connections),
        "channels": hub.counters.channels_opened - hub.counters.channels_closed,
        "queues": sum(len(vhost.queues) for vhost in hub.vhosts.values()),
        "exchanges": sum(len(vhost.exchanges) for vhost in hub.vhosts.values()),
        "consumers": sums.consumers,
    }


def _part(hub: Broker, vhosts: list[VirtualHost], samples: SampleRange | None) -> tuple[Row, Row]:
    """Totals and rates of what this user may see."""
    octets = hub.metrics.octets()
    values = sums([vhost_values(vhost, octets) for vhost in vhosts], len(VHOST_FIELDS))
    known = [hub.metrics.vhosts[one] for one in vhosts if one in hub.metrics.vhosts]
    series = SeriesSum(known)
    ready = values[VHOST_FIELDS.index("messages_ready")]
    unacked = values[VHOST_FIELDS.index("messages_unacknowledged")]
    stats = message_stats(VHOST_FIELDS, values, series, samples)
    return stats, lengths(ready, unacked, series, VHOST_FIELDS, samples)


def _part_of_objects(hub: Broker, user: User, vhosts: list[VirtualHost]) -> Row:
    connections = [one for one in hub.connections if one.user.name == user.name]
    return {
        "connections": len(connections),
        "channels": sum(len(one.channels) for one in connections),
        "queues": sum(len(vhost.queues) for vhost in vhosts),
        "exchanges": sum(len(vhost.exchanges) for vhost in vhosts),
        "consumers": sum(len(q.consumers) for vhost in vhosts for q in vhost.queues.values()),
    }


def _churn(hub: Broker, values: Sequence[int], samples: SampleRange | None = None) -> Row:
    row: Row = {}
    for name in CHURN:
        index = TOTAL_FIELDS.index(name)
        row[name] = values[index]
        row[f"{name}_details"] = rate(hub.metrics.totals, index, samples)
    return row


def listener_rows(hub: Broker, around: Surroundings) -> list[Row]:
    return [
        {
            "node": hub.settings.node_name,
            "protocol": one.protocol,
            "ip_address": one.host,
            "port": one.port,
            "socket_opts": [],
        }
        for one in around.listeners
    ]


# Names -------------------------------------------------------------------------------------------


class ClusterName(BaseModel):
    name: str


@router.get("/cluster-name", response_model=ClusterName)
def get_cluster_name(hub: Hub, user: CurrentUser) -> Row:
    """What the broker calls its cluster."""
    return {"name": hub.cluster_name}


@router.get("/version", response_model=str)
def get_version(user: CurrentUser) -> str:
    """The RabbitMQ version this API is shaped after."""
    return RABBITMQ_VERSION


@router.get("/extensions", response_model=list[Extension])
def extensions(user: CurrentUser) -> list[Row]:
    """Extensions of the web UI: there are none."""
    return []


@router.get("/feature-flags", response_model=list[FeatureFlag])
def feature_flags(user: CurrentUser) -> list[Row]:
    """Feature flags of RabbitMQ that tools ask for; all are on."""
    flags = {
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
    return [
        {
            "name": name,
            "desc": text,
            "doc_url": "",
            "state": "enabled",
            "stability": "stable",
            "provided_by": "leveret",
        }
        for name, text in flags.items()
    ]


@router.get("/deprecated-features", response_model=list[DeprecatedFeature])
@router.get("/deprecated-features/used", response_model=list[DeprecatedFeature])
def deprecated_features(user: CurrentUser) -> list[Row]:
    """Features that will go: there are none."""
    return []


# Nodes -------------------------------------------------------------------------------------------


@router.get("/nodes", response_model=list[NodeRow], dependencies=[require_tag("monitoring")])
def list_nodes(hub: Hub, sums: Sums) -> list[Row]:
    """The nodes of the cluster: this one."""
    return [node_row(hub, sums)]


@router.get("/nodes/{name:seg}", response_model=NodeRow, dependencies=[require_tag("monitoring")])
def get_node(name: str, hub: Hub, sums: Sums) -> Row:
    """One node: memory, disk, file descriptors, alarms, uptime."""
    _require_node(hub, name)
    return node_row(hub, sums)


@router.get(
    "/nodes/{name:seg}/memory",
    response_model=NodeMemory,
    dependencies=[require_tag("monitoring")],
)
def get_node_memory(name: str, hub: Hub) -> Row:
    """Where a node's memory goes."""
    _require_node(hub, name)
    used = process.resident_bytes()
    held = min(hub.upkeep.memory_held(), used)
    return {
        "memory": {
            "queue_procs": held,
            "other_proc": used - held,
            "strategy": "rss",
            "total": {"rss": used, "allocated": used, "erlang": used},
        }
    }


def _require_node(hub: Broker, name: str) -> None:
    if name != hub.settings.node_name:
        raise not_found()


def node_row(hub: Broker, sums: Totals) -> Row:
    alarms = hub.alarms.raised
    row: Row = {
        "name": hub.settings.node_name,
        "type": "disc",
        "running": True,
        "being_drained": False,
        "os_pid": str(process.PID),
        "uptime": hub.clock.wall_ms() - hub.started_ms,
        "run_queue": 0,
        "processors": process.processors(),
        "proc_used": process.threads(),
        "proc_total": 1048576,
        "fd_used": process.open_files(),
        "fd_total": process.most_files(),
        "sockets_used": len(hub.connections),
        "sockets_total": process.most_files(),
        "mem_used": process.resident_bytes(),
        "mem_limit": hub.settings.memory_high_watermark,
        "mem_alarm": "memory" in alarms,
        "mem_calculation_strategy": "rss",
        "disk_free": process.disk_free(hub),
        "disk_free_limit": hub.settings.disk_free_limit,
        "disk_free_alarm": "disk" in alarms or "store" in alarms,
        "alarms": [{"name": name, "reason": reason} for name, reason in alarms.items()],
        "partitions": [],
        "rates_mode": "basic",
        "exchange_types": exchange_types(),
        "auth_mechanisms": [
            {"name": "PLAIN", "description": "SASL PLAIN", "enabled": True},
            {"name": "AMQPLAIN", "description": "AMQPLAIN", "enabled": True},
        ],
        "applications": [
            {"name": "leveret", "description": "message broker", "version": product_version()}
        ],
        "contexts": [],
        "enabled_plugins": ["rabbitmq_management", "rabbitmq_prometheus"],
        "log_files": [],
        "db_dir": "" if hub.settings.memory else str(hub.settings.data_dir),
        "config_files": [],
        "net_ticktime": 60,
        "cluster_links": [],
    }
    return row | _churn(hub, sums.values)
