"""A broker without sockets and with a manual clock, on a store in memory or on disk."""

from __future__ import annotations

import asyncio

from leveret.bindings import Destination, DestinationKind
from leveret.broker import Broker
from leveret.broker.messages import QueueGetter, publish
from leveret.exchange import ExchangeSpec
from leveret.launch import in_process_settings
from leveret.model.clock import ManualClock
from leveret.model.message import Address, Message, encode_properties
from leveret.queues.entry import Outcome
from leveret.queues.spec import QueueSpec
from leveret.queues.storage.memory_store import MemoryStore
from leveret.queues.storage.sql_store import SqlStore


class BrokerHarness:
    """A second start on the same directory is a restart."""

    def __init__(self, directory=None, clock=None, **settings):
        self.clock = clock or ManualClock()
        self.directory = directory
        if directory is not None:
            settings["data_dir"] = directory
        self.broker = Broker(in_process_settings(**settings), self._make_store, self.clock)

    def _make_store(self, on_committed, on_failed):
        if self.directory is None:
            return MemoryStore(on_committed=on_committed, on_failed=on_failed)
        return SqlStore(self.directory, on_committed=on_committed, on_failed=on_failed)

    @staticmethod
    async def start(directory=None, clock=None, **settings):
        harness = BrokerHarness(directory, clock, **settings)
        harness.broker.start()
        return harness

    async def stop(self):
        await self.broker.stop()

    async def restart(self, wall_ms=None):
        await self.settle()
        await self.stop()
        clock = ManualClock(self.clock.wall_ms() if wall_ms is None else wall_ms)
        return await BrokerHarness.start(self.directory, clock)

    @property
    def vhost(self):
        return self.broker.vhosts["/"]

    def queue(self, name, durable=True, **arguments):
        named = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
        return self.vhost.declare_queue(QueueSpec(name, durable, arguments=named))

    def exchange(self, name, kind, durable=True, **arguments):
        named = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
        return self.vhost.declare_exchange(ExchangeSpec(name, kind, durable, arguments=named))

    @staticmethod
    def spec(name, kind, arguments):
        return ExchangeSpec(name, kind, True, arguments=arguments)

    def bind_exchange(self, source, target, key=""):
        self.vhost.bind(source, Destination(DestinationKind.EXCHANGE, target), key, {})

    def bind(self, source, queue, key="", **arguments):
        self.vhost.bind(source, Destination(DestinationKind.QUEUE, queue), key, arguments)

    def publish(self, exchange, key, body=b"", persistent=True, **properties):
        values = {"delivery_mode": 2 if persistent else 1, **properties}
        message = Message.build(Address.of(exchange, key), encode_properties(values), body)
        return publish(self.broker, self.vhost, self.broker.users.by_name["guest"], message)

    async def settle(self):
        """Wait until nothing is left to deliver, read or commit."""
        broker = self.broker
        for _ in range(3):
            broker.scheduler.run_tick()
            await self.until(
                lambda: broker.commit_waiters.last_committed >= broker.store.batch_number
            )
            await asyncio.sleep(0)

    async def until(self, condition, seconds=60.0):
        deadline = asyncio.get_running_loop().time() + seconds
        while not condition():
            assert asyncio.get_running_loop().time() < deadline, "timed out"
            self.broker.timers.run()
            self.broker.scheduler.run_tick()
            await asyncio.sleep(0.001)

    async def advance(self, seconds):
        self.clock.advance(seconds)
        self.broker.timers.run()
        await self.settle()

    async def take(self, queue, count=1_000_000, outcome=Outcome.ACK):
        """Get and settle the messages of a queue."""
        getter = QueueGetter(self.broker, self.vhost, self.vhost.queues[queue], 0)
        deliveries = await getter.get(count)
        while not deliveries and getter.queue.ready_count:  # a busy disk outlasts one attempt
            deliveries = await getter.get(count)
        getter.settle(deliveries, outcome)
        await self.settle()
        return [delivery.entry.message for delivery in deliveries]

    async def bodies(self, queue):
        return [message.body for message in await self.take(queue)]
