import pytest

from leveret.queues.log.files.batch import (
    HEADER_SIZE,
    MAX_BATCH_BYTES,
    MAX_BATCH_RECORDS,
    Batch,
    Columns,
    RawRecord,
    Record,
    parse_header,
    reencode_batch,
    split,
)
from tests.unit.log.helpers import encoded, entries

LOG = 0x1234_5678_9ABC_DEF0


def decode(data: bytes) -> Batch:
    header = parse_header(data, 0, LOG)
    assert header is not None
    return Batch(header, data)


MIXED: list[RawRecord] = [
    (b"", b"", b"", b""),
    (b"amq.topic", "größe".encode(), b"\x90\x00\x02", bytes(range(256))),
    (b"", b"k" * 255, b"\x00\x00", b"x"),
]


def test_records_are_read_as_written():
    batch = decode(encoded(LOG, 70, MIXED, 1234))
    assert batch.records() == [Record(70 + i, 1234, *fields) for i, fields in enumerate(MIXED)]
    assert batch.header.next_offset == 73


def test_equal_names_share_one_object():
    first, second = decode(encoded(LOG, 0, entries(0, 2), 0)).records()
    assert first.exchange is second.exchange
    assert first.routing_key != second.routing_key


@pytest.mark.parametrize(("start", "stop"), [(0, 0), (0, 1), (1, 3), (2, 3), (3, 3)])
def test_records_of_a_range(start, stop):
    batch = decode(encoded(LOG, 0, MIXED, 0))
    assert batch.records(start, stop) == batch.records()[start:stop]


def test_reencoding_keeps_offsets_times_span_and_producers():
    batch = decode(encoded(LOG, 10, MIXED, 99, {b"p": 4}))
    selected = [batch.records()[0], batch.records()[2]]
    reencoded = decode(reencode_batch(LOG, batch, selected))
    assert reencoded.records() == selected
    assert reencoded.header.next_offset == 13
    assert reencoded.producers() == {b"p": 4}
    assert reencoded.index_of(11) == 1


def test_length_is_aligned_and_columns_start_aligned():
    for count in range(5):
        data = encoded(LOG, 0, entries(0, count, size=11), 0, {b"abc": 1})
        assert len(data) % 8 == 0
        assert HEADER_SIZE % 8 == 0
        assert decode(data).producers() == {b"abc": 1}


def test_index_of_offset_and_time():
    batch = decode(encoded(LOG, 10, MIXED, 500))
    assert [batch.index_of(offset) for offset in (0, 10, 11, 13)] == [0, 0, 1, 3]
    assert [batch.index_of_time(ms) for ms in (0, 500, 501)] == [0, 0, 3]


def test_stop_counts_records_and_body_bytes():
    batch = decode(encoded(LOG, 0, entries(0, 10, size=20), 0))
    assert batch.stop_for(0, 4, 10_000) == 4
    assert batch.stop_for(2, 100, 59) == 4
    assert batch.stop_for(2, 100, 60) == 5
    assert batch.stop_for(2, 100, 19) == 2
    assert batch.body_bytes(2, 5) == 60


@pytest.mark.parametrize("byte", range(HEADER_SIZE))
def test_bit_flip_anywhere_in_the_header_is_detected(byte):
    data = bytearray(encoded(LOG, 0, MIXED, 0))
    data[byte] ^= 0x10
    assert parse_header(bytes(data), 0, LOG) is None


def test_batch_of_another_log_is_rejected():
    assert parse_header(encoded(LOG + 1, 0, MIXED, 0), 0, LOG) is None


def test_split_by_bytes_and_records():
    big = Columns.of([(b"", b"", b"", bytes(MAX_BATCH_BYTES // 2))] * 5)
    assert split(big, big.size) == [(0, 2), (2, 4), (4, 5)]
    many = Columns.of([(b"", b"", b"", b"")] * (MAX_BATCH_RECORDS + 1))
    assert split(many, 0) == [(0, MAX_BATCH_RECORDS), (MAX_BATCH_RECORDS, MAX_BATCH_RECORDS + 1)]
    huge = Columns.of([(b"", b"", b"", bytes(3 * MAX_BATCH_BYTES))] * 2)
    assert split(huge, huge.size) == [(0, 1), (1, 2)]


def test_columns_are_arrow_arrays():
    pa = pytest.importorskip("pyarrow")
    batch = decode(encoded(LOG, 0, MIXED, 0))
    for column in range(4):
        buffers = [None, pa.py_buffer(batch.ends(column)), pa.py_buffer(batch.area(column))]
        array = pa.Array.from_buffers(pa.binary(), len(MIXED), buffers)
        array.validate(full=True)
        assert array.to_pylist() == [fields[column] for fields in MIXED]
