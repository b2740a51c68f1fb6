"""Logging in: is this name's password right, and may it be tried at all?

Steps: the limit on tries; the cache; a hash of RabbitMQ's, which is checked on the spot; else a job
for one of two threads. Whose job is next, and who finds no place, `lines.py` knows; the same
password tried twice at once from one source is one job. What fails always costs a job, known user
or not: nobody learns from the time it takes. An unknown name is checked at the costs of some known
user's hash, which import may have made other than ours, and always of the same one's. Making the
hash of a new password is a job, too; of these one is done at a time.

The cache holds no password and nothing that can be turned back into one: keyed digests under a key
that is made at start. An entry dies after a minute, or with the password it was for.

Everything here runs on the loop, the two threads apart, which see a password and a hash only.
A crash leaves nothing behind: limits and cache start empty.
"""

from __future__ import annotations

import asyncio
import hmac
import itertools
import logging
import os
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING

from leveret.broker.access import passwords
from leveret.broker.access.lines import Job, Lane, Lines
from leveret.broker.access.throttle import Charge, Throttle, is_loopback, source_of
from leveret.config import Settings

if TYPE_CHECKING:
    from leveret.broker.users import User, Users

log = logging.getLogger("leveret.access")

CACHE_SECONDS = 60.0
MOST_CACHED = 10_000
THREADS = 2
REFUSED_AT_ONCE = 16
"""Of jobs that need no thread: others of this loop have something to do, too."""
CROWDED_SECONDS = 5.0
UPGRADE_SECONDS = 1.0
"""A new hash can wait until the client that has just come in has done what it came for."""


class Refusal(Enum):
    """Why somebody is not let in."""

    WRONG = "wrong user name or password"
    TOO_MANY = "too many failed log-ins"
    CROWDED = "too many log-ins at a time"
    GONE = "left before its turn came"
    NOT_FROM_HERE = "this user may log in from this machine only"


@dataclass(frozen=True, slots=True)
class Refused:
    why: Refusal
    retry_seconds: float = 0.0


Then = Callable[["User | Refused"], None]


IsHere = Callable[[], bool]


@dataclass(slots=True, eq=False)
class _Check(Job):
    name: str
    password: str
    hashed: str
    can_fit: bool
    source: str
    digest: bytes
    waiting: list[tuple[str, Then, IsHere]] = field(default_factory=list)
    charge: Charge | None = None
    """Of a check under way."""


@dataclass(slots=True, eq=False)
class _Making(Job):
    password: str
    made: asyncio.Future[str]


class Logins:
    def __init__(
        self,
        users: Users,
        settings: Settings,
        now: Callable[[], float],
        changed: Callable[[], None],
    ) -> None:
        """`changed` is called when a hash was made anew and wants to be saved."""
        self.throttle = Throttle(
            now, settings.login_tries_per_source, settings.login_tries_per_user
        )
        self._users = users
        self._settings = settings
        self._now = now
        self._changed = changed
        self._key = os.urandom(32)
        self._cache: OrderedDict[bytes, tuple[int, float]] = OrderedDict()
        self._checks: dict[tuple[bytes, str], _Check] = {}
        self._charged: dict[tuple[bytes, str], Charge] = {}
        self._lines = Lines(now)
        self._running = 0
        self._is_making = False
        self._threads: Executor | None = None
        self._upgrades: set[str] = set()
        self._stopped = False

    def __repr__(self) -> str:
        return f"<Logins cached={len(self._cache)} checks={len(self._checks)}>"

    # Asking ------------------------------------------------------------------------------------

    def begin(
        self, name: str, password: str, host: str, then: Then, is_here: IsHere = lambda: True
    ) -> None:
        """Call `then` with the user, or with why not: at once, or when a thread has looked.

        `is_here`: whether somebody still wants to know.
        """
        answer = self.maybe_now(name, password, host)
        if answer is not None:
            then(answer)
        else:
            self._line_up(name, password, host, then, is_here)

    async def check(
        self, name: str, password: str, host: str, is_here: IsHere = lambda: True
    ) -> User | Refused:
        told: asyncio.Future[User | Refused] = asyncio.get_running_loop().create_future()

        def tell(answer: User | Refused) -> None:
            if not told.done():
                told.set_result(answer)

        self.begin(name, password, host, tell, lambda: not told.done() and is_here())
        return await told

    def maybe_now(self, name: str, password: str, host: str) -> User | Refused | None:
        """The answer, unless it takes a thread to know it."""
        source = source_of(host)
        wait = self.throttle.wait(source, name)
        if wait > 0:
            return Refused(Refusal.TOO_MANY, wait)
        if not password:
            return None
        user = self._users.by_name.get(name)
        digest = self._digest(name, password)
        known = self._cache.get(digest)
        if user is None:
            return None
        if known is not None and known[0] == user.password_id and self._now() < known[1]:
            self.throttle.welcome(source, name)
            return self._admitted(user, host)
        if not passwords.is_quick(user.hashing):
            return None
        charge = self.throttle.charge(source, name)
        if not passwords.verify_quick(user.password_hash, user.hashing, password):
            self._charged[digest, source] = charge  # answered by a thread, as any wrong password is
            return None
        self.throttle.give_back(charge)
        self.upgrade(user, password)
        self._remember(digest, user)
        self.throttle.welcome(source, name)
        return self._admitted(user, host)

    def accept(self, name: str, host: str) -> User | Refused:
        """Somebody has proved to be this user in another way, such as a certificate."""
        user = self._users.by_name.get(name)
        return Refused(Refusal.WRONG) if user is None else self._admitted(user, host)

    async def hash(self, password: str, by: str = "") -> str:
        """A new password as it is to be stored. `by`: the user who sets it."""
        return await self._make(password, by)

    def forget(self, name: str) -> None:
        """The password of this user is another now. The cache knows it by `password_id`."""
        self.throttle.forget(name)

    def stop(self) -> None:
        self._stopped = True
        for job in self._lines.all_of(Lane.MAKING):
            assert isinstance(job, _Making)
            job.made.cancel()
        if self._threads is not None:
            self._threads.shutdown(wait=True, cancel_futures=True)

    # Jobs --------------------------------------------------------------------------------------

    def _line_up(self, name: str, password: str, host: str, then: Then, is_here: IsHere) -> None:
        source, digest = source_of(host), self._digest(name, password)
        job = self._checks.get((digest, source))
        if job is None:
            job = self._checks[digest, source] = self._new_check(name, password, source, digest)
            self._lines.join(job)
        job.waiting.append((host, then, is_here))
        self._make_room()
        self._pump()

    def _new_check(self, name: str, password: str, source: str, digest: bytes) -> _Check:
        user = self._users.by_name.get(name)
        slow = user is not None and not passwords.is_quick(user.hashing)
        hashed = user.password_hash if user is not None and slow else ""
        if len(password) > passwords.LONGEST:
            password = ""
        can_fit = bool(password and hashed)
        hashed = hashed or self._nobodys(name)
        is_known = self.throttle.is_welcome(source, name)
        lane, whose = (Lane.KNOWN, name) if is_known else (Lane.STRANGER, source)
        return _Check(lane, whose, name, password, hashed, can_fit, source, digest)

    def _make_room(self) -> None:
        """If too many wait, at the cost of those who have left, or else of those who are last."""
        if not self._lines.is_crowded:
            return
        waiting = self._lines.all_of(Lane.STRANGER)
        for job in [job for job in waiting if not _is_awaited(job)]:
            self._send_away(job, Refused(Refusal.GONE))
        for _ in range(REFUSED_AT_ONCE):
            if self._lines.is_crowded:
                last = self._lines.last_stranger()
                self._send_away(last, Refused(Refusal.CROWDED, CROWDED_SECONDS))

    def _send_away(self, job: Job, why: Refused) -> None:
        assert isinstance(job, _Check)
        self._lines.leave(job)
        self._answer(job, why)

    def _nobodys(self, name: str) -> str:
        """The times of unknown names are spread as those of known ones are, and do not change."""
        known = self._users.by_name
        number = int.from_bytes(self._digest(name, "")[:8], "big") % max(1, len(known))
        like = next(itertools.islice(known.values(), number, None), None)
        return passwords.nobodys(like.password_hash if like is not None else "")

    def _pump(self) -> None:
        """Give the threads their next jobs."""
        for _ in range(REFUSED_AT_ONCE):
            if self._running == THREADS or self._stopped:
                return
            job = self._lines.next(may_make=not self._is_making)
            if job is None:
                return
            if isinstance(job, _Check):
                self._start(job)
            elif isinstance(job, _Making) and not job.made.done():
                self._start_making(job)
        asyncio.get_running_loop().call_soon(self._pump)

    def _start(self, job: _Check) -> None:
        if not _is_awaited(job):
            self._answer(job, Refused(Refusal.GONE))
            return
        charged = self._charged.pop((job.digest, job.source), None)
        wait = self.throttle.wait(job.source, job.name)
        if wait > 0 and charged is None:
            self._answer(job, Refused(Refusal.TOO_MANY, wait))
            return
        job.charge = charged or self.throttle.charge(job.source, job.name)
        self._running += 1
        loop = asyncio.get_running_loop()
        asked = self._pool().submit(passwords.verify, job.hashed, job.password)
        asked.add_done_callback(lambda done: _tell(loop, self._done, job, done))

    def _done(self, job: _Check, asked: Future[bool]) -> None:
        self._running -= 1
        is_right = not asked.cancelled() and asked.exception() is None and asked.result()
        user = self._users.by_name.get(job.name)
        if is_right and job.can_fit and user is not None and user.password_hash == job.hashed:
            assert job.charge is not None
            self.throttle.give_back(job.charge)
            self._remember(job.digest, user)
            if passwords.costs(job.hashed) != passwords.OURS:
                self.upgrade(user, job.password)
            if job.lane is Lane.STRANGER:
                self._lines.was_right()
            self._welcome(job, user)
            self._welcome_others(job.digest, user)
        else:
            if job.lane is Lane.STRANGER:
                self._lines.failed(job.source)
            self._answer(job, Refused(Refusal.WRONG))
        self._make_room()
        self._pump()

    def _welcome(self, job: _Check, user: User) -> None:
        self.throttle.welcome(job.source, job.name)
        self._answer(job, user)

    def _welcome_others(self, digest: bytes, user: User) -> None:
        """The same password from elsewhere is remembered now: it needs no thread any more."""
        alike = [job for job in self._checks.values() if hmac.compare_digest(job.digest, digest)]
        for job in alike:
            if job.charge is None and self.throttle.wait(job.source, job.name) == 0:
                self._lines.leave(job)
                self._welcome(job, user)

    def _answer(self, job: _Check, answer: User | Refused) -> None:
        del self._checks[job.digest, job.source]
        self._charged.pop((job.digest, job.source), None)
        for host, then, _ in job.waiting:
            then(answer if isinstance(answer, Refused) else self._admitted(answer, host))

    def _make(self, password: str, by: str) -> asyncio.Future[str]:
        made: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._lines.join(_Making(Lane.MAKING, by, password, made))
        self._pump()
        return made

    def _start_making(self, job: _Making) -> None:
        self._running += 1
        self._is_making = True
        loop = asyncio.get_running_loop()
        asked = self._pool().submit(passwords.make, job.password)
        asked.add_done_callback(lambda done: _tell(loop, self._made, job, done))

    def _made(self, job: _Making, asked: Future[str]) -> None:
        self._running -= 1
        self._is_making = False
        if asked.cancelled():
            job.made.cancel()
        elif not job.made.done():
            error = asked.exception()
            job.made.set_exception(error) if error else job.made.set_result(asked.result())
        self._pump()

    def _pool(self) -> Executor:
        if self._threads is None:
            from concurrent.futures import ThreadPoolExecutor

            self._threads = ThreadPoolExecutor(
                THREADS, thread_name_prefix="leveret-login", initializer=passwords.prepare_thread
            )
        return self._threads

    # Letting in --------------------------------------------------------------------------------

    def _admitted(self, user: User, host: str) -> User | Refused:
        if user.name != "guest" or self._settings.allow_remote_guest or is_loopback(host):
            return user
        return Refused(Refusal.NOT_FROM_HERE)

    def _digest(self, name: str, password: str) -> bytes:
        said = name.encode("utf-8", "surrogatepass"), password.encode("utf-8", "surrogatepass")
        return hmac.digest(self._key, len(said[0]).to_bytes(4, "big") + b"".join(said), "sha256")

    def _remember(self, digest: bytes, user: User) -> None:
        self._cache[digest] = (user.password_id, self._now() + CACHE_SECONDS)
        self._cache.move_to_end(digest)
        if len(self._cache) > MOST_CACHED:
            self._cache.popitem(last=False)

    # Making hashes anew ------------------------------------------------------------------------

    def upgrade(self, user: User, password: str) -> None:
        """RabbitMQ's hash, or one of other costs, gives way to ours. In memory nothing is at rest,
        so RabbitMQ's may stay; so it must where ours would not take the password."""
        is_theirs = passwords.is_quick(user.hashing)
        may_stay = is_theirs and (self._settings.memory or len(password) > passwords.LONGEST)
        if may_stay or user.name in self._upgrades:
            return
        self._upgrades.add(user.name)
        loop = asyncio.get_running_loop()
        loop.call_later(UPGRADE_SECONDS, self._hash_anew, user, password)

    def _hash_anew(self, user: User, password: str) -> None:
        if not self._stopped:
            self._make(password, "").add_done_callback(partial(self._keep_anew, user))

    def _keep_anew(self, user: User, made: asyncio.Future[str]) -> None:
        self._upgrades.discard(user.name)
        current = self._users.by_name.get(user.name)
        if made.cancelled() or current is None or current.password_hash != user.password_hash:
            return
        self._users.rehash(user.name, made.result(), passwords.ARGON2ID)
        log.info("the password of user %r is now kept as Argon2id of our costs", user.name)
        self._changed()


def _is_awaited(job: Job) -> bool:
    return isinstance(job, _Check) and any(is_here() for _, _, is_here in job.waiting)


def _tell(loop: asyncio.AbstractEventLoop, call: Callable[..., None], *arguments: object) -> None:
    """From a thread; the loop may have gone meanwhile, and then nobody waits."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(call, *arguments)
