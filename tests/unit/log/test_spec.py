from datetime import UTC, datetime, timedelta, timezone

import pytest

from leveret.queues.log.files import SpecError
from leveret.queues.log.spec import (
    OffsetKind,
    OffsetSpec,
    parse_max_age,
    parse_offset_spec,
    resolve_offset,
)
from tests.unit.log.helpers import fill, small

HOUR = 3_600_000


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, OffsetSpec(OffsetKind.NEXT)),
        ("first", OffsetSpec(OffsetKind.FIRST)),
        ("last", OffsetSpec(OffsetKind.LAST)),
        ("next", OffsetSpec(OffsetKind.NEXT)),
        (0, OffsetSpec(OffsetKind.OFFSET, 0)),
        (5000, OffsetSpec(OffsetKind.OFFSET, 5000)),
        (-3, OffsetSpec(OffsetKind.OFFSET, 0)),
        ("1h", OffsetSpec(OffsetKind.INTERVAL, HOUR)),
        ("30m", OffsetSpec(OffsetKind.INTERVAL, HOUR // 2)),
        ("2Y", OffsetSpec(OffsetKind.INTERVAL, 2 * 365 * 24 * HOUR)),
        (datetime(1970, 1, 1, 1, tzinfo=UTC), OffsetSpec(OffsetKind.TIMESTAMP, HOUR)),
        (datetime(1970, 1, 1, 1), OffsetSpec(OffsetKind.TIMESTAMP, HOUR)),  # noqa: DTZ001
        (
            datetime(1970, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))),
            OffsetSpec(OffsetKind.TIMESTAMP, 0),
        ),
    ],
)
def test_offset_specifications(value, expected):
    assert parse_offset_spec(value) == expected


@pytest.mark.parametrize(
    "value",
    ["First", "", "1", "1H", "h", "-1h", "0s", "1 h", "1h ", "\u0661h", True, 1.5, b"first", {}],
)
def test_invalid_offset_is_rejected_with_a_text(value):
    with pytest.raises(SpecError, match="x-stream-offset must be") as error:
        parse_offset_spec(value)
    assert repr(value) in str(error.value)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1s", 1), ("1m", 60), ("2h", 7200), ("7D", 7 * 86_400), ("1M", 30 * 86_400),
        ("1Y", 365 * 86_400), ("007D", 7 * 86_400),
    ],
)  # fmt: skip
def test_max_age(text, seconds):
    assert parse_max_age(text) == seconds * 1000


@pytest.mark.parametrize("value", ["", "7", "7d", "D", "0D", "-1D", "7DD", " 7D", "1.5h", 7, None])
def test_invalid_max_age_is_rejected(value):
    with pytest.raises(SpecError, match="x-max-age"):
        parse_max_age(value)


def test_resolved_offsets_are_clamped_to_the_log(tmp_path):
    log = small(tmp_path, 2_000)
    fill(log, 40)
    log.drop_oldest(2)
    first, after = log.first_offset, log.next_offset
    assert first > 0

    def at(value: object, now_ms: int = 0) -> int:
        return resolve_offset(parse_offset_spec(value), log, now_ms)

    assert (at("first"), at("last"), at("next")) == (first, after - 1, after)
    assert (at(0), at(first + 3), at(10**12)) == (first, first + 3, after)
    assert at("1s", now_ms=2030) == 300
    assert at("1s", now_ms=5000) == after
    assert at("1h", now_ms=2030) == first
    assert at(datetime.fromtimestamp(1.035, UTC)) == 350
    log.close()


def test_last_of_an_empty_log_is_its_start(tmp_path):
    log = small(tmp_path)
    assert resolve_offset(OffsetSpec(OffsetKind.LAST), log, 0) == 0
    log.close()
