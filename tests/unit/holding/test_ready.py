"""What comes back to a queue takes its old place, without a look at all that stands behind."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.model.message import Address, Message
from leveret.model.properties import encode_properties
from queues.entry import Entry
from queues.ready import PriorityReady, make_ready, put_back

ADDRESS = Address.of("", "q")


def entries_of(ids: Iterable[int], levels: int = 1) -> list[Entry]:
    made = []
    for number in ids:
        properties = encode_properties({"priority": number % levels})
        message = Message.build(ADDRESS, properties, b"")
        message.id = number
        made.append(Entry(message))
    return made


@given(
    st.sets(st.integers(1, 60)), st.data(), st.sampled_from([None, 2]), st.sampled_from([0, 1, 64])
)
def test_everybody_takes_the_old_place(
    ids: set[int], data: st.DataObject, levels: int | None, far: int
) -> None:
    everyone = entries_of(sorted(ids), 3)
    away = data.draw(st.lists(st.sampled_from(everyone), unique=True)) if everyone else []
    ready = make_ready(levels)
    ready.extend([entry for entry in everyone if entry not in away])
    with patch("queues.ready.FAR", far):
        for part in (away[::2], away[1::2]):
            ready = put_back(ready, part)
    whole = make_ready(levels)
    whole.extend(everyone)
    assert list(ready) == list(whole)
    assert len(ready) == len(everyone)


class Watched(deque[Entry]):
    """Counts what is taken off the front."""

    looked_at = 0

    def popleft(self) -> Entry:
        self.looked_at += 1
        return super().popleft()


@pytest.mark.parametrize("count", [10, 1_000])
def test_returns_one_by_one_do_not_look_at_the_whole_queue(count: int) -> None:
    everyone = entries_of(range(count + 10))
    ready = Watched(everyone[10:])
    for entry in everyone[:10]:
        put_back(ready, [entry])
    assert [entry.id for entry in ready] == list(range(count + 10))
    assert ready.looked_at == sum(range(10))


def test_returns_one_by_one_do_not_look_at_all_that_came_back_before() -> None:
    """As when a connection goes that had thousands of consumers with a message each."""
    everyone = entries_of(range(3_000))
    ready = Watched(everyone[2_000:])
    for entry in everyone[:2_000]:
        put_back(ready, [entry])
    assert [entry.id for entry in ready] == list(range(3_000))
    assert ready.looked_at < 3_000


def test_many_returns_to_a_priority_queue_are_one_step_a_level() -> None:
    everyone = entries_of(range(3_000), 3)
    ready = PriorityReady(2)
    ready._levels = [Watched() for _ in range(3)]
    ready.extend(everyone[1_000:])
    put_back(ready, everyone[:1_000])
    assert sum(level.looked_at for level in ready._levels if isinstance(level, Watched)) == 0
    assert [entry.id for entry in ready][:2] == [2, 5]
