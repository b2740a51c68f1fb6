"""The transport as a session needs it, and whether it is read: several reasons may forbid it."""

from __future__ import annotations

from enum import Enum, auto
from typing import Protocol

from amqp_server.certificates import Secured


class Deaf(Enum):
    """Why a connection is not read for a while."""

    ALARM = auto()
    DISK_BEHIND = auto()
    ANSWERS_UNREAD = auto()
    LOGGING_IN = auto()
    CHANNELS_HELD = auto()
    TURN_OVER = auto()


OURS = frozenset({Deaf.ALARM, Deaf.DISK_BEHIND, Deaf.CHANNELS_HELD, Deaf.TURN_OVER})
"""Silence of the peer that we asked for."""


class Line(Protocol):
    """The transport as the session needs it."""

    peer: tuple[str, int]
    local: tuple[str, int]
    secured: Secured | None

    def write(self, data: bytes) -> None: ...

    def unread(self) -> int:
        """Octets written that the peer has not taken."""

    def let_in(self) -> None:
        """The peer has logged in: it counts as a stranger no longer."""

    def end(self) -> None:
        """Close once everything written has gone out."""

    def end_in(self, seconds: float) -> None: ...

    def stop_reading(self) -> None: ...

    def go_on_reading(self) -> None: ...


class Listening:
    def __init__(self, line: Line) -> None:
        self._line = line
        self._reasons: set[Deaf] = set()

    def __contains__(self, reason: Deaf) -> bool:
        return reason in self._reasons

    @property
    def is_paused(self) -> bool:
        return bool(self._reasons)

    def is_stopped_by(self, reasons: frozenset[Deaf]) -> bool:
        return not reasons.isdisjoint(self._reasons)

    def stop(self, reason: Deaf) -> None:
        self._reasons.add(reason)
        self._line.stop_reading()

    def go_on(self, reason: Deaf) -> None:
        """This reason has gone; reading goes on with the last one."""
        if reason in self._reasons:
            self._reasons.discard(reason)
            if not self._reasons:
                self._line.go_on_reading()
