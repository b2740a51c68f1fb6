"""R-15: memory alarms, the interval of memory checks, and the connections that are closed."""

from leveret.broker.runtime.process import resident_bytes
from leveret.broker.runtime.resource_monitor import (
    INCOMPLETE_SECONDS,
    MAX_CHECK_SECONDS,
    MIN_CHECK_SECONDS,
    CheckInterval,
    IncompleteMessageLimit,
    MemoryWatermark,
)

LIMIT = 1000


def is_exceeded(watermark, message_bytes, resident):
    watermark.update(message_bytes, resident)
    return watermark.is_exceeded


# Watermark ---------------------------------------------------------------------------------------


def test_messages_alone_may_reach_the_limit():
    watermark = MemoryWatermark(LIMIT)
    assert not is_exceeded(watermark, message_bytes=1000, resident=0)
    assert is_exceeded(watermark, message_bytes=1001, resident=0)


def test_process_over_the_limit_leaves_half_to_messages():
    watermark = MemoryWatermark(LIMIT)
    assert not is_exceeded(watermark, message_bytes=500, resident=1001)
    assert is_exceeded(watermark, message_bytes=501, resident=1001)
    assert not is_exceeded(MemoryWatermark(LIMIT), message_bytes=501, resident=1000)


def test_watermark_stays_exceeded_until_a_tenth_is_free():
    watermark = MemoryWatermark(LIMIT)
    watermark.update(message_bytes=1001, resident=0)
    assert is_exceeded(watermark, message_bytes=900, resident=0)
    assert not is_exceeded(watermark, message_bytes=899, resident=0)


def test_freed_memory_that_stays_with_the_process_does_not_block_publishers():
    watermark = MemoryWatermark(LIMIT)
    assert is_exceeded(watermark, message_bytes=700, resident=1100)
    assert is_exceeded(watermark, message_bytes=450, resident=1100)
    assert not is_exceeded(watermark, message_bytes=449, resident=1100)


def test_excess_is_the_memory_to_free():
    watermark = MemoryWatermark(LIMIT)
    watermark.update(message_bytes=1000, resident=0)
    assert watermark.excess == 0
    watermark.update(message_bytes=1001, resident=0)
    assert watermark.excess == 102
    assert not is_exceeded(watermark, message_bytes=1001 - 102, resident=0)
    assert watermark.excess == 0


def test_headroom_is_the_smaller_of_process_and_messages():
    watermark = MemoryWatermark(LIMIT)
    watermark.update(message_bytes=300, resident=900)
    assert watermark.headroom == 100
    watermark.update(message_bytes=700, resident=800)
    assert watermark.headroom == 200
    watermark.update(message_bytes=300, resident=1100)
    assert watermark.headroom == 200


def test_checks_get_more_frequent_near_the_limit():
    interval = CheckInterval()
    assert interval.next_seconds(1000, 10.0) == MAX_CHECK_SECONDS
    assert interval.next_seconds(900, 10.1) == MAX_CHECK_SECONDS  # at this rate 0.9 s are left
    assert interval.next_seconds(200, 10.2) == MIN_CHECK_SECONDS
    assert interval.next_seconds(200, 10.3) == MAX_CHECK_SECONDS  # nothing was received
    assert 0 < interval.next_seconds(100, 10.4) < MAX_CHECK_SECONDS


def test_resident_bytes_of_this_process():
    assert resident_bytes() > 1 << 20


# Incomplete messages -----------------------------------------------------------------------------


class FakeConnection:
    def __init__(self, pending_bytes):
        self.pending_bytes = pending_bytes
        self.reason = ""

    def close(self, reason):
        self.pending_bytes, self.reason = 0, reason


def enforce(limit, connections, excess, *times):
    """The connections that are closed."""
    for now in times:
        limit.enforce(connections, excess, now)
    return [bool(connection.reason) for connection in connections]


LATER = 1 + INCOMPLETE_SECONDS


def test_connection_with_most_incomplete_bytes_is_closed_after_30_seconds():
    connections = [FakeConnection(10), FakeConnection(30), FakeConnection(20)]
    limit = IncompleteMessageLimit()
    assert enforce(limit, connections, 50, 1, LATER - 0.1) == [False, False, False]
    assert enforce(limit, connections, 50, LATER) == [False, True, False]
    assert "30 bytes" in connections[1].reason


def test_more_connections_are_closed_while_memory_is_low():
    connections = [FakeConnection(10), FakeConnection(30), FakeConnection(20)]
    limit = IncompleteMessageLimit()
    enforce(limit, connections, 50, 1, LATER)
    assert enforce(limit, connections, 20, LATER) == [False, True, True]
    assert enforce(limit, connections, 0, LATER) == [False, True, True]


def test_no_connection_is_closed_for_messages_in_queues():
    limit = IncompleteMessageLimit()
    assert enforce(limit, [FakeConnection(10)], 11, 1, LATER, 2 * LATER) == [False]
    assert enforce(IncompleteMessageLimit(), [], 11, 1, LATER, 2 * LATER) == []


def test_time_counts_from_the_start_of_the_last_excess():
    connections = [FakeConnection(10)]
    limit = IncompleteMessageLimit()
    assert enforce(limit, connections, 5, 1) == enforce(limit, connections, 0, 2) == [False]
    assert enforce(limit, connections, 5, LATER, LATER + 1) == [False]
    assert enforce(limit, connections, 11, LATER + 2) == [False]
    assert enforce(limit, connections, 5, 2 * LATER, 3 * LATER - 2) == [False]
    assert enforce(limit, connections, 5, 3 * LATER) == [True]
