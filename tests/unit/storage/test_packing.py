from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from leveret.queues.storage.packing import (
    event_checksum,
    pack_ids,
    pack_sizes,
    unpack_ids,
    unpack_sizes,
)

ids = st.lists(st.integers(0, 2**64 - 1))
sizes = st.lists(st.integers(0, 2**32 - 1))


@given(ids)
def test_ids_survive_packing(values: list[int]):
    assert unpack_ids(pack_ids(values)) == array("Q", values)


@given(sizes)
def test_sizes_survive_packing(values: list[int]):
    assert unpack_sizes(pack_sizes(values)) == array("I", values)


def test_arrays_are_little_endian_on_disk():
    assert pack_ids([1, 256]) == b"\1" + bytes(7) + b"\0\1" + bytes(6)
    assert pack_sizes([1, 256]) == b"\1\0\0\0\0\1\0\0"


def test_event_checksum_covers_every_part():
    base: tuple[int, int, int, int, str | None, int, bytes, bytes | None]
    base = (1, 2, 3, 4, "d", 1, b"i", b"s")
    changed: tuple[object, ...] = (9, 9, 9, 9, "x", 9, b"x", None)
    variants = {event_checksum(*base)}
    for place, value in enumerate(changed):
        parts = (*base[:place], value, *base[place + 1 :])
        variants.add(event_checksum(*parts))  # type: ignore[arg-type]
    assert len(variants) == len(base) + 1
