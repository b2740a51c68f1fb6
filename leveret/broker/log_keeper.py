"""Makes logs, takes them up again after a restart, keeps them in shape, and lets them go.

Each log has a directory `logs/<queue id>`; the id is never used again. A deleted log's directory
is renamed when the deletion is on disk and removed afterwards; what a crash leaves of it goes at
the next start. A directory that nobody knows is never removed.
With nothing on disk (`--memory`) logs live in a temporary directory, in memory where there is one.

Threads: event loop; reads and compaction on one thread of their own, segments on the writer's. The
files of a new log are made by the writer, too, in the batch that makes the log known.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Container, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, cast

from bindings import Destination, DestinationKind
from bindings.partition import ORDER_ARGUMENT
from exchange import SUPER_STREAM, ExchangeSpec
from leveret.model.errors import BrokerError, PreconditionFailed
from leveret.model.store import (
    Definition,
    GroupOffset,
    LogSink,
    QueueDefinition,
    StoreState,
)
from queues import HeldQueue, QueueSpec
from queues.log import FoundingSink, LogError, Partition, PartitionSettings, compact
from queues.stream import LogQueue, LogSpec, PartitionedLog, parse_log_spec
from queues.stream.cursor import Crowd
from queues.stream.front import LogFront, LogIdentity
from queues.stream.readers import Surroundings

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.vhost import VirtualHost

log = logging.getLogger("leveret.log")

TIDY_SECONDS = 5.0
FILES_EACH = 3
_GONE = ".deleted"


class LogKeeper:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._queues: dict[LogSink, LogQueue] = {}
        self._founding = FoundingSink()
        self._unfounded: dict[Partition, LogQueue] = {}
        self._waiting: list[tuple[VirtualHost, QueueSpec, QueueDefinition]] = []
        self._is_recovering = False
        self.ends: dict[str, int] = {}
        """Where to cut logs that are taken up, by the name of their directory."""
        self._home: Path | None = None
        self._readers = ThreadPoolExecutor(1, "leveret-log-reader")
        self._tidiers = ThreadPoolExecutor(1, "leveret-log-tidier")
        self._tidied: dict[LogQueue, int] = {}
        self._compacted_to: dict[LogQueue, int] = {}
        self._next_tidy = broker.clock.monotonic() + TIDY_SECONDS
        self._removals: set[asyncio.Future[None]] = set()
        self._crowd = Crowd()
        self._tidying: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<LogKeeper of {len(self._queues)} logs>"

    @property
    def queues(self) -> list[LogQueue]:
        return list(self._queues.values())

    # Making ------------------------------------------------------------------------------------

    def make(self, vhost: VirtualHost, spec: QueueSpec, definition: QueueDefinition) -> HeldQueue:
        where = _where(vhost, spec.name)
        log_spec = parse_log_spec(spec, where)
        if not log_spec.partitions:
            return self._open(spec, log_spec, LogIdentity(definition.id, where))
        partitions = self._make_partitions(vhost, spec, log_spec)
        identity = LogIdentity(definition.id, where)
        return PartitionedLog(spec, log_spec, identity, partitions, self._around())

    def _make_partitions(
        self, vhost: VirtualHost, spec: QueueSpec, log_spec: LogSpec
    ) -> list[LogQueue]:
        """New ones, or those that are there: definitions name them before the whole."""
        names = partition_names(spec.name, log_spec.partitions)
        exchange = vhost.exchanges.get(spec.name)
        if exchange is not None and exchange.spec.arguments.get(SUPER_STREAM) is not True:
            raise PreconditionFailed(f"exchange '{spec.name}' in vhost '{vhost.name}' exists")
        for name in names:
            if name in vhost.queues and not is_free(vhost.queues[name]):
                raise PreconditionFailed(f"{_where(vhost, name)} exists")
        made = self._declare_all(vhost, spec, names)
        vhost.declare_exchange(
            ExchangeSpec(spec.name, "direct", durable=True, arguments={SUPER_STREAM: True})
        )
        for number, name in enumerate(names):
            queue = Destination(DestinationKind.QUEUE, name)
            vhost.bind(spec.name, queue, str(number), {ORDER_ARGUMENT: number})
        return made

    def _declare_all(self, vhost: VirtualHost, spec: QueueSpec, names: list[str]) -> list[LogQueue]:
        """All partitions or none."""
        before = {name for name in names if name in vhost.queues}
        made: list[HeldQueue] = []
        try:
            for name in names:
                made.append(vhost.declare_queue(partition_spec(spec, name)))
        except BrokerError:
            for queue in made:
                if queue.name not in before:
                    vhost.forget_queue(queue)
            raise
        return [queue for queue in made if isinstance(queue, LogQueue)]

    def _open(self, spec: QueueSpec, log_spec: LogSpec, identity: LogIdentity) -> LogQueue:
        directory, is_new = self._directory(identity.id), not self._is_recovering
        settings = PartitionSettings(log_spec.segment_bytes, not self._broker.settings.memory)
        if is_new:
            self._require_files(identity.where)
        try:
            partition = Partition(directory, settings, self.ends.get(directory.name), is_new)
        except (OSError, LogError) as error:
            raise BrokerError(f"cannot open {identity.where}: {error}") from error
        if partition.cut_bytes:
            log.warning("%s: %d bytes of a torn end cut off", identity.where, partition.cut_bytes)
        queue = LogQueue(
            spec,
            log_spec,
            identity,
            (partition, self._readers),
            self._broker.store,
            self._around(),
        )
        self._queues[queue.sink] = queue
        if is_new:
            self._unfounded[partition] = queue
            self._broker.store.append_log(self._founding, partition)
        return queue

    def _require_files(self, where: str) -> None:
        """Half of what may be open is for logs: without files nobody can connect."""
        may = open_files_limit() // 2 // FILES_EACH
        if len(self._queues) >= may:
            raise PreconditionFailed(
                f"cannot make {where}: {may} logs and partitions keep half of the files open that "
                "this process may open (ulimit -n)"
            )

    def _directory(self, queue_id: int) -> Path:
        if self._home is None:
            if self._broker.settings.memory:
                shm = Path("/dev/shm")  # noqa: S108 - a directory of our own is made in it
                parent = shm if os.access(shm, os.W_OK) else None
                self._home = Path(tempfile.mkdtemp(prefix="leveret-logs-", dir=parent))
            else:
                self._home = self._broker.settings.data_dir / "logs"
        return self._home / str(queue_id)

    def _around(self) -> Surroundings:
        broker = self._broker
        return Surroundings(
            touch=broker.turn.touch,
            save_offset=self._save_offset,
            forget_offset=lambda queue_id, group: broker.store.delete(GroupOffset(queue_id, group)),
            defer=self._when_saved,
            now_ms=broker.clock.wall_ms,
            crowd=self._crowd,
        )

    def _save_offset(self, queue_id: int, group: str, offset: int) -> None:
        now = self._broker.clock.wall_ms()
        self._broker.store.save(GroupOffset(queue_id, group, offset, now))
        self._broker.turn.schedule()

    def _when_saved(self, call: Callable[[], None]) -> None:
        """A batch that fails hands its offsets on to the next one, so that one is waited for."""
        commits, store = self._broker.commits, self._broker.store
        if store.state is not StoreState.FAILED:
            commits.after(store.mark, call, lambda: self._when_saved(call))

    # Recovery ----------------------------------------------------------------------------------

    def take_up(self, vhost: VirtualHost, spec: QueueSpec, definition: QueueDefinition) -> None:
        """A log that was there before; a partitioned one waits until its partitions are."""
        self._is_recovering = True
        try:
            log_spec = parse_log_spec(spec, _where(vhost, spec.name))
            if log_spec.partitions:
                self._waiting.append((vhost, spec, definition))
            else:
                vhost.adopt_queue(self.make(vhost, spec, definition))
        except BrokerError as error:
            log.error("a log is not taken up: %s", error.explanation)
        finally:
            self._is_recovering = False

    def taken_up(self, definitions: Iterable[Definition]) -> None:
        """All partitions are there: join them, and put groups where they were."""
        for vhost, spec, definition in self._waiting:
            self._take_up_whole(vhost, spec, definition)
        self._waiting.clear()
        offsets: dict[int, dict[str, int]] = {}
        for found in definitions:
            if isinstance(found, GroupOffset):
                offsets.setdefault(found.queue_id, {})[found.group_name] = found.offset
        for queue in self.queues:
            if queue.whole is None:
                _recover_groups(queue, [queue], offsets)
        for whole in {queue.whole: None for queue in self.queues if queue.whole is not None}:
            _recover_groups(whole, whole.partitions, offsets)
        if not self._broker.settings.memory:
            self._remove_leftovers()

    def _take_up_whole(
        self, vhost: VirtualHost, spec: QueueSpec, definition: QueueDefinition
    ) -> None:
        where = _where(vhost, spec.name)
        log_spec = parse_log_spec(spec, where)
        names = partition_names(spec.name, log_spec.partitions)
        partitions = [vhost.queues[name] for name in names if name in vhost.queues]
        logs = [queue for queue in partitions if isinstance(queue, LogQueue)]
        if len(logs) < len(names):
            log.error("%s is not taken up: %d of its partitions are", where, len(logs))
            return
        identity = LogIdentity(definition.id, where)
        vhost.adopt_queue(PartitionedLog(spec, log_spec, identity, logs, self._around()))

    def _remove_leftovers(self) -> None:
        home = self._broker.settings.data_dir / "logs"
        known = {str(queue.id) for queue in self.queues}
        for directory in home.iterdir() if home.is_dir() else ():
            if directory.name.endswith(_GONE):
                shutil.rmtree(directory, ignore_errors=True)
            elif directory.name.isdecimal() and directory.name not in known:
                log.warning("%s belongs to no log that is known; it is left alone", directory)

    # Durability --------------------------------------------------------------------------------

    def committed(self, logs: Mapping[LogSink, object]) -> None:
        founded = logs.get(self._founding)
        if founded is not None:
            self._founded(cast(Mapping[Partition, OSError | None], founded))
        for sink, answer in logs.items():
            queue = self._queues.get(sink)
            if queue is not None and not queue.is_closed:
                queue.committed(cast(int, answer))

    def failed(self) -> None:
        """The definitions of that batch join the next one, and so do the files of new logs."""
        for partition in self._unfounded:
            self._broker.store.append_log(self._founding, partition)

    def _founded(self, made: Mapping[Partition, OSError | None]) -> None:
        for partition, error in made.items():
            queue = self._unfounded.pop(partition, None)
            if queue is not None and error is not None:
                self._refuse(queue, error, made)

    def _refuse(self, queue: LogQueue, error: OSError, made: Container[Partition]) -> None:
        """Its files cannot be made: it is deleted before anybody is told that it is there."""
        failure = BrokerError(f"cannot open {queue.where}: {error}")
        log.error("%s", failure.explanation)
        held: LogQueue | PartitionedLog = queue
        if queue.whole is not None:
            held = queue.whole
            held.part_with([one for one in held.partitions if one.partition not in made])
        held.failure = failure
        for vhost in self._broker.vhosts.values():
            vhost.forget_queue(held)
        self._broker.turn.schedule()

    # Keeping in shape --------------------------------------------------------------------------

    def tidy_if_due(self) -> None:
        """Compacting may take long: nobody waits for it, and it never runs twice at a time."""
        now = self._broker.clock.monotonic()
        if now >= self._next_tidy and (self._tidying is None or self._tidying.done()):
            self._next_tidy = now + TIDY_SECONDS
            self._tidying = asyncio.get_running_loop().create_task(self.tidy())

    async def tidy(self) -> None:
        """Drop what is too old or too much, compact what was asked to be compacted."""
        now = self._broker.clock.wall_ms()
        for queue in self.queues:
            if queue.is_closed:
                continue  # deleted while another one was compacted
            queue.retain(now)
            if queue.log_spec.compacted:
                await self._compact(queue, now)

    async def _compact(self, queue: LogQueue, now: int) -> None:
        """Only when a segment was sealed meanwhile, or tombstones may have become too old."""
        kept = queue.log_spec.delete_retention_ms
        tombstones_due = now - self._tidied.get(queue, 0) >= min(kept, 3_600_000)
        last = queue.partition.segments()[-1].base_offset
        if not tombstones_due and last == self._compacted_to.get(queue):
            return
        self._tidied[queue], self._compacted_to[queue] = now, last
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(
                self._tidiers, compact, queue.partition, now, kept, lambda: not queue.is_closed
            )
        except (OSError, LogError) as error:
            log.error("cannot compact %s: %s", queue.name, error)

    # Letting go --------------------------------------------------------------------------------

    def gone(self, vhost: VirtualHost, queue: HeldQueue) -> None:
        """A queue is being deleted; a log takes its partitions, exchange and files along."""
        if isinstance(queue, PartitionedLog):
            exchange = vhost.exchanges.get(queue.name)
            if exchange is not None and exchange.spec.arguments.get(SUPER_STREAM) is True:
                vhost.delete_exchange(queue.name)
            for partition in queue.partitions:
                vhost.forget_queue(partition)
        elif isinstance(queue, LogQueue):
            self._queues.pop(queue.sink, None)
            self._unfounded.pop(queue.partition, None)
            self._tidied.pop(queue, None)
            self._compacted_to.pop(queue, None)
            broker = self._broker
            broker.turn.schedule()
            # The definition is deleted when this has returned; then there is a mark to wait for.
            asyncio.get_running_loop().call_soon(
                lambda: self._when_saved(lambda: self._remove(queue))
            )

    def _remove(self, queue: LogQueue) -> None:
        removal = asyncio.get_running_loop().run_in_executor(
            self._tidiers, _remove_files, queue.partition
        )
        self._removals.add(removal)
        removal.add_done_callback(self._removals.discard)

    async def stop(self) -> None:
        """After the store: nothing is written any more."""
        waiting: set[asyncio.Future[None]] = {*self._removals}
        if self._tidying is not None:
            waiting.add(self._tidying)
        if waiting:
            await asyncio.wait(waiting)
        await asyncio.to_thread(self._close_all)
        self._queues.clear()

    def _close_all(self) -> None:
        self._readers.shutdown()
        self._tidiers.shutdown()
        for queue in self.queues:
            queue.partition.close()
        if self._broker.settings.memory and self._home is not None:
            shutil.rmtree(self._home, ignore_errors=True)


def open_files_limit() -> int:
    try:
        import resource
    except ImportError:  # not on every system
        return 1 << 20
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft != resource.RLIM_INFINITY else 1 << 20


def _recover_groups(
    held: LogQueue | PartitionedLog, logs: list[LogQueue], offsets: dict[int, dict[str, int]]
) -> None:
    names = {name for queue in logs for name in offsets.get(queue.id, ())}
    for name in names:
        known = {
            number: offsets[queue.id][name]
            for number, queue in enumerate(logs)
            if name in offsets.get(queue.id, ())
        }
        held.readers.recover_group(name, known)


def partition_names(name: str, partitions: int) -> list[str]:
    return [f"{name}-{number}" for number in range(partitions)]


def partition_spec(spec: QueueSpec, name: str) -> QueueSpec:
    """A partition of the log is declared so."""
    arguments = {key: value for key, value in spec.arguments.items() if key != "x-partitions"}
    return QueueSpec(name, True, arguments=arguments)


def is_free(queue: HeldQueue) -> bool:
    """A log of its own that nobody reads: it may become a partition."""
    if not isinstance(queue, LogQueue) or queue.whole is not None:
        return False
    return not queue.readers and not queue.readers.groups


def require_made(queue: HeldQueue) -> None:
    """Asked when its declaration is on disk: could the files of this log be made?"""
    if isinstance(queue, LogFront) and queue.failure is not None:
        raise queue.failure


def _remove_files(partition: Partition) -> None:
    partition.close()
    if not partition.is_founded:
        return
    gone = partition.directory.with_name(partition.directory.name + _GONE)
    try:
        partition.directory.rename(gone)
        shutil.rmtree(gone)
    except OSError as error:
        log.error("cannot remove %s: %s", partition.directory, error)


def _where(vhost: VirtualHost, name: str) -> str:
    return f"queue '{name}' in vhost '{vhost.name}'"
