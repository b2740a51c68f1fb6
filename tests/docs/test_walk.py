"""The calls listed in docs/architecture.md are those that a broker makes."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import re
import sys
import time
from collections.abc import Iterable
from itertools import count
from types import FrameType
from typing import Any

import httpx
import pytest
from pamqp import commands
from pamqp.header import ContentHeader

import leveret
from leveret.amqp_server.transport import AmqpTransport
from leveret.broker.runtime.scheduler import LoopScheduler
from leveret.http_admin.middleware.request_limits import LimitedHttpProtocol
from leveret.queues.storage.sql_store import SqlStore
from leveret.queues.storage.writer import Writer
from tests.docs.blocks import ROOT
from tests.support import wire
from tests.support.rawclient import RawChannel, RawClient

Call = tuple[str, str]
SECTION = re.compile(r"^#### (\w+):.*?\n\n(.*?)\n\n", re.MULTILINE | re.DOTALL)
STEP = re.compile(r"^\d+\. `([^`]+)` `([^`]+)`$", re.MULTILINE)
CLOCKS = {"SystemClock.monotonic", "SystemClock.wall_ms", "wall_clock_ms"}
SCHEDULING = {"LoopScheduler._schedule", "RequestPacing._next_iteration"}
MAX_HOPS_IN, MAX_FILES_IN, MAX_HOPS, MAX_HTTP_HOPS = 20, 10, 90, 45
RUN = 3


def documented() -> dict[str, list[Call]]:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    return {name: STEP.findall(steps) for name, steps in SECTION.findall(page)}


class Tracer:
    """Records the product's functions that run inside traced entry points, per entry point."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: dict[str, list[Call]] = {}
        self.is_active = False
        for name, owner, method in (
            ("read", AmqpTransport, "data_received"),
            ("tick", LoopScheduler, "run_tick"),
            ("report", SqlStore, "_on_report"),
            ("disk", Writer, "_commit"),
        ):
            monkeypatch.setattr(owner, method, self._traced(name, getattr(owner, method)))
        receive, complete = (
            LimitedHttpProtocol.data_received,
            LimitedHttpProtocol.on_response_complete,
        )
        monkeypatch.setattr(LimitedHttpProtocol, "data_received", self._request_begins(receive))
        monkeypatch.setattr(
            LimitedHttpProtocol, "on_response_complete", self._request_ends(complete)
        )

    def _request_begins(self, function: Any) -> Any:
        """A request takes several steps of the event loop: all are traced until its response."""

        def call(*arguments: Any) -> None:
            if self.is_active:
                sys.setprofile(lambda frame, event, _: self._on_event("request", frame, event))
            function(*arguments)

        return call

    def _request_ends(self, function: Any) -> Any:
        def call(*arguments: Any) -> None:
            function(*arguments)
            if self.is_active:  # the middleware around the application returns a little later
                asyncio.get_running_loop().call_later(0.1, sys.setprofile, None)

        return call

    def _traced(self, name: str, function: Any) -> Any:
        def call(*arguments: Any) -> Any:
            if not self.is_active:
                return function(*arguments)
            sys.setprofile(lambda frame, event, _: self._on_event(name, frame, event))
            try:
                return function(*arguments)
            finally:
                sys.setprofile(None)

        return call

    def _on_event(self, name: str, frame: FrameType, event: str) -> None:
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(f"{ROOT}/leveret/"):
            step = (path.removeprefix(f"{ROOT}/leveret/"), frame.f_code.co_qualname)
            self.calls.setdefault(name, []).append(step)

    def take(self, *names: str) -> set[Call]:
        calls = {call for name in names for call in self.calls.get(name, [])}
        return {call for call in calls if is_hop(*call)}


def is_hop(path: str, name: str) -> bool:
    """Not a property, special method, comprehension or lambda, clock or call_soon."""
    last = name.rpartition(".")[2]
    is_special = last.startswith("__") and last != "__call__"
    if "<" in name or is_special or name in CLOCKS | SCHEDULING:
        return False
    module = importlib.import_module("leveret." + path.removesuffix(".py").replace("/", "."))
    owner: Any = module
    for part in name.split(".")[:-1]:
        owner = getattr(owner, part)
    return not isinstance(inspect.getattr_static(owner, last), property)


def send_run(client: RawClient) -> None:
    persistent = commands.Basic.Properties(delivery_mode=2)
    message = b"".join(
        (
            wire.publish(1, "", "q"),
            wire.encode(1, ContentHeader(0, 1, persistent)),
            wire.body(1, b"x"),
        )
    )
    client.send_bytes(message * RUN)


def receive(consumer: RawChannel) -> list[int]:
    return [delivery.tag for delivery in consumer.deliveries(RUN)]


def send_acks(client: RawClient, tags: Iterable[int]) -> None:
    client.send_bytes(b"".join(wire.encode(1, commands.Basic.Ack(tag)) for tag in tags))


def wait_until_idle(tracer: Tracer) -> None:
    """Nothing tells when a broker has nothing left to do: wait until no call is added."""
    deadline, before = time.monotonic() + 60, -1
    while before != (now := sum(map(len, tracer.calls.values()))):
        assert time.monotonic() < deadline, "the broker does not become idle"
        before = now
        time.sleep(0.3)


def plans_a_route(tracer: Tracer) -> bool:
    """A broker that has just started may still change users, and then checks permissions again."""
    return any(name == "Channel._plan" for _, name in tracer.take("read"))


@pytest.fixture
def traced(tmp_path, monkeypatch) -> dict[str, set[Call]]:
    """The calls of one run, on a broker that has seen its address before."""
    tracer = Tracer(monkeypatch)
    settings = leveret.in_process_settings(data_dir=tmp_path / "data")
    with leveret.ThreadedBroker(settings) as broker:
        host, port = broker.amqp_address
        with RawClient(host, port) as publisher, RawClient(host, port) as reader:
            publisher.handshake()
            reader.handshake()
            channel, consumer = publisher.channel(1), reader.channel(1)
            tracer.is_active = True
            channel.declare("q", durable=True)
            channel.confirm_select()
            consumer.qos(100)
            consumer.consume("q")
            tags: list[int] = []
            for number in count(1):
                tracer.calls.clear()
                send_run(publisher)
                channel.confirmed(number * RUN)
                tags = receive(consumer)
                wait_until_idle(tracer)
                if number > 3 and not plans_a_route(tracer):
                    break
                send_acks(reader, tags)
                wait_until_idle(tracer)
            calls = {
                "In": tracer.take("read"),
                "Out and confirm": tracer.take("tick", "report"),
                "Disk": tracer.take("disk"),
            }
            tracer.calls.clear()
            send_acks(reader, tags)
            wait_until_idle(tracer)
            calls["Ack"] = tracer.take("read")
            tracer.is_active = False
    return calls


def test_documented_calls_are_those_of_a_broker(traced):
    steps = {name: set(calls) for name, calls in documented().items()}
    assert traced["In"] == steps["In"]
    assert traced["Out and confirm"] == steps["Out"] | steps["Confirm"]
    assert traced["Disk"] == steps["Disk"]
    assert traced["Ack"] == steps["Ack"]


def test_path_of_a_publish_is_short():
    steps = documented()
    http = steps.pop("HTTP")
    assert list(steps) == ["In", "Out", "Disk", "Confirm", "Ack"]
    assert len(steps["In"]) <= MAX_HOPS_IN
    assert len({path for path, _ in steps["In"]}) <= MAX_FILES_IN
    assert sum(map(len, steps.values())) <= MAX_HOPS
    assert len(http) <= MAX_HTTP_HOPS


def test_documented_calls_of_an_http_request_are_those_of_a_broker(monkeypatch):
    """From the bytes of the request to its response, on a connection that was used before."""
    tracer = Tracer(monkeypatch)
    settings = leveret.in_process_settings(http_enabled=True)
    with (
        leveret.ThreadedBroker(settings) as broker,
        httpx.Client(base_url=broker.http_url, auth=("guest", "guest"), timeout=60) as client,
    ):
        assert client.put("/api/queues/%2F/q", json={}).status_code == 201
        for _ in range(3):
            assert client.get("/api/queues").status_code == 200
        tracer.is_active = True
        assert [row["name"] for row in client.get("/api/queues").json()] == ["q"]
        wait_until_idle(tracer)
        tracer.is_active = False
    steps, calls = set(documented()["HTTP"]), tracer.take("request")
    timers = {call for call in calls - steps if not call[0].startswith("http_admin/")}
    assert calls - timers == steps
