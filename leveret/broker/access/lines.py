"""Who waits for a thread that makes or checks a hash, and who is next.

Three lines. First come *known* users, who have logged in from where they are within the hour, one
user after the other: whatever strangers do, they wait for each other only. Then *new passwords*,
one after the other of those who set them, on one thread at most: the caller says when. Then
*strangers*: the source with the fewest failed tries of the last minute, counted for its network
first and then for itself, so that whoever has guessed waits for everybody who has not. Among equals
the one that has waited longest and the one that came last take turns: a crowd that comes at once
keeps neither those waiting who were there before it nor those who come after it.

There are places for so many strangers: for a second's work while most of those who had their turn
were wrong, for more otherwise, as after a restart, when everybody comes back. When they are taken,
one of the source with most failed tries has to go; among equals one of the source with most in
line, and of these the first in line.

None of this depends on whether a name that is tried exists, unless its owner has logged in from the
very same source. Nothing here has a thread or a timer; a crash leaves nothing.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from leveret.broker.access.throttle import Recent, network_of

MOST_STRANGERS = 256
"""Four seconds' work of two threads, or more where others are busy, too: who waits for longer than
ten seconds is cut off, and its turn would come to nothing."""
MOST_BESIDE_GUESSERS = 48
LOOKED_BACK = 16


class Lane(Enum):
    KNOWN = "known"
    MAKING = "making"
    STRANGER = "stranger"


@dataclass(slots=True, eq=False)
class Job:
    lane: Lane
    whose: str
    """Who takes turns with others in this line: a user, or a source of strangers."""


class Lines:
    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._lines: dict[Lane, OrderedDict[str, deque[Job]]] = {
            lane: OrderedDict() for lane in Lane
        }
        self._failed = Recent(now)
        self._strangers = 0
        self._were_wrong: deque[bool] = deque(maxlen=LOOKED_BACK)
        self._is_newest_next = False

    def __repr__(self) -> str:
        counts = (f"{lane.value}={len(self.all_of(lane))}" for lane in Lane)
        return f"<Lines {' '.join(counts)}>"

    @property
    def is_crowded(self) -> bool:
        are_guessers = sum(self._were_wrong) > LOOKED_BACK // 2
        return self._strangers > (MOST_BESIDE_GUESSERS if are_guessers else MOST_STRANGERS)

    def join(self, job: Job) -> None:
        self._lines[job.lane].setdefault(job.whose, deque()).append(job)
        self._strangers += job.lane is Lane.STRANGER

    def leave(self, job: Job) -> None:
        line = self._lines[job.lane]
        line[job.whose].remove(job)
        if not line[job.whose]:
            del line[job.whose]
        self._strangers -= job.lane is Lane.STRANGER

    def next(self, may_make: bool) -> Job | None:
        """Whose turn it is, out of line now."""
        for lane, line in self._lines.items():
            if line and (may_make or lane is not Lane.MAKING):
                whose = self._next_stranger() if lane is Lane.STRANGER else next(iter(line))
                job = line[whose][0]
                line.move_to_end(whose)
                self.leave(job)
                return job
        return None

    def failed(self, source: str) -> None:
        """A stranger has guessed wrong."""
        self._were_wrong.append(True)
        for key in {source, network_of(source)}:
            self._failed.add(key, self._now())

    def was_right(self) -> None:
        """A stranger was who they said."""
        self._were_wrong.append(False)

    def all_of(self, lane: Lane) -> list[Job]:
        return [job for jobs in self._lines[lane].values() for job in jobs]

    def last_stranger(self) -> Job:
        """Who has to go if there are too many."""
        sources = self._lines[Lane.STRANGER]
        worst = max(sources, key=lambda source: (*self._failures(source), len(sources[source])))
        return sources[worst][0]

    def _next_stranger(self) -> str:
        sources = self._lines[Lane.STRANGER]
        self._is_newest_next = not self._is_newest_next
        return min(reversed(sources) if self._is_newest_next else sources, key=self._failures)

    def _failures(self, source: str) -> tuple[int, int]:
        return len(self._failed.of(network_of(source))), len(self._failed.of(source))
