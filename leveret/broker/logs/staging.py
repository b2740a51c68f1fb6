"""Makes the partitions of a wide log before the log is declared.

A log may have 1,000 partitions with five files and directories each, which takes a second. In a
batch of the store, the confirms of all clients would wait for it. So the partitions of a wide log
are made in advance: objects in small parts between the work of other clients, files on a thread of
their own. They are not in the virtual host and not in the database. The declaring client waits
meanwhile; then the log is declared with all its partitions in one step and one batch.

Partitions that are not used (an error, a client that has left, a name that was taken meanwhile)
are removed. After a crash their directories belong to no log and have no records: the next start
removes them.

Event-loop thread; the files belong to the thread of this class until the log is declared.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from leveret.bindings import Binding, Destination, DestinationKind
from leveret.bindings.partition import ORDER_ARGUMENT
from leveret.broker.names import require_unreserved
from leveret.broker.runtime.scheduler import call_guarded
from leveret.exchange import SUPER_STREAM, Exchange, ExchangeSpec
from leveret.model.arguments import dump_arguments
from leveret.model.definitions import QueueDefinition
from leveret.model.errors import BrokerError, NotFound
from leveret.queues.log.files import ParentDirectories
from leveret.queues.log.files.create import explained
from leveret.queues.log.files.remove import remove_all
from leveret.queues.log.log_queue import LogIdentity, LogQueue
from leveret.queues.log.spec import (
    MAX_PARTITIONS,
    PARTITIONS_ARGUMENT,
    LogSpec,
    parse_log_spec,
    partition_names,
    partition_spec,
)
from leveret.queues.port import Queue
from leveret.queues.spec import QueueSpec

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.logs.manager import LogManager
    from leveret.broker.vhost import VirtualHost

logger = logging.getLogger("leveret.log")

WIDE = 8
"""A log with more partitions than this is staged."""
PARTITIONS_AT_ONCE = 16
"""Made on the loop in about a millisecond."""

OnStaged = Callable[[BrokerError | None], None]
"""Called when the partitions exist, or with the reason why they do not."""
Key = tuple["VirtualHost", str, str]


@dataclass(slots=True)
class StagedLog:
    """The partitions of a log that is not declared yet, and its exchange, bound to them."""

    exchange: Exchange
    names: Sequence[str]
    partitions: list[LogQueue] = field(default_factory=list)
    definitions: list[QueueDefinition] = field(default_factory=list)
    waiting: list[OnStaged] = field(default_factory=list)
    is_complete: bool = False


class LogStaging:
    def __init__(self, broker: Broker, logs: LogManager) -> None:
        self._broker = broker
        self._logs = logs
        self._staged: dict[Key, StagedLog] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = ThreadPoolExecutor(1, "leveret-log-files")

    def __repr__(self) -> str:
        return f"<LogStaging of {len(self._staged)} logs>"

    def stage(self, vhost: VirtualHost, spec: QueueSpec, then: OnStaged) -> bool:
        """Make the partitions of a wide log, then call back; False if there is nothing to do.

        The callback declares the log, or finds that it exists meanwhile. It is called in another
        loop iteration, and everything that it does not use is removed after it.
        """
        names = _names_to_stage(vhost, spec)
        if not names:
            return False
        key = _key(vhost, spec)
        staged = self._staged.get(key)
        if staged is not None and staged.is_complete:
            return False
        if staged is None:
            require_unreserved("queue", spec.name)
            vhost.check_new_queue(spec)
            new = len(names) + sum(len(each.names) for each in self._staged.values())
            self._logs.require_files(vhost.label(spec.name), new)
            staged = self._staged[key] = StagedLog(Exchange(partitioned_exchange(spec.name)), names)
            task = asyncio.get_running_loop().create_task(self._run(key, spec))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        staged.waiting.append(then)
        return True

    async def declare(self, vhost: VirtualHost, spec: QueueSpec) -> Queue:
        """Declare a queue; if it is a wide log, stage it first."""
        declared: asyncio.Future[Queue] = asyncio.get_running_loop().create_future()
        actor = self._broker.events.actor
        user = actor.name

        def then(error: BrokerError | None) -> None:
            if declared.done():
                return  # the caller was cancelled
            try:
                if error is not None:
                    raise error
                with actor.acting_as(user):
                    declared.set_result(vhost.declare_queue(spec))
            except BrokerError as refused:
                declared.set_exception(refused)

        if self.stage(vhost, spec, then):
            return await declared
        return vhost.declare_queue(spec)

    def take(self, vhost: VirtualHost, spec: QueueSpec) -> StagedLog | None:
        """The staged log, if it is complete and nothing has taken its names meanwhile."""
        key = _key(vhost, spec)
        staged = self._staged.get(key)
        if staged is None or not staged.is_complete or not _names_to_stage(vhost, spec):
            return None
        return self._staged.pop(key)

    async def stop(self) -> None:
        """End what is not complete, and remove its files."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.to_thread(self._thread.shutdown)

    async def _run(self, key: Key, spec: QueueSpec) -> None:
        staged = self._staged[key]
        error: BrokerError | None = BrokerError("the broker is stopping")
        try:
            await self._make(key[0], staged, spec)
            staged.is_complete, error = True, None
        except (BrokerError, OSError) as problem:
            reason = f"cannot open {key[0].label(spec.name)}: {problem}"
            error = problem if isinstance(problem, BrokerError) else BrokerError(reason)
            logger.error("%s", error.explanation)
        finally:
            for then in staged.waiting:
                call_guarded(lambda then=then: then(error))  # type: ignore[misc]
            if self._staged.pop(key, None) is not None:
                self._thread.submit(remove_all, [log.partition for log in staged.partitions])

    async def _make(self, vhost: VirtualHost, staged: StagedLog, spec: QueueSpec) -> None:
        loop, parents, names = asyncio.get_running_loop(), ParentDirectories(), staged.names
        log_spec = replace(parse_log_spec(spec, vhost.label(spec.name)), partitions=0)
        for start in range(0, len(names), PARTITIONS_AT_ONCE):
            for number in range(start, min(start + PARTITIONS_AT_ONCE, len(names))):
                self._add(vhost, staged, partition_spec(spec, names[number]), log_spec)
            new = staged.partitions[start:]
            await loop.run_in_executor(self._thread, _create_files, new, parents)
            if self._broker.vhosts.get(vhost.name) is not vhost:
                raise NotFound(f"no vhost '{vhost.name}'")

    def _add(
        self, vhost: VirtualHost, staged: StagedLog, spec: QueueSpec, log_spec: LogSpec
    ) -> None:
        number = len(staged.partitions)
        definition = vhost.define_queue(spec)
        identity = LogIdentity(definition.id, vhost.label(spec.name))
        staged.partitions.append(self._logs.new_log(spec, log_spec, identity))
        staged.definitions.append(definition)
        queue = Destination(DestinationKind.QUEUE, spec.name)
        arguments = {ORDER_ARGUMENT: number}
        staged.exchange.bind(Binding.of(staged.exchange.name, queue, str(number), arguments))


def partitioned_exchange(name: str) -> ExchangeSpec:
    """The exchange of a partitioned log."""
    return ExchangeSpec(name, "direct", durable=True, arguments={SUPER_STREAM: True})


def _key(vhost: VirtualHost, spec: QueueSpec) -> Key:
    return vhost, spec.name, dump_arguments(spec.arguments)


def _names_to_stage(vhost: VirtualHost, spec: QueueSpec) -> list[str]:
    """The partitions of a wide log, unless some of it exists: then there is less to create."""
    if spec.kind != "stream" or spec.name in vhost.queues or spec.name in vhost.exchanges:
        return []
    count = spec.arguments.get(PARTITIONS_ARGUMENT)
    if not isinstance(count, int) or not WIDE < count <= MAX_PARTITIONS:
        return []
    names = partition_names(spec.name, count)
    return names if vhost.queues.keys().isdisjoint(names) else []


def _create_files(logs: Sequence[LogQueue], parents: ParentDirectories) -> None:
    """On the thread for files; synced after each part, so that nobody waits for all of them."""
    for log in logs:
        partition = log.partition
        try:
            partition.create_files()
        except OSError as error:
            reason = explained(error, partition.directory)
            raise BrokerError(f"cannot open {log.full_name}: {reason}") from error
        if partition.settings.durable:
            parents.add(partition.directory.parent)
    parents.sync()
