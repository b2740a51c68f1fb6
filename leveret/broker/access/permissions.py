"""Which permission on which object each action requires: one table for AMQP, HTTP and the tests.

An action names the objects it touches (`queue`, `exchange`, ...); a requirement is a permission on
one of them. Callers check the requirements of the objects they name, in the table's order, so that
another check can come between two of them. Topic permissions apply to routing keys of topic
exchanges, and only to users who have a topic permission there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Permission(StrEnum):
    CONFIGURE = "configure"
    WRITE = "write"
    READ = "read"


class Action(StrEnum):
    """AMQP methods, which HTTP shares, and actions that exist over HTTP only."""

    QUEUE_DECLARE = "queue.declare"
    QUEUE_INSPECT = "queue.declare passive"
    QUEUE_DEAD_LETTER = "queue.declare with a dead-letter exchange"
    QUEUE_PARTITION = "queue.declare with a new partition"
    QUEUE_TAKE_OVER = "queue.declare with an existing partition"
    QUEUE_DELETE = "queue.delete"
    QUEUE_BIND = "queue.bind"
    QUEUE_UNBIND = "queue.unbind"
    QUEUE_PURGE = "queue.purge"
    EXCHANGE_DECLARE = "exchange.declare"
    EXCHANGE_INSPECT = "exchange.declare passive"
    EXCHANGE_ALTERNATE = "exchange.declare with an alternate exchange"
    EXCHANGE_DELETE = "exchange.delete"
    EXCHANGE_BIND = "exchange.bind"
    EXCHANGE_UNBIND = "exchange.unbind"
    PUBLISH = "basic.publish"
    CONSUME = "basic.consume"
    GET = "basic.get"
    LOG_DECLARE = "log declare"
    LOG_DELETE = "log delete"
    LOG_APPEND = "log append"
    LOG_READ = "log read"
    LOG_GROUP = "log group: join, fetch, commit, reset"
    LOG_GROUP_DELETE = "log group delete"
    SCHEDULE_READ = "scheduled messages read"
    SCHEDULE_CANCEL = "scheduled message cancel"


@dataclass(frozen=True, slots=True)
class Requirement:
    """A permission on the object called `of`; None means that any permission will do."""

    of: str
    kind: str
    permission: Permission | None


_QUEUE, _EXCHANGE = "queue", "exchange"
_CONFIGURE, _WRITE, _READ = Permission.CONFIGURE, Permission.WRITE, Permission.READ
_BIND_QUEUE = (
    Requirement("destination", _QUEUE, _WRITE),
    Requirement("source", _EXCHANGE, _READ),
)
_BIND_EXCHANGE = (
    Requirement("destination", _EXCHANGE, _WRITE),
    Requirement("source", _EXCHANGE, _READ),
)

REQUIREMENTS: Mapping[Action, tuple[Requirement, ...]] = {
    Action.QUEUE_DECLARE: (Requirement("queue", _QUEUE, _CONFIGURE),),
    Action.QUEUE_INSPECT: (Requirement("queue", _QUEUE, None),),
    Action.QUEUE_DEAD_LETTER: (
        Requirement("queue", _QUEUE, _READ),
        Requirement("exchange", _EXCHANGE, _WRITE),
    ),
    Action.QUEUE_PARTITION: (Requirement("partition", _QUEUE, _CONFIGURE),),
    Action.QUEUE_TAKE_OVER: (
        Requirement("partition", _QUEUE, _CONFIGURE),
        Requirement("partition", _QUEUE, _WRITE),
        Requirement("partition", _QUEUE, _READ),
    ),
    Action.QUEUE_DELETE: (Requirement("queue", _QUEUE, _CONFIGURE),),
    Action.QUEUE_BIND: _BIND_QUEUE,
    Action.QUEUE_UNBIND: _BIND_QUEUE,
    Action.QUEUE_PURGE: (Requirement("queue", _QUEUE, _READ),),
    Action.EXCHANGE_DECLARE: (Requirement("exchange", _EXCHANGE, _CONFIGURE),),
    Action.EXCHANGE_INSPECT: (Requirement("exchange", _EXCHANGE, None),),
    Action.EXCHANGE_ALTERNATE: (
        Requirement("exchange", _EXCHANGE, _READ),
        Requirement("alternate", _EXCHANGE, _WRITE),
    ),
    Action.EXCHANGE_DELETE: (Requirement("exchange", _EXCHANGE, _CONFIGURE),),
    Action.EXCHANGE_BIND: _BIND_EXCHANGE,
    Action.EXCHANGE_UNBIND: _BIND_EXCHANGE,
    Action.PUBLISH: (Requirement("exchange", _EXCHANGE, _WRITE),),
    Action.CONSUME: (Requirement("queue", _QUEUE, _READ),),
    Action.GET: (Requirement("queue", _QUEUE, _READ),),
    Action.LOG_DECLARE: (Requirement("log", _QUEUE, _CONFIGURE),),
    Action.LOG_DELETE: (Requirement("log", _QUEUE, _CONFIGURE),),
    Action.LOG_APPEND: (Requirement("log", _QUEUE, _WRITE),),
    Action.LOG_READ: (Requirement("log", _QUEUE, _READ),),
    Action.LOG_GROUP: (Requirement("log", _QUEUE, _READ),),
    Action.LOG_GROUP_DELETE: (Requirement("log", _QUEUE, _CONFIGURE),),
    Action.SCHEDULE_READ: (Requirement("exchange", _EXCHANGE, _READ),),
    Action.SCHEDULE_CANCEL: (Requirement("exchange", _EXCHANGE, _CONFIGURE),),
}

TOPIC_PERMISSIONS: Mapping[Action, Permission] = {
    Action.PUBLISH: _WRITE,
    Action.QUEUE_BIND: _READ,
    Action.QUEUE_UNBIND: _READ,
    Action.EXCHANGE_BIND: _READ,
    Action.EXCHANGE_UNBIND: _READ,
}
"""The topic permission an action requires on the exchange it publishes to or binds from."""
