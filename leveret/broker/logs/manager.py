"""Log manager: creates logs, recovers them after a restart, cleans them, and deletes their files.

Each log has a directory `logs/<queue id>`; queue ids are never reused. When the deletion of a log
is on disk, its directory is renamed and then removed; what a crash leaves of it is removed at the
next start. A directory with records that belongs to no known log is never removed.
With `--memory` logs live in a temporary directory, in memory where the system has such a directory.

Threads: this class belongs to the event loop. Records are read on a thread of their own, compaction
and the removal of files run on another, and the store's writer thread owns the segments. It also
creates the files of a new log, in the batch that stores the log's definition; those of a wide log
are created before (`staging.py`).
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
from typing import TYPE_CHECKING

from leveret.bindings import Destination, DestinationKind
from leveret.bindings.partition import ORDER_ARGUMENT
from leveret.broker.logs.staging import LogStaging, StagedLog, partitioned_exchange
from leveret.broker.runtime.process import max_open_files
from leveret.exchange import SUPER_STREAM
from leveret.model.definitions import Definition, GroupOffset, LogEnd, QueueDefinition
from leveret.model.errors import BrokerError, PreconditionFailed
from leveret.model.store import BatchCommitted, LogSink, StoreState
from leveret.queues.log.cursor import ReadAheadBudget
from leveret.queues.log.files import (
    CreateFiles,
    LogError,
    ParentDirectories,
    Partition,
    PartitionSettings,
    RecordedEnd,
    compact,
)
from leveret.queues.log.files.remove import DELETED_SUFFIX, is_unused, remove_all
from leveret.queues.log.log_queue import (
    LogIdentity,
    LogQueue,
    PartitionedLog,
    can_become_partition,
    maybe_log,
    maybe_partition,
)
from leveret.queues.log.readers import LogContext
from leveret.queues.log.spec import LogSpec, parse_log_spec, partition_names, partition_spec
from leveret.queues.port import Queue
from leveret.queues.spec import QueueSpec

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.vhost import VirtualHost

logger = logging.getLogger("leveret.log")

CLEAN_SECONDS = 5.0
FILES_PER_LOG = 3


class LogManager:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._queues: dict[LogSink, LogQueue] = {}
        self._parents = ParentDirectories()
        self._without_files: dict[Partition, LogQueue] = {}
        """New logs whose files the writer has not created yet."""
        self._recovered_parents: list[tuple[VirtualHost, QueueSpec, QueueDefinition]] = []
        """Partitioned logs to recover after their partitions."""
        self._is_recovering = False
        self.cuts: dict[str, int] = {}
        """Offsets at which to cut recovered logs, by the name of their directory."""
        self.recorded_ends: Mapping[int, RecordedEnd] = {}
        """Where recovered logs ended, by queue id."""
        self._home: Path | None = None
        self._reader_thread = ThreadPoolExecutor(1, "leveret-log-reader")
        self._cleaner_thread = ThreadPoolExecutor(1, "leveret-log-cleaner")
        self._compacted_ms: dict[LogQueue, int] = {}
        self._compacted_to: dict[LogQueue, int] = {}
        self._next_clean = broker.clock.monotonic() + CLEAN_SECONDS
        self._deleted: list[Partition] = []
        """Deleted in this loop iteration."""
        self._removals: set[asyncio.Future[None]] = set()
        self._cleaning: asyncio.Task[None] | None = None
        self.read_ahead = ReadAheadBudget()
        self.staging = LogStaging(broker, self)
        self._context = self._make_context()

    def __repr__(self) -> str:
        return f"<LogManager of {len(self._queues)} logs>"

    @property
    def queues(self) -> list[LogQueue]:
        return list(self._queues.values())

    # Creating ------------------------------------------------------------------------------------

    def make(self, vhost: VirtualHost, spec: QueueSpec, definition: QueueDefinition) -> Queue:
        identity = LogIdentity(definition.id, _full_name(vhost, spec.name))
        log_spec = parse_log_spec(spec, identity.full_name)
        if not log_spec.partitions:
            return self._open(spec, log_spec, identity)
        partitions = self._make_partitions(vhost, spec, log_spec)
        return PartitionedLog(spec, log_spec, identity, partitions, self._context)

    def _make_partitions(
        self, vhost: VirtualHost, spec: QueueSpec, log_spec: LogSpec
    ) -> list[LogQueue]:
        """New or existing partitions: a definitions file may name them before the log."""
        staged = self.staging.take(vhost, spec)
        if staged is not None:
            return self._add_staged(vhost, staged)
        names = partition_names(spec.name, log_spec.partitions)
        exchange = vhost.exchanges.get(spec.name)
        if exchange is not None and exchange.spec.arguments.get(SUPER_STREAM) is not True:
            raise PreconditionFailed(f"exchange '{spec.name}' in vhost '{vhost.name}' exists")
        for name in names:
            if name in vhost.queues and not can_become_partition(vhost.queues[name]):
                raise PreconditionFailed(f"{_full_name(vhost, name)} exists")
        partitions = self._declare_all(vhost, spec, names)
        vhost.declare_exchange(partitioned_exchange(spec.name))
        for number, name in enumerate(names):
            queue = Destination(DestinationKind.QUEUE, name)
            vhost.bind(spec.name, queue, str(number), {ORDER_ARGUMENT: number})
        return partitions

    def _add_staged(self, vhost: VirtualHost, staged: StagedLog) -> list[LogQueue]:
        for queue, definition in zip(staged.partitions, staged.definitions, strict=True):
            self._queues[queue.sink] = queue
            vhost.add_new_queue(queue, definition)
        vhost.add_new_exchange(staged.exchange)
        return staged.partitions

    def _declare_all(self, vhost: VirtualHost, spec: QueueSpec, names: list[str]) -> list[LogQueue]:
        """Declare all partitions or none."""
        existing = {name for name in names if name in vhost.queues}
        declared: list[Queue] = []
        try:
            for name in names:
                declared.append(vhost.declare_queue(partition_spec(spec, name)))
        except BrokerError:
            for queue in declared:
                if queue.name not in existing:
                    vhost.remove_queue(queue)
            raise
        return _partitions(declared)

    def _open(self, spec: QueueSpec, log_spec: LogSpec, identity: LogIdentity) -> LogQueue:
        if self._is_recovering:
            queue = self._log_queue(spec, log_spec, identity, self._recover(log_spec, identity))
            self._queues[queue.sink] = queue
            return queue
        self.require_files(identity.full_name)
        queue = self.new_log(spec, log_spec, identity)
        self._queues[queue.sink] = queue
        self._without_files[queue.partition] = queue
        self._broker.store.append_job(CreateFiles(queue.partition, self._parents))
        return queue

    def new_log(self, spec: QueueSpec, log_spec: LogSpec, identity: LogIdentity) -> LogQueue:
        """A log without files, which is not among `queues` yet."""
        settings = self._settings(log_spec)
        partition = Partition(self._directory(identity.id), settings, is_new=True)
        return self._log_queue(spec, log_spec, identity, partition)

    def _log_queue(
        self, spec: QueueSpec, log_spec: LogSpec, identity: LogIdentity, partition: Partition
    ) -> LogQueue:
        files, store = (partition, self._reader_thread), self._broker.store
        return LogQueue(spec, log_spec, identity, files, store, self._context)

    def _settings(self, log_spec: LogSpec) -> PartitionSettings:
        is_durable = not self._broker.settings.memory
        return PartitionSettings(log_spec.segment_bytes, is_durable, log_spec.compacted)

    def _recover(self, log_spec: LogSpec, identity: LogIdentity) -> Partition:
        """Open the files of a log, and report what is lost of it."""
        directory, recorded = self._directory(identity.id), self.recorded_ends.get(identity.id)
        try:
            cut, settings = self.cuts.get(directory.name), self._settings(log_spec)
            partition = Partition(directory, settings, cut, recorded=recorded)
        except (OSError, LogError) as error:
            raise BrokerError(f"cannot open {identity.full_name}: {error}") from error
        if partition.cut_bytes:
            logger.warning(
                "%s: cut %d bytes of an incomplete batch at the end of the log",
                identity.full_name,
                partition.cut_bytes,
            )
        for damage in partition.damage():
            until = "" if damage.next_offset is None else f" to {damage.next_offset - 1}"
            logger.error(
                "%s: offsets %d%s are lost (%s); consumers skip them",
                identity.full_name,
                damage.first_offset,
                until,
                damage.reason,
            )
        return partition

    def require_files(self, full_name: str, new: int = 1) -> None:
        """Logs may use half of the file descriptors; connections need the others."""
        limit = max_open_files() // 2 // FILES_PER_LOG
        if len(self._queues) + new > limit:
            raise PreconditionFailed(
                f"cannot create {full_name}: {limit} logs and partitions use half of the files "
                "that this process may open; raise its limit (ulimit -n)"
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

    def _make_context(self) -> LogContext:
        broker = self._broker
        return LogContext(
            mark_ready=broker.scheduler.mark_ready,
            save_offset=self._save_offset,
            delete_offset=lambda queue_id, group: broker.store.delete(GroupOffset(queue_id, group)),
            when_durable=self._when_durable,
            now_ms=broker.clock.wall_ms,
            monotonic=broker.clock.monotonic,
            read_ahead=self.read_ahead,
        )

    def _save_offset(self, queue_id: int, group: str, offset: int) -> None:
        now = self._broker.clock.wall_ms()
        self._broker.store.save(GroupOffset(queue_id, group, offset, now))
        self._broker.scheduler.schedule()

    def _when_durable(self, callback: Callable[[], None]) -> None:
        """Call it when everything done so far is on disk; never after the store has failed."""
        broker = self._broker
        if broker.store.state is not StoreState.FAILED:
            broker.commit_waiters.when_durable(callback, on_store_failed=lambda: None)

    # Recovery ------------------------------------------------------------------------------------

    def recover_log(self, vhost: VirtualHost, spec: QueueSpec, definition: QueueDefinition) -> None:
        """Open a log from its definition; `finish_recovery` opens partitioned ones."""
        self._is_recovering = True
        try:
            log_spec = parse_log_spec(spec, _full_name(vhost, spec.name))
            if log_spec.partitions:
                self._recovered_parents.append((vhost, spec, definition))
            else:
                vhost.add_queue(self.make(vhost, spec, definition))
        except BrokerError as error:
            logger.error(
                "cannot recover log '%s' in vhost '%s': %s",
                spec.name,
                vhost.name,
                error.explanation,
            )
        finally:
            self._is_recovering = False

    def finish_recovery(self, definitions: Iterable[Definition]) -> None:
        """All partitions are open: join them, and restore the groups' committed offsets."""
        for vhost, spec, definition in self._recovered_parents:
            self._recover_parent(vhost, spec, definition)
        self._recovered_parents.clear()
        offsets: dict[int, dict[str, int]] = {}
        for stored in definitions:
            if isinstance(stored, GroupOffset):
                offsets.setdefault(stored.queue_id, {})[stored.group_name] = stored.offset
        for queue in self.queues:
            if queue.partition_of is None:
                _recover_groups(queue, [queue], offsets)
        for parent in {
            queue.partition_of: None for queue in self.queues if queue.partition_of is not None
        }:
            _recover_groups(parent, parent.partitions, offsets)
        if not self._broker.settings.memory:
            known = [queue.id for queue in definitions if isinstance(queue, QueueDefinition)]
            self._remove_leftovers({str(queue_id) for queue_id in known})

    def _recover_parent(
        self, vhost: VirtualHost, spec: QueueSpec, definition: QueueDefinition
    ) -> None:
        identity = LogIdentity(definition.id, _full_name(vhost, spec.name))
        log_spec = parse_log_spec(spec, identity.full_name)
        names = partition_names(spec.name, log_spec.partitions)
        queues = [vhost.queues[name] for name in names if name in vhost.queues]
        partitions = _partitions(queues)
        if len(partitions) < len(names):
            logger.error(
                "cannot recover log '%s' in vhost '%s': only %d of %d partitions found",
                spec.name,
                vhost.name,
                len(partitions),
                len(names),
            )
            return
        vhost.add_queue(PartitionedLog(spec, log_spec, identity, partitions, self._context))

    def _remove_leftovers(self, known: Container[str]) -> None:
        home = self._broker.settings.data_dir / "logs"
        for directory in home.iterdir() if home.is_dir() else ():
            if directory.name.endswith(DELETED_SUFFIX):
                shutil.rmtree(directory, ignore_errors=True)
            elif not directory.name.isdecimal() or directory.name in known:
                continue
            elif is_unused(directory):
                shutil.rmtree(directory, ignore_errors=True)
            else:
                logger.warning("%s belongs to no known log; it is kept", directory)

    # Durability ----------------------------------------------------------------------------------

    def on_committed(self, batch: BatchCommitted) -> None:
        if batch.jobs:
            self._on_files_created([job for job in batch.jobs if isinstance(job, CreateFiles)])
        for sink, next_offset in batch.logs.items():
            queue = self._queues.get(sink)
            if queue is not None and not queue.is_closed:
                queue.on_committed(next_offset)

    def on_failed(self) -> None:
        """The batch's definitions are carried to the next one, so create the files there, too."""
        for partition in self._without_files:
            self._broker.store.append_job(CreateFiles(partition, self._parents))

    def _on_files_created(self, jobs: list[CreateFiles]) -> None:
        created = {job.partition for job in jobs}
        for job in jobs:
            queue = self._without_files.pop(job.partition, None)
            if queue is not None and job.error is not None:
                self._delete_failed(queue, job.error, created)

    def _delete_failed(
        self, queue: LogQueue, error: OSError, created: Container[Partition]
    ) -> None:
        """Delete a log whose files could not be created, before its declaration is confirmed.

        Of a partitioned log, partitions that existed before (not in `created`) are kept.
        """
        failure = BrokerError(f"cannot open {queue.full_name}: {error}")
        logger.error("%s", failure.explanation)
        deleted: LogQueue | PartitionedLog = queue
        if queue.partition_of is not None:
            deleted = queue.partition_of
            deleted.detach([part for part in deleted.partitions if part.partition not in created])
        deleted.failure = failure
        for vhost in self._broker.vhosts.values():
            vhost.remove_queue(deleted)
        self._broker.scheduler.schedule()

    # Cleaning ------------------------------------------------------------------------------------

    def clean_if_due(self) -> None:
        """Start cleaning in the background; it may take long, and never runs twice at a time."""
        now = self._broker.clock.monotonic()
        if now >= self._next_clean and (self._cleaning is None or self._cleaning.done()):
            self._next_clean = now + CLEAN_SECONDS
            self._cleaning = asyncio.get_running_loop().create_task(self.clean())

    async def clean(self) -> None:
        """Apply retention to all logs, and compact those with a compact cleanup policy."""
        now = self._broker.clock.wall_ms()
        for queue in self.queues:
            if queue.is_closed:
                continue  # deleted while another log was compacted
            queue.apply_retention(now)
            if queue.log_spec.compacted:
                await self._compact(queue, now)

    async def _compact(self, queue: LogQueue, now: int) -> None:
        """Compact if a segment was sealed since the last time, or tombstones may have expired."""
        delete_retention = queue.log_spec.delete_retention_ms
        tombstones_due = now - self._compacted_ms.get(queue, 0) >= min(delete_retention, 3_600_000)
        last = queue.partition.segments()[-1].base_offset
        if not tombstones_due and last == self._compacted_to.get(queue):
            return
        self._compacted_ms[queue], self._compacted_to[queue] = now, last
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(
                self._cleaner_thread,
                compact,
                queue.partition,
                now,
                delete_retention,
                lambda: not queue.is_closed,
                queue.addresses,
            )
        except (OSError, LogError) as error:
            logger.error("cannot compact %s: %s", queue.full_name, error)

    # Deleting ------------------------------------------------------------------------------------

    def on_queue_deleted(self, vhost: VirtualHost, queue: Queue) -> None:
        """Delete what belongs to a deleted log: its partitions, exchange and files."""
        partition = maybe_partition(queue)
        if partition is not None:
            self._on_partition_deleted(partition)
        elif maybe_log(queue) is not None:
            exchange = vhost.exchanges.get(queue.name)
            if exchange is not None and exchange.spec.arguments.get(SUPER_STREAM) is True:
                vhost.delete_exchange(queue.name)
            for part in queue.partitions:
                vhost.remove_queue(part)

    def _on_partition_deleted(self, queue: LogQueue) -> None:
        self._queues.pop(queue.sink, None)
        self._without_files.pop(queue.partition, None)
        self._compacted_ms.pop(queue, None)
        self._compacted_to.pop(queue, None)
        self._broker.scheduler.schedule()
        if not self._deleted:
            asyncio.get_running_loop().call_soon(self._remove_deleted)
        self._deleted.append(queue.partition)

    def _remove_deleted(self) -> None:
        """The definitions are deleted, but not yet on disk, and the files must outlive them."""
        deleted, self._deleted = self._deleted, []
        self._when_durable(lambda: self._remove(deleted))

    def _remove(self, deleted: list[Partition]) -> None:
        removal = asyncio.get_running_loop().run_in_executor(
            self._cleaner_thread, remove_all, deleted
        )
        self._removals.add(removal)
        removal.add_done_callback(self._removals.discard)

    async def stop(self) -> None:
        """Called after the store is closed: nothing is written any more."""
        pending: set[asyncio.Future[None]] = {*self._removals}
        if self._cleaning is not None:
            pending.add(self._cleaning)
        if pending:
            await asyncio.wait(pending)
        await asyncio.to_thread(self._close_all)
        self._queues.clear()

    def _close_all(self) -> None:
        self._reader_thread.shutdown()
        self._cleaner_thread.shutdown()
        for queue in self.queues:
            queue.partition.close()
        if self._broker.settings.memory and self._home is not None:
            shutil.rmtree(self._home, ignore_errors=True)


def recorded_ends(definitions: Iterable[Definition]) -> dict[int, RecordedEnd]:
    """Where each log ended, by queue id: no group has committed an offset beyond it."""
    ends: dict[int, RecordedEnd] = {}
    for row in definitions:
        if isinstance(row, LogEnd):
            ends[row.queue_id] = RecordedEnd(row.next_offset, row.reserved_to)
    for row in definitions:
        if isinstance(row, GroupOffset):
            known = ends.get(row.queue_id, RecordedEnd(0, 0))
            ends[row.queue_id] = RecordedEnd(
                max(known.next_offset, row.offset), max(known.reserved_to, row.offset)
            )
    return ends


def _partitions(queues: Iterable[Queue]) -> list[LogQueue]:
    return [log for queue in queues if (log := maybe_partition(queue)) is not None]


def _recover_groups(
    parent: LogQueue | PartitionedLog, logs: list[LogQueue], offsets: dict[int, dict[str, int]]
) -> None:
    names = {name for queue in logs for name in offsets.get(queue.id, ())}
    for name in names:
        committed = {
            number: offsets[queue.id][name]
            for number, queue in enumerate(logs)
            if name in offsets.get(queue.id, ())
        }
        parent.readers.recover_group(name, committed)


def _full_name(vhost: VirtualHost, name: str) -> str:
    return f"queue '{name}' in vhost '{vhost.name}'"
