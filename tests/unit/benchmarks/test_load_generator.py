"""The load generator of the benchmarks: frames, counters, roles, arithmetic, report."""

import io
import json
import socket
import threading
import xml.etree.ElementTree as ET
from typing import Any

import pytest
from pamqp import commands
from pamqp import frame as codec
from pamqp.header import ContentHeader
from rich.console import Console

from benchmarks import catalogue, chart, report, runner
from benchmarks.brokers import Kind
from benchmarks.connection import Address, RefusedError
from benchmarks.counting import ConfirmCounter, DeliveryCounter, maybe_layout
from benchmarks.figures import Unit, median, percentile, shown, times_better
from benchmarks.frames import (
    ACK,
    AckBlock,
    FramingError,
    ack,
    delivery_mode,
    publish,
    publish_blob,
)
from benchmarks.latency_roles import SteadyPublisher
from benchmarks.roles import Consumer, Publisher, Stream
from benchmarks.scenarios.base import Outcome, RunLength
from benchmarks.stub_broker import StubBroker, deliveries
from benchmarks.workers import DeliveryCounts, Report, RunError, WorkerPool

TRANSIENT = delivery_mode(persistent=False)


def frames_of(data: bytes) -> list[Any]:
    values = []
    while data:
        used, _, value = codec.unmarshal(data)
        values.append(value)
        data = data[used:]
    return values


class TestFrames:
    def test_publish_is_decoded_by_pamqp(self):
        data = publish("logs", "a.b", delivery_mode(persistent=True), b"hello")
        method, header, body = frames_of(data)
        assert (method.name, method.exchange, method.routing_key) == (
            "Basic.Publish",
            "logs",
            "a.b",
        )
        assert isinstance(header, ContentHeader)
        assert (header.body_size, header.properties.delivery_mode) == (5, 2)
        assert body.value == b"hello"

    def test_ack_equals_that_of_pamqp(self):
        assert ack(77, multiple=True) == codec.marshal(commands.Basic.Ack(77, True), 1)

    def test_blob_numbers_its_messages_and_cycles_its_keys(self):
        blob = publish_blob("x", ("k1", "k2"), properties=TRANSIENT, body_size=20, count=4)
        values = frames_of(blob.data)
        assert [value.routing_key for value in values[::3]] == ["k1", "k2", "k1", "k2"]
        assert [int.from_bytes(value.value[:8]) for value in values[2::3]] == [0, 1, 2, 3]
        assert {len(value.value) for value in values[2::3]} == {20}

    def test_parts_cover_the_blob(self):
        blob = publish_blob("", ("q",), properties=TRANSIENT, body_size=10, count=6)
        assert b"".join(blob.parts(2)) == blob.data
        with pytest.raises(ValueError, match="does not divide"):
            blob.parts(4)

    def test_messages_of_two_sizes_are_an_error(self):
        with pytest.raises(ValueError, match="one size"):
            publish_blob("", ("q", "qq"), properties=TRANSIENT, body_size=10, count=2)

    @pytest.mark.parametrize(
        ("first", "last"),
        [(1, 1), (1, 300), (65_530, 65_545), (131_072, 131_072), (1 << 24, (1 << 24) + 3)],
    )
    def test_ack_block_equals_single_acks(self, first, last):
        block = AckBlock()
        expected = b"".join(ack(tag, multiple=False) for tag in range(first, last + 1))
        assert b"".join(bytes(part) for part in block.parts(first, last)) == expected

    def test_ack_block_can_move_back(self):
        block = AckBlock()
        far = [bytes(part) for part in block.parts(70_000, 70_000)]
        near = [bytes(part) for part in block.parts(5, 5)]
        assert (far, near) == ([ack(70_000, multiple=False)], [ack(5, multiple=False)])


class TestDeliveryCounter:
    data = deliveries(1, 25, body_size=40, cycle=10)

    @pytest.mark.parametrize("step", [1, 7, 100, 113, 10_000])
    def test_counts_however_the_bytes_arrive(self, step):
        counter = DeliveryCounter(cycle=10)
        for at in range(0, len(self.data), step):
            counter.feed(memoryview(self.data)[at : at + step])
        assert (counter.count, counter.is_incomplete) == (25, False)

    def test_layout_has_the_positions_of_tag_and_body(self):
        layout = maybe_layout(self.data)
        assert layout is not None
        assert layout.size == len(self.data) // 25
        assert int.from_bytes(self.data[layout.tag_at : layout.tag_at + 8]) == 1
        assert self.data[layout.body_at + 8 : layout.body_at + 40] == b"x" * 32

    def test_incomplete_first_delivery_has_no_layout(self):
        size = len(self.data) // 25
        assert all(maybe_layout(self.data[:cut]) is None for cut in range(size))

    def test_truncated_message_is_incomplete(self):
        counter = DeliveryCounter()
        counter.feed(memoryview(self.data)[:-1])
        assert (counter.count, counter.is_incomplete) == (24, True)

    @pytest.mark.parametrize(
        ("second", "complaint"),
        [
            (deliveries(3, 1, body_size=40, cycle=10), "delivery 2 has tag 3"),
            (deliveries(2, 1, body_size=40, cycle=1), "carries message 0"),
            (b"?" * 200, "does not start"),
        ],
    )
    def test_wrong_next_delivery_is_an_error(self, second, complaint):
        counter = DeliveryCounter(cycle=10)
        counter.feed(memoryview(deliveries(1, 1, body_size=40, cycle=10)))
        with pytest.raises(FramingError, match=complaint):
            counter.feed(memoryview(second))

    def test_shifted_boundary_is_an_error(self):
        first = deliveries(1, 1, body_size=40)
        counter = DeliveryCounter()
        counter.feed(memoryview(first))
        counter.feed(memoryview(deliveries(2, 1, body_size=40))[:30])
        with pytest.raises(FramingError, match="does not end"):
            counter.feed(memoryview(b"x" * len(first)))

    def test_other_method_is_an_error(self):
        with pytest.raises(FramingError, match=r"basic\.deliver"):
            maybe_layout(codec.marshal(commands.Basic.Ack(1), 1))


class TestConfirmCounter:
    def test_multiple_confirms_all_before(self):
        assert ConfirmCounter().feed(ack(500, multiple=True)) == 500

    def test_singles_in_any_order_and_split_frames(self):
        counter = ConfirmCounter()
        data = b"".join(ack(tag, multiple=False) for tag in (2, 4, 1, 3))
        counts = [counter.feed(data[at : at + 10]) for at in range(0, len(data), 10)]
        assert counts == [0, 0, 1, 1, 2, 2, 3, 3, 4]

    def test_multiple_includes_earlier_singles(self):
        counter = ConfirmCounter()
        counter.feed(ack(3, multiple=False) + ack(7, multiple=False))
        assert counter.feed(ack(5, multiple=True)) == 6
        assert counter.feed(ack(6, multiple=False)) == 7

    def test_repeated_confirm_is_an_error(self):
        with pytest.raises(FramingError, match="twice"):
            ConfirmCounter().feed(ack(1, multiple=False) * 2)

    def test_close_is_an_error_with_its_reason(self):
        close = codec.marshal(commands.Channel.Close(404, "NOT_FOUND - no exchange", 60, 40), 1)
        with pytest.raises(FramingError, match=r"Channel\.Close 404 NOT_FOUND - no exchange"):
            ConfirmCounter().feed(close)

    def test_nack_is_an_error(self):
        nack = codec.marshal(commands.Basic.Nack(1), 1)
        assert len(nack) == ACK.size
        with pytest.raises(FramingError, match="expected a confirm"):
            ConfirmCounter().feed(nack)


class TestRoles:
    @pytest.mark.parametrize("window", [0, 200])
    def test_publisher_sends_the_reported_count(self, window):
        with StubBroker() as broker:
            role = Publisher(broker.address, Stream("", ("q",)), count=3000, window=window)
            role.prepare()
            assert role.work(DeliveryCounts(0)).count == 3000
        assert broker.published == 3000

    def test_publisher_stops_after_its_time(self):
        with StubBroker() as broker:
            role = Publisher(broker.address, Stream("", ("q",)), seconds=0.05)
            role.prepare()
            work = role.work(DeliveryCounts(0))
        assert work.count == broker.published > 0
        assert work.finished - work.started >= 0.05

    def test_steady_publisher_times_every_message_until_it_is_told_to_stop(self):
        counts = DeliveryCounts(0)
        with StubBroker() as broker:
            role = SteadyPublisher(broker.address, "q", rate=1000)
            role.prepare()
            stop = threading.Timer(0.05, counts.expect, [0])
            stop.start()
            work = role.work(counts)
            stop.join()
        assert work.count == len(work.latencies) == broker.published > 0
        assert min(work.latencies) > 0

    @pytest.mark.parametrize("ack_every", [0, 1, 100])
    @pytest.mark.parametrize("queues", [1, 3])
    def test_consumer_counts_every_delivery(self, ack_every, queues):
        counts = DeliveryCounts(1)
        counts.expect(queues * 950)
        with StubBroker(deliveries(1, 950, body_size=100)) as broker:
            role = Consumer(broker.address, ("q",) * queues, 0, ack_every=ack_every, cycle=600)
            role.prepare()
            assert role.work(counts).count == queues * 950

    def test_broken_framing_is_an_error_of_the_consumer(self):
        counts = DeliveryCounts(1)
        counts.expect(10)
        with StubBroker(deliveries(1, 1, body_size=100), spoil=True) as broker:
            role = Consumer(broker.address, ("q",), 0)
            role.prepare()
            with pytest.raises(FramingError, match="does not end"):
                role.work(counts)

    def test_pool_runs_roles_in_processes(self):
        with StubBroker() as broker:
            role = Publisher(broker.address, Stream("", ("q",)), count=1200, window=400)
            with WorkerPool([role, role]) as pool:
                pool.go()
                counts = [work.count for work in pool.reports(slice(None), 30)]
        assert counts == [1200, 1200]

    def test_pool_raises_the_error_of_a_worker(self):
        with socket.create_server(("127.0.0.1", 0)) as closed:
            unused = Address("127.0.0.1", closed.getsockname()[1])
        role = Publisher(unused, Stream("", ("q",)), count=100)
        with (
            WorkerPool([role]) as pool,
            pytest.raises(RunError, match="Publisher: ConnectionRefused"),
        ):
            pool.go()


class TestDeliveryCounts:
    def test_is_complete_when_the_sum_is_reached(self):
        counts = DeliveryCounts(2)
        counts.put(0, 3)
        assert not counts.is_complete
        counts.expect(5)
        assert not counts.is_complete
        counts.put(1, 2)
        assert counts.is_complete


class TestFigures:
    @pytest.mark.parametrize(("percent", "value"), [(50, 50), (99, 99), (100, 100), (1, 1), (0, 1)])
    def test_percentile_is_the_nearest_rank(self, percent, value):
        assert percentile([float(number) for number in range(100, 0, -1)], percent) == value

    def test_percentile_of_few_values_is_one_of_them(self):
        assert percentile([3.0, 1.0], 50) == 1.0
        assert percentile([3.0, 1.0], 99) == 3.0

    def test_percentile_of_no_values_is_an_error(self):
        with pytest.raises(ValueError, match="no values"):
            percentile([], 50)

    def test_times_better_is_above_one_when_better_in_every_unit(self):
        assert times_better(Unit.RATE, 300, 100) == 3
        assert times_better(Unit.MILLISECONDS, 1, 3) == 3
        assert times_better(Unit.SECONDS, 4, 1) == 0.25

    def test_shown(self):
        assert shown(Unit.RATE, 123_456.7) == "123,457/s"
        assert shown(Unit.MILLISECONDS, 0.123) == "0.12 ms"
        assert shown(Unit.MEGABYTES, 151.2) == "151 MB"

    def test_median_of_an_even_count_is_between(self):
        assert median([4.0, 1.0, 2.0, 3.0]) == 2.5


def result(name: str, ours: list[float], theirs: list[float]) -> runner.Result:
    (workload,) = [w for w in catalogue.WORKLOADS if w.name == name]
    keys = [measure.key for measure in workload.measures]
    measured = runner.Result(workload)
    for kind, values in ((Kind.LEVERET, ours), (Kind.RABBITMQ, theirs)):
        if values:
            measured.outcomes[kind] = [Outcome(dict.fromkeys(keys, value)) for value in values]
    return measured


class TestRows:
    def test_medians_ratio_and_goal(self):
        results = [result("transient-100b", [100, 200, 900], [90, 100, 110])]
        (row,) = runner.rows(results, ())
        assert (row.leveret, row.rabbitmq, row.ratio, row.met) == (200, 100, 2.0, True)

    def test_missed_goal(self):
        (row,) = runner.rows([result("transient-100b", [170], [100])], ())
        assert (row.goal, row.met) == ("≥ 1.8x", False)

    def test_absolute_limit_counts_too(self):
        startup, *_ = runner.rows([result("footprint", [0.6], [8.0])], ())
        assert (startup.goal, startup.met) == ("≥ 10x, ≤ 0.5 s", False)

    def test_no_verdict_without_the_other_broker(self):
        (row,) = runner.rows([result("transient-100b", [170], [])], ())
        assert (row.leveret, row.rabbitmq, row.ratio, row.met) == (170, None, None, None)

    def test_growth_compares_a_broker_with_itself(self):
        results = [result("topic-25", [300], [100]), result("topic-25000", [100], [90])]
        *_, row = runner.rows(results, catalogue.GROWTHS)
        assert (row.leveret, row.met) == (3.0, False)

    def test_select_accepts_globs_and_substrings(self):
        names = [workload.name for workload in runner.select(catalogue.WORKLOADS, "durable-*")]
        assert names
        assert all(name.startswith("durable-") for name in names)
        assert [w.name for w in runner.select(catalogue.WORKLOADS, "fanout")] == ["fanout-10"]
        assert [w.name for w in runner.select(catalogue.WORKLOADS, "log")] == ["log"]
        assert runner.select(catalogue.WORKLOADS, "nothing") == []
        assert runner.select(catalogue.WORKLOADS, None) == list(catalogue.WORKLOADS)

    def test_workload_names_are_unique(self):
        names = [workload.name for workload in catalogue.WORKLOADS]
        assert len(set(names)) == len(names)

    @pytest.mark.parametrize("error", [RunError("lost"), RefusedError("404"), OSError("gone")])
    def test_failed_run_is_reported_not_raised(self, error):
        class Failing:
            def prepare(self, broker):
                raise error

            def run(self, broker, length):
                raise AssertionError("must not run after a failed prepare")

            def clean_up(self, broker):
                pass

        class Idle:
            kind = Kind.LEVERET

        workload = catalogue.Workload("failing", Failing(), ())
        plan = runner.Plan(1, RunLength(0.1))
        brokers: Any = {Kind.LEVERET: Idle()}
        measured = runner.measure(workload, brokers, plan, lambda _: None)
        assert measured.errors == {Kind.LEVERET: f"{type(error).__name__}: {error}"}


class TestReport:
    def rows_and_results(self):
        results = [
            result("transient-100b", [250_000], [100_000]),
            result("fanout-10", [110], [100]),
            result("latency-2000", [0.2], [0.3]),
        ]
        return runner.rows(results, ()), results

    def text(self, rows, results):
        out = io.StringIO()
        console = Console(file=out, width=120, color_system=None)
        report.show(console, rows, results, {Kind.RABBITMQ: "RabbitMQ 3.10.8"})
        return out.getvalue()

    def test_table_shows_figures_ratio_goal_and_verdict(self):
        lines = self.text(*self.rows_and_results()).splitlines()
        (row,) = [line for line in lines if "1→1, 100 B" in line]
        cells = [cell.strip() for cell in row.strip("│").split("│")]
        assert cells[1:] == ["250,000/s", "100,000/s", "2.50x", "≥ 1.8x", "yes"]
        assert any("RabbitMQ 3.10.8" in line for line in lines)
        assert any("fanout" in line and "no" in line for line in lines)

    def test_errors_and_a_busy_generator_are_reported(self):
        rows, results = self.rows_and_results()
        results[0].errors[Kind.LEVERET] = "RunError: 3 [lost]"
        worker = Report(1, started=0.0, finished=10.0, cpu=9.7)
        results[1].outcomes[Kind.LEVERET] = [Outcome({"rate": 1.0}, (worker,))]
        results[1].other_cores = [1.26]
        text = self.text(rows, results)
        assert "transient-100b on leveret: RunError: 3 [lost]" in text
        assert "fanout-10: a generator process was busy 97%" in text
        assert "other programs used 1.3 cores" in text

    def test_json_holds_rows_and_rounds(self):
        rows, results = self.rows_and_results()
        read = json.loads(report.dumps(report.document(rows, results, {Kind.LEVERET: "Leveret 1"})))
        assert read["rows"][0]["times_better"] == 2.5
        assert read["workloads"]["fanout-10"]["rounds"]["leveret"] == {"rate": [110]}
        assert read["brokers"] == {"leveret": "Leveret 1"}

    def test_markdown_replaces_older_results(self):
        rows, _ = self.rows_and_results()
        text = report.markdown(rows, {Kind.LEVERET: "Leveret 1"})
        assert "| Leveret 1 | RabbitMQ |" in text
        assert "| 250,000/s | 100,000/s | 2.50x | ≥ 1.8x | yes |" in text
        page = "# A\n<!-- results -->\nold\n<!-- end of results -->\nZ\n"
        expected = f"# A\n<!-- results -->\n{text}<!-- end of results -->\nZ\n"
        assert report.with_results(page, text) == expected
        assert report.with_results("no marks", text) == text

    def test_chart_has_a_bar_per_ratio(self):
        rows, _ = self.rows_and_results()
        tree = ET.fromstring(chart.svg(rows))
        bars = tree.findall("{http://www.w3.org/2000/svg}rect")
        assert len(bars) == len(rows) == 4
        assert [bar.get("class") for bar in bars] == ["met", "missed", "plain", "met"]
        widths = [float(bar.get("width", 0)) for bar in bars]
        assert widths[0] == max(widths)

    def test_busy_is_the_share_of_a_core(self):
        assert Report(1, started=10.0, finished=12.0, cpu=0.5).busy == 0.25
