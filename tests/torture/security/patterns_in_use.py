"""R-35: slow patterns are given to a broker as filter, permission and policy, and used.

Judged are the CPU time of the loop's thread for a request, less that of the same request with a
harmless pattern, and the time a canary on another connection waits for an answer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from pamqp import commands, frame

from tests.torture.client import Client
from tests.torture.process import BrokerProcess, slowness
from tests.torture.security.raw import Raw, login_seconds

QUEUES = 300
HARMLESS = "^harmless"
CANARY_SECONDS = 0.05
MAX_POLLS, IDLE_POLLS = 1_000, 5
PATTERNS = {"a filter": QUEUES, "a permission": 3, "a declare": 1, "a policy": QUEUES}
"""How often a pattern is compiled or searched in one request of each kind."""


@dataclass(slots=True)
class PatternUse:
    baseline: dict[str, float] = field(default_factory=dict)
    """Milliseconds of the loop per kind of request with a harmless pattern."""
    worst: dict[str, float] = field(default_factory=dict)
    """Additional milliseconds per match with the worst pattern."""
    quiet: float = 0.0
    waited: float = 0.0
    slow: float = 1.0
    requests: int = 0
    refused: int = 0
    problems: list[str] = field(default_factory=list)

    def late(self, milliseconds: float) -> list[str]:
        late = [
            f"{kind}: {value:.1f} ms of the loop for one match"
            for kind, value in self.worst.items()
            if value > milliseconds
        ]
        if self.waited > CANARY_SECONDS * self.slow + 2 * self.quiet:
            late.append(f"a canary waited {self.waited * 1000:.0f} ms")
        return late

    def __str__(self) -> str:
        shown = ", ".join(f"{kind} {value:.1f} ms" for kind, value in self.worst.items())
        return (
            f"used in a broker with {QUEUES} queues ({self.requests} requests, "
            f"{self.refused} refused); one match takes at most: {shown}; a canary "
            f"waits {self.waited * 1000:.0f} ms at most ({self.quiet * 1000:.0f} ms with "
            f"harmless ones; machine {self.slow:.1f} times slower than idle)"
        )


async def use_patterns(directory: Path, patterns: Sequence[str], name: str) -> PatternUse:
    broker = BrokerProcess(
        directory, "--memory", "--http-port", "0", env={"LEVERET_HTTP_ENABLED": "true"}
    )
    await broker.start()
    use = PatternUse(slow=await slowness())
    async with httpx.AsyncClient(
        base_url=f"http://{broker.http}", auth=("guest", "guest"), timeout=600, verify=False
    ) as api:
        await api.put("/api/users/pattern-user", json={"password": "x", "tags": ""})
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        await api.put("/api/permissions/%2F/pattern-user", json=everything)
        await _declare_many(broker, name)
        pattern_user = await PatternUser.connect(broker, api, name, use)
        await pattern_user.measure(HARMLESS)  # imports and first-time costs
        for number in range(5):
            async with _measure_canary(broker) as waits:
                took = await pattern_user.measure(f"{HARMLESS}{number}")
            use.quiet = max(use.quiet, *waits)
            for kind, milliseconds in took.items():
                use.baseline[kind] = max(use.baseline.get(kind, 0.0), milliseconds)
        for text in patterns:
            async with _measure_canary(broker) as waits:
                took = await pattern_user.measure(text)
            use.waited = max(use.waited, *waits)
            for kind, milliseconds in took.items():
                extra = max(0.0, milliseconds - use.baseline[kind]) / PATTERNS[kind]
                use.worst[kind] = max(use.worst.get(kind, 0.0), extra)
            if await login_seconds(broker.address) == float("inf"):
                use.problems.append(f"{text} prevented a login")
    await broker.stop()
    return use


async def _declare_many(broker: BrokerProcess, name: str) -> None:
    client = await Client.connect(broker.address)
    for number in range(QUEUES):
        await client.declare(f"{number:03}{name[3:]}")
    client.close()


class PatternUser:
    """A user whose permissions and policies use the pattern."""

    def __init__(
        self,
        broker: BrokerProcess,
        api: httpx.AsyncClient,
        connection: Raw,
        name: str,
        use: PatternUse,
    ) -> None:
        self._broker = broker
        self._api = api
        self._connection = connection
        self._name = name
        self._use = use

    @classmethod
    async def connect(
        cls, broker: BrokerProcess, api: httpx.AsyncClient, name: str, use: PatternUse
    ) -> PatternUser:
        connection = await Raw.connect(broker.address)
        if not await connection.log_in("pattern-user", "x"):
            raise RuntimeError("the user could not log in")
        return cls(broker, api, connection, name, use)

    async def measure(self, text: str) -> dict[str, float]:
        """Milliseconds of the loop per kind of request."""
        query: dict[str, str | int] = {"page": 1, "use_regex": "true", "name": text}
        rights = {"configure": text, "write": text, "read": text}
        policy = {"pattern": text, "definition": {"max-length": 1}, "apply-to": "queues"}
        send = self._api.request
        return {
            "a filter": await self._timed(lambda: send("GET", "/api/queues", params=query), text),
            "a permission": await self._timed(
                lambda: send("PUT", "/api/permissions/%2F/pattern-user", json=rights), text
            ),
            "a declare": await self._timed(self._declare, text),
            "a policy": await self._timed(lambda: self._set_policy(policy), text),
        }

    async def _timed(
        self, call: Callable[[], Awaitable[httpx.Response | None]], text: str
    ) -> float:
        before = _loop_seconds(self._broker)
        answer = await call()
        used = _loop_seconds(self._broker) - before
        self._use.requests += 1
        if answer is not None:
            self._use.refused += answer.status_code == 400
            if answer.status_code >= 500:
                self._use.problems.append(f"{text}: {answer.status_code}")
        return used * 1000

    async def _declare(self) -> None:
        """Declare a queue, allowed or refused with a channel close; both search the pattern."""
        declare = commands.Queue.Declare(queue=self._name, auto_delete=True)
        self._connection.send(frame.marshal(declare, 1))
        if isinstance(await self._connection.next(), commands.Channel.Close):
            again = (commands.Channel.CloseOk(), commands.Channel.Open())
            self._connection.send(b"".join(frame.marshal(method, 1) for method in again))
            await self._connection.next()

    async def _set_policy(self, policy: Mapping[str, object]) -> httpx.Response:
        """Set the policy and wait until it applies to all queues, after the answer."""
        answer = await self._api.put("/api/policies/%2F/pattern", json=policy)
        await _wait_until_idle(self._broker)
        return answer


def _loop_seconds(broker: BrokerProcess) -> float:
    """CPU seconds of the broker's main thread, which runs the loop."""
    status = Path(f"/proc/{broker.pid}/task/{broker.pid}/schedstat").read_text(encoding="ascii")
    return int(status.split()[0]) / 1e9


def _is_loop_idle(broker: BrokerProcess) -> bool:
    """Whether the thread sleeps, so that it is not waiting for a CPU."""
    status = Path(f"/proc/{broker.pid}/task/{broker.pid}/stat").read_text(encoding="utf-8")
    return status.rpartition(")")[2].split()[0] == "S"


async def _wait_until_idle(broker: BrokerProcess) -> None:
    """Wait until the loop only answers the canary."""
    idle = 0
    for _ in range(MAX_POLLS):
        await asyncio.sleep(0.005)
        idle = idle + 1 if _is_loop_idle(broker) else 0
        if idle == IDLE_POLLS:
            return


@asynccontextmanager
async def _measure_canary(broker: BrokerProcess) -> AsyncIterator[list[float]]:
    """Measure how long another connection waits for answers."""
    client, waits, over = await Client.connect(broker.address), list[float](), asyncio.Event()

    async def ask() -> None:
        while not over.is_set():
            began = time.monotonic()
            await client.call(commands.Channel.Flow(True), commands.Channel.FlowOk)
            waits.append(time.monotonic() - began)
            await asyncio.sleep(0.005)

    asking = asyncio.create_task(ask())
    try:
        yield waits
    finally:
        over.set()
        await asking
        client.close()
