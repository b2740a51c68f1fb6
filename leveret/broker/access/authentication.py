"""Password authentication: whether a login may be tried, and whether its password is right.

A login passes these steps: the rate limit; the cache of recent successes; a RabbitMQ hash, which
is checked at once on the loop; otherwise a job for one of two hashing threads. `login_queue.py`
decides which job runs next and which is refused when the queue is full. The same password tried
twice at the same time from one source is one job.

A failed login always costs a job, whether or not the user exists, so response times reveal
nothing. An unknown name is checked against a decoy hash with the costs of some existing user's
hash (imported hashes may have other costs than ours), and always of the same user's. Hashing a new
password is a job too; only one of these runs at a time.

The cache holds no passwords, only keyed digests under a key that is created at start. An entry
expires after a minute, or when the user's password changes.

Permissions are not checked again for each message. A change raises `Users.revision`, which
invalidates what channels have cached, and every connection of the user concerned is rechecked once
at the end of the loop iteration, so consumers that lost their read permission are cancelled.

Everything here runs on the event loop except the two threads, which see only a password and a
hash. Nothing survives a crash: rate limits and cache start empty.
"""

from __future__ import annotations

import asyncio
import hmac
import itertools
import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any

from leveret.broker.access import passwords
from leveret.broker.access.login_queue import Job, JobKind, LoginQueue
from leveret.broker.access.login_rate_limit import Charge, LoginRateLimit, is_loopback, source_of

if TYPE_CHECKING:
    from leveret.broker.access.users import User
    from leveret.broker.broker import Broker

log = logging.getLogger("leveret.access")

CACHE_SECONDS = 60.0
MAX_CACHED = 10_000
THREADS = 2
MAX_REFUSED_PER_CALL = 16
"""Jobs refused in one call: the loop has other work to do in between."""
QUEUE_FULL_RETRY_SECONDS = 5.0
CONVERT_SECONDS = 1.0
"""Delay before a password is rehashed, so that the client's first requests come first."""
_PASSWORD_CHANGED = ("user.password.changed", "user.deleted")


class Refusal(Enum):
    """Why a login is refused."""

    WRONG_CREDENTIALS = "wrong user name or password"
    RATE_LIMITED = "too many failed logins"
    QUEUE_FULL = "too many concurrent logins"
    CLIENT_GONE = "the client disconnected before its password was checked"
    LOOPBACK_ONLY = "this user may log in from this machine only"


@dataclass(frozen=True, slots=True)
class Refused:
    why: Refusal
    retry_seconds: float = 0.0


OnResult = Callable[["User | Refused"], None]
IsConnected = Callable[[], bool]


@dataclass(slots=True, eq=False)
class _Check(Job):
    name: str
    password: str
    hashed: str
    can_match: bool
    """False for a decoy hash."""
    source: str
    digest: bytes
    waiting: list[tuple[str, OnResult, IsConnected]] = field(default_factory=list)
    charge: Charge | None = None
    """Set while a thread checks the password."""


@dataclass(slots=True, eq=False)
class _NewHash(Job):
    password: str
    hashed: asyncio.Future[str]


class Authenticator:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._users = broker.users
        self._settings = settings = broker.settings
        self._keeps_rabbitmq_hashes = settings.password_hashing != "argon2id"  # noqa: S105
        self._now = now = broker.clock.monotonic
        self.rate_limit = LoginRateLimit(
            now, settings.login_tries_per_source, settings.login_tries_per_user
        )
        self._key = os.urandom(32)
        self._cache: OrderedDict[bytes, tuple[int, float]] = OrderedDict()
        self._checks: dict[tuple[bytes, str], _Check] = {}
        self._charged: dict[tuple[bytes, str], Charge] = {}
        self._queue = LoginQueue(now)
        self._running = 0
        self._is_hashing_new = False
        self._threads: Executor | None = None
        self._converting: set[str] = set()
        self._users_to_recheck: set[str] = set()
        self._stopped = False

    def __repr__(self) -> str:
        return f"<Authenticator cached={len(self._cache)} checks={len(self._checks)}>"

    # Logins ------------------------------------------------------------------------------------

    def authenticate(
        self,
        name: str,
        password: str,
        host: str,
        on_result: OnResult,
        is_connected: IsConnected = lambda: True,
    ) -> None:
        """Call `on_result` with the user or a refusal, now or after a thread has checked.

        `is_connected` tells whether the client still waits for the result.
        """
        answer = self._maybe_answer_now(name, password, host)
        if answer is not None:
            on_result(answer)
        else:
            self._enqueue(name, password, host, on_result, is_connected)

    async def check(
        self, name: str, password: str, host: str, is_connected: IsConnected = lambda: True
    ) -> User | Refused:
        answer = self._maybe_answer_now(name, password, host)
        if answer is not None:
            return answer
        result: asyncio.Future[User | Refused] = asyncio.get_running_loop().create_future()

        def on_result(answer: User | Refused) -> None:
            if not result.done():
                result.set_result(answer)

        self._enqueue(name, password, host, on_result, lambda: not result.done() and is_connected())
        return await result

    def _maybe_answer_now(self, name: str, password: str, host: str) -> User | Refused | None:
        """Return the answer unless a thread has to check the password."""
        source = source_of(host)
        wait = self.rate_limit.seconds_until_allowed(source, name)
        if wait > 0:
            return Refused(Refusal.RATE_LIMITED, wait)
        if not password:
            return None
        user = self._users.by_name.get(name)
        digest = self._digest(name, password)
        cached = self._cache.get(digest)
        if user is None:
            return None
        if cached is not None and cached[0] == user.password_id and self._now() < cached[1]:
            self.rate_limit.record_success(source, name)
            return self._check_host(user, host)
        if not passwords.is_quick(user.hashing):
            return None
        charge = self.rate_limit.charge(source, name)
        if not passwords.verify_quick(user.password_hash, user.hashing, password):
            self._charged[digest, source] = charge  # a thread answers, as for any wrong password
            return None
        self.rate_limit.refund(charge)
        self.convert_hash(user, password)
        self._remember(digest, user)
        self.rate_limit.record_success(source, name)
        return self._check_host(user, host)

    def accept(self, name: str, host: str) -> User | Refused:
        """Log in a user whose identity was proved in another way, such as by a certificate."""
        user = self._users.by_name.get(name)
        if user is None:
            return Refused(Refusal.WRONG_CREDENTIALS)
        return self._check_host(user, host)

    async def hash_new_password(self, password: str, by: str = "") -> tuple[str, str]:
        """Return the hash to store for a new password, and its algorithm."""
        if self._keeps_rabbitmq_hashes:
            return passwords.hash_password(password), passwords.SHA256
        return await self.hash_password(password, by), passwords.ARGON2ID

    async def hash_password(self, password: str, by: str = "") -> str:
        """Return an Argon2id hash of a new password. `by` is the user who sets it."""
        return await self._enqueue_hash(password, by)

    def on_user_changed(self, event: str, facts: Mapping[str, Any]) -> None:
        """Publish a change reported by `Users` and apply it to logins and open connections."""
        self._broker.events.publish(event, facts)
        if event in _PASSWORD_CHANGED:
            self.rate_limit.forget(facts["name"])
        if event.startswith("permission.") and self._broker.connections:
            if not self._users_to_recheck:
                asyncio.get_running_loop().call_soon(self._recheck_connections)
            self._users_to_recheck.add(facts["user"])

    def _recheck_connections(self) -> None:
        users, self._users_to_recheck = self._users_to_recheck, set()
        for connection in [c for c in self._broker.connections if c.user.name in users]:
            connection.recheck_permissions()

    def stop(self) -> None:
        self._stopped = True
        for job in self._queue.jobs(JobKind.NEW_HASH):
            assert isinstance(job, _NewHash)
            job.hashed.cancel()
        if self._threads is not None:
            self._threads.shutdown(wait=True, cancel_futures=True)

    # Jobs --------------------------------------------------------------------------------------

    def _enqueue(
        self,
        name: str,
        password: str,
        host: str,
        on_result: OnResult,
        is_connected: IsConnected,
    ) -> None:
        source, digest = source_of(host), self._digest(name, password)
        job = self._checks.get((digest, source))
        if job is None:
            job = self._checks[digest, source] = self._new_check(name, password, source, digest)
            self._queue.add(job)
        job.waiting.append((host, on_result, is_connected))
        self._refuse_excess()
        self._start_jobs()

    def _new_check(self, name: str, password: str, source: str, digest: bytes) -> _Check:
        user = self._users.by_name.get(name)
        slow = user is not None and not passwords.is_quick(user.hashing)
        hashed = user.password_hash if user is not None and slow else ""
        if len(password) > passwords.MAX_PASSWORD_LENGTH:
            password = ""
        can_match = bool(password and hashed)
        hashed = hashed or self._decoy_hash(name)
        if self.rate_limit.has_logged_in(source, name):
            kind, owner = JobKind.KNOWN_USER, name
        else:
            kind, owner = JobKind.UNKNOWN_CLIENT, source
        return _Check(kind, owner, name, password, hashed, can_match, source, digest)

    def _refuse_excess(self) -> None:
        """When the queue is full, refuse first clients that have disconnected, then the worst."""
        if not self._queue.is_full:
            return
        waiting = self._queue.jobs(JobKind.UNKNOWN_CLIENT)
        for job in [job for job in waiting if not _is_awaited(job)]:
            self._refuse(job, Refused(Refusal.CLIENT_GONE))
        for _ in range(MAX_REFUSED_PER_CALL):
            if self._queue.is_full:
                job = self._queue.eviction_candidate()
                self._refuse(job, Refused(Refusal.QUEUE_FULL, QUEUE_FULL_RETRY_SECONDS))

    def _refuse(self, job: Job, refused: Refused) -> None:
        assert isinstance(job, _Check)
        self._queue.remove(job)
        self._answer(job, refused)

    def _decoy_hash(self, name: str) -> str:
        """Return a hash no password matches; its costs are those of some user, fixed per name."""
        users = self._users.by_name
        index = int.from_bytes(self._digest(name, "")[:8], "big") % max(1, len(users))
        model = next(itertools.islice(users.values(), index, None), None)
        return passwords.decoy_hash(model.password_hash if model is not None else "")

    def _start_jobs(self) -> None:
        """Give the threads their next jobs."""
        for _ in range(MAX_REFUSED_PER_CALL):
            if self._running == THREADS or self._stopped:
                return
            job = self._queue.pop(can_hash_new=not self._is_hashing_new)
            if job is None:
                return
            if isinstance(job, _Check):
                self._start_check(job)
            elif isinstance(job, _NewHash) and not job.hashed.done():
                self._start_hash(job)
        asyncio.get_running_loop().call_soon(self._start_jobs)

    def _start_check(self, job: _Check) -> None:
        if not _is_awaited(job):
            self._answer(job, Refused(Refusal.CLIENT_GONE))
            return
        charge = self._charged.pop((job.digest, job.source), None)
        wait = self.rate_limit.seconds_until_allowed(job.source, job.name)
        if wait > 0 and charge is None:
            self._answer(job, Refused(Refusal.RATE_LIMITED, wait))
            return
        job.charge = charge or self.rate_limit.charge(job.source, job.name)
        self._running += 1
        loop = asyncio.get_running_loop()
        verified = self._pool().submit(passwords.verify, job.hashed, job.password)
        verified.add_done_callback(lambda done: _call_on(loop, self._on_verified, job, done))

    def _on_verified(self, job: _Check, verified: Future[bool]) -> None:
        self._running -= 1
        is_right = not verified.cancelled() and verified.exception() is None and verified.result()
        user = self._users.by_name.get(job.name)
        if is_right and job.can_match and user is not None and user.password_hash == job.hashed:
            assert job.charge is not None
            self.rate_limit.refund(job.charge)
            self._remember(job.digest, user)
            self.convert_hash(user, job.password)
            if job.kind is JobKind.UNKNOWN_CLIENT:
                self._queue.record_success()
            self._succeed(job, user)
            self._succeed_same_password(job.digest, user)
        else:
            if job.kind is JobKind.UNKNOWN_CLIENT:
                self._queue.record_failure(job.source)
            self._answer(job, Refused(Refusal.WRONG_CREDENTIALS))
        self._refuse_excess()
        self._start_jobs()

    def _succeed(self, job: _Check, user: User) -> None:
        self.rate_limit.record_success(job.source, job.name)
        self._answer(job, user)

    def _succeed_same_password(self, digest: bytes, user: User) -> None:
        """Answer queued logins with the same name and password, which are now in the cache."""
        same = [job for job in self._checks.values() if hmac.compare_digest(job.digest, digest)]
        for job in same:
            if (
                job.charge is None
                and self.rate_limit.seconds_until_allowed(job.source, job.name) == 0
            ):
                self._queue.remove(job)
                self._succeed(job, user)

    def _answer(self, job: _Check, answer: User | Refused) -> None:
        del self._checks[job.digest, job.source]
        self._charged.pop((job.digest, job.source), None)
        for host, on_result, _ in job.waiting:
            on_result(answer if isinstance(answer, Refused) else self._check_host(answer, host))

    def _enqueue_hash(self, password: str, by: str) -> asyncio.Future[str]:
        hashed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._queue.add(_NewHash(JobKind.NEW_HASH, by, password, hashed))
        self._start_jobs()
        return hashed

    def _start_hash(self, job: _NewHash) -> None:
        self._running += 1
        self._is_hashing_new = True
        loop = asyncio.get_running_loop()
        hashed = self._pool().submit(passwords.hash_argon2id, job.password)
        hashed.add_done_callback(lambda done: _call_on(loop, self._on_hashed, job, done))

    def _on_hashed(self, job: _NewHash, hashed: Future[str]) -> None:
        self._running -= 1
        self._is_hashing_new = False
        if hashed.cancelled():
            job.hashed.cancel()
        elif not job.hashed.done():
            error = hashed.exception()
            job.hashed.set_exception(error) if error else job.hashed.set_result(hashed.result())
        self._start_jobs()

    def _pool(self) -> Executor:
        if self._threads is None:
            from concurrent.futures import ThreadPoolExecutor

            self._threads = ThreadPoolExecutor(
                THREADS, thread_name_prefix="leveret-login", initializer=passwords.prepare_thread
            )
        return self._threads

    # Results -----------------------------------------------------------------------------------

    def _check_host(self, user: User, host: str) -> User | Refused:
        """Refuse `guest` from another machine, as RabbitMQ does."""
        if user.name != "guest" or self._settings.allow_remote_guest or is_loopback(host):
            return user
        return Refused(Refusal.LOOPBACK_ONLY)

    def _digest(self, name: str, password: str) -> bytes:
        parts = name.encode("utf-8", "surrogatepass"), password.encode("utf-8", "surrogatepass")
        return hmac.digest(self._key, len(parts[0]).to_bytes(4, "big") + b"".join(parts), "sha256")

    def _remember(self, digest: bytes, user: User) -> None:
        self._cache[digest] = (user.password_id, self._now() + CACHE_SECONDS)
        self._cache.move_to_end(digest)
        if len(self._cache) > MAX_CACHED:
            self._cache.popitem(last=False)

    # Converting hashes -------------------------------------------------------------------------

    def convert_hash(self, user: User, password: str) -> None:
        """Store the password as the setting `password_hashing` says, if it is stored otherwise.

        A RabbitMQ hash stays if nothing is written to disk, or if the password is longer than
        `hash_argon2id` accepts. An Argon2id hash with other costs is replaced by one of our own.
        """
        if user.name in self._converting or not self._should_convert(user, password):
            return
        self._converting.add(user.name)
        loop = asyncio.get_running_loop()
        loop.call_later(CONVERT_SECONDS, self._rehash, user, password)

    def _should_convert(self, user: User, password: str) -> bool:
        is_rabbitmq = passwords.is_quick(user.hashing)
        if self._keeps_rabbitmq_hashes:
            return not is_rabbitmq
        if is_rabbitmq:
            is_too_long = len(password) > passwords.MAX_PASSWORD_LENGTH
            return not self._settings.memory and not is_too_long
        return passwords.costs(user.password_hash) != passwords.OUR_COSTS

    def _rehash(self, user: User, password: str) -> None:
        if self._stopped:
            return
        if self._keeps_rabbitmq_hashes:
            self._store_hash(user, passwords.hash_password(password), passwords.SHA256)
        else:
            self._enqueue_hash(password, "").add_done_callback(partial(self._on_rehashed, user))

    def _on_rehashed(self, user: User, hashed: asyncio.Future[str]) -> None:
        if hashed.cancelled():
            self._converting.discard(user.name)
        else:
            self._store_hash(user, hashed.result(), passwords.ARGON2ID)

    def _store_hash(self, user: User, hashed: str, hashing: str) -> None:
        """Store another hash of the same password, unless the password has changed meanwhile."""
        self._converting.discard(user.name)
        current = self._users.by_name.get(user.name)
        if current is None or current.password_hash != user.password_hash:
            return
        self._users.rehash(user.name, hashed, hashing)
        form = "Argon2id" if hashing == passwords.ARGON2ID else "RabbitMQ's form"
        log.info("converted the password hash of user %r to %s", user.name, form)
        self._broker.scheduler.schedule()


def _is_awaited(job: Job) -> bool:
    return isinstance(job, _Check) and any(is_connected() for _, _, is_connected in job.waiting)


def _call_on(
    loop: asyncio.AbstractEventLoop, callback: Callable[..., None], *arguments: object
) -> None:
    """Call back on the loop from a thread, unless the loop has been closed in the meantime."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(callback, *arguments)
