"""Alarms: while a blocking alarm is raised, publishing connections are not read.

Event-loop thread only; after a restart the resource monitor raises alarms again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

log = logging.getLogger("leveret.broker")


class Alarms:
    def __init__(self) -> None:
        self._raised: dict[str, str] = {}
        self._details: dict[str, str] = {}
        self._not_blocking: set[str] = set()
        self._subscribers: list[Callable[[str], None]] = []
        self.on_change: Callable[[str, Mapping[str, Any]], None] = lambda event, facts: None

    @property
    def raised(self) -> dict[str, str]:
        """Each alarm with its reason and details, for operators."""
        return {
            name: f"{reason}; {details}" if (details := self._details.get(name)) else reason
            for name, reason in self._raised.items()
        }

    @property
    def reason(self) -> str:
        """Why publishers are blocked, in short, for clients; empty if they are not."""
        for name, reason in self._raised.items():
            if name not in self._not_blocking:
                return reason
        return ""

    def subscribe(self, callback: Callable[[str], None]) -> None:
        """Call `callback(reason)` when blocking starts, `callback("")` when it ends."""
        self._subscribers.append(callback)

    def set(self, name: str, reason: str, blocks: bool = True, details: str = "") -> None:
        """Raise an alarm, or clear it with an empty reason; with `blocks` False it only warns."""
        was_blocked = bool(self.reason)
        if not blocks:
            self._not_blocking.add(name)
        was_raised = name in self._raised
        if reason:
            self._raised[name], self._details[name] = reason, details
        else:
            self._raised.pop(name, None)
        if was_raised != bool(reason):
            self._log_change(name)
            facts = {"alarm": name, "reason": reason or None}
            self.on_change("alarm.set" if reason else "alarm.cleared", facts)
        if was_blocked != bool(self.reason):
            for callback in self._subscribers:
                callback(self.reason)

    def _log_change(self, name: str) -> None:
        if name in self._raised:
            effect = "a warning only" if name in self._not_blocking else "publishers are blocked"
            log.warning("alarm '%s' is raised (%s): %s", name, effect, self.raised[name])
        else:
            log.warning("alarm '%s' is cleared", name)
