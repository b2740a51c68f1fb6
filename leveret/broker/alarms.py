"""Alarms: while one that blocks is raised, publishing connections are not read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


class Alarms:
    def __init__(self) -> None:
        self._raised: dict[str, str] = {}
        self._harmless: set[str] = set()
        self._tell: list[Callable[[str], None]] = []
        self.on_change: Callable[[str, Mapping[str, Any]], None] = lambda event, facts: None

    @property
    def raised(self) -> dict[str, str]:
        return dict(self._raised)

    @property
    def reason(self) -> str:
        """Why publishers are blocked; empty when they are not."""
        blocking = (why for name, why in self._raised.items() if name not in self._harmless)
        return next(blocking, "")

    def subscribe(self, tell: Callable[[str], None]) -> None:
        """`tell(reason)` when blocking starts, `tell("")` when the last alarm has gone."""
        self._tell.append(tell)

    def set(self, name: str, reason: str, blocks: bool = True) -> None:
        """Raise an alarm, or clear it with an empty reason; some only tell and do not block."""
        was_blocked = bool(self.reason)
        if not blocks:
            self._harmless.add(name)
        was_raised = name in self._raised
        if reason:
            self._raised[name] = reason
        else:
            self._raised.pop(name, None)
        if was_raised != bool(reason):
            facts = {"alarm": name, "reason": reason or None}
            self.on_change("alarm.set" if reason else "alarm.cleared", facts)
        if was_blocked != bool(self.reason):
            for tell in self._tell:
                tell(self.reason)
