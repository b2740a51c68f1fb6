"""Definitions: what clients and administrators declare, one frozen class per table.

`arguments`, `options`, `value` and `definition` are JSON text that the store does not interpret.
`Store.save` inserts or replaces by key, `Store.delete` uses only the key.
"""

from dataclasses import dataclass
from typing import Final, TypeAlias

from leveret.model.history import OriginKind


@dataclass(frozen=True, slots=True)
class VhostDefinition:
    name: str
    options: str = "{}"


@dataclass(frozen=True, slots=True)
class UserDefinition:
    name: str
    password_hash: str
    hashing: str
    tags: str = ""
    options: str = "{}"


@dataclass(frozen=True, slots=True)
class PermissionDefinition:
    user: str
    vhost: str
    configure: str = ""
    write: str = ""
    read: str = ""


@dataclass(frozen=True, slots=True)
class TopicPermissionDefinition:
    user: str
    vhost: str
    exchange: str
    write: str = ""
    read: str = ""


@dataclass(frozen=True, slots=True)
class ExchangeDefinition:
    vhost: str
    name: str
    kind: str = "direct"
    auto_delete: bool = False
    internal: bool = False
    arguments: str = "{}"


@dataclass(frozen=True, slots=True)
class QueueDefinition:
    """The key is `id`, which is never reused; a deleted queue keeps its row while history needs it.

    `durable=False`: a transient queue, stored so that history can name it; it is not recovered.
    `delivered_to`: every message up to this id may have been delivered before. It is exact after
    a clean stop; while the broker runs, it is the queue's lease, saved ahead of the deliveries.
    """

    id: int
    vhost: str
    name: str
    kind: str = "classic"
    durable: bool = True
    auto_delete: bool = False
    exclusive: bool = False
    arguments: str = "{}"
    created_ms: int = 0
    delivered_to: int = 0


@dataclass(frozen=True, slots=True)
class BindingDefinition:
    """Every field is part of the key."""

    vhost: str
    source: str
    destination: str
    destination_kind: str = "queue"
    routing_key: str = ""
    arguments: str = "{}"


@dataclass(frozen=True, slots=True)
class PolicyDefinition:
    vhost: str
    name: str
    operator: bool = False
    pattern: str = ""
    apply_to: str = "all"
    priority: int = 0
    definition: str = "{}"


@dataclass(frozen=True, slots=True)
class ParameterDefinition:
    """A runtime parameter; a global parameter has an empty vhost and component."""

    vhost: str
    component: str
    name: str
    value: str = "null"


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """The committed offset of a consumer group in one partition (a log-mode queue)."""

    queue_id: int
    group_name: str
    offset: int = 0
    time_ms: int = 0


@dataclass(frozen=True, slots=True)
class LogEnd:
    """Where a log ends: it had all offsets below `next_offset`, and assigned none from
    `reserved_to` on. Only the store saves it."""

    queue_id: int
    next_offset: int = 0
    reserved_to: int = 0


@dataclass(frozen=True, slots=True)
class Origin:
    """A channel that publishes or consumes; the caller assigns ids and never reuses them."""

    id: int
    kind: OriginKind
    vhost: str = ""
    user: str = ""
    connection: str = ""
    channel: int = 0
    consumer_tag: str = ""
    created_ms: int = 0
    closed_ms: int | None = None


Definition: TypeAlias = (
    VhostDefinition
    | UserDefinition
    | PermissionDefinition
    | TopicPermissionDefinition
    | ExchangeDefinition
    | QueueDefinition
    | BindingDefinition
    | PolicyDefinition
    | ParameterDefinition
    | GroupOffset
    | LogEnd
    | Origin
)

DEFINITION_TABLES: Final[dict[type[object], str]] = {
    VhostDefinition: "vhosts",
    UserDefinition: "users",
    PermissionDefinition: "permissions",
    TopicPermissionDefinition: "topic_permissions",
    ExchangeDefinition: "exchanges",
    QueueDefinition: "queues",
    BindingDefinition: "bindings",
    PolicyDefinition: "policies",
    ParameterDefinition: "parameters",
    GroupOffset: "group_offsets",
    LogEnd: "log_ends",
    Origin: "origins",
}
"""The table of each definition; every field of the class is a column of that name."""
