"""The load generator: its frames, its counters, its hot loops, its arithmetic, its report."""

import io
import json
import socket
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
from benchmarks.counting import ConfirmLedger, DeliveryCounter, maybe_shape
from benchmarks.crew import Crew, Report, RunError, Tally
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
from benchmarks.nullbroker import NullBroker, deliveries
from benchmarks.roles import Consumer, Publisher, Stream
from benchmarks.scenarios.base import Outcome, Pace

TRANSIENT = delivery_mode(persistent=False)


def frames_of(data: bytes) -> list[Any]:
    values = []
    while data:
        used, _, value = codec.unmarshal(data)
        values.append(value)
        data = data[used:]
    return values


class TestFrames:
    def test_publish_is_what_pamqp_reads(self):
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

    def test_ack_is_what_pamqp_writes(self):
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

    def test_blob_refuses_messages_of_two_sizes(self):
        with pytest.raises(ValueError, match="one size"):
            publish_blob("", ("q", "qq"), properties=TRANSIENT, body_size=10, count=2)

    @pytest.mark.parametrize(
        ("first", "last"),
        [(1, 1), (1, 300), (65_530, 65_545), (131_072, 131_072), (1 << 24, (1 << 24) + 3)],
    )
    def test_ack_block_equals_single_acks(self, first, last):
        block = AckBlock()
        wanted = b"".join(ack(tag, multiple=False) for tag in range(first, last + 1))
        assert b"".join(bytes(part) for part in block.parts(first, last)) == wanted

    def test_ack_block_goes_back(self):
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
        assert (counter.count, counter.torn) == (25, False)

    def test_shape_points_at_tag_and_body(self):
        shape = maybe_shape(self.data)
        assert shape is not None
        assert shape.size == len(self.data) // 25
        assert int.from_bytes(self.data[shape.tag_at : shape.tag_at + 8]) == 1
        assert self.data[shape.body_at + 8 : shape.body_at + 40] == b"x" * 32

    def test_an_incomplete_first_delivery_has_no_shape(self):
        size = len(self.data) // 25
        assert all(maybe_shape(self.data[:cut]) is None for cut in range(size))

    def test_a_cut_message_is_torn(self):
        counter = DeliveryCounter()
        counter.feed(memoryview(self.data)[:-1])
        assert (counter.count, counter.torn) == (24, True)

    @pytest.mark.parametrize(
        ("second", "complaint"),
        [
            (deliveries(3, 1, body_size=40, cycle=10), "delivery 2 has tag 3"),
            (deliveries(2, 1, body_size=40, cycle=1), "carries message 0"),
            (b"?" * 200, "does not start"),
        ],
    )
    def test_what_does_not_follow_is_refused(self, second, complaint):
        counter = DeliveryCounter(cycle=10)
        counter.feed(memoryview(deliveries(1, 1, body_size=40, cycle=10)))
        with pytest.raises(FramingError, match=complaint):
            counter.feed(memoryview(second))

    def test_a_shifted_boundary_is_refused(self):
        first = deliveries(1, 1, body_size=40)
        counter = DeliveryCounter()
        counter.feed(memoryview(first))
        counter.feed(memoryview(deliveries(2, 1, body_size=40))[:30])
        with pytest.raises(FramingError, match="does not end"):
            counter.feed(memoryview(b"x" * len(first)))

    def test_another_method_is_refused(self):
        with pytest.raises(FramingError, match=r"basic\.deliver"):
            maybe_shape(codec.marshal(commands.Basic.Ack(1), 1))


class TestConfirmLedger:
    def test_multiple_confirms_all_before(self):
        assert ConfirmLedger().feed(ack(500, multiple=True)) == 500

    def test_singles_in_any_order_and_split_frames(self):
        ledger = ConfirmLedger()
        data = b"".join(ack(tag, multiple=False) for tag in (2, 4, 1, 3))
        counts = [ledger.feed(data[at : at + 10]) for at in range(0, len(data), 10)]
        assert counts == [0, 0, 1, 1, 2, 2, 3, 3, 4]

    def test_multiple_swallows_singles_beneath_it(self):
        ledger = ConfirmLedger()
        ledger.feed(ack(3, multiple=False) + ack(7, multiple=False))
        assert ledger.feed(ack(5, multiple=True)) == 6
        assert ledger.feed(ack(6, multiple=False)) == 7

    def test_twice_is_refused(self):
        with pytest.raises(FramingError, match="twice"):
            ConfirmLedger().feed(ack(1, multiple=False) * 2)

    def test_a_close_is_refused_with_its_reason(self):
        close = codec.marshal(commands.Channel.Close(404, "NOT_FOUND - no exchange", 60, 40), 1)
        with pytest.raises(FramingError, match=r"Channel\.Close 404 NOT_FOUND - no exchange"):
            ConfirmLedger().feed(close)

    def test_a_nack_is_refused(self):
        nack = codec.marshal(commands.Basic.Nack(1), 1)
        assert len(nack) == ACK.size
        with pytest.raises(FramingError, match="expected a confirm"):
            ConfirmLedger().feed(nack)


class TestHotLoops:
    @pytest.mark.parametrize("window", [0, 200])
    def test_publisher_sends_what_it_reports(self, window):
        with NullBroker() as broker:
            role = Publisher(broker.address, Stream("", ("q",)), count=3000, window=window)
            role.prepare()
            assert role.work(Tally(0)).count == 3000
        assert broker.published == 3000

    def test_publisher_stops_when_its_time_is_up(self):
        with NullBroker() as broker:
            role = Publisher(broker.address, Stream("", ("q",)), seconds=0.05)
            role.prepare()
            made = role.work(Tally(0))
        assert made.count == broker.published > 0
        assert made.finished - made.started >= 0.05

    @pytest.mark.parametrize("ack_every", [0, 1, 100])
    @pytest.mark.parametrize("queues", [1, 3])
    def test_consumer_counts_every_delivery(self, ack_every, queues):
        tally = Tally(1)
        tally.expect(queues * 950)
        with NullBroker(deliveries(1, 950, body_size=100)) as broker:
            role = Consumer(broker.address, ("q",) * queues, 0, ack_every=ack_every, cycle=600)
            role.prepare()
            assert role.work(tally).count == queues * 950

    def test_consumer_refuses_broken_framing(self):
        tally = Tally(1)
        tally.expect(10)
        with NullBroker(deliveries(1, 1, body_size=100), spoil=True) as broker:
            role = Consumer(broker.address, ("q",), 0)
            role.prepare()
            with pytest.raises(FramingError, match="does not end"):
                role.work(tally)

    def test_crew_runs_roles_in_processes(self):
        with NullBroker() as broker:
            role = Publisher(broker.address, Stream("", ("q",)), count=1200, window=400)
            with Crew([role, role]) as crew:
                crew.go()
                counts = [made.count for made in crew.reports(slice(None), 30)]
        assert counts == [1200, 1200]

    def test_crew_reports_the_error_of_a_worker(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            nobody = Address("127.0.0.1", taken.getsockname()[1])
        role = Publisher(nobody, Stream("", ("q",)), count=100)
        with Crew([role]) as crew, pytest.raises(RunError, match="Publisher: ConnectionRefused"):
            crew.go()


class TestTally:
    def test_is_complete_when_the_sum_is_there(self):
        tally = Tally(2)
        tally.put(0, 3)
        assert not tally.is_complete
        tally.expect(5)
        assert not tally.is_complete
        tally.put(1, 2)
        assert tally.is_complete


class TestFigures:
    @pytest.mark.parametrize(("percent", "value"), [(50, 50), (99, 99), (100, 100), (1, 1), (0, 1)])
    def test_percentile_is_the_nearest_rank(self, percent, value):
        assert percentile([float(number) for number in range(100, 0, -1)], percent) == value

    def test_percentile_of_few_values_is_one_of_them(self):
        assert percentile([3.0, 1.0], 50) == 1.0
        assert percentile([3.0, 1.0], 99) == 3.0

    def test_percentile_of_nothing_is_refused(self):
        with pytest.raises(ValueError, match="no values"):
            percentile([], 50)

    def test_times_better_reads_the_same_way_for_every_unit(self):
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
    (workload,) = [one for one in catalogue.WORKLOADS if one.name == name]
    keys = [measure.key for measure in workload.measures]
    made = runner.Result(workload)
    for kind, values in ((Kind.LEVERET, ours), (Kind.RABBITMQ, theirs)):
        if values:
            made.outcomes[kind] = [Outcome(dict.fromkeys(keys, value)) for value in values]
    return made


class TestRows:
    def test_medians_ratio_and_goal(self):
        results = [result("transient-100b", [100, 200, 900], [90, 100, 110])]
        (row,) = runner.rows(results, ())
        assert (row.leveret, row.rabbitmq, row.ratio, row.met) == (200, 100, 2.0, True)

    def test_a_missed_goal(self):
        (row,) = runner.rows([result("transient-100b", [170], [100])], ())
        assert (row.goal, row.met) == ("≥ 1.8x", False)

    def test_an_absolute_bound_counts_too(self):
        startup, *_ = runner.rows([result("footprint", [0.6], [8.0])], ())
        assert (startup.goal, startup.met) == ("≥ 10x, ≤ 0.5 s", False)

    def test_without_the_other_broker_there_is_no_verdict(self):
        (row,) = runner.rows([result("transient-100b", [170], [])], ())
        assert (row.leveret, row.rabbitmq, row.ratio, row.met) == (170, None, None, None)

    def test_growth_compares_a_broker_with_itself(self):
        results = [result("topic-25", [300], [100]), result("topic-25000", [100], [90])]
        *_, row = runner.rows(results, catalogue.GROWTHS)
        assert (row.leveret, row.met) == (3.0, False)

    def test_select_takes_globs_and_substrings(self):
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
    def test_a_failed_run_is_reported_not_raised(self, error):
        class Failing:
            def prepare(self, broker):
                raise error

            def run(self, broker, pace):
                raise AssertionError("must not run after a failed prepare")

            def clean_up(self, broker):
                pass

        class Idle:
            kind = Kind.LEVERET

        workload = catalogue.Workload("failing", Failing(), ())
        plan = runner.Plan(1, Pace(0.1))
        brokers: Any = {Kind.LEVERET: Idle()}
        made = runner.measure(workload, brokers, plan, lambda _: None)
        assert made.errors == {Kind.LEVERET: f"{type(error).__name__}: {error}"}


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

    def test_errors_and_a_busy_generator_are_said(self):
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

    def test_markdown_takes_the_place_of_older_results(self):
        rows, _ = self.rows_and_results()
        text = report.markdown(rows, {Kind.LEVERET: "Leveret 1"})
        assert "| Leveret 1 | RabbitMQ |" in text
        assert "| 250,000/s | 100,000/s | 2.50x | ≥ 1.8x | yes |" in text
        page = "# A\n<!-- results -->\nold\n<!-- end of results -->\nZ\n"
        wanted = f"# A\n<!-- results -->\n{text}<!-- end of results -->\nZ\n"
        assert report.with_results(page, text) == wanted
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
