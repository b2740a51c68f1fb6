"""The mixed load of R-19, and counts of what it did."""

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
class Counts:
    """How much each kind of client did."""

    published: int = 0
    connections: int = 0
    requests: int = 0
    logs: int = 0
    users: int = 0

    def names_of_zeros(self) -> list[str]:
        return [counter.name for counter in fields(self) if not getattr(self, counter.name)]


async def load(broker: BrokerProcess, seconds: float, counts: Counts, progress: Progress) -> None:
    stop = time.monotonic() + seconds
    kinds = (_flood, _churn_connections, send_requests, _create_logs, _create_users)
    tasks = [asyncio.create_task(kind(broker, stop, counts)) for kind in kinds]
    while time.monotonic() < stop:
        await asyncio.sleep(0.5)
        progress(int(seconds - (stop - time.monotonic())), int(seconds))
    await asyncio.gather(*tasks)


async def _flood(broker: BrokerProcess, stop: float, counts: Counts) -> None:
    """Publish without waiting, to a queue that drops and to one with a consumer."""
    client = await Client.connect(broker.address)
    await client.declare("dropping", arguments=_LIMIT)
    await client.declare("flowing")
    client.close()
    programs = [
        await _program(broker, "flooder", "publish", queue="dropping"),
        await _program(broker, "flooder", "publish", queue="flowing"),
        await _program(broker, "flooder", "consume", queue="flowing"),
    ]
    await asyncio.sleep(max(1.0, stop - time.monotonic()))
    counts.published += sum([await _final_count(program) for program in programs][:2])


async def _churn_connections(broker: BrokerProcess, stop: float, counts: Counts) -> None:
    churner = await _program(broker, "churner")
    await asyncio.sleep(max(1.0, stop - time.monotonic()))
    counts.connections += await _final_count(churner)


async def _program(
    broker: BrokerProcess, module: str, *options: str, queue: str | None = None
) -> asyncio.subprocess.Process:
    host, port = broker.address
    words = (*options, host, str(port), *([queue] if queue else []))
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", f"tests.torture.security.{module}", *words,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip


async def _final_count(program: asyncio.subprocess.Process) -> int:
    return int((await program.communicate(b""))[0])


def _api(broker: BrokerProcess) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=f"http://{broker.http}", auth=("guest", "guest"), timeout=600, verify=False
    )


async def send_requests(broker: BrokerProcess, stop: float, counts: Counts) -> None:
    """Send 100 requests per second, four at a time, without waiting for answers."""
    async with _api(broker) as api, asyncio.TaskGroup() as asking:
        due = time.monotonic()
        while True:
            for path in _PATHS:
                asking.create_task(_get(api, path, counts))
            due += len(_PATHS) / REQUESTS_PER_SECOND
            if due >= stop:
                break
            await asyncio.sleep(max(0.0, due - time.monotonic()))


async def _get(api: httpx.AsyncClient, path: str, counts: Counts) -> None:
    answer = await api.get(path)
    counts.requests += answer.status_code == 200


async def export(broker: BrokerProcess) -> None:
    """Export the history of the load in the Arrow format."""
    async with _api(broker) as api:
        for table in ("messages", "events"):
            answer = await api.get("/api/history/export", params={"table": table})
            answer.raise_for_status()
            assert len(answer.content) > 1_000, f"no history of {table}"


async def _create_logs(broker: BrokerProcess, stop: float, counts: Counts) -> None:
    """Create, fill, read and delete logs over AMQP and HTTP."""
    async with _api(broker) as api:
        going = True
        while going:
            await _fill_and_read(broker)
            created = await api.put("/api/logs/%2F/brief", json={"partitions": 2 * PARTITIONS})
            deleted = await api.delete("/api/logs/%2F/brief")
            counts.logs += (created.status_code, deleted.status_code) == (201, 204)
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


async def _create_users(broker: BrokerProcess, stop: float, counts: Counts) -> None:
    """Create users with a password, log in as them, and delete them."""
    async with _api(broker) as api:
        going = True
        while going:
            user = {"password": "a long password", "tags": "management"}
            created = await api.put("/api/users/brief", json=user)
            logged_in = await api.get("/api/whoami", auth=("brief", user["password"]))
            deleted = await api.delete("/api/users/brief")
            statuses = (created.status_code, logged_in.status_code, deleted.status_code)
            counts.users += statuses == (201, 200, 204)
            await asyncio.sleep(_PAUSE)
            going = time.monotonic() < stop
