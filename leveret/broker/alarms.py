"""Alarms: while one is raised, publishing connections are not read."""

from __future__ import annotations

from collections.abc import Callable


class Alarms:
    def __init__(self) -> None:
        self._raised: dict[str, str] = {}
        self._tell: list[Callable[[str], None]] = []

    @property
    def raised(self) -> dict[str, str]:
        return dict(self._raised)

    @property
    def reason(self) -> str:
        """Why publishers are blocked; empty when they are not."""
        return next(iter(self._raised.values()), "")

    def subscribe(self, tell: Callable[[str], None]) -> None:
        """`tell(reason)` when blocking starts, `tell("")` when the last alarm has gone."""
        self._tell.append(tell)

    def set(self, name: str, reason: str) -> None:
        """Raise an alarm, or clear it with an empty reason."""
        was_blocked = bool(self._raised)
        if reason:
            self._raised[name] = reason
        else:
            self._raised.pop(name, None)
        if was_blocked != bool(self._raised):
            for tell in self._tell:
                tell(self.reason)
