"""Which right on what each action takes: the one table, for AMQP and HTTP and for their tests.

An action names the things it touches (`queue`, `exchange`, ...); a need is a right on one of them.
Callers demand the needs of the things they name, in the table's order, so that an answer that must
come between two of them can. Topic needs are on routing keys of topic exchanges, and hold only for
users that have a topic permission there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Right(StrEnum):
    CONFIGURE = "configure"
    WRITE = "write"
    READ = "read"


class Action(StrEnum):
    """Methods as AMQP names them, and what only HTTP has; HTTP does the same things."""

    QUEUE_DECLARE = "queue.declare"
    QUEUE_INSPECT = "queue.declare passive"
    QUEUE_DEAD_LETTER = "queue.declare with a dead-letter exchange"
    QUEUE_PARTITION = "queue.declare with a partition to make"
    QUEUE_TAKE_OVER = "queue.declare with a partition that is there"
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
class Need:
    """A right on the thing called `of`; no right named means that any will do."""

    of: str
    kind: str
    right: Right | None


_QUEUE, _EXCHANGE = "queue", "exchange"
_CONFIGURE, _WRITE, _READ = Right.CONFIGURE, Right.WRITE, Right.READ
_BIND_QUEUE = (Need("destination", _QUEUE, _WRITE), Need("source", _EXCHANGE, _READ))
_BIND_EXCHANGE = (Need("destination", _EXCHANGE, _WRITE), Need("source", _EXCHANGE, _READ))

NEEDS: Mapping[Action, tuple[Need, ...]] = {
    Action.QUEUE_DECLARE: (Need("queue", _QUEUE, _CONFIGURE),),
    Action.QUEUE_INSPECT: (Need("queue", _QUEUE, None),),
    Action.QUEUE_DEAD_LETTER: (
        Need("queue", _QUEUE, _READ),
        Need("exchange", _EXCHANGE, _WRITE),
    ),
    Action.QUEUE_PARTITION: (Need("partition", _QUEUE, _CONFIGURE),),
    Action.QUEUE_TAKE_OVER: (
        Need("partition", _QUEUE, _CONFIGURE),
        Need("partition", _QUEUE, _WRITE),
        Need("partition", _QUEUE, _READ),
    ),
    Action.QUEUE_DELETE: (Need("queue", _QUEUE, _CONFIGURE),),
    Action.QUEUE_BIND: _BIND_QUEUE,
    Action.QUEUE_UNBIND: _BIND_QUEUE,
    Action.QUEUE_PURGE: (Need("queue", _QUEUE, _READ),),
    Action.EXCHANGE_DECLARE: (Need("exchange", _EXCHANGE, _CONFIGURE),),
    Action.EXCHANGE_INSPECT: (Need("exchange", _EXCHANGE, None),),
    Action.EXCHANGE_ALTERNATE: (
        Need("exchange", _EXCHANGE, _READ),
        Need("alternate", _EXCHANGE, _WRITE),
    ),
    Action.EXCHANGE_DELETE: (Need("exchange", _EXCHANGE, _CONFIGURE),),
    Action.EXCHANGE_BIND: _BIND_EXCHANGE,
    Action.EXCHANGE_UNBIND: _BIND_EXCHANGE,
    Action.PUBLISH: (Need("exchange", _EXCHANGE, _WRITE),),
    Action.CONSUME: (Need("queue", _QUEUE, _READ),),
    Action.GET: (Need("queue", _QUEUE, _READ),),
    Action.LOG_DECLARE: (Need("log", _QUEUE, _CONFIGURE),),
    Action.LOG_DELETE: (Need("log", _QUEUE, _CONFIGURE),),
    Action.LOG_APPEND: (Need("log", _QUEUE, _WRITE),),
    Action.LOG_READ: (Need("log", _QUEUE, _READ),),
    Action.LOG_GROUP: (Need("log", _QUEUE, _READ),),
    Action.LOG_GROUP_DELETE: (Need("log", _QUEUE, _CONFIGURE),),
    Action.SCHEDULE_READ: (Need("exchange", _EXCHANGE, _READ),),
    Action.SCHEDULE_CANCEL: (Need("exchange", _EXCHANGE, _CONFIGURE),),
}

TOPIC_NEEDS: Mapping[Action, Right] = {
    Action.PUBLISH: _WRITE,
    Action.QUEUE_BIND: _READ,
    Action.QUEUE_UNBIND: _READ,
    Action.EXCHANGE_BIND: _READ,
    Action.EXCHANGE_UNBIND: _READ,
}
"""On the routing keys; of the exchange published to, or bound from."""
