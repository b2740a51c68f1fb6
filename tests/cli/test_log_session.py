"""Logs as a Kafka user tries them: topics, console producer and consumer, groups, typos."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pika
import pytest

from leveret.testing import LeveretBroker
from tests.support.polling import wait_until

WITHIN = 60.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory) -> Iterator[LeveretBroker]:
    data = tmp_path_factory.mktemp("session") / "data"
    with LeveretBroker(data_dir=data, http_enabled=True) as broker:
        yield broker


@pytest.fixture
def leveret(broker, cli, monkeypatch):
    """`leveret("log list")` returns what it printed, or its error if `code` is not 0."""
    for name in ("LEVERET_USER", "LEVERET_PASSWORD", "LEVERET_VHOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LEVERET_URL", broker.http_url)

    def run(line: str, code: int = 0) -> str:
        ended = cli(*line.split())
        assert ended.code == code, f"{line}: {ended.out}{ended.err}"
        return str(ended.out if code == 0 else ended.err)

    return run


@pytest.fixture
def clicks(leveret, stdin):
    """Six records of three users in three partitions."""
    leveret("log create clicks --partitions 3")
    stdin(b"anna:/home\nben:/home\nanna:/cart\ncleo:/home\nanna:/pay\nben:/cart\n")
    leveret("log produce clicks --key-separator :")
    yield "clicks"
    leveret("log delete clicks")


def cells(table: str) -> list[list[str]]:
    return [line.split("\t") for line in table.splitlines()[1:]]


def test_kafka_quickstart(leveret, stdin):
    leveret("log create clicks --partitions 3 --max-age 7D --segment-bytes 1000000")
    leveret("log create users --compact --delete-retention 1h")
    assert [row[:3] for row in cells(leveret("log list"))] == [
        ["clicks", "3", "0"],
        ["users", "1", "0"],
    ]
    stdin(b"anna:/home\nben:/home\nanna:/cart\n")
    leveret("log produce clicks --key-separator :")
    described = cells(leveret("log describe clicks"))
    assert [row[1] for row in described] == ["clicks-0", "clicks-1", "clicks-2"]
    assert sum(int(row[3]) for row in described) == 3
    whole = leveret("log consume clicks --from-beginning --count 3 --print-key --print-offset")
    rows = [line.split("\t") for line in whole.splitlines()]
    anna = [(place, value) for place, key, value in rows if key == "anna"]
    assert [value for _, value in anna] == ["/home", "/cart"]
    partition, first = anna[0][0].split(":")
    one = leveret(f"log consume clicks --partition {partition} --offset {first} --count 1")
    assert one == "/home\n"
    assert leveret("log consume clicks --offset 1h --count 3").count("\n") == 3
    assert leveret("log consume clicks --idle 0") == ""  # from now on
    leveret("log delete clicks")
    leveret("log delete users")
    assert cells(leveret("log list")) == []


def test_groups_have_lag_are_reset_and_deleted(leveret, clicks):
    assert leveret("log consume clicks --group report --count 6").count("\n") == 6
    table = cells(leveret("log groups"))
    assert [row[:2] for row in table] == [["clicks", "report"]] * 3
    assert sum(int(row[3]) for row in table) == 6  # committed
    assert [row[5] for row in table] == ["0", "0", "0"]  # lag
    preview = cells(leveret("log reset clicks --group report --to first --dry-run"))
    assert sum(int(row[1]) for row in preview) == 6 and {row[2] for row in preview} == {"0"}
    assert leveret("log consume clicks --group report --idle 0") == ""
    leveret("log reset clicks --group report --to first")
    assert sum(int(row[4]) for row in cells(leveret("log groups clicks"))) == 6
    assert leveret("log consume clicks --group report --idle 0").count("\n") == 6
    leveret("log forget clicks --group report")
    assert cells(leveret("log groups clicks")) == []


@contextmanager
def consuming(broker: LeveretBroker, output: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A `log consume --group` as a program."""
    words = ["log", "consume", "clicks", "--group", "shared", "--offset", "next"]
    with output.open("wb") as file:
        member = subprocess.Popen(
            # A test run in the background ignores SIGINT, and its children would inherit that.
            [
                "env",
                "--default-signal=INT",
                sys.executable,
                "-m",
                "leveret",
                *words,
                "--print-offset",
            ],
            env={**os.environ, "LEVERET_URL": broker.http_url},
            stdout=file,
        )
    try:
        yield member
    finally:
        member.send_signal(signal.SIGINT)
        assert member.wait(WITHIN) == 0


def test_two_programs_and_an_amqp_consumer_share_a_group(leveret, clicks, broker, tmp_path):
    """Each of the three gets a partition; together they receive every record once."""
    outputs = [tmp_path / "one", tmp_path / "two"]

    def shares() -> list[int]:
        groups = broker.running.broker.logs.groups("/", clicks)
        return sorted(len(member.partitions) for group in groups for member in group.members)

    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.basic_qos(prefetch_count=10)
    seen = []

    def note(channel, method, properties, body):
        headers = properties.headers
        seen.append(f"{headers['x-partition']}:{headers['x-stream-offset']}")
        channel.basic_ack(method.delivery_tag)

    with consuming(broker, outputs[0]), consuming(broker, outputs[1]):
        wait_until(lambda: shares() == [1, 2])
        channel.basic_consume(clicks, note, arguments={"x-group": "shared"})
        assert shares() == [1, 1, 1]
        for number in range(30):
            channel.basic_publish(clicks, "", b"%d" % number)

        def printed() -> list[str]:
            connection.process_data_events(0.01)
            return [line.split("\t")[0] for o in outputs for line in o.read_text().splitlines()]

        wait_until(lambda: len(set(printed()) | set(seen)) == 30)
        assert seen and all(output.read_text() for output in outputs)
    wait_until(lambda: shares() == [3])  # the programs have left the group
    connection.close()


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("log describe cliks", 66, "no log 'cliks' in vhost '/'; did you mean 'clicks'?"),
        ("log delete klicks", 66, "did you mean 'clicks'?"),
        ("log consume click --from-beginning", 66, "did you mean 'clicks'?"),
        ("log consume click --group g", 66, "did you mean 'clicks'?"),
        ("log groups something", 66, "there is no log 'something' in vhost '/'."),
        ("log groups clicks --group report", 66, "no group 'report' on log 'clicks'"),
        ("log reset clicks --group g --to first", 66, "no group 'g' on log 'clicks'"),
        ("log forget clicks --group g", 66, "no group 'g' on log 'clicks'"),
        ("log consume clicks --partition 7", 66, "has no partition 7; its partitions are 0 to 2."),
        ("log consume clicks --offset soon", 1, "must be first, last, next"),
        ("log consume clicks --offset 1 --from-beginning", 2, "not both"),
        ("log create clicks --partitions 4", 1, "x-partitions"),
        ("log create new --max-age 7x", 2, "--max-age must be a number followed by Y, M, D"),
        ("log creat new", 2, "Did you mean 'create'"),
    ],
)
def test_errors_explain_the_mistake(leveret, clicks, line, code, said):
    assert said in leveret(line, code)


def test_produce_refuses_invalid_lines(leveret, clicks, stdin):
    stdin(b"no key\n")
    assert "has no separator ':' after its key" in leveret(
        "log produce clicks --key-separator :", 1
    )
    stdin(b"x\n")
    assert "has the partitions 0 to 2, not 7" in leveret("log produce clicks --partition 7", 1)
    stdin(b"x\n")
    assert "did you mean 'clicks'?" in leveret("log produce click", 66)
