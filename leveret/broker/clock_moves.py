"""How far somebody set the system clock between two runs, and which messages that concerns.

A message's lifetime counts from the time it was published, by the clock of that moment. Within one
boot of the machine a clock nobody can set says how much time has really passed, so that a system
clock set meanwhile, forwards or back, is found out at the next start. What was stored before is
then moved along with the clock: it neither expires early nor lives on. After another boot only the
system clock is left to be believed.

Moves are kept as a hidden parameter for as long as messages from before them are held.
"""

from __future__ import annotations

import json

from leveret.broker.parameters import CLOCK, GLOBAL, Key
from leveret.model.clock import Clock
from leveret.model.store import ParameterDefinition, Recovered, Store

KEY = (GLOBAL, CLOCK, "moves")
SMALLEST_MS = 1_000


class ClockMoves:
    def __init__(self) -> None:
        self._moves: list[tuple[int, int]] = []
        """The last message before each, and by how many milliseconds the clock was set."""

    def __repr__(self) -> str:
        return f"<ClockMoves {self._moves}>"

    def of(self, message_id: int) -> int:
        """What to add to a time that was written down with this message."""
        return sum(ms for last, ms in self._moves if message_id <= last) if self._moves else 0

    def start(self, recovered: Recovered, clock: Clock, store: Store) -> None:
        """Compare the clocks with what the run before wrote down; write down what holds now."""
        boot, offset_ms = clock.anchor()
        known = _stored(recovered)
        before_boot, before_ms, moves = known if known is not None else ("", 0, [])
        oldest = min(
            (part.ids[0] for parts in recovered.live.values() for part in parts), default=0
        )
        kept = [(last, ms) for last, ms in moves if oldest and last >= oldest]
        same_boot = bool(boot) and boot == before_boot
        shift = offset_ms - before_ms if same_boot else 0
        if abs(shift) >= SMALLEST_MS and oldest:
            kept.append((recovered.last_message_id, shift))
        self._moves = kept
        if boot and (not same_boot or abs(shift) >= SMALLEST_MS or kept != moves):
            value = json.dumps({"boot": boot, "offset_ms": offset_ms, "moves": kept})
            store.save(ParameterDefinition(*KEY, value))


def _stored(recovered: Recovered) -> tuple[str, int, list[tuple[int, int]]] | None:
    for one in recovered.definitions:
        if isinstance(one, ParameterDefinition) and _key_of(one) == KEY:
            try:
                value = json.loads(one.value)
                moves = [(int(last), int(ms)) for last, ms in value["moves"]]
                return str(value["boot"]), int(value["offset_ms"]), moves
            except (ValueError, TypeError, KeyError, OverflowError):
                return None  # rot: the system clock is believed
    return None


def _key_of(definition: ParameterDefinition) -> Key:
    return definition.vhost, definition.component, definition.name
