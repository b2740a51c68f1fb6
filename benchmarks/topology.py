"""The exchanges, queues and bindings of a workload: declared before it, deleted after it."""

import time
from dataclasses import dataclass, field
from typing import Any

from pamqp import commands

from benchmarks.connection import Address, Connection, RefusedError

_FEW = 100
_EMPTY_TIMEOUT = 10.0
_POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Topology:
    """`queues` bound to `exchange` (none: the default exchange) by every key of `keys` each."""

    queues: tuple[str, ...]
    exchange: str = ""
    kind: str = "direct"
    keys: tuple[str, ...] = ()
    durable: bool = False
    arguments: dict[str, Any] = field(default_factory=dict)

    def declare(self, address: Address) -> None:
        with Connection(address) as connection:
            if self.exchange:
                connection.call(
                    commands.Exchange.Declare(
                        exchange=self.exchange, exchange_type=self.kind, durable=self.durable
                    )
                )
            for name in self.queues:
                connection.call(self._queue(name))
                self._bind(connection, name)

    def delete(self, address: Address) -> None:
        """Delete all of it; missing queues and exchanges are no error."""
        if len(self.queues) > _FEW:
            self._delete_many(address)
            return
        for name in self.queues:
            _call_and_ignore_refusal(address, commands.Queue.Delete(queue=name))
        if self.exchange:
            _call_and_ignore_refusal(address, commands.Exchange.Delete(exchange=self.exchange))

    def _delete_many(self, address: Address) -> None:
        """Delete on one channel; the last request, which has a reply, covers all of them."""
        with Connection(address) as connection:
            for name in self.queues[:-1]:
                connection.cast(commands.Queue.Delete(queue=name, nowait=True))
            connection.call(commands.Queue.Delete(queue=self.queues[-1]))

    def wait_empty(self, address: Address) -> int:
        """The number of messages left once the last acks are processed; it should be 0."""
        deadline = time.monotonic() + _EMPTY_TIMEOUT
        with Connection(address) as connection:
            while True:
                left = sum(
                    connection.call(commands.Queue.Declare(queue=name, passive=True)).message_count
                    for name in self.queues
                )
                if not left or time.monotonic() > deadline:
                    return int(left)
                time.sleep(_POLL_SECONDS)

    def _queue(self, name: str) -> commands.Queue.Declare:
        return commands.Queue.Declare(queue=name, durable=self.durable, arguments=self.arguments)

    def _bind(self, connection: Connection, name: str) -> None:
        """Bind with every key; only the last bind waits for its reply, which covers all of them."""
        for number, key in enumerate(self.keys, start=1):
            bind = commands.Queue.Bind(queue=name, exchange=self.exchange, routing_key=key)
            if number < len(self.keys):
                bind.nowait = True
                connection.cast(bind)
            else:
                connection.call(bind)


def _call_and_ignore_refusal(
    address: Address, command: commands.Queue.Delete | commands.Exchange.Delete
) -> None:
    try:
        with Connection(address) as connection:
            connection.call(command)
    except RefusedError:
        return
