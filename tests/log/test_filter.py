"""`x-stream-filter`: a consumer receives the matching records only."""

from __future__ import annotations

import pika
import pika.exceptions
import pytest

from tests.log.conftest import declare, publish

VALUES = ["red", "green", "blue"]
FIRST = {"x_stream_offset": "first"}


@pytest.fixture
def colours(channel):
    """300 records, a third of each colour, and one without a colour."""
    declare(channel, "colours")
    for number in range(300):
        headers = {"x_stream_filter_value": VALUES[number % 3]}
        publish(channel, "", [b"%d" % number], "colours", **headers)
    publish(channel, "", [b"plain"], "colours")
    return "colours"


def test_filter_with_one_value(colours, readers):
    reader = readers(colours, prefetch=7, x_stream_filter="green", **FIRST).read(100)
    assert reader.quiet(0.1).offsets == list(range(1, 300, 3))
    headers = reader.records[0][1].headers
    assert headers == {"x-stream-filter-value": "green", "x-stream-offset": 1}


def test_filter_with_several_values_and_unfiltered_records(colours, readers):
    reader = readers(colours, x_stream_filter=["red", "blue"], **FIRST).read(200)
    assert reader.quiet(0.1).offsets == [n for n in range(300) if n % 3 != 1]
    both = readers(colours, x_stream_filter=["red"], x_stream_match_unfiltered=True, **FIRST).read(
        101
    )
    assert both.quiet(0.1).offsets == [*range(0, 300, 3), 300]


def test_filtered_records_cost_no_credit(home, channel, readers):
    """A prefetch of one, and thousands of other records between two matching ones."""
    declare(channel, "log")
    fast = home.connect().channel()
    for number in range(6_000):
        colour = "rare" if number in (0, 5_500) else "common"
        fast.basic_publish(
            "", "log", b"", pika.BasicProperties(headers={"x-stream-filter-value": colour})
        )
    reader = readers("log", prefetch=1, x_stream_filter="rare", **FIRST).read(2)
    assert reader.offsets == [0, 5_500]
    publish(channel, "", [b"new"], "log", x_stream_filter_value="rare")
    assert reader.read(3).offsets == [0, 5_500, 6_000]


def test_filter_value_that_no_record_has(colours, channel, readers):
    reader = readers(colours, x_stream_filter="violet", **FIRST).quiet(0.2)
    assert reader.records == []
    publish(channel, "", [b"at last"], colours, x_stream_filter_value="violet")
    assert reader.read(1).bodies == [b"at last"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"x_stream_filter": 5}, "must be a string or a list of strings, not 5"),
        ({"x_stream_filter": ["a", 5]}, "must be a string or a list of strings"),
        ({"x_stream_match_unfiltered": "yes"}, "must be true or false, not 'yes'"),
        ({"x_stream_filter": "a", "x_group": "g"}, "a group reads whole partitions"),
    ],
)
def test_invalid_filters_are_rejected(home, channel, readers, arguments, reason):
    declare(channel, "log")
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="406.*" + reason):
        readers("log", **arguments)
    assert home.hub.logs.groups("/", "log") == []
