"""R-48: nothing that a client sends starts a program, unpickles anything or is run as code.

The broker runs with an audit hook of the interpreter, which sees such things whoever does them, the
libraries too; importing a module is the only way in which code may still be compiled.
"""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aio_pika
import httpx

from tests.support.polling import wait_until_async
from tests.torture.process import BrokerProcess

WATCHED = """
import signal, sys
NEVER = {"os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "subprocess.Popen",
         "pickle.find_class"}
def is_importing():
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False
def watch(event, arguments):
    if event in NEVER and not is_importing():
        sys.stderr.write(f"REACHED {event} {str(arguments)[:200]!r}\\n")
def all_is_made(*_):
    NEVER.update(("compile", "exec", "code.__new__"))
    sys.stderr.write("ALL IS MADE\\n")
signal.signal(signal.SIGUSR1, all_is_made)
"""
"""What the HTTP API is made of is compiled when its first client comes."""
SERVE = "from leveret.cli import main\nsys.addaudithook(watch)\n{first}\nsys.exit(main())"
PATHS = (
    "overview", "queues", "queues?page=1&use_regex=true&name=a.*", "exchanges", "bindings",
    "vhosts", "users", "permissions", "policies", "connections", "channels", "consumers", "nodes",
    "../metrics", "definitions", "audit", "openapi.json", "docs", "whoami", "parameters",
    "settings",
)  # fmt: skip


@asynccontextmanager
async def watched(directory: Path, first: str = "") -> AsyncIterator[BrokerProcess]:
    environment = {"LEVERET_HTTP_ENABLED": "true", "LEVERET_HTTP_PORT": "0"}
    broker = BrokerProcess(directory / "data", env=environment)
    broker.program = ("-c", WATCHED + SERVE.format(first=first))
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


def reached(broker: BrokerProcess) -> list[str]:
    return [line for line in broker.log_tail().splitlines() if line.startswith("REACHED")]


async def use_amqp(broker: BrokerProcess) -> None:
    host, port = broker.address
    connection = await aio_pika.connect(f"amqp://guest:guest@{host}:{port}/")
    async with connection:
        channel = await connection.channel()
        queue = await channel.declare_queue("reach", durable=True)
        headers: dict[str, Any] = {"__reduce__": "os.system('true')", "deep": {"list": [1, "x"]}}
        message = aio_pika.Message(
            b"cposix\nsystem\n(S'true'\ntR.", headers=headers, content_type="application/x-python"
        )
        await channel.default_exchange.publish(message, "reach")
        got = await queue.get(timeout=60)
        await got.ack()


def requests() -> Iterator[tuple[str, str, Any]]:
    yield "PUT", "users/reacher", {"password": "$(true)", "tags": "management"}
    yield "PUT", "permissions/%2F/reacher", {"configure": ".*", "write": ".*", "read": ".*"}
    yield "PUT", "policies/%2F/p", {"pattern": "^r", "definition": {"max-length": 9}}
    body = {"properties": {}, "routing_key": "reach", "payload": "x", "payload_encoding": "string"}
    yield "POST", "exchanges/%2F/amq.default/publish", body
    wanted = {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}
    yield "POST", "queues/%2F/reach/get", wanted
    for path in PATHS:
        yield "GET", path, None


async def use_http(broker: BrokerProcess) -> None:
    async with httpx.AsyncClient(
        base_url=f"http://{broker.http}/api/", auth=("guest", "guest"), timeout=60
    ) as api:
        for method, path, body in requests():
            answer = await api.request(method, path, json=body)
            assert answer.status_code < 400, (path, answer.text)
        definitions = (await api.get("definitions")).json()
        assert (await api.post("definitions", json=definitions)).status_code < 400
        assert (await api.get("../")).status_code < 400


async def now_watch_compiling(broker: BrokerProcess) -> None:
    os.kill(broker.pid, signal.SIGUSR1)
    await wait_until_async(lambda: "ALL IS MADE" in broker.log_tail())


async def test_no_client_reaches_a_program_a_pickle_or_the_compiler(tmp_path: Path) -> None:
    async with watched(tmp_path) as broker:
        await use_amqp(broker)
        await use_http(broker)
        await now_watch_compiling(broker)
        await use_amqp(broker)
        await use_http(broker)
        assert reached(broker) == []


async def test_the_hook_would_see_it(tmp_path: Path) -> None:
    deeds = {
        "os.system": "import os; os.system('true')",
        "pickle.find_class": "import pickle; pickle.loads(b'cposix\\nsystem\\n.')",
        "compile": "all_is_made(); eval('1 + 1')",
        "subprocess.Popen": "import subprocess; subprocess.run(['true'])",
    }
    async with watched(tmp_path, "\n".join(deeds.values())) as broker:
        seen = {line.split()[1] for line in reached(broker)}
    assert seen >= deeds.keys()
