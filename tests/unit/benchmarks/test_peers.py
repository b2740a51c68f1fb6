"""The load generator for NATS and Redis: their protocols, their place in the report."""

import json
import re
from typing import Any

import pytest

from benchmarks import catalogue, debian, report, runner
from benchmarks.brokers import NATS_SERVER, REDIS_SERVER, Kind, StartError, start
from benchmarks.frames import FramingError
from benchmarks.peers.client import CYCLE, OrderCheck, Shape, body
from benchmarks.peers.nats import Nats, NatsConfirms, NatsReader, pub
from benchmarks.peers.redis import Redis, RedisConfirms, RedisReader, command
from benchmarks.peers.registry import CLIENTS
from benchmarks.peers.roles import PeerConsumer, PeerPublisher, PeerSerialPublisher
from benchmarks.scenarios.base import Outcome, RunLength, Scenario
from benchmarks.scenarios.peers import NatsRequestReply, PeerBacklog, PeerConfirmLatency, PeerFlow
from benchmarks.workers import DeliveryCounts, RunError
from tests.support.polling import wait_until

SIZE = 100


class FakeSocket:
    """Records what is sent, and returns `answers` to a reader."""

    def __init__(self) -> None:
        self.answers = b""
        self._sent = b""

    def sendall(self, data: bytes) -> None:
        self._sent += data

    def recv(self, size: int) -> bytes:
        data, self.answers = self.answers[:size], self.answers[size:]
        return data

    def getsockname(self) -> tuple[str, int]:
        return ("127.0.0.1", 1)

    def settimeout(self, seconds: float) -> None: ...

    def close(self) -> None: ...

    def take_sent(self) -> bytes:
        taken, self._sent = self._sent, b""
        return taken


@pytest.fixture
def sock() -> Any:
    return FakeSocket()


class TestOrderCheck:
    def stamps(self, first: int, count: int) -> list[bytes]:
        return [body(n % CYCLE, 8) for n in range(first, first + count)]

    def test_accepts_consecutive_messages_across_the_end_of_the_blob(self):
        check = OrderCheck()
        check.add(self.stamps(0, 500))
        check.add(self.stamps(500, 1900))
        assert check.count == 2400

    @pytest.mark.parametrize("second", [499, 501])
    def test_repeated_or_missing_message_is_an_error(self, second):
        check = OrderCheck()
        check.add(self.stamps(0, 500))
        with pytest.raises(FramingError, match=f"message 501 carries message {second}"):
            check.add(self.stamps(second, 10))


class TestNatsConfirms:
    def answer(self, *numbers: int) -> bytes:
        payloads = [b'{"stream":"bench-q", "seq":%d}' % number for number in numbers]
        return b"".join(b"MSG _INBOX.b 1  %d\r\n%s\r\n" % (len(p), p) for p in payloads)

    @pytest.mark.parametrize("step", [1, 17, 1000])
    def test_counts_however_the_bytes_arrive(self, sock, step):
        confirms, data = NatsConfirms(sock), self.answer(7, 8, 9)
        counts = [confirms.feed(data[at : at + step]) for at in range(0, len(data), step)]
        assert counts[-1] == 3

    def test_ping_is_answered(self, sock):
        confirms = NatsConfirms(sock)
        assert confirms.feed(self.answer(1) + b"PING\r\n" + self.answer(2)) == 2
        assert sock.take_sent() == b"PONG\r\n"

    def test_missing_confirm_is_an_error(self, sock):
        confirms = NatsConfirms(sock)
        confirms.feed(self.answer(1, 2))
        with pytest.raises(FramingError, match="3 is next"):
            confirms.feed(self.answer(4))

    @pytest.mark.parametrize(
        "data",
        [
            b'MSG _INBOX.b 1 40\r\n{"error":{"code":503,"description":"no"}}\r\n',
            b"-ERR 'Permissions Violation'\r\n",
            b"HMSG _INBOX.b 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n",
        ],
    )
    def test_refused_publish_is_an_error(self, sock, data):
        with pytest.raises(FramingError, match="expected a confirm"):
            NatsConfirms(sock).feed(data)


class FakeConnection:
    """What NatsReader uses of a connection."""

    inbox = "_INBOX.bench.1"

    def __init__(self, sock: FakeSocket) -> None:
        self.sock = sock
        self.requests: list[str] = []

    def request(self, subject: str, value: object) -> None:
        self.requests.append(subject)

    def flush(self) -> None:
        self.sock.sendall(b"flushed")

    def close(self) -> None:
        pass


class TestNatsReader:
    def data(self, first: int, count: int) -> bytes:
        return b"".join(
            b"MSG bench.q 1 $JS.ACK.bench-q.bench.1.%d.%d.17.0 100\r\n%s\r\n"
            % (n + 1, n + 1, body(n % CYCLE, SIZE))
            for n in range(first, first + count)
        )

    def reader(self, sock: FakeSocket, shape: Shape) -> NatsReader:
        connection = FakeConnection(sock)
        reader = NatsReader(connection, "bench-q", shape, SIZE)  # type: ignore[arg-type]
        reader.begin()
        return reader

    @pytest.mark.parametrize("step", [13, 150, 100_000])
    def test_acks_each_message_and_asks_for_more(self, sock, step):
        reader, data = self.reader(sock, Shape.ACK_EACH), self.data(0, 620)
        out = sock.take_sent()
        assert out.count(b"CONSUMER.MSG.NEXT.bench-q.bench") == 2
        for at in range(0, len(data), step):
            reader.feed(data[at : at + step])
        reader.finish()
        out = sock.take_sent()
        assert reader.count == 620
        acks = re.findall(rb"PUB \$JS\.ACK\.bench-q\.bench\.1\.(\d+)", out)
        assert [int(number) for number in acks] == list(range(1, 621))
        assert out.count(b"CONSUMER.MSG.NEXT") == 1
        assert out.endswith(b"flushed")

    def test_acks_every_hundredth_and_the_last(self, sock):
        reader = self.reader(sock, Shape.ACK_MANY)
        for first, count in ((0, 150), (150, 20), (170, 80)):
            reader.feed(self.data(first, count))
        reader.finish()
        acks = re.findall(rb"PUB \$JS\.ACK\.bench-q\.bench\.1\.(\d+)", sock.take_sent())
        assert [int(number) for number in acks] == [100, 200, 250]

    def test_log_is_read_by_a_consumer_of_its_own_without_acks(self, sock):
        reader = self.reader(sock, Shape.LOG)
        reader.feed(self.data(0, 30) + b"PING\r\n" + self.data(30, 30))
        reader.finish()
        out = sock.take_sent()
        assert reader.count == 60
        assert b"$JS.ACK" not in out
        assert b"PONG\r\n" in out

    def test_lost_message_is_an_error(self, sock):
        reader = self.reader(sock, Shape.ACK_EACH)
        with pytest.raises(FramingError, match="message 11 carries message 11"):
            reader.feed(self.data(0, 10) + self.data(11, 5))

    def test_status_of_the_server_is_an_error(self, sock):
        reader = self.reader(sock, Shape.ACK_EACH)
        with pytest.raises(FramingError, match="409 Consumer Deleted"):
            reader.feed(b"HMSG i 1 30 30\r\nNATS/1.0 409 Consumer Deleted\r\n\r\n\r\n")

    def test_incomplete_last_message_is_an_error(self, sock):
        reader = self.reader(sock, Shape.ACK_EACH)
        reader.feed(self.data(0, 2)[:-1])
        with pytest.raises(FramingError, match="incomplete"):
            reader.finish()


class TestRedis:
    def test_command_is_an_array_of_strings(self):
        assert command("XADD", b"q", 7) == b"*3\r\n$4\r\nXADD\r\n$1\r\nq\r\n$1\r\n7\r\n"

    @pytest.mark.parametrize("step", [1, 5, 100])
    def test_confirms_are_counted_however_the_bytes_arrive(self, step):
        confirms, data = RedisConfirms(), b"$15\r\n1526984818136-0\r\n" * 4
        counts = [confirms.feed(data[at : at + step]) for at in range(0, len(data), step)]
        assert counts[-1] == 4

    def test_refused_publish_is_an_error(self):
        with pytest.raises(FramingError, match="OOM"):
            RedisConfirms().feed(b"-OOM command not allowed\r\n")


class TestRedisReader:
    def batch(self, first: int, count: int) -> bytes:
        entries = b"".join(
            b"*2\r\n$%d\r\n%s\r\n*2\r\n$1\r\nb\r\n$100\r\n%s\r\n"
            % (len(b"17-%d" % n), b"17-%d" % n, body(n % CYCLE, SIZE))
            for n in range(first, first + count)
        )
        return b"*1\r\n*2\r\n$1\r\nq\r\n*%d\r\n%s" % (count, entries)

    @pytest.mark.parametrize("step", [13, 150, 100_000])
    def test_acks_every_hundred_with_the_next_request(self, sock, step):
        reader, data = RedisReader(sock, "q", Shape.ACK_MANY, SIZE), self.batch(0, 250)
        reader.begin()
        assert sock.take_sent().startswith(b"*11\r\n$10\r\nXREADGROUP")
        for at in range(0, len(data), step):
            reader.feed(data[at : at + step])
        out = sock.take_sent()
        assert reader.count == 250
        assert out.count(b"*103\r\n$4\r\nXACK") == out.count(b"*102\r\n$4\r\nXDEL") == 2
        assert out.endswith(b">\r\n")
        sock.answers = b":100\r\n:100\r\n" * 2 + b"*-1\r\n:50\r\n:50\r\n+PONG\r\n"
        reader.finish()

    def test_acks_each(self, sock):
        reader = RedisReader(sock, "q", Shape.ACK_EACH, SIZE)
        reader.feed(self.batch(0, 3))
        out = sock.take_sent()
        assert out.count(b"*4\r\n$4\r\nXACK\r\n$1\r\nq\r\n$5\r\nbench\r\n$4\r\n17-") == 3
        assert out.count(b"*3\r\n$4\r\nXDEL\r\n$1\r\nq\r\n$4\r\n17-") == 3

    def test_ack_without_effect_is_an_error(self, sock):
        reader = RedisReader(sock, "q", Shape.ACK_EACH, SIZE)
        reader.feed(self.batch(0, 1))
        sock.answers = b":1\r\n:0\r\n*-1\r\n+PONG\r\n"
        with pytest.raises(FramingError, match="1 messages acked, 1 acks and removals"):
            reader.finish()

    def test_more_messages_than_published_is_an_error(self, sock):
        reader = RedisReader(sock, "q", Shape.ACK_EACH, SIZE)
        reader.feed(self.batch(0, 1))
        sock.answers = b":1\r\n:1\r\n" + self.batch(1, 1) + b"+PONG\r\n"
        with pytest.raises(FramingError, match="more messages than were published"):
            reader.finish()

    def test_log_is_read_from_the_last_id_and_not_acked(self, sock):
        reader = RedisReader(sock, "q", Shape.LOG, SIZE)
        reader.begin()
        reader.feed(self.batch(0, 12))
        reader.feed(b"*-1\r\n")
        requests = sock.take_sent().split(b"*6\r\n$5\r\nXREAD\r\n")[1:]
        assert [request.split(b"\r\n")[-2] for request in requests] == [b"0", b"17-11", b"17-11"]

    def test_refused_request_is_an_error(self, sock):
        reader = RedisReader(sock, "q", Shape.ACK_EACH, SIZE)
        with pytest.raises(FramingError, match="NOGROUP"):
            reader.feed(b"-NOGROUP No such key\r\n")

    def test_lost_message_is_an_error(self, sock):
        reader = RedisReader(sock, "q", Shape.ACK_EACH, SIZE)
        reader.feed(self.batch(0, 10))
        with pytest.raises(FramingError, match="message 11 carries message 11"):
            reader.feed(self.batch(11, 1))


class TestBlobs:
    @pytest.mark.parametrize("client", [Nats(), Redis()])
    def test_messages_have_one_size_and_their_index(self, client):
        parts = client.blob("bench.q", SIZE).parts(1)
        assert len(parts) == CYCLE
        assert all(body(index, SIZE) in bytes(part) for index, part in enumerate(parts))

    def test_publish_without_a_reply_subject(self):
        assert pub("a.b", b"xyz") == b"PUB a.b 3\r\nxyz\r\n"


SERVERS = [
    pytest.param(
        kind, marks=pytest.mark.skipif(not path.exists(), reason=f"{kind} is not installed")
    )
    for kind, path in ((Kind.NATS, NATS_SERVER), (Kind.REDIS, REDIS_SERVER))
]


@pytest.mark.parametrize("kind", SERVERS)
class TestRealServer:
    @pytest.fixture
    def broker(self, kind):
        running = start(kind)
        yield running
        running.stop()

    @pytest.mark.parametrize("shape", Shape)
    def test_messages_are_confirmed_read_and_acked(self, broker, kind, shape):
        client, counts = CLIENTS[kind], DeliveryCounts(1)
        client.declare(broker.address, "bench.q", shape)
        publisher = PeerPublisher(client, broker.address, "bench.q", count=1500)
        publisher.prepare()
        assert publisher.work(counts).count == 1500
        counts.expect(1500)
        consumer = PeerConsumer(client, broker.address, "bench.q", 0, shape)
        consumer.prepare()
        assert consumer.work(counts).count == 1500
        kept = 1500 if shape is Shape.LOG else 0
        wait_until(lambda: client.left(broker.address, "bench.q") == kept)
        client.delete(broker.address, "bench.q")
        client.delete(broker.address, "bench.q")

    def test_scenarios_run(self, broker, kind):
        client, length = CLIENTS[kind], RunLength(seconds=0.2, share=0.01)
        scenarios: list[Scenario] = [
            PeerFlow(client, ("bench.a", "bench.b"), Shape.ACK_MANY),
            PeerBacklog(client, "bench.log", Shape.LOG, 100_000, replays=2),
            *([NatsRequestReply()] if kind is Kind.NATS else []),
        ]
        for scenario in scenarios:
            scenario.prepare(broker)
            figures = scenario.run(broker, length).figures
            scenario.clean_up(broker)
            assert min(figures.values()) > 0

    def test_message_that_is_never_acked_is_noticed(self, broker, kind, monkeypatch):
        monkeypatch.setattr("benchmarks.scenarios.peers._EMPTY_TIMEOUT", 0.1)
        client = CLIENTS[kind]
        scenario = PeerConfirmLatency(client, "bench.q", consumed=True)
        scenario.prepare(broker)
        publisher = PeerSerialPublisher(client, broker.address, "bench.q", seconds=0.05)
        publisher.prepare()
        assert publisher.work(DeliveryCounts(0)).count == client.left(broker.address, "bench.q")
        with pytest.raises(RunError):
            scenario.run(broker, RunLength(seconds=0.05))

    def test_version(self, broker, kind):
        assert re.match(r"\d+\.\d+\.\d+", CLIENTS[kind].version(broker.address))


def workload(name: str) -> catalogue.Workload:
    (found,) = [workload for workload in catalogue.WORKLOADS if workload.name == name]
    return found


class TestPlaceInTheReport:
    def results(self) -> list[runner.Result]:
        durable, transient = workload("durable-ack100"), workload("transient-100b")
        first, second = runner.Result(durable), runner.Result(transient)
        for kind, rate in zip(Kind, (300, 100, 200, 50), strict=True):
            first.outcomes[kind] = [Outcome({"rate": float(rate)})]
        second.outcomes[Kind.LEVERET] = [Outcome({"rate": 7.0})]
        return [first, second]

    def test_only_rows_with_the_same_meaning_have_other_scenarios(self):
        with_nats = {w.name for w in catalogue.WORKLOADS if w.maybe_scenario(Kind.NATS)}
        with_redis = {w.name for w in catalogue.WORKLOADS if w.maybe_scenario(Kind.REDIS)}
        assert with_nats - with_redis == {"request-reply"}
        assert with_redis == {
            "durable-ack100",
            "durable-ack1",
            "durable-4x4",
            "durable-backlog",
            "durable-confirm-one",
            "durable-confirm-consumed",
            "log",
            "footprint",
        }

    def test_they_have_columns_of_their_own_after_the_comparison(self):
        rows = runner.rows(self.results(), ())
        lines = report.markdown(rows, {Kind.NATS: "NATS 2.9.10 (not synced)"}).splitlines()
        assert lines[0].endswith("| goal | met | NATS 2.9.10 (not synced) | Redis |")
        assert lines[2].endswith("| 300/s | 100/s | 3.00x | ≥ 1.8x | yes | 200/s | 50/s |")
        assert lines[3].endswith("| 7/s | - | - | ≥ 1.8x | - | - | - |")
        assert {line.count("|") for line in lines} == {9}

    def test_there_are_no_columns_without_figures(self):
        rows = runner.rows(self.results()[1:], ())
        assert report.markdown(rows, {}).splitlines()[0].endswith("| goal | met |")

    def test_json_has_their_figures(self):
        results = self.results()
        rows = runner.rows(results, ())
        read = json.loads(report.dumps(report.document(rows, results, {})))
        assert (read["rows"][0]["nats"], read["rows"][0]["redis"]) == (200, 50)
        assert read["rows"][1]["nats"] is None


class TestInstallation:
    def test_nothing_is_installed_if_the_program_exists(self, tmp_path, monkeypatch):
        monkeypatch.setitem(debian._PACKAGES, Kind.NATS, (tmp_path, "nats-server"))
        debian.ensure_installed(Kind.NATS, pytest.fail)
        debian.ensure_installed(Kind.LEVERET, pytest.fail)

    def test_missing_program_without_apt_get_is_an_error(self, tmp_path, monkeypatch):
        missing = tmp_path / "nats-server"
        monkeypatch.setitem(debian._PACKAGES, Kind.NATS, (missing, "nats-server"))
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(StartError, match=f"NATS is missing.*install {missing}"):
            debian.ensure_installed(Kind.NATS, pytest.fail)
