"""R-15: when publishers have to wait for memory, and how often it is looked at."""

from leveret.broker.watermark import (
    LONGEST_SECONDS,
    SOONEST_SECONDS,
    Pace,
    Watermark,
    header_bytes,
    resident_bytes,
)
from leveret.model.message import Address, Message
from queues import Entry

LIMIT = 1000


def test_messages_alone_may_reach_the_watermark():
    mark = Watermark(LIMIT)
    assert not mark.look(held=1000, resident=0)
    assert mark.look(held=1001, resident=0)


def test_full_process_leaves_half_to_messages():
    mark = Watermark(LIMIT)
    assert not mark.look(held=500, resident=1001)
    assert mark.look(held=501, resident=1001)
    assert not Watermark(LIMIT).look(held=501, resident=1000)


def test_passed_watermark_stays_so_until_there_is_some_room():
    mark = Watermark(LIMIT)
    mark.look(held=1001, resident=0)
    assert mark.look(held=900, resident=0)
    assert not mark.look(held=899, resident=0)


def test_memory_that_stays_with_the_process_does_not_keep_publishers_waiting():
    mark = Watermark(LIMIT)
    assert mark.look(held=700, resident=1100)
    assert mark.look(held=450, resident=1100)
    assert not mark.look(held=449, resident=1100)


def test_excess_is_what_has_to_go_first():
    mark = Watermark(LIMIT)
    mark.look(held=1000, resident=0)
    assert mark.excess == 0
    mark.look(held=1001, resident=0)
    assert mark.excess == 102
    assert not mark.look(held=1001 - 102, resident=0)
    assert mark.excess == 0


def test_room_is_what_comes_first():
    mark = Watermark(LIMIT)
    mark.look(held=300, resident=900)
    assert mark.room == 100
    mark.look(held=700, resident=800)
    assert mark.room == 200
    mark.look(held=300, resident=1100)
    assert mark.room == 200


def test_looks_more_often_the_closer_it_is():
    pace = Pace()
    assert pace.next_look(1000, 10.0) == LONGEST_SECONDS
    assert pace.next_look(900, 10.1) == LONGEST_SECONDS  # at this pace 0.9 s are left
    assert pace.next_look(200, 10.2) == SOONEST_SECONDS
    assert pace.next_look(200, 10.3) == LONGEST_SECONDS  # nothing more has come
    assert 0 < pace.next_look(100, 10.4) < LONGEST_SECONDS


def test_process_knows_its_size():
    assert resident_bytes() > 1 << 20


def test_headers_of_many_are_known_from_some():
    entry = Entry(Message.build(Address.of("", "q"), bytes(2), b""))
    size = entry.message.header_size
    assert header_bytes(0, []) == 0
    assert header_bytes(99, [entry] * 99) == 99 * size
    assert 900 * size <= header_bytes(999, [entry] * 999) <= 1000 * size
