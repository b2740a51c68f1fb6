"""R-35: patterns made to take long, given to a broker as filter, permission and policy, and used.

Judged is what the thread of the loop used for a request, without what the same request takes with a
harmless pattern, and how long a canary on another connection waited for an answer.
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
from tests.torture.process import BrokerProcess
from tests.torture.security.raw import Raw, log_in_seconds
from tests.torture.waiting import slowness

QUEUES = 300
HARMLESS = "^harmless"
CANARY_SECONDS = 0.05
MOST_LOOKS, IDLE_LOOKS = 1_000, 5
PATTERNS = {"a filter": QUEUES, "a permission": 3, "a declare": 1, "a policy": QUEUES}
"""How many times a pattern is read or searched for in one request of each kind."""


@dataclass(slots=True)
class Use:
    usual: dict[str, float] = field(default_factory=dict)
    """Milliseconds of the loop for each kind of request with a harmless pattern."""
    most: dict[str, float] = field(default_factory=dict)
    """Beyond that, for each match in it, with the worst."""
    quiet: float = 0.0
    waited: float = 0.0
    slow: float = 1.0
    asked: int = 0
    refused: int = 0
    problems: list[str] = field(default_factory=list)

    def late(self, milliseconds: float) -> list[str]:
        late = [
            f"{what}: {value:.1f} ms of the loop for one match"
            for what, value in self.most.items()
            if value > milliseconds
        ]
        if self.waited > CANARY_SECONDS * self.slow + 2 * self.quiet:
            late.append(f"a canary waited {self.waited * 1000:.0f} ms")
        return late

    def __str__(self) -> str:
        shown = ", ".join(f"{what} {value:.1f} ms" for what, value in self.most.items())
        return (
            f"given to a broker with {QUEUES} queues and used ({self.asked} requests, "
            f"{self.refused} refused) one match takes of the loop at most: {shown}; a canary "
            f"waits {self.waited * 1000:.0f} ms at most ({self.quiet * 1000:.0f} ms beside "
            f"harmless ones; machine {self.slow:.1f} times slower than quiet)"
        )


async def use_patterns(directory: Path, bombs: Sequence[str], name: str) -> Use:
    broker = BrokerProcess(
        directory, "--memory", "--http-port", "0", env={"LEVERET_HTTP_ENABLED": "true"}
    )
    await broker.start()
    use = Use(slow=await slowness())
    async with httpx.AsyncClient(
        base_url=f"http://{broker.http}", auth=("guest", "guest"), timeout=600, verify=False
    ) as api:
        await api.put("/api/users/bomber", json={"password": "x", "tags": ""})
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        await api.put("/api/permissions/%2F/bomber", json=everything)
        await _declare_many(broker, name)
        bomber = await Bomber.enter(broker, api, name, use)
        await bomber.throw(HARMLESS)  # whatever is imported or made at first
        for number in range(5):
            async with _canary(broker) as waits:
                took = await bomber.throw(f"{HARMLESS}{number}")
            use.quiet = max(use.quiet, *waits)
            for what, milliseconds in took.items():
                use.usual[what] = max(use.usual.get(what, 0.0), milliseconds)
        for text in bombs:
            async with _canary(broker) as waits:
                took = await bomber.throw(text)
            use.waited = max(use.waited, *waits)
            for what, milliseconds in took.items():
                extra = max(0.0, milliseconds - use.usual[what]) / PATTERNS[what]
                use.most[what] = max(use.most.get(what, 0.0), extra)
            if await log_in_seconds(broker.address) == float("inf"):
                use.problems.append(f"{text} kept a client out")
    await broker.stop()
    return use


async def _declare_many(broker: BrokerProcess, name: str) -> None:
    client = await Client.connect(broker.address)
    for number in range(QUEUES):
        await client.declare(f"{number:03}{name[3:]}")
    client.close()


class Bomber:
    """A user whose rights, and a vhost whose policies, are the pattern that is thrown."""

    def __init__(
        self, broker: BrokerProcess, api: httpx.AsyncClient, connection: Raw, name: str, use: Use
    ) -> None:
        self._broker = broker
        self._api = api
        self._connection = connection
        self._name = name
        self._use = use

    @classmethod
    async def enter(
        cls, broker: BrokerProcess, api: httpx.AsyncClient, name: str, use: Use
    ) -> Bomber:
        connection = await Raw.connect(broker.address)
        if not await connection.log_in("bomber", "x"):
            raise RuntimeError("the bomber was not let in")
        return cls(broker, api, connection, name, use)

    async def throw(self, text: str) -> dict[str, float]:
        """Milliseconds of the loop for each kind of request."""
        query: dict[str, str | int] = {"page": 1, "use_regex": "true", "name": text}
        rights = {"configure": text, "write": text, "read": text}
        policy = {"pattern": text, "definition": {"max-length": 1}, "apply-to": "queues"}
        send = self._api.request
        return {
            "a filter": await self._timed(lambda: send("GET", "/api/queues", params=query), text),
            "a permission": await self._timed(
                lambda: send("PUT", "/api/permissions/%2F/bomber", json=rights), text
            ),
            "a declare": await self._timed(self._declare, text),
            "a policy": await self._timed(lambda: self._govern(policy), text),
        }

    async def _timed(
        self, call: Callable[[], Awaitable[httpx.Response | None]], text: str
    ) -> float:
        before = _loop_seconds(self._broker)
        answer = await call()
        used = _loop_seconds(self._broker) - before
        self._use.asked += 1
        if answer is not None:
            self._use.refused += answer.status_code == 400
            if answer.status_code >= 500:
                self._use.problems.append(f"{text}: {answer.status_code}")
        return used * 1000

    async def _declare(self) -> None:
        """Allowed or not, which ends the channel; both take a search."""
        declare = commands.Queue.Declare(queue=self._name, auto_delete=True)
        self._connection.send(frame.marshal(declare, 1))
        if isinstance(await self._connection.next(), commands.Channel.Close):
            again = (commands.Channel.CloseOk(), commands.Channel.Open())
            self._connection.send(b"".join(frame.marshal(method, 1) for method in again))
            await self._connection.next()

    async def _govern(self, policy: Mapping[str, object]) -> httpx.Response:
        """Until all queues are governed by it, which goes on when the answer is there."""
        answer = await self._api.put("/api/policies/%2F/bomb", json=policy)
        await _settled(self._broker)
        return answer


def _loop_seconds(broker: BrokerProcess) -> float:
    """What the broker's first thread has used, which runs the loop."""
    status = Path(f"/proc/{broker.pid}/task/{broker.pid}/schedstat").read_text(encoding="ascii")
    return int(status.split()[0]) / 1e9


def _loop_sleeps(broker: BrokerProcess) -> bool:
    """Neither runs nor would, if the machine had time for it."""
    status = Path(f"/proc/{broker.pid}/task/{broker.pid}/stat").read_text(encoding="utf-8")
    return status.rpartition(")")[2].split()[0] == "S"


async def _settled(broker: BrokerProcess) -> None:
    """Until the loop has nothing to do but to answer a canary."""
    idle = 0
    for _ in range(MOST_LOOKS):
        await asyncio.sleep(0.005)
        idle = idle + 1 if _loop_sleeps(broker) else 0
        if idle == IDLE_LOOKS:
            return


@asynccontextmanager
async def _canary(broker: BrokerProcess) -> AsyncIterator[list[float]]:
    """Seconds that answers to another connection took meanwhile."""
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
