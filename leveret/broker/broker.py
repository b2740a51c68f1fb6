"""The broker: virtual hosts, users, and the one order in which changes become durable.

Built from a store; `start` recovers the store's content. The AMQP and HTTP servers reach every part
from here. The broker reaches them only through what they registered: connections that it can list
and close. Event-loop thread only; the store calls back on it.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum, auto
from typing import Any, Protocol

from leveret.broker import recovery
from leveret.broker.access.audit import AuditLog
from leveret.broker.access.authentication import Authenticator
from leveret.broker.access.limits import apply_limits
from leveret.broker.access.users import User, Users, hash_password
from leveret.broker.definitions.pending_import import DefinitionsImports
from leveret.broker.events import firehose
from leveret.broker.events.events import Events
from leveret.broker.logs.manager import LogManager
from leveret.broker.logs.service import LogService
from leveret.broker.metrics import Metrics
from leveret.broker.policies import policy_effects
from leveret.broker.policies.parameters import CLUSTER_NAME, GLOBAL, Parameters
from leveret.broker.policies.policies import Policies
from leveret.broker.publishing.dead_letters import DeadLetters
from leveret.broker.publishing.plugin_exchanges import PluginExchanges
from leveret.broker.publishing.republished_redelivery import RepublishedRedelivery
from leveret.broker.runtime.alarms import Alarms
from leveret.broker.runtime.clock_shift import ClockShift
from leveret.broker.runtime.commit_waiters import CommitWaiters, ConfirmLedger
from leveret.broker.runtime.resource_monitor import ResourceMonitor
from leveret.broker.runtime.scheduler import LoopScheduler
from leveret.broker.runtime.slices import run_at_once
from leveret.broker.runtime.timers import Timers
from leveret.broker.topology import TopologyHandler
from leveret.broker.vhost import Plan, VirtualHost
from leveret.broker.vhost_deletion import VhostDeletions, delete_vhost
from leveret.config import Settings
from leveret.exchange import Exchange
from leveret.model.clients import ChannelInfo, ConnectionInfo
from leveret.model.clock import Clock, SystemClock
from leveret.model.counters import SIZE_BOUNDS, Counters
from leveret.model.definitions import Origin, PermissionDefinition, VhostDefinition
from leveret.model.history import EventKind, Keep, OriginKind
from leveret.model.message import Message
from leveret.model.run import Run
from leveret.model.store import BatchCommitted, BatchFailed, OnCommitted, OnFailed, Store
from leveret.queues.classic.classic_queue import write_messages
from leveret.queues.port import EnqueueResult, Target

log = logging.getLogger("leveret.broker")

MakeStore = Callable[[OnCommitted, OnFailed], Store]
DEFAULT_VHOST = "/"


class ChannelEntry(Protocol):
    """A channel as management sees it."""

    def info(self) -> ChannelInfo: ...

    def counts(self) -> tuple[int, ...]:
        """Counters in the order of `metrics.CHANNEL_FIELDS`."""


class ConnectionEntry(Protocol):
    """A client connection as management sees it."""

    name: str
    user: User
    vhost: VirtualHost
    sent: int

    @property
    def received(self) -> int: ...

    @property
    def pending_bytes(self) -> int:
        """Bytes of incomplete messages, and of input that waits for a tick or for a commit."""

    @property
    def channels(self) -> Mapping[int, ChannelEntry]: ...

    def info(self) -> ConnectionInfo: ...

    def close(self, reason: str) -> None:
        """Close the connection: sends connection.close 320 with this reason."""

    def recheck_permissions(self) -> None:
        """The user's permissions have changed: end what it is no longer allowed to do."""


class StartKind(Enum):
    FIRST = auto()
    """The store was empty."""
    RESTART = auto()


class Broker:
    def __init__(
        self, settings: Settings, make_store: MakeStore, clock: Clock | None = None
    ) -> None:
        self.settings = settings
        self.clock: Clock = clock or SystemClock()
        self.started_ms = self.clock.wall_ms()
        self.alarms = Alarms()
        self.counters = Counters()
        # Runtime
        self.store = make_store(self._on_committed, self._on_failed)
        self.scheduler = LoopScheduler(
            lambda callback: asyncio.get_running_loop().call_soon(callback),
            self.store.flush,
            self.clock.monotonic,
        )
        self.commit_waiters = CommitWaiters(self.store, self.scheduler)
        self.timers = Timers(self.clock, self.scheduler.mark_ready)
        self.clock_shift = ClockShift()
        self.resource_monitor = ResourceMonitor(self)
        self.store.on_spilled = self.resource_monitor.resume_if_backlog_drained
        # Topology and messages
        self.vhosts: dict[str, VirtualHost] = {}
        self.topology = TopologyHandler(self)
        self.plugin_exchanges = PluginExchanges(self)
        self.dead_letters = DeadLetters(self)
        self.republished_redelivery = RepublishedRedelivery()
        self.log_manager = LogManager(self)
        self.logs = LogService(self)
        # Management
        self.connections: dict[ConnectionEntry, None] = {}
        self.metrics = Metrics(self)
        self.users = Users(self.store)
        self.policies = Policies(
            self.store, lambda vhost: policy_effects.apply_policies(self, vhost)
        )
        self.parameters = Parameters(self.store, lambda vhost: apply_limits(self, vhost))
        self.imports = DefinitionsImports(self)
        self.vhost_deletions = VhostDeletions(self)
        self.audit = AuditLog(None if settings.memory else settings.data_dir, self.clock.wall_ms)
        self.events = Events(self, DEFAULT_VHOST)
        self.authenticator = Authenticator(self)
        self.policies.on_change = self.events.policy
        self.parameters.on_change = self.events.parameter
        self.alarms.on_change = self.events.alarm
        self.users.on_change = self.authenticator.on_user_changed
        # Ids; `start` continues those of the store
        self._message_ids: Iterator[int] = itertools.count(1)
        self.queue_ids = itertools.count(1)
        self.origin_ids = itertools.count(1)
        self._http_origins: dict[tuple[str, str], int] = {}

    def __repr__(self) -> str:
        return f"<Broker vhosts={len(self.vhosts)} connections={len(self.connections)}>"

    # Starting and stopping ---------------------------------------------------------------------

    def start(self) -> StartKind:
        """Recover the store's content; on a new store, create the default vhost and user."""
        recovered = self.store.recover()
        self.clock.not_before(self.store.usage.last_ms)
        self.commit_waiters.last_committed = self.store.committed
        self._message_ids = self.store.ids
        self.queue_ids = itertools.count(recovered.last_queue_id + 1)
        self.origin_ids = itertools.count(recovered.last_origin_id + 1)
        self.clock_shift.start(recovered, self.clock, self.store)
        recovery.recover(self, recovered)
        kind = StartKind.RESTART if self.vhosts else StartKind.FIRST
        if kind is StartKind.FIRST:
            self.add_vhost(DEFAULT_VHOST, created_ms=0)
            self.make_default_user()
        elif recovered.lost and not self.users.by_name:
            self._replace_lost_users()
        self.scheduler.schedule()
        self.resource_monitor.start()
        return kind

    def _replace_lost_users(self) -> None:
        """Make the default user, unless everybody knows its password."""
        if self.settings.default_password != Settings().default_password:
            self.make_default_user()
        else:
            log.error(
                "all users are lost by damage of the database: start once with --set "
                "default_user=NAME --set default_password=PASSWORD to create an administrator"
            )

    def make_default_user(self) -> None:
        """A fast password hash is replaced by a slow one later, so that it delays no start."""
        name, password = self.settings.default_user, self.settings.default_password
        if name:
            user = self.users.put_user(name, hash_password(password), ("administrator",))
            self.users.set_permission(PermissionDefinition(name, DEFAULT_VHOST, ".*", ".*", ".*"))
            self.authenticator.convert_hash(user, password)

    async def stop(self) -> None:
        """Commit everything that was accepted, with a final snapshot of each queue."""
        await self._stop_background_work()
        for vhost in self.vhosts.values():
            for queue in vhost.queues.values():
                queue.close(deleted=False)
        await self.audit.stop()
        await self.store.close()
        await self.log_manager.stop()

    async def kill(self) -> None:
        """End without committing what is not yet committed, as a process does that is killed."""
        await self._stop_background_work()
        await self.audit.stop()
        await self.store.kill()
        await self.log_manager.stop()

    async def _stop_background_work(self) -> None:
        await self.resource_monitor.stop()
        await self.imports.stop()
        await self.vhost_deletions.stop()
        await self.log_manager.staging.stop()
        self.timers.stop()
        self.plugin_exchanges.delay_queues.stop()
        self.authenticator.stop()

    # Publishing --------------------------------------------------------------------------------

    def enqueue(
        self, plan: Plan, run: Run, confirms: ConfirmLedger | None = None
    ) -> list[EnqueueResult] | None:
        """Enqueue a run in all targets of its plan; assigns the message ids.

        Returns the worst result of all targets per message; None if all are `ACCEPTED`.
        """
        ids, sizes, targets, counters = (
            self._message_ids,
            run.body_sizes,
            plan.targets,
            self.counters,
        )
        count = len(sizes)
        run.ids = [next(ids)] if count == 1 else list(itertools.islice(ids, count))
        run.keep = plan.keep
        if not run.is_packed:
            run.assign_messages()
        counters.published += count
        counters.published_bytes += sum(sizes)
        if count == 1 or sizes.count(sizes[0]) == count:
            counters.sizes[bisect_left(SIZE_BOUNDS, sizes[0])] += count
        else:
            counters.count_sizes(sizes)
        plan.exchange.published_in += count
        plan.exchange.published_out += count * len(targets)
        results: list[EnqueueResult] | None = None
        for target in targets:
            target_results = target.enqueue(run)
            if target_results is not None:
                results = _worst(results, target_results)
            if not target.dispatch_pending:
                self.scheduler.mark_ready(target)
        if not targets and run.persistent and plan.keep is not Keep.NOTHING:
            self._record_unroutable(plan.exchange, run)
        if confirms is not None:
            self.commit_waiters.confirm_when_committed(confirms, run, results)
        return results

    def _record_unroutable(self, exchange: Exchange, run: Run) -> None:
        write_messages(self.store, run.messages)
        vhost = None if run.origin else self._maybe_vhost_of(exchange)
        self.store.record_many(EventKind.UNROUTABLE, 0, run.ids, run.origin, vhost)
        self.scheduler.schedule()

    def enqueue_internal(self, targets: Sequence[Target], message: Message) -> None:
        """Enqueue a message that the broker itself makes; it does not count as published."""
        message.id = next(self._message_ids)
        message.time_ms = self.clock.wall_ms()
        message.keep = max((target.keep for target in targets), default=Keep.NOTHING)
        run = Run.of([message])
        for target in targets:
            target.enqueue(run)
            self.scheduler.mark_ready(target)

    def _maybe_vhost_of(self, exchange: Exchange) -> str | None:
        """For messages without an origin, such as dead letters, which do not tell their vhost."""
        for name, vhost in self.vhosts.items():
            if exchange in vhost.exchanges.values():
                return name
        return None

    def http_origin(self, vhost: str, user: str) -> int:
        """The id under which history records what a user does through the HTTP API."""
        origin_id = self._http_origins.get((vhost, user))
        if origin_id is None:
            origin_id = self._http_origins[vhost, user] = next(self.origin_ids)
            self.store.save(
                Origin(
                    id=origin_id,
                    kind=OriginKind.PUBLISHER,
                    vhost=vhost,
                    user=user,
                    connection="HTTP API",
                    created_ms=self.clock.wall_ms(),
                )
            )
        return origin_id

    # Virtual hosts and users -------------------------------------------------------------------

    @property
    def cluster_name(self) -> str:
        return str(self.parameters.get(GLOBAL, GLOBAL, CLUSTER_NAME) or self.settings.node_name)

    def add_vhost(
        self, name: str, options: Mapping[str, Any] | None = None, created_ms: int | None = None
    ) -> VirtualHost:
        """Create a virtual host, dated one millisecond ahead.

        A virtual host of the same name may have been deleted in this millisecond; the history up to
        now belongs to that one.
        """
        self.vhost_deletions.require_finished(name)
        vhost = self.make_vhost(name)
        vhost.created_ms = self.clock.wall_ms() + 1 if created_ms is None else created_ms
        self.set_vhost_options(vhost, options or {})
        self.events.vhost(name, "created")
        for exchange in vhost.exchanges.values():
            self.events.topology(vhost, exchange, "created")
        return vhost

    def set_vhost_options(self, vhost: VirtualHost, options: Mapping[str, Any]) -> None:
        """Description, tags, tracing and default queue type."""
        vhost.options = dict(options)
        firehose.apply_tracing(self, vhost)
        self.save_vhost(vhost, vhost.options)

    def save_vhost(self, vhost: VirtualHost, options: Mapping[str, Any]) -> None:
        stored = {**options, recovery.CREATED_MS: vhost.created_ms}
        self.store.save(VhostDefinition(vhost.name, json.dumps(stored)))
        self.scheduler.schedule()

    def make_vhost(self, name: str) -> VirtualHost:
        vhost = VirtualHost(name, self.store, self.queue_ids, self.topology)
        vhost.keep_unroutable = policy_effects.KEEP[self.settings.history]
        self.vhosts[name] = vhost
        apply_limits(self, name)
        return vhost

    def delete_vhost(self, name: str) -> None:
        """Delete a virtual host at once; `vhost_deletions` does it in slices."""
        run_at_once(delete_vhost(self, name))

    def forget_http_origins(self, vhost: str) -> None:
        for key in [key for key in self._http_origins if key[0] == vhost]:
            del self._http_origins[key]

    def delete_user(self, name: str) -> None:
        """Delete a user, and close the user's connections."""
        self.users.delete_user(name)
        self.close_connections(
            f"user '{name}' was deleted", lambda connection: connection.user.name == name
        )
        self.scheduler.schedule()

    def close_connections(self, reason: str, is_chosen: Callable[[ConnectionEntry], bool]) -> None:
        for connection in [connection for connection in self.connections if is_chosen(connection)]:
            connection.close(reason)

    # Durability --------------------------------------------------------------------------------

    def _on_committed(self, batch: BatchCommitted) -> None:
        if batch.logs or batch.jobs:
            self.log_manager.on_committed(batch)
        self.commit_waiters.advance(batch.batch_number)
        if batch.snapshots_due:
            self.topology.write_snapshots(batch.snapshots_due)
            self.scheduler.schedule()
        self.resource_monitor.resume_if_backlog_drained()

    def _on_failed(self, batch: BatchFailed) -> None:
        log.error("batch %d was not committed: %s", batch.batch_number, batch.error)
        self.alarms.set("store" if batch.is_fatal else "disk", f"{batch.error}")
        if not batch.is_fatal:
            self.log_manager.on_failed()
        self.commit_waiters.fail(batch.batch_number)
        self.resource_monitor.resume_if_backlog_drained()  # perhaps no batch follows


def _worst(results: list[EnqueueResult] | None, others: list[EnqueueResult]) -> list[EnqueueResult]:
    """Per message the worst result of all queues so far."""
    if results is None:
        return others
    return [
        result if result is EnqueueResult.REJECTED or other is EnqueueResult.ACCEPTED else other
        for result, other in zip(results, others, strict=True)
    ]
