"""Starting a broker with very many messages, queues and bindings: CPU time and memory.

The database is written with the broker's own store, because publishing would take minutes. Each
journal row has one message, as after publishing to the queues in turn: the slowest case to replay.
"""

import asyncio
import tempfile
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from pamqp import commands

from benchmarks.brokers import RunningBroker
from benchmarks.connection import Connection
from benchmarks.frames import delivery_mode
from benchmarks.scenarios.base import Outcome, RunLength
from benchmarks.workers import RunError
from leveret.model.definitions import (
    BindingDefinition,
    ExchangeDefinition,
    QueueDefinition,
)
from leveret.model.history import EventKind
from leveret.model.message import Address, Message
from leveret.model.run import Run
from leveret.queues.storage.sql_store import SqlStore

_EXCHANGE = "bench.restart"
_BODY = bytes(100)
_PER_BATCH = 5_000
_MEGABYTE = 1_000_000


@dataclass(frozen=True, slots=True)
class FullRestart:
    messages: int = 1_000_000
    queues: int = 20_000
    bindings: int = 5

    def prepare(self, broker: RunningBroker) -> None:
        """Does nothing: every run starts its own broker."""

    def run(self, broker: RunningBroker, length: RunLength) -> Outcome:
        queues = max(1, int(self.queues * length.share))
        each = self.messages // self.queues
        with tempfile.TemporaryDirectory(prefix="leveret-bench-restart-") as home:
            broker.another(data=Path(home)).stop()  # makes the user
            asyncio.run(self._write(Path(home), queues, each))
            running = broker.another(data=Path(home))
            try:
                cpu, memory = running.cpu_seconds(), running.resident()
                _check(running, queues, each)
            finally:
                running.stop()
        return Outcome({"cpu": cpu, "memory": memory / _MEGABYTE})

    def clean_up(self, broker: RunningBroker) -> None:
        """Does nothing: a run leaves nothing behind."""

    async def _write(self, data: Path, queues: int, each: int) -> None:
        store = SqlStore(data, on_committed=lambda batch: None, on_failed=lambda batch: None)
        first = store.recover().last_queue_id + 1
        store.save(ExchangeDefinition("/", _EXCHANGE, "topic"))
        for number in range(queues):
            store.save(QueueDefinition(first + number, "/", _name(number)))
            for binding in range(self.bindings):
                key = f"site{number}.room{binding}.#"
                store.save(BindingDefinition("/", _EXCHANGE, _name(number), "queue", key))
        properties = delivery_mode(persistent=True)
        for count, (_, number) in enumerate(product(range(each), range(queues))):
            message = Message.build(Address.of("", _name(number)), properties, _BODY)
            message.id = next(store.ids)
            store.append(Run.of([message]))
            store.record(EventKind.ENQUEUED, first + number, message.id, size=len(_BODY))
            if count % _PER_BATCH == 0:
                store.flush()
                while store.backlog:  # noqa: ASYNC110 - the store has no event to wait for
                    await asyncio.sleep(0.001)
        await store.close()


def _name(number: int) -> str:
    return f"bench.restart.{number:05}"


def _check(running: RunningBroker, queues: int, each: int) -> None:
    with Connection(running.address) as connection:
        declare = commands.Queue.Declare(queue=_name(queues - 1), passive=True)
        found = connection.call(declare).message_count
    if found != each:
        raise RunError(f"{each:,} messages written to a queue, {found:,} found")
