"""The queue of jobs for the hashing threads: password checks and hashes of new passwords.

There are three classes of jobs, in order of priority:

1. *Known users*, who logged in from the same source within the last hour, round robin by user.
   Unknown clients cannot delay them.
2. *New hashes*, round robin by the user who sets the password; the caller allows one at a time.
3. *Unknown clients*. The source with the fewest failed logins in the last minute is next, counted
   first for its network and then for itself, so guessers wait for everybody else. Among equals,
   the source that has waited longest and the source that came last alternate: a burst of logins
   starves neither those who came before it nor those who come after it.

The number of unknown clients in the queue is limited: to a second's work while most recent logins
failed, to more otherwise, such as after a restart when all clients reconnect. When the limit is
exceeded, a job of the source with the most failed logins is evicted; among equals the source with
the most queued jobs, and of its jobs the oldest.

None of this depends on whether a user name exists, unless that user has logged in from the same
source. There is no thread and no timer here; nothing survives a crash.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from leveret.broker.access.login_rate_limit import RecentTimes, network_of

MAX_UNKNOWN_CLIENTS = 256
"""Four seconds' work of two threads, more on a busy machine. A connection that has not logged in
after ten seconds is closed, so a longer queue would only hold logins that come too late."""
MAX_UNDER_ATTACK = 48
RESULTS_REMEMBERED = 16


class JobKind(Enum):
    """In order of priority."""

    KNOWN_USER = "known_user"
    NEW_HASH = "new_hash"
    UNKNOWN_CLIENT = "unknown_client"


@dataclass(slots=True, eq=False)
class Job:
    kind: JobKind
    owner: str
    """The unit of fairness: a user name, or the source of an unknown client."""


class LoginQueue:
    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._jobs: dict[JobKind, OrderedDict[str, deque[Job]]] = {
            kind: OrderedDict() for kind in JobKind
        }
        self._failures_by_source = RecentTimes(now)
        self._unknown_clients = 0
        self._recent_failures: deque[bool] = deque(maxlen=RESULTS_REMEMBERED)
        self._is_newest_next = False

    def __repr__(self) -> str:
        counts = (f"{kind.value}={len(self.jobs(kind))}" for kind in JobKind)
        return f"<LoginQueue {' '.join(counts)}>"

    @property
    def is_full(self) -> bool:
        is_under_attack = sum(self._recent_failures) > RESULTS_REMEMBERED // 2
        limit = MAX_UNDER_ATTACK if is_under_attack else MAX_UNKNOWN_CLIENTS
        return self._unknown_clients > limit

    def add(self, job: Job) -> None:
        self._jobs[job.kind].setdefault(job.owner, deque()).append(job)
        self._unknown_clients += job.kind is JobKind.UNKNOWN_CLIENT

    def remove(self, job: Job) -> None:
        by_owner = self._jobs[job.kind]
        by_owner[job.owner].remove(job)
        if not by_owner[job.owner]:
            del by_owner[job.owner]
        self._unknown_clients -= job.kind is JobKind.UNKNOWN_CLIENT

    def pop(self, can_hash_new: bool) -> Job | None:
        """Remove and return the job that is next."""
        for kind, by_owner in self._jobs.items():
            if by_owner and (can_hash_new or kind is not JobKind.NEW_HASH):
                is_unknown = kind is JobKind.UNKNOWN_CLIENT
                owner = self._next_source() if is_unknown else next(iter(by_owner))
                job = by_owner[owner][0]
                by_owner.move_to_end(owner)
                self.remove(job)
                return job
        return None

    def record_failure(self, source: str) -> None:
        """Record a wrong password of an unknown client."""
        self._recent_failures.append(True)
        for key in {source, network_of(source)}:
            self._failures_by_source.add(key, self._now())

    def record_success(self) -> None:
        """Record a right password of an unknown client."""
        self._recent_failures.append(False)

    def jobs(self, kind: JobKind) -> list[Job]:
        return [job for jobs in self._jobs[kind].values() for job in jobs]

    def eviction_candidate(self) -> Job:
        """Return the job of an unknown client to refuse when the queue is full."""
        sources = self._jobs[JobKind.UNKNOWN_CLIENT]
        worst = max(sources, key=lambda source: (*self._failures(source), len(sources[source])))
        return sources[worst][0]

    def _next_source(self) -> str:
        sources = self._jobs[JobKind.UNKNOWN_CLIENT]
        self._is_newest_next = not self._is_newest_next
        return min(reversed(sources) if self._is_newest_next else sources, key=self._failures)

    def _failures(self, source: str) -> tuple[int, int]:
        by_network = self._failures_by_source.get(network_of(source))
        return len(by_network), len(self._failures_by_source.get(source))
