"""Everything at once: the load of R-19, and what came of it."""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import dataclass, fields

import httpx
from pamqp import commands

from tests.torture.client import PROPERTIES, Client
from tests.torture.outcome import Progress
from tests.torture.process import BrokerProcess

PARTITIONS = 4
RECORDS = 40
REQUESTS_PER_SECOND = 100
_LIMIT: dict[str, object] = {"x-max-length": 10_000}
_LOG: dict[str, object] = {"x-queue-type": "stream", "x-partitions": PARTITIONS}
_FROM_FIRST: dict[str, object] = {"x-stream-offset": "first"}
_PATHS = ("/api/overview", "/api/queues", "/api/connections?page=1", "/api/whoami")
_PAUSE = 0.2


@dataclass(slots=True)
class Counted:
    """Of what each kind of client has done."""

    published: int = 0
    connections: int = 0
    requests: int = 0
    logs: int = 0
    users: int = 0

    def missing(self) -> list[str]:
        return [one.name for one in fields(self) if not getattr(self, one.name)]


async def load(broker: BrokerProcess, seconds: float, counted: Counted, progress: Progress) -> None:
    stop = time.monotonic() + seconds
    kinds = (_flood, _come_and_go, ask, _make_logs, _make_users)
    tasks = [asyncio.create_task(kind(broker, stop, counted)) for kind in kinds]
    while time.monotonic() < stop:
        await asyncio.sleep(0.5)
        progress(int(seconds - (stop - time.monotonic())), int(seconds))
    await asyncio.gather(*tasks)


async def _flood(broker: BrokerProcess, stop: float, counted: Counted) -> None:
    """Publishers that never wait, to a queue that drops and to one whose consumer keeps up."""
    client = await Client.connect(broker.address)
    await client.declare("dropping", arguments=_LIMIT)
    await client.declare("flowing")
    client.close()
    crew = [
        await _program(broker, "flooder", "publish", queue="dropping"),
        await _program(broker, "flooder", "publish", queue="flowing"),
        await _program(broker, "flooder", "consume", queue="flowing"),
    ]
    await asyncio.sleep(max(1.0, stop - time.monotonic()))
    counted.published += sum([await _said(one) for one in crew][:2])


async def _come_and_go(broker: BrokerProcess, stop: float, counted: Counted) -> None:
    churner = await _program(broker, "churner")
    await asyncio.sleep(max(1.0, stop - time.monotonic()))
    counted.connections += await _said(churner)


async def _program(
    broker: BrokerProcess, module: str, *options: str, queue: str | None = None
) -> asyncio.subprocess.Process:
    host, port = broker.address
    words = (*options, host, str(port), *([queue] if queue else []))
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", f"tests.torture.security.{module}", *words,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip


async def _said(program: asyncio.subprocess.Process) -> int:
    return int((await program.communicate(b""))[0])


def _api(broker: BrokerProcess) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=f"http://{broker.http}", auth=("guest", "guest"), timeout=600, verify=False
    )


async def ask(broker: BrokerProcess, stop: float, counted: Counted) -> None:
    """A hundred requests a second, four at a time, whether earlier ones are answered or not."""
    async with _api(broker) as api, asyncio.TaskGroup() as asking:
        due = time.monotonic()
        while True:
            for path in _PATHS:
                asking.create_task(_get(api, path, counted))
            due += len(_PATHS) / REQUESTS_PER_SECOND
            if due >= stop:
                break
            await asyncio.sleep(max(0.0, due - time.monotonic()))


async def _get(api: httpx.AsyncClient, path: str, counted: Counted) -> None:
    answer = await api.get(path)
    counted.requests += answer.status_code == 200


async def export(broker: BrokerProcess) -> None:
    """The history of all that, in Arrow's form."""
    async with _api(broker) as api:
        for table in ("messages", "events"):
            answer = await api.get("/api/history/export", params={"table": table})
            answer.raise_for_status()
            assert len(answer.content) > 1_000, f"no history of {table}"


async def _make_logs(broker: BrokerProcess, stop: float, counted: Counted) -> None:
    """Logs that are made, filled, read and deleted, over AMQP and over HTTP."""
    async with _api(broker) as api:
        going = True
        while going:
            await _fill_and_read(broker)
            made = await api.put("/api/logs/%2F/brief", json={"partitions": 2 * PARTITIONS})
            gone = await api.delete("/api/logs/%2F/brief")
            counted.logs += (made.status_code, gone.status_code) == (201, 204)
            await asyncio.sleep(_PAUSE)
            going = time.monotonic() < stop


async def _fill_and_read(broker: BrokerProcess) -> None:
    read = asyncio.Event()
    bodies: list[bytes] = []

    def take(tag: int, _redelivered: bool, body: bytes) -> None:
        bodies.append(body)
        client.ack(tag, False)
        if len(bodies) == RECORDS:
            read.set()

    client = await Client.connect(broker.address, on_delivery=take)
    await client.declare("log", arguments=_LOG)
    for number in range(RECORDS):
        client.publish("log", f"key-{number}", b"%d" % number, PROPERTIES["persistent"])
    await client.consume("log", 2 * RECORDS, arguments=_FROM_FIRST)
    await asyncio.wait_for(read.wait(), 60)
    await client.call(commands.Queue.Delete(queue="log"), commands.Queue.DeleteOk)
    client.close()


async def _make_users(broker: BrokerProcess, stop: float, counted: Counted) -> None:
    """Users whose password is hashed, who log in with it, and are deleted."""
    async with _api(broker) as api:
        going = True
        while going:
            user = {"password": "a long password", "tags": "management"}
            made = await api.put("/api/users/brief", json=user)
            seen = await api.get("/api/whoami", auth=("brief", user["password"]))
            gone = await api.delete("/api/users/brief")
            said = (made.status_code, seen.status_code, gone.status_code)
            counted.users += said == (201, 200, 204)
            await asyncio.sleep(_PAUSE)
            going = time.monotonic() < stop
