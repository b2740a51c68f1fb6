"""R-43: bodies over HTTP that are as bad as they may be, and a canary that speaks AMQP meanwhile.

Most come from a user who may log in and nothing else. The canary is measured twice: while bombs
come, and while bodies of the same sizes come to the same places that hold nothing. The machine and
the octets are the same for both, so what differs is what the broker makes of a body.
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
RATIO = 3
CPU_MS = 150
"""Of the broker for one bomb, whatever it holds: some took seconds."""
REFUSED = {400, 403, 413}
LARGEST = Settings().http_max_body
LONG, LONGEST = 1_000_000, 19_000_000


@dataclass(frozen=True, slots=True)
class Bomb:
    user: str
    method: str
    path: str
    body: bytes

    def harmless(self) -> Bomb:
        """As many octets, and nothing in them."""
        return Bomb(self.user, self.method, self.path, b"{}".ljust(len(self.body)))

    def request(self) -> bytes:
        known = base64.b64encode(f"{self.user}:{self.user}".encode()).decode()
        lines = (
            f"{self.method} {self.path} HTTP/1.1",
            "host: localhost",
            "connection: close",
            f"authorization: Basic {known}",
            f"content-length: {len(self.body)}",
        )
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + self.body


def _many(head: bytes, one: bytes, tail: bytes, octets: int = LONG) -> bytes:
    return head + b",".join([one] * (octets // (len(one) + 1))) + tail


def _numbered(head: bytes, form: bytes, tail: bytes) -> bytes:
    return head + b",".join(form % number for number in range(LONG // 20)) + tail


_ARGUMENTS = _many(b'{"arguments":{"x":[', b"{}", b"]}}")
_HEADERS = b'{"routing_key":"","payload":"","properties":{"headers":{"x":['
_PUBLISH = "/api/exchanges/%2F/amq.default/publish"
BOMBS = (
    Bomb("few", "PUT", "/api/queues/%2F/z", _ARGUMENTS),
    Bomb("few", "PUT", "/api/exchanges/%2F/z", _ARGUMENTS),
    Bomb("few", "POST", "/api/bindings/%2F/e/amq.headers/q/q", _ARGUMENTS),
    Bomb("few", "POST", "/api/route/%2F", _many(b'{"headers":{"x":[', b'""', b"]}}")),
    Bomb("few", "PUT", "/api/queues/%2F/z", b'{"arguments":' + b"[" * LONG),
    Bomb("few", "PUT", "/api/queues/%2F/z", b'"' * LONG),
    Bomb("few", "PUT", "/api/queues/%2F/z", b"\\ud800" * (LONG // 6)),
    Bomb("few", "PUT", "/api/policies/%2F/p", _numbered(b'{"definition":{', b'"x%d":1', b"}}")),
    Bomb("few", "PUT", "/api/parameters/c/%2F/p", _many(b'{"value":[', b"0", b"]}")),
    Bomb("few", "POST", "/api/logs/%2F/l/groups/g/commit",
         _numbered(b'{"offsets":{', b'"a%d":"b"', b"}}")),
    Bomb("few", "POST", "/api/logs/%2F/l/publish", _many(b'{"records":[', b"{}", b"]}")),
    Bomb("few", "POST", _PUBLISH, _many(_HEADERS, b"{}", b"]}}}", LONGEST)),
    Bomb("guest", "PUT", "/api/queues/%2F/z", _ARGUMENTS),
    Bomb("guest", "POST", _PUBLISH, _many(_HEADERS, b"{}", b"]}}}")),
    Bomb("guest", "POST", _PUBLISH, _many(_HEADERS, b"{}", b"]}}}", LONGEST)),
)  # fmt: skip


async def drop_bombs(
    directory: Path, rounds: int, _seed: int, progress: Progress = silent
) -> Outcome:
    broker = BrokerProcess(
        directory, "--memory", "--http-port", "0", env={"LEVERET_HTTP_ENABLED": "true"}
    )
    broker.settings = ("log_level=error",)
    await broker.start()
    await _make(broker)
    ends: Counter[int] = Counter()
    plain = await _beside(broker, [bomb.harmless() for bomb in BOMBS], rounds, Counter())
    progress(1, 2)
    before = _processor_seconds(broker.pid)
    trips = await _beside(broker, BOMBS, rounds, ends)
    spent = (_processor_seconds(broker.pid) - before) / ends.total() * 1000
    progress(2, 2)
    await broker.stop()  # it looks for tracebacks in the log
    problems = [
        f"{count} bombs answered {end}" for end, count in ends.items() if end not in REFUSED
    ]
    if spent > CPU_MS:
        problems.append(f"a bomb takes {spent:.0f} ms of processor time")
    median, worst = percentile(trips, 0.5) * 1000, max(trips) * 1000
    of_plain, worst_of_plain = percentile(plain, 0.5) * 1000, max(plain) * 1000
    late = []
    if median > RATIO * of_plain or worst > RATIO * worst_of_plain:
        late.append("the canary was slow")
    figures = (
        f"{ends.total()} bodies that would take long ended {dict(ends)}, {spent:.0f} ms of "
        f"processor time each; round trips over AMQP took {median:.1f} ms, {worst:.0f} ms at most "
        f"({of_plain:.1f} and {worst_of_plain:.0f} ms beside as many octets that hold nothing)"
    )
    return Outcome("R-43", "bodies that would take long", figures, tuple(problems), tuple(late))


async def _make(broker: BrokerProcess) -> None:
    async with httpx.AsyncClient(
        base_url=f"http://{broker.http}", auth=("guest", "guest"), timeout=60, verify=False
    ) as api:
        few = {"password": "few", "tags": "management"}
        for path, body in (("users/few", few), ("logs/%2F/l", {}), ("queues/%2F/q", {})):
            (await api.put(f"/api/{path}", json=body)).raise_for_status()


async def _beside(
    broker: BrokerProcess, bombs: Sequence[Bomb], rounds: int, ends: Counter[int]
) -> list[float]:
    """Seconds of the canary's round trips while this comes."""
    canary = await Client.connect(broker.address)
    await canary.declare("canary")
    left = iter([bomb for _ in range(rounds) for bomb in bombs])

    async def throw() -> None:
        for bomb in left:
            ends[await _answer(broker, bomb)] += 1

    throwing = asyncio.gather(*(throw() for _ in range(AT_ONCE)))
    trips: list[float] = []
    while not throwing.done() or not trips:
        began = time.monotonic()
        await canary.count("canary")
        trips.append(time.monotonic() - began)
        await asyncio.sleep(PAUSE)
    await throwing
    canary.close()
    return trips


async def _answer(broker: BrokerProcess, bomb: Bomb) -> int:
    host, _, port = broker.http.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(bomb.request())
        return int((await asyncio.wait_for(reader.readline(), 60)).split()[1])
    except (OSError, IndexError):
        # One too large is refused at its head, and cut off while it is being sent.
        return 413 if len(bomb.body) > LARGEST else 0
    finally:
        writer.transport.abort()


def _processor_seconds(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class FuzzedAndBombed:
    """Both halves of the row: what is made up from the description, and what is made to hurt."""

    suite: Suite

    @property
    def row(self) -> str:
        return self.suite.row

    @property
    def title(self) -> str:
        return self.suite.title

    async def __call__(self, directory: Path, size: int, seed: int, progress: Progress) -> Outcome:
        one = await self.suite(directory / "fuzz", size, seed, progress)
        two = await drop_bombs(directory / "bombs", max(1, size // 50), seed, progress)
        figures = f"{one.figures}; {two.figures}"
        return Outcome(
            self.row, self.title, figures, one.problems + two.problems, one.late + two.late
        )
