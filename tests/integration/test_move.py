"""`leveret move` between two brokers: content, order, streams, errors, and crashes at every step.

tests/integration/test_moving_from_rabbitmq.py does the same with a real RabbitMQ and real kills.
"""

from __future__ import annotations

import itertools
import json
import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from leveret.cli import run
from leveret.launch import ThreadedBroker, in_process_settings
from leveret.move.amqp_client import AmqpClient, AmqpUrl, ConnectionLost
from leveret.move.mover import MoveError, Pace, QueueMover
from leveret.move.state import MoveState, Totals

_numbers = itertools.count(1)
STREAM = {"x-queue-type": "stream"}
PACE = Pace(batch=10, idle_seconds=0.3)


@pytest.fixture(scope="module")
def brokers() -> Iterator[tuple[ThreadedBroker, ThreadedBroker]]:
    with (
        ThreadedBroker(in_process_settings(http_enabled=True)) as source,
        ThreadedBroker(in_process_settings()) as target,
    ):
        yield source, target


@pytest.fixture
def channels(brokers) -> Iterator[tuple[Any, Any]]:
    connections = [pika.BlockingConnection(pika.URLParameters(each.url)) for each in brokers]
    yield connections[0].channel(), connections[1].channel()
    for connection in connections:
        connection.close()


@pytest.fixture
def queue(channels) -> Iterator[str]:
    """A queue of this name in both brokers."""
    name = f"queue {next(_numbers)} ü"
    for channel in channels:
        channel.queue_declare(name, durable=True)
    yield name
    for channel in channels:
        channel.queue_delete(name)


@pytest.fixture
def leveret_move(brokers, tmp_path, capfd):
    """Run the command; return its exit code, rows and messages."""

    def call(*words: str, code: int = 0) -> tuple[list[dict[str, Any]], str]:
        source, target = brokers
        urls = ["--from", source.url, "--to", target.url, "--state", str(tmp_path / "state.db")]
        ended = run(["move", *urls, "--idle", "0.3", "--formatter", "json", *words])
        out, err = capfd.readouterr()
        assert ended == code, err
        return json.loads(out) if out else [], err

    return call


def fill(channel: Any, queue: str, count: int, start: int = 0) -> None:
    for number in range(start, start + count):
        channel.basic_publish("", queue, str(number).encode())


def take_all(channel: Any, queue: str) -> list[tuple[Any, Any, bytes]]:
    messages: list[tuple[Any, Any, bytes]] = []
    while True:
        method, properties, body = channel.basic_get(queue, auto_ack=True)
        if method is None:
            return messages
        messages.append((method, properties, body))


def bodies(channel: Any, queue: str) -> list[bytes]:
    return [body for _, _, body in take_all(channel, queue)]


def test_messages_arrive_in_order_with_routing_key_and_properties(channels, queue, leveret_move):
    source, target = channels
    properties = pika.BasicProperties(
        content_type="a/b", headers={"n": 1, "CC": ["elsewhere"]}, delivery_mode=1, priority=3,
        correlation_id="c", reply_to="r", expiration="600000", message_id="m", timestamp=7,
        type="t", app_id="app",
    )  # fmt: skip
    target.queue_declare("elsewhere")
    source.exchange_declare("in", "fanout", auto_delete=True)
    source.queue_bind(queue, "in")
    source.basic_publish("in", "a.routing.key", b"first", properties)
    fill(source, queue, 25)
    [row], _ = leveret_move("--queue", queue, "--batch", "10")
    assert (row["messages"], row["bytes"], row["state"]) == (26, 5 + 10 + 30, "moved")
    assert (row["skipped"], row["possible_duplicates"]) == (0, 0)
    (method, arrived, body), *rest = take_all(target, queue)
    assert (method.routing_key, body) == ("a.routing.key", b"first")
    assert arrived == properties
    assert [body for _, _, body in rest] == [str(number).encode() for number in range(25)]
    assert bodies(source, queue) == bodies(target, "elsewhere") == []
    target.queue_delete("elsewhere")
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="NOT_FOUND"):
        target.connection.channel().exchange_declare(f"leveret.move.{queue}", passive=True)


def test_large_and_empty_bodies(channels, queue, leveret_move):
    source, target = channels
    large = struct.pack(">I", 7) * 100_000
    for body in (b"", large, b""):
        source.basic_publish("", queue, body)
    leveret_move("--queue", queue)
    assert bodies(target, queue) == [b"", large, b""]


def test_moving_back_gives_the_same_checksum(brokers, channels, queue, tmp_path, capfd):
    fill(channels[0], queue, 30)
    checksums = []
    for source, target in (brokers, brokers[::-1]):
        words = ["--from", source.url, "--to", target.url, "--state", str(tmp_path / "s.db")]
        assert run(["move", *words, "--queue", queue, "--formatter", "json", "-q"]) == 0
        checksums.append(json.loads(capfd.readouterr().out)[0]["checksum"])
    assert checksums[0] == checksums[1] != "0" * 32
    assert len(bodies(channels[0], queue)) == 30


def test_stream_is_copied_and_continued_by_offset(channels, leveret_move):
    source, target = channels
    for channel in channels:
        channel.queue_declare("feed", durable=True, arguments=STREAM)
    fill(source, "feed", 25)
    [row], _ = leveret_move("--queue", "feed", "--batch", "10")
    assert (row["messages"], row["state"]) == (25, "copied")
    fill(source, "feed", 5, start=25)
    [row], _ = leveret_move("--queue", "feed", "--batch", "10")
    assert row["messages"] == 30
    assert read_stream(target, "feed", 30) == [str(number).encode() for number in range(30)]
    assert len(read_stream(source, "feed", 30)) == 30
    for channel in channels:
        channel.queue_delete("feed")


def read_stream(channel: Any, queue: str, count: int) -> list[bytes]:
    found: list[bytes] = []
    channel.basic_qos(prefetch_count=100)
    for method, properties, body in channel.consume(queue, arguments={"x-stream-offset": "first"}):
        assert list(properties.headers) == ["x-stream-offset"]
        channel.basic_ack(method.delivery_tag)
        found.append(body)
        if len(found) == count:
            channel.cancel()
            return found
    raise AssertionError


def test_all_queues_with_the_partitions_of_a_log(brokers, channels, queue, leveret_move):
    source, target = channels
    for channel in channels:
        channel.queue_declare("log", durable=True, arguments=STREAM | {"x-partitions": 2})
    for key in "abcdef":
        source.basic_publish("log", key, key.encode())
    fill(source, queue, 3)
    source.queue_declare("mine", exclusive=True)
    rows, err = leveret_move("--all", "--from-api", brokers[0].http_url)
    assert {row["queue"]: row["messages"] for row in rows}[queue] == 3
    assert {row["queue"] for row in rows} == {queue, "log-0", "log-1"}
    assert sum(row["messages"] for row in rows) == 9
    assert "queue 'mine' is exclusive and is not moved." in err
    assert sorted(read_log(target, 6)) == [(key, key.encode()) for key in "abcdef"]
    for channel in channels:
        channel.queue_delete("log")


def read_log(channel: Any, count: int) -> list[tuple[str, bytes]]:
    found = []
    channel.basic_qos(prefetch_count=10)
    reader = {"x-group": "check", "x-stream-offset": "first"}
    for method, _, body in channel.consume("log", arguments=reader):
        channel.basic_ack(method.delivery_tag)
        found.append((method.routing_key, body))
        if len(found) == count:
            channel.cancel()
            return found
    raise AssertionError


# Errors -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--queue", "no"], 66, "queue 'no': NOT_FOUND - no queue 'no' in vhost '/'; `leveret im"),
        (["--queue", "no", "--all"], 2, "use either --queue or --all."),
        ([], 2, "use either --queue or --all."),
        (["--queue", "q", "--from", "amqp://127.0.0.1:1"], 69, "no broker answers at amqp://127."),
        (["--queue", "q", "--from", "http://x"], 2, "--from is not valid: use a URL such as amqp"),
        (["--all", "--from-api", "http://127.0.0.1:1"], 69, "no server answers at http://127.0.0"),
        (["--queue", "q", "--ca-file", "/nowhere.pem"], 2, "/nowhere.pem cannot be used"),
    ],
)
def test_errors_are_one_sentence_with_an_exit_code(leveret_move, words, code, said):
    _, err = leveret_move(*words, code=code)
    assert f"leveret: {said}" in err or f": {said}" in err


def test_same_broker_is_refused(brokers, leveret_move):
    _, err = leveret_move("--queue", "q", "--to", brokers[0].url, code=2)
    assert "--from and --to are the same broker and vhost." in err


def test_wrong_password(brokers, leveret_move):
    url = brokers[0].url.replace("guest:guest", "guest:wrong")
    _, err = leveret_move("--queue", "q", "--from", url, code=77)
    assert "ACCESS_REFUSED" in err


def test_target_that_refuses_messages(channels, leveret_move):
    """What it took is moved; the rest stays in the source."""
    source, target = channels
    full = {"x-max-length": 4, "x-overflow": "reject-publish"}
    source.queue_declare("full")
    target.queue_declare("full", arguments=full)
    fill(source, "full", 10)
    rows, err = leveret_move("--queue", "full", code=1)
    assert "the target refused 6 messages (nack); is it full, or out of disk space?" in err
    assert rows[0]["state"] == "failed"
    assert len(bodies(target, "full")) == 4
    leveret_move("--queue", "full", "--batch", "4", code=1)
    target.queue_delete("full")
    target.queue_declare("full")
    rows, _ = leveret_move("--queue", "full")
    arrived = Counter([*bodies(target, "full")])
    assert rows[0]["messages"] >= 10 and not bodies(source, "full")
    assert sum((arrived - Counter(set(arrived))).values()) <= rows[0]["possible_duplicates"]
    for channel in channels:
        channel.queue_delete("full")


def test_one_missing_queue_does_not_stop_the_others(channels, queue, leveret_move):
    fill(channels[0], queue, 3)
    rows, err = leveret_move("--queue", "no1", "--queue", queue, "--queue", "no2", code=1)
    assert [row["state"] for row in rows] == ["failed", "moved", "failed"]
    assert "2 of 3 queues were not moved completely." in err
    assert len(bodies(channels[1], queue)) == 3


def test_state_file_in_use(brokers, channels, queue, leveret_move, tmp_path):
    state = MoveState(tmp_path / "state.db", "other")
    _, err = leveret_move("--queue", queue, code=1)
    assert "the state file cannot be used" in err
    state.close()


# Crashes ------------------------------------------------------------------------------------------


class Killed(Exception):
    """Stands for kill -9: nothing after it is done."""


class DyingState(MoveState):
    """Ends the process before or after the given call of `save`."""

    def __init__(self, file: Path, call: int, *, is_after: bool) -> None:
        super().__init__(file, "route")
        self._calls_left, self._is_after = call, is_after

    def save(self, *values: Any) -> None:
        self._calls_left -= 1
        if self._calls_left == 0 and not self._is_after:
            raise Killed
        super().save(*values)
        if self._calls_left == 0:
            raise Killed


def run_until_killed(brokers: Any, queue: str, state: MoveState, *, is_stream: bool) -> Totals:
    """Move a queue; if killed, the sockets close without a word."""
    source, target = (AmqpClient(AmqpUrl.parse(broker.url), 30) for broker in brokers)
    try:
        target.select_confirms()
        mover = QueueMover(source, target, state, queue, PACE, is_stream=is_stream)
        return mover.run(lambda: False, lambda count: None)
    finally:
        source.drop()
        target.drop()
        state.close()


# The calls of `save` for 25 messages in batches of 10: published, confirmed, acked; three times.
CRASHES = [(call, is_after) for call in range(1, 11) for is_after in (False, True)]


@pytest.mark.parametrize(("call", "is_after"), CRASHES)
def test_crash_at_every_step_loses_nothing(brokers, channels, queue, tmp_path, call, is_after):
    source, target = channels
    fill(source, queue, 25)
    file = tmp_path / "state.db"
    dying = DyingState(file, call, is_after=is_after)
    with pytest.raises(Killed):
        run_until_killed(brokers, queue, dying, is_stream=False)
    totals = run_until_killed(brokers, queue, MoveState(file, "route"), is_stream=False)
    arrived = Counter(bodies(target, queue))
    assert arrived.keys() == {str(number).encode() for number in range(25)}
    duplicates = arrived.total() - 25
    assert duplicates <= totals.possible_duplicates <= PACE.batch
    assert totals.messages == arrived.total() or call % 3 == 2  # confirmed, but not recorded
    step = (call - 1) % 3  # 0: published, 1: confirmed, 2: acked
    if (step, is_after) in ((1, True), (2, False), (2, True)) or call == 10:
        assert duplicates == totals.possible_duplicates == 0
    assert not bodies(source, queue)


@pytest.mark.parametrize(("call", "is_after"), [(1, True), (2, False), (2, True), (3, False)])
def test_equal_messages_are_never_taken_for_each_other(
    brokers, channels, queue, tmp_path, call, is_after
):
    source, target = channels
    for _ in range(25):
        source.basic_publish("", queue, b"ping")
    file = tmp_path / "state.db"
    with pytest.raises(Killed):
        run_until_killed(brokers, queue, DyingState(file, call, is_after=is_after), is_stream=False)
    totals = run_until_killed(brokers, queue, MoveState(file, "route"), is_stream=False)
    arrived = len(bodies(target, queue))
    assert 25 <= arrived <= 25 + totals.possible_duplicates


@pytest.mark.parametrize(("call", "is_after"), CRASHES[:6])
def test_crash_while_a_stream_is_copied(brokers, channels, tmp_path, call, is_after):
    source, target = channels
    for channel in channels:
        channel.queue_declare("crash", durable=True, arguments=STREAM)
    fill(source, "crash", 15)
    file = tmp_path / "state.db"
    with pytest.raises(Killed):
        run_until_killed(
            brokers, "crash", DyingState(file, call, is_after=is_after), is_stream=True
        )
    totals = run_until_killed(brokers, "crash", MoveState(file, "route"), is_stream=True)
    has_duplicates = (call, is_after) == (2, False)
    count = 15 + (PACE.batch if has_duplicates else 0)
    arrived = Counter(read_stream(target, "crash", count))
    assert arrived.keys() == {str(number).encode() for number in range(15)}
    if has_duplicates:
        assert totals.possible_duplicates == PACE.batch
    for channel in channels:
        channel.queue_delete("crash")


def test_deleted_source_queue_is_reported(brokers, channels, tmp_path):
    source, target = channels
    for channel in channels:
        channel.queue_declare("gone", durable=True, arguments=STREAM)
    state = MoveState(tmp_path / "state.db", "route")
    reader, writer = (AmqpClient(AmqpUrl.parse(broker.url), 30) for broker in brokers)
    writer.select_confirms()
    mover = QueueMover(reader, writer, state, "gone", Pace(10, 30.0), is_stream=True)
    calls = itertools.count()

    def delete_soon() -> bool:
        if next(calls) == 3:
            source.queue_delete("gone")
        return False

    with pytest.raises(MoveError, match="the source has deleted it"):
        mover.run(delete_soon, lambda count: None)
    reader.close()
    writer.close()
    state.close()
    target.queue_delete("gone")


def test_lost_connection_is_an_error():
    with pytest.raises(ConnectionLost, match="no broker answers"):
        AmqpClient(AmqpUrl.parse("amqp://127.0.0.1:1"), 1)
