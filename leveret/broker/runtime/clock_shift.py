"""Corrects stored times after the system clock was set while the broker was stopped.

The lifetime of a message counts from its publish time, by the clock of that moment. Within one boot
of the machine the monotonic clock tells how much time has really passed, so that the next start
detects that the system clock was set, forwards or back. Stored times are then shifted with the
clock, so that messages neither expire early nor live longer. After a reboot there is only the
system clock to trust.

Shifts are stored as a hidden parameter for as long as messages from before them exist. Event-loop
thread only.
"""

from __future__ import annotations

import json

from leveret.broker.policies.parameters import CLOCK, GLOBAL, Key
from leveret.model.clock import Clock
from leveret.model.definitions import ParameterDefinition
from leveret.model.store import RecoveredState, Store

KEY = (GLOBAL, CLOCK, "moves")
MIN_SHIFT_MS = 1_000


class ClockShift:
    def __init__(self) -> None:
        self._shifts: list[tuple[int, int]] = []
        """For each shift the last message id before it, and its milliseconds."""

    def __repr__(self) -> str:
        return f"<ClockShift {self._shifts}>"

    def offset_ms(self, message_id: int) -> int:
        """Milliseconds to add to the stored times of this message."""
        return sum(ms for last, ms in self._shifts if message_id <= last) if self._shifts else 0

    def start(self, recovered: RecoveredState, clock: Clock, store: Store) -> None:
        """Compare the clocks with those the last run stored, and store the current ones."""
        boot, offset_ms = clock.anchor()
        stored = _maybe_stored(recovered)
        last_boot, last_offset_ms, stored_shifts = stored if stored is not None else ("", 0, [])
        oldest = min(
            (part.ids[0] for parts in recovered.live.values() for part in parts), default=0
        )
        shifts = [(last, ms) for last, ms in stored_shifts if oldest and last >= oldest]
        same_boot = bool(boot) and boot == last_boot
        shift = offset_ms - last_offset_ms if same_boot else 0
        if abs(shift) >= MIN_SHIFT_MS and oldest:
            shifts.append((recovered.last_message_id, shift))
        self._shifts = shifts
        if boot and (not same_boot or abs(shift) >= MIN_SHIFT_MS or shifts != stored_shifts):
            value = json.dumps({"boot": boot, "offset_ms": offset_ms, "moves": shifts})
            store.save(ParameterDefinition(*KEY, value))


def _maybe_stored(recovered: RecoveredState) -> tuple[str, int, list[tuple[int, int]]] | None:
    for definition in recovered.definitions:
        if isinstance(definition, ParameterDefinition) and _key_of(definition) == KEY:
            try:
                value = json.loads(definition.value)
                shifts = [(int(last), int(ms)) for last, ms in value["moves"]]
                return str(value["boot"]), int(value["offset_ms"]), shifts
            except (ValueError, TypeError, KeyError, OverflowError):
                return None  # damaged: the system clock is trusted
    return None


def _key_of(definition: ParameterDefinition) -> Key:
    return definition.vhost, definition.component, definition.name
