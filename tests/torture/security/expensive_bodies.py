"""R-43: HTTP bodies that are as expensive as possible, while a canary uses AMQP.

Most requests come from a user who may log in and nothing else. The canary is measured twice: during
these requests, and during requests of the same sizes to the same paths whose bodies are empty. The
machine and the sizes are the same, so the difference is the cost of handling the bodies.
"""

from __future__ import annotations

import asyncio
import base64
import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from leveret.config import Settings
from tests.torture.client import Client
from tests.torture.outcome import Outcome, Progress, silent
from tests.torture.process import BrokerProcess
from tests.torture.security.raw import percentile
from tests.torture.suites import Suite

AT_ONCE = 4
PAUSE = 0.005
MAX_RATIO = 3
MAX_CPU_MS = 150
"""CPU time of the broker for one request, whatever its body: some once took seconds."""
REFUSED = {400, 403, 413}
LARGEST = Settings().http_max_body
LONG, LONGEST = 1_000_000, 19_000_000


@dataclass(frozen=True, slots=True)
class Request:
    user: str
    method: str
    path: str
    body: bytes

    def harmless(self) -> Request:
        """The same request with a body of the same size that is an empty object."""
        return Request(self.user, self.method, self.path, b"{}".ljust(len(self.body)))

    def encode(self) -> bytes:
        known = base64.b64encode(f"{self.user}:{self.user}".encode()).decode()
        lines = (
            f"{self.method} {self.path} HTTP/1.1",
            "host: localhost",
            "connection: close",
            f"authorization: Basic {known}",
            f"content-length: {len(self.body)}",
        )
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + self.body


def _many(head: bytes, item: bytes, tail: bytes, size: int = LONG) -> bytes:
    return head + b",".join([item] * (size // (len(item) + 1))) + tail


def _numbered(head: bytes, form: bytes, tail: bytes) -> bytes:
    return head + b",".join(form % number for number in range(LONG // 20)) + tail


_ARGUMENTS = _many(b'{"arguments":{"x":[', b"{}", b"]}}")
_HEADERS = b'{"routing_key":"","payload":"","properties":{"headers":{"x":['
_PUBLISH = "/api/exchanges/%2F/amq.default/publish"
REQUESTS = (
    Request("few", "PUT", "/api/queues/%2F/z", _ARGUMENTS),
    Request("few", "PUT", "/api/exchanges/%2F/z", _ARGUMENTS),
    Request("few", "POST", "/api/bindings/%2F/e/amq.headers/q/q", _ARGUMENTS),
    Request("few", "POST", "/api/route/%2F", _many(b'{"headers":{"x":[', b'""', b"]}}")),
    Request("few", "PUT", "/api/queues/%2F/z", b'{"arguments":' + b"[" * LONG),
    Request("few", "PUT", "/api/queues/%2F/z", b'"' * LONG),
    Request("few", "PUT", "/api/queues/%2F/z", b"\\ud800" * (LONG // 6)),
    Request("few", "PUT", "/api/policies/%2F/p", _numbered(b'{"definition":{', b'"x%d":1', b"}}")),
    Request("few", "PUT", "/api/parameters/c/%2F/p", _many(b'{"value":[', b"0", b"]}")),
    Request("few", "POST", "/api/logs/%2F/l/groups/g/commit",
         _numbered(b'{"offsets":{', b'"a%d":"b"', b"}}")),
    Request("few", "POST", "/api/logs/%2F/l/publish", _many(b'{"records":[', b"{}", b"]}")),
    Request("few", "POST", _PUBLISH, _many(_HEADERS, b"{}", b"]}}}", LONGEST)),
    Request("guest", "PUT", "/api/queues/%2F/z", _ARGUMENTS),
    Request("guest", "POST", _PUBLISH, _many(_HEADERS, b"{}", b"]}}}")),
    Request("guest", "POST", _PUBLISH, _many(_HEADERS, b"{}", b"]}}}", LONGEST)),
)  # fmt: skip


async def send_expensive_bodies(
    directory: Path, rounds: int, _seed: int, progress: Progress = silent
) -> Outcome:
    broker = BrokerProcess(
        directory, "--memory", "--http-port", "0", env={"LEVERET_HTTP_ENABLED": "true"}
    )
    broker.settings = ("log_level=error",)
    await broker.start()
    await _create_objects(broker)
    statuses: Counter[int] = Counter()
    harmless_trips = await _measure_canary_during(
        broker, [request.harmless() for request in REQUESTS], rounds, Counter()
    )
    progress(1, 2)
    before = _processor_seconds(broker.pid)
    round_trips = await _measure_canary_during(broker, REQUESTS, rounds, statuses)
    spent = (_processor_seconds(broker.pid) - before) / statuses.total() * 1000
    progress(2, 2)
    await broker.stop()  # fails if the log contains a traceback
    problems = [
        f"{count} requests were answered with {status}"
        for status, count in statuses.items()
        if status not in REFUSED
    ]
    if spent > MAX_CPU_MS:
        problems.append(f"a request takes {spent:.0f} ms of CPU time")
    median, worst = percentile(round_trips, 0.5) * 1000, max(round_trips) * 1000
    of_plain, worst_of_plain = percentile(harmless_trips, 0.5) * 1000, max(harmless_trips) * 1000
    late = []
    if median > MAX_RATIO * of_plain or worst > MAX_RATIO * worst_of_plain:
        late.append("the canary was slow")
    figures = (
        f"{statuses.total()} expensive bodies were answered with {dict(statuses)}, {spent:.0f} "
        f"ms of CPU time each; round trips over AMQP took {median:.1f} ms, {worst:.0f} ms at most "
        f"({of_plain:.1f} and {worst_of_plain:.0f} ms during empty bodies of the same sizes)"
    )
    return Outcome("R-43", "expensive bodies", figures, tuple(problems), tuple(late))


async def _create_objects(broker: BrokerProcess) -> None:
    async with httpx.AsyncClient(
        base_url=f"http://{broker.http}", auth=("guest", "guest"), timeout=60, verify=False
    ) as api:
        few = {"password": "few", "tags": "management"}
        for path, body in (("users/few", few), ("logs/%2F/l", {}), ("queues/%2F/q", {})):
            (await api.put(f"/api/{path}", json=body)).raise_for_status()


async def _measure_canary_during(
    broker: BrokerProcess, requests: Sequence[Request], rounds: int, statuses: Counter[int]
) -> list[float]:
    """Seconds of the canary's round trips while these requests are sent."""
    canary = await Client.connect(broker.address)
    await canary.declare("canary")
    left = iter([request for _ in range(rounds) for request in requests])

    async def send() -> None:
        for request in left:
            statuses[await _answer(broker, request)] += 1

    sending = asyncio.gather(*(send() for _ in range(AT_ONCE)))
    round_trips: list[float] = []
    while not sending.done() or not round_trips:
        began = time.monotonic()
        await canary.count("canary")
        round_trips.append(time.monotonic() - began)
        await asyncio.sleep(PAUSE)
    await sending
    canary.close()
    return round_trips


async def _answer(broker: BrokerProcess, request: Request) -> int:
    host, _, port = broker.http.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(request.encode())
        return int((await asyncio.wait_for(reader.readline(), 60)).split()[1])
    except (OSError, IndexError):
        # A body that is too large is refused after its head, while it is still being sent.
        return 413 if len(request.body) > LARGEST else 0
    finally:
        writer.transport.abort()


def _processor_seconds(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class FuzzedAndExpensive:
    """Both halves of the row: requests generated from the schema, and expensive bodies."""

    suite: Suite

    @property
    def row(self) -> str:
        return self.suite.row

    @property
    def title(self) -> str:
        return self.suite.title

    async def __call__(self, directory: Path, size: int, seed: int, progress: Progress) -> Outcome:
        fuzzed = await self.suite(directory / "fuzz", size, seed, progress)
        expensive = await send_expensive_bodies(
            directory / "expensive", max(1, size // 50), seed, progress
        )
        figures = f"{fuzzed.figures}; {expensive.figures}"
        return Outcome(
            self.row,
            self.title,
            figures,
            fuzzed.problems + expensive.problems,
            fuzzed.late + expensive.late,
        )
