"""The scaling curves: their workloads, the roles that only they use, the report and the chart."""

import io
import json
import struct
import xml.etree.ElementTree as ET

import pytest
from pamqp import commands
from pamqp import frame as codec
from rich.console import Console

from benchmarks import cli, report, runner, scaling, scaling_chart
from benchmarks.brokers import Kind, start
from benchmarks.connection import Address
from benchmarks.counting import DeliveryCounter, maybe_layout
from benchmarks.frames import (
    BASIC,
    BODY,
    HEADER,
    METHOD,
    FramingError,
    delivery_mode,
    frame,
    publish,
    publish_blob,
)
from benchmarks.roles import Consumer, LimitedConsumer, Publisher, Stream
from benchmarks.scenarios.base import Outcome, RunLength
from benchmarks.scenarios.deep_queue import DeepQueue
from benchmarks.scenarios.flow import Flow
from benchmarks.topology import Topology
from benchmarks.workers import DeliveryCounts, RunError

SVG = "{http://www.w3.org/2000/svg}"
TRANSIENT = delivery_mode(persistent=False)
NOWHERE = Address("127.0.0.1", 0)


def delivery(tag: int, size: int, *parts: int) -> bytes:
    """A delivery whose body frames have these sizes."""
    method = codec.marshal(commands.Basic.Deliver("bench", tag, False, "", "q"), 1)
    header = frame(HEADER, struct.pack(">HHQ", BASIC, 0, size) + TRANSIENT)
    return method + header + b"".join(frame(BODY, b"x" * part) for part in parts)


class TestBodies:
    def test_empty_body_has_no_frame(self):
        assert publish("", "q", TRANSIENT, b"").count(bytes((METHOD, 0, 1))) == 1
        assert codec.unmarshal(publish("", "q", TRANSIENT, b""))[0] > 0
        blob = publish_blob("", ("q",), properties=TRANSIENT, body_size=0, count=3)
        assert blob.data == publish("", "q", TRANSIENT, b"") * 3

    def test_short_body_has_its_size(self):
        blob = publish_blob("", ("q",), properties=TRANSIENT, body_size=3, count=2)
        assert blob.data == publish("", "q", TRANSIENT, bytes(3)) * 2

    @pytest.mark.parametrize("parts", [(), (100,), (60, 40), (50, 50, 50)])
    def test_deliveries_with_any_number_of_body_frames_are_counted(self, parts):
        data = b"".join(delivery(tag, sum(parts), *parts) for tag in range(1, 8))
        counter = DeliveryCounter()
        for at in range(0, len(data), 61):
            counter.feed(memoryview(data)[at : at + 61])
        assert (counter.count, counter.is_incomplete) == (7, False)

    def test_incomplete_body_has_no_layout(self):
        data = delivery(1, 100, 60, 40)
        assert all(maybe_layout(data[:cut]) is None for cut in range(len(data)))

    def test_body_frames_with_too_many_bytes_are_an_error(self):
        with pytest.raises(FramingError, match="10 bytes too many"):
            maybe_layout(delivery(1, 90, 60, 40))


@pytest.fixture(scope="module")
def broker():
    running = start(Kind.LEVERET)
    yield running
    running.stop()


class TestRoles:
    def test_one_channel_consumes_all_queues(self, broker):
        topology = Topology(tuple(f"bench.many.{number:03}" for number in range(150)))
        topology.declare(broker.address)
        counts = DeliveryCounts(1)
        consumer = Consumer(broker.address, topology.queues, 0, ack_every=100, shared=True)
        consumer.prepare()
        stream = Stream("", topology.queues)
        publisher = Publisher(broker.address, stream, count=1200, window=400)
        publisher.prepare()
        publisher.work(counts)
        counts.expect(1200)
        assert consumer.work(counts).count == 1200
        assert topology.wait_empty(broker.address) == 0
        topology.delete(broker.address)

    def test_limited_consumer_takes_exactly_its_count_from_the_front(self, broker, monkeypatch):
        monkeypatch.setattr("benchmarks.topology._EMPTY_TIMEOUT", 0.5)
        topology = Topology(("bench.limited",), durable=True)
        topology.declare(broker.address)
        publisher = Publisher(
            broker.address, Stream("", topology.queues, persistent=True), count=6000, window=1000
        )
        publisher.prepare()
        publisher.work(DeliveryCounts(0))
        for _ in range(2):  # the second begins where the first has ended, or it fails
            consumer = LimitedConsumer(broker.address, "bench.limited", 2400, cycle=600)
            consumer.prepare()
            assert consumer.work(DeliveryCounts(1)).count == 2400
        assert topology.wait_empty(broker.address) == 1200
        topology.delete(broker.address)


class TestDeepQueue:
    def test_queue_keeps_its_depth(self, broker, monkeypatch):
        monkeypatch.setattr("benchmarks.scenarios.deep_queue._LEAST", 2000)
        scenario = DeepQueue("bench.deep", depth=3000, count=2000)
        assert scenario.run(broker, RunLength(0.1)).figures["rate"] > 0

    def test_lost_message_is_an_error(self, broker):
        topology = Topology(("bench.deep.lost",), durable=True)
        topology.declare(broker.address)
        with pytest.raises(RunError, match="5 messages must be left, 0 are"):
            DeepQueue("bench.deep.lost", depth=5)._check(broker.address)
        topology.delete(broker.address)


class TestSeries:
    def test_quick_points_are_some_of_all(self):
        assert all(set(series.quick) <= set(series.points) for series in scaling.SERIES)

    def test_ranges(self):
        ranges = {series.name: (series.points[0], series.points[-1]) for series in scaling.SERIES}
        assert ranges == {
            "clients-transient": (1, 16),
            "clients-durable": (1, 16),
            "queues": (1, 10_000),
            "bodies": (0, 1 << 20),
            "backlog": (0, 10_000_000),
        }

    @pytest.mark.parametrize("series", scaling.SERIES, ids=lambda series: series.name)
    def test_every_publisher_can_cut_its_blob(self, series):
        for x in series.points:
            scenario = series.scenario(x)
            if isinstance(scenario, Flow):
                role = scenario._publisher(NOWHERE, scenario.streams[0], RunLength(1.0))
                assert role.stream.blob % role.part == 0
                assert role.window == 0 or role.window >= role.part
                assert role.stream.blob * role.stream.body_size <= 10 << 20

    def test_interrupt_keeps_finished_points(self, monkeypatch):
        done: list[str] = []

        def measure(workload, brokers, plan, say):
            if len(done) == 2:
                raise KeyboardInterrupt
            done.append(workload.name)
            return runner.Result(workload)

        monkeypatch.setattr(runner, "measure", measure)
        curves = scaling.run(scaling.SERIES, {}, quick=True, say=lambda _: None)
        assert [list(curve.results) for curve in curves] == [[1, 4]]


def curve(name: str = "queues", *, failed: bool = False) -> scaling.Curve:
    (series,) = runner.select(scaling.SERIES, name)
    results = {}
    for x, ours in zip((1, 10, 100), (900.0, 450.0, 90.0), strict=True):
        results[x] = runner.Result(series.workload(x))
        results[x].outcomes[Kind.LEVERET] = [Outcome({"rate": ours})]
        if x < 100 or not failed:
            results[x].outcomes[Kind.RABBITMQ] = [Outcome({"rate": ours / 3})]
        else:
            results[x].errors[Kind.RABBITMQ] = "RunError: lost"
    return scaling.Curve(series, results)


class TestReport:
    def test_table_and_errors(self):
        out = io.StringIO()
        console = Console(file=out, width=120, color_system=None)
        scaling.show(console, [curve(failed=True)], {Kind.LEVERET: "Leveret 1"})
        text = out.getvalue()
        (last,) = [line for line in text.splitlines() if "100 " in line and "90/s" in line]
        assert [cell.strip() for cell in last.strip("│").split("│")] == ["100", "90/s", "-"]
        assert "queues, 100, rabbitmq: RunError: lost" in text
        assert scaling.has_errors([curve(failed=True)])
        assert not scaling.has_errors([curve()])

    def test_json(self):
        read = json.loads(report.dumps(scaling.document([curve()], {Kind.LEVERET: "Leveret 1"})))
        (series,) = read["series"]
        assert series["name"] == "queues"
        assert series["points"][1]["rate"] == {"leveret": 450, "rabbitmq": 150}
        assert read["brokers"] == {"leveret": "Leveret 1"}

    def test_chart_has_a_panel_per_series_and_a_line_per_broker(self):
        text = scaling_chart.svg([curve(), curve("bodies", failed=True)], {})
        tree = ET.fromstring(text)
        panels = tree.findall(f"{SVG}g")
        assert len(panels) == 2
        for panel, circles in zip(panels, (6, 5), strict=True):
            lines = panel.findall(f"{SVG}polyline")
            assert [line.get("class") for line in lines] == ["leveret", "rabbitmq"]
            assert len(panel.findall(f"{SVG}circle")) == circles

    @pytest.mark.parametrize("name", ["queues", "bodies"])
    def test_higher_rates_are_drawn_higher_and_inside_the_panel(self, name):
        tree = ET.fromstring(scaling_chart.svg([curve(name)], {}))
        circles = [c for c in tree.iter(f"{SVG}circle") if c.get("class") == "leveret"]
        heights = [float(circle.get("cy", 0)) for circle in circles]
        assert heights == sorted(heights)
        assert 40 <= heights[0] < heights[-1] <= 240

    def test_curve_without_figures_is_not_drawn(self):
        (series,) = runner.select(scaling.SERIES, "queues")
        empty = scaling.Curve(series, {1: runner.Result(series.workload(1))})
        assert "polyline" not in scaling_chart.svg([empty], {}).split("</style>")[1]

    @pytest.mark.parametrize(
        ("value", "text"),
        [(0, "0"), (16, "16"), (1 << 16, "64 KiB"), (1 << 20, "1 MiB"), (10_000_000, "10M")],
    )
    def test_numbers_on_axes_are_short(self, value, text):
        assert scaling_chart.short(value) == text

    def test_unknown_series_is_refused(self, monkeypatch):
        monkeypatch.setattr("signal.signal", lambda *_: None)
        monkeypatch.setattr(cli, "_allow_many_files", lambda: None)
        assert cli.main(["--scaling", "--only", "no-such-series"]) == 2
