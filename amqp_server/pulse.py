"""When each session is next to be looked at: a wheel, so that ten thousand idle ones cost little.

A session says how long it can be left alone; until then nothing touches it. It is in exactly one
slot of the wheel until it is removed, so none is kept alive by having been waited for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from amqp_server.session import Session

SLOTS_PER_SECOND = 4
MOST_AT_ONCE = 250
"""Some milliseconds: a crowd that came at the same time is due at the same time."""


class Pulse:
    def __init__(self) -> None:
        self._slots: dict[int, dict[Session, None]] = {}
        self._slot_of: dict[Session, int] = {}

    def __repr__(self) -> str:
        return f"<Pulse sessions={len(self._slot_of)} slots={len(self._slots)}>"

    def renew(self) -> None:
        """Let the table that has grown shrink."""
        self._slot_of = dict(self._slot_of)

    def __len__(self) -> int:
        return len(self._slot_of)

    def add(self, session: Session, at: float) -> None:
        slot = int(at * SLOTS_PER_SECOND)
        self._slot_of[session] = slot
        self._slots.setdefault(slot, {})[session] = None

    def remove(self, session: Session) -> None:
        slot = self._slot_of.pop(session, None)
        if slot is not None:
            held = self._slots.get(slot, {})
            held.pop(session, None)
            if not held:
                self._slots.pop(slot, None)

    def beat(self, now: float) -> bool:
        """Look at sessions whose time has come, so many at most; is it time for others, too?"""
        current, left = int(now * SLOTS_PER_SECOND), MOST_AT_ONCE
        for slot in [slot for slot in self._slots if slot <= current]:
            for session in list(self._slots.get(slot, ())):
                if self._slot_of.get(session) != slot:
                    continue  # another one's end has taken it along
                if not left:
                    return True
                left -= 1
                self.remove(session)
                alone = session.beat(now)
                if not session.is_over:
                    self.add(session, now + max(alone, 1 / SLOTS_PER_SECOND))
        return False
