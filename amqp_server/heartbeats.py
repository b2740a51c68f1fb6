"""A timer wheel for heartbeat checks, so that many idle connections cost little.

A connection returns how long it need not be checked, and is not touched until then. It is in
exactly one slot of the wheel until it is removed, so the wheel keeps no closed connection alive.
Event-loop thread only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leveret.amqp_server.connection import AmqpConnection

SLOTS_PER_SECOND = 4
MAX_CHECKS = 250
"""Checks per call, some milliseconds: many connections opened together are due together."""


class HeartbeatWheel:
    def __init__(self) -> None:
        self._slots: dict[int, dict[AmqpConnection, None]] = {}
        self._slot_of: dict[AmqpConnection, int] = {}

    def __repr__(self) -> str:
        return f"<HeartbeatWheel connections={len(self._slot_of)} slots={len(self._slots)}>"

    def __len__(self) -> int:
        return len(self._slot_of)

    def add(self, connection: AmqpConnection, at: float) -> None:
        slot = int(at * SLOTS_PER_SECOND)
        self._slot_of[connection] = slot
        self._slots.setdefault(slot, {})[connection] = None

    def remove(self, connection: AmqpConnection) -> None:
        slot = self._slot_of.pop(connection, None)
        if slot is not None:
            members = self._slots.get(slot, {})
            members.pop(connection, None)
            if not members:
                self._slots.pop(slot, None)

    def check_due(self, now: float) -> bool:
        """Check connections that are due, up to the limit; returns whether more are due."""
        current, left = int(now * SLOTS_PER_SECOND), MAX_CHECKS
        for slot in [slot for slot in self._slots if slot <= current]:
            for connection in list(self._slots.get(slot, ())):
                if self._slot_of.get(connection) != slot:
                    continue  # the end of another connection has removed it
                if not left:
                    return True
                left -= 1
                self.remove(connection)
                seconds = connection.check_heartbeat(now)
                if not connection.is_over:
                    self.add(connection, now + max(seconds, 1 / SLOTS_PER_SECOND))
        return False
