"""Rows of virtual hosts."""

from __future__ import annotations

from leveret.broker import Broker, VirtualHost
from leveret.broker.metrics import VHOST_FIELDS, Traffic, vhost_values
from leveret.http_admin.rows.stats import byte_rates, message_stats, queue_totals
from leveret.http_admin.samples import SampleRange
from leveret.http_admin.schemas.vhosts import Metadata, VhostRow


def vhost_row(
    broker: Broker, vhost: VirtualHost, traffic: Traffic, samples: SampleRange | None = None
) -> VhostRow:
    options = vhost.options
    values = vhost_values(vhost, traffic)
    value_of = dict(zip(VHOST_FIELDS, values, strict=True))
    series = broker.metrics.vhosts.get(vhost)
    ready, unacked = value_of["messages_ready"], value_of["messages_unacknowledged"]
    metadata: Metadata = {
        "description": options.get("description", ""),
        "tags": options.get("tags", []),
        "default_queue_type": options.get("default_queue_type", "classic"),
    }
    totals = queue_totals(ready, unacked, series, VHOST_FIELDS, samples)
    rates = byte_rates(series, samples, VHOST_FIELDS.index("recv_oct"))
    row: VhostRow = {
        "name": vhost.name,
        "description": metadata["description"],
        "tags": metadata["tags"],
        "default_queue_type": metadata["default_queue_type"],
        "protected_from_deletion": options.get("protected_from_deletion", False),
        "metadata": metadata,
        "tracing": options.get("tracing", False),
        "cluster_state": {broker.settings.node_name: "running"},
        "messages": totals["messages"],
        "messages_details": totals["messages_details"],
        "messages_ready": totals["messages_ready"],
        "messages_ready_details": totals["messages_ready_details"],
        "messages_unacknowledged": totals["messages_unacknowledged"],
        "messages_unacknowledged_details": totals["messages_unacknowledged_details"],
        "recv_oct": value_of["recv_oct"],
        "send_oct": value_of["send_oct"],
        "recv_oct_details": rates["recv_oct_details"],
        "send_oct_details": rates["send_oct_details"],
    }
    stats = message_stats(VHOST_FIELDS, values, series, samples)
    if stats:
        row["message_stats"] = stats
    return row
