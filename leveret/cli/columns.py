"""rabbitmqctl's columns, and the field of the HTTP API for each.

A `Listing` maps rabbitmqctl's name of a column to a dotted path in the API's objects; `=text` is a
constant. Columns that only Leveret has are at the end of their table.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from leveret.cli.api import Json
from leveret.cli.errors import CliError, ExitCode


@dataclass(frozen=True, slots=True)
class Listing:
    """The columns of one kind of object, and those shown by default."""

    paths: Mapping[str, str]
    default: Sequence[str]

    @property
    def help_text(self) -> str:
        """The columns, for the help page of a command that takes them."""
        return (
            f"**Columns:** {', '.join(sorted(self.paths))}. **Shown by default:** "
            f"{', '.join(self.default)}. A name with a dot selects any field of the HTTP API."
        )

    def select(self, requested: Sequence[str] | None) -> list[str]:
        """Return the columns to show; a dotted name selects any field of the API."""
        names = [name for word in requested or () for name in word.split(",") if name]
        for name in names:
            if name not in self.paths and "." not in name:
                raise CliError(f"unknown column {name!r}; {self._hint(name)}", ExitCode.USAGE)
        return names or list(self.default)

    def _hint(self, name: str) -> str:
        columns = f"columns are {', '.join(sorted(self.paths))}."
        nearest = difflib.get_close_matches(name, self.paths, n=1)
        return f"did you mean {nearest[0]}? {columns.capitalize()}" if nearest else columns

    def fields(self, columns: Iterable[str]) -> str:
        """Return the `columns` query that fetches only the fields shown."""
        paths = (self.paths.get(name, name) for name in columns)
        return ",".join(sorted({path for path in paths if not path.startswith("=")}))

    def rows(self, columns: Sequence[str], items: Iterable[Json]) -> list[list[Json]]:
        return [[self._value(name, item) for name in columns] for item in items]

    def _value(self, name: str, item: Json) -> Json:
        path = self.paths.get(name, name)
        return path[1:] if path.startswith("=") else value_at(item, path)


def value_at(item: Json, path: str) -> Json:
    """Return the value at a dotted path or None; a key that contains the dots has priority."""
    if isinstance(item, dict) and path in item:
        return item[path]
    for key in path.split("."):
        if not isinstance(item, dict):
            return None
        item = item.get(key)
    return item


def _same(*names: str) -> dict[str, str]:
    return {name: name for name in names}


QUEUES = Listing(
    _same("name", "durable", "auto_delete", "arguments", "policy", "exclusive", "type", "state")
    | _same("messages", "messages_ready", "messages_unacknowledged", "messages_persistent")
    | _same("messages_ram", "messages_ready_ram", "messages_unacknowledged_ram")
    | _same("message_bytes", "message_bytes_ready", "message_bytes_unacknowledged")
    | _same("message_bytes_ram", "message_bytes_persistent", "head_message_timestamp")
    | _same("consumers", "consumer_utilisation", "consumer_capacity", "memory")
    | _same("disk_reads", "disk_writes", "leader", "members", "online")
    | {"pid": "node", "owner_pid": "owner_pid_details.name"}
    | _same("exclusive_consumer_pid", "exclusive_consumer_tag", "single_active_consumer_tag")
    | {"slave_pids": "slave_nodes", "synchronised_slave_pids": "synchronised_slave_nodes"}
    | _same("vhost", "node", "idle_since", "operator_policy", "effective_policy_definition")
    | _same("oldest_ready_age_ms", "oldest_unacked_age_ms")
    | {"publish_rate": "message_stats.publish_details.rate"}
    | {"deliver_rate": "message_stats.deliver_get_details.rate"}
    | {"ack_rate": "message_stats.ack_details.rate"},
    ("name", "messages"),
)

EXCHANGES = Listing(
    _same("name", "type", "durable", "auto_delete", "internal", "arguments", "policy", "vhost")
    | {"publish_in_rate": "message_stats.publish_in_details.rate"}
    | {"publish_out_rate": "message_stats.publish_out_details.rate"},
    ("name", "type"),
)

BINDINGS = Listing(
    {
        "source_name": "source",
        "source_kind": "=exchange",
        "destination_name": "destination",
        "destination_kind": "destination_type",
        "routing_key": "routing_key",
        "arguments": "arguments",
        "vhost": "vhost",
        "properties_key": "properties_key",
    },
    (
        "source_name",
        "source_kind",
        "destination_name",
        "destination_kind",
        "routing_key",
        "arguments",
    ),
)

CONNECTIONS = Listing(
    _same("name", "user", "vhost", "state", "channels", "protocol", "auth_mechanism", "timeout")
    | _same("host", "port", "peer_host", "peer_port", "frame_max", "channel_max", "connected_at")
    | _same("client_properties", "recv_oct", "recv_cnt", "send_oct", "send_cnt", "send_pend")
    | _same("ssl", "ssl_protocol", "ssl_key_exchange", "ssl_cipher", "ssl_hash")
    | _same("peer_cert_subject", "peer_cert_issuer", "peer_cert_validity", "node")
    | {"pid": "name"},
    ("user", "peer_host", "peer_port", "state"),
)

CHANNELS = Listing(
    _same("name", "number", "user", "vhost", "transactional", "confirm", "consumer_count", "state")
    | _same("messages_unacknowledged", "messages_uncommitted", "messages_unconfirmed")
    | _same("acks_uncommitted", "prefetch_count", "global_prefetch_count", "node")
    | {"pid": "name", "connection": "connection_details.name"},
    ("pid", "user", "consumer_count", "messages_unacknowledged"),
)

CONSUMERS = Listing(
    _same("consumer_tag", "ack_required", "prefetch_count", "active", "activity_status")
    | _same("arguments", "exclusive")
    | {"queue_name": "queue.name", "channel_pid": "channel_details.name"}
    | {"vhost": "queue.vhost", "user": "channel_details.user"},
    (
        "queue_name",
        "channel_pid",
        "consumer_tag",
        "ack_required",
        "prefetch_count",
        "active",
        "arguments",
    ),
)

VHOSTS = Listing(
    _same("name", "description", "tags", "tracing", "default_queue_type", "cluster_state")
    | _same("messages", "messages_ready", "messages_unacknowledged"),
    ("name",),
)

USERS = Listing({"user": "name", "tags": "tags", "limits": "limits"}, ("user", "tags"))

PERMISSIONS = Listing(
    _same("user", "vhost", "configure", "write", "read"), ("user", "configure", "write", "read")
)
USER_PERMISSIONS = Listing(PERMISSIONS.paths, ("vhost", "configure", "write", "read"))

TOPIC_PERMISSIONS = Listing(
    _same("user", "vhost", "exchange", "write", "read"), ("user", "exchange", "write", "read")
)

POLICIES = Listing(
    _same("vhost", "name", "pattern", "apply-to", "definition", "priority"),
    ("vhost", "name", "pattern", "apply-to", "definition", "priority"),
)

PARAMETERS = Listing(_same("vhost", "component", "name", "value"), ("component", "name", "value"))

VHOST_LIMITS = Listing({"vhost": "vhost", "limits": "value"}, ("vhost", "limits"))
USER_LIMITS = Listing({"user": "user", "limits": "value"}, ("user", "limits"))

FEATURE_FLAGS = Listing(_same("name", "state", "stability", "desc"), ("name", "state"))
