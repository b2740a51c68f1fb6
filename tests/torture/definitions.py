"""R-08: SIGKILL while objects are declared and deleted; answered changes survive completely."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import random
from dataclasses import dataclass, field
from pathlib import Path

from pamqp import commands

from leveret.broker import Broker
from leveret.config import Settings
from leveret.launch import RunningBroker, in_process_settings
from tests.support.polling import wait_until_reached
from tests.torture.client import Client, ConnectionGone
from tests.torture.outcome import Outcome, Progress, silent
from tests.torture.process import BrokerProcess

Key = tuple[str, ...]
CHANGERS = 3
PREFIX = "def-"


@dataclass(slots=True)
class Change:
    """The objects that one request creates (True) or deletes (False)."""

    effects: dict[Key, bool]


@dataclass(slots=True)
class Expected:
    present: set[Key] = field(default_factory=set)
    open: list[Change] = field(default_factory=list)
    answered: int = 0

    def answered_change(self, change: Change) -> None:
        self.open.remove(change)
        self.answered += 1
        for key, is_present in change.effects.items():
            (self.present.add if is_present else self.present.discard)(key)

    def compare(self, actual: set[Key]) -> list[str]:
        """Differences from the expected objects; from now on `actual` is expected."""
        problems = []
        undecided = {key for change in self.open for key in change.effects}
        for key in self.present - actual - undecided:
            problems.append(f"missing: {key}")
        for key in actual - self.present - undecided:
            problems.append(f"not deleted: {key}")
        for change in self.open:
            done = {key in actual for key in change.effects}
            before = all((key in actual) == (key in self.present) for key in change.effects)
            after = all((key in actual) == is_present for key, is_present in change.effects.items())
            if not (before or after):
                problems.append(f"half done: {change.effects} {done}")
        names = {key[1] for key in actual if key[0] in ("queue", "exchange")}
        for key in actual:
            if key[0] == "binding" and not (key[1] in names and key[2] in names):
                problems.append(f"a binding without its source or destination: {key}")
        self.present, self.open = actual, []
        return problems


async def kill_while_defining(
    directory: Path, cycles: int, seed: int, progress: Progress = silent
) -> Outcome:
    """Every fourth cycle also changes users, policies and vhosts through the HTTP API."""
    rng, expected = random.Random(seed), Expected()
    problems: list[str] = []
    for done in range(cycles):
        over_http = done % 4 == 1
        env = {"LEVERET_HTTP_ENABLED": "true", "LEVERET_HTTP_PORT": "0"} if over_http else {}
        broker = BrokerProcess(directory, env=env)
        await broker.start()
        jobs = [_change_over_amqp(broker, expected, rng, n) for n in range(CHANGERS)]
        if over_http:
            await _http_ready(broker.http)
            jobs.append(_change_over_http(broker.http, expected, rng))
        running = asyncio.gather(*jobs)
        target = expected.answered + rng.randint(10, 150)
        await wait_until_reached(lambda: expected.answered, target)
        await asyncio.sleep(rng.uniform(0, 0.01))
        await broker.kill()
        await running
        problems += expected.compare(await recovered_objects(directory))
        progress(done + 1, cycles)
    figures = f"{cycles} kills, {expected.answered} answered changes, {len(problems)} wrong"
    return Outcome(
        "R-08", "kill -9 while objects are declared and deleted", figures, tuple(problems)
    )


async def recovered_objects(directory: Path) -> set[Key]:
    """The objects that a broker in this process finds in the data."""
    settings: Settings = in_process_settings(data_dir=directory)
    async with RunningBroker(settings) as running:
        return {key for key in _keys(running.broker) if key[1].startswith(PREFIX)}


def _keys(broker: Broker) -> list[Key]:
    vhost = broker.vhosts["/"]
    keys: list[Key] = [("queue", name) for name in vhost.queues]
    keys += [("exchange", name) for name in vhost.exchanges]
    keys += [
        ("binding", binding.source, binding.destination.name, binding.routing_key)
        for binding in vhost.bindings()
        if binding.source
    ]
    keys += [("user", name) for name in broker.users.by_name]
    keys += [("policy", policy.name) for policy in broker.policies]
    keys += [("vhost", name) for name in broker.vhosts]
    return keys


async def _change_over_amqp(
    broker: BrokerProcess, expected: Expected, rng: random.Random, number: int
) -> None:
    queues = [f"{PREFIX}q{number}-{n}" for n in range(4)]
    exchanges = [f"{PREFIX}x{number}-{n}" for n in range(3)]
    with contextlib.suppress(ConnectionGone, ConnectionError, TimeoutError):
        client = await Client.connect(broker.address)
        while not client.gone.is_set():
            change, method, answer = _pick(expected.present, rng, queues, exchanges)
            expected.open.append(change)
            await client.call(method, answer)
            expected.answered_change(change)


def _pick(
    present: set[Key], rng: random.Random, queues: list[str], exchanges: list[str]
) -> tuple[Change, object, type]:
    queue, exchange = rng.choice(queues), rng.choice(exchanges)
    key = rng.choice(("red", "green"))
    has_queue, has_exchange = ("queue", queue) in present, ("exchange", exchange) in present
    if not has_queue:
        return (
            Change({("queue", queue): True}),
            commands.Queue.Declare(queue=queue, durable=True),
            commands.Queue.DeclareOk,
        )
    if not has_exchange:
        return (
            Change({("exchange", exchange): True}),
            commands.Exchange.Declare(exchange=exchange, exchange_type="topic", durable=True),
            commands.Exchange.DeclareOk,
        )
    binding = ("binding", exchange, queue, key)
    if binding not in present:
        bind = commands.Queue.Bind(queue=queue, exchange=exchange, routing_key=key)
        return Change({binding: True}), bind, commands.Queue.BindOk
    if rng.random() < 0.3:
        unbind = commands.Queue.Unbind(queue=queue, exchange=exchange, routing_key=key)
        return Change({binding: False}), unbind, commands.Queue.UnbindOk
    end, name = rng.choice(((2, queue), (1, exchange)))
    deleted = {key: False for key in present if key[0] == "binding" and key[end] == name}
    if end == 2:
        deleted["queue", queue] = False
        return Change(deleted), commands.Queue.Delete(queue=queue), commands.Queue.DeleteOk
    deleted["exchange", exchange] = False
    return Change(deleted), commands.Exchange.Delete(exchange=exchange), commands.Exchange.DeleteOk


# Over HTTP ---------------------------------------------------------------------------------------


async def _change_over_http(address: str, expected: Expected, rng: random.Random) -> None:
    user, policy, vhost = f"{PREFIX}user", f"{PREFIX}policy", f"{PREFIX}vhost"
    bodies: dict[Key, tuple[str, dict[str, object]]] = {
        ("user", user): (f"users/{user}", {"password": "secret", "tags": "monitoring"}),
        ("policy", policy): (
            f"policies/%2F/{policy}",
            {"pattern": "^never$", "definition": {"max-length": 10}, "apply-to": "queues"},
        ),
        ("vhost", vhost): (f"vhosts/{vhost}", {}),
    }
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        while True:
            key = rng.choice(list(bodies))
            path, body = bodies[key]
            is_created = key not in expected.present
            change = Change({key: is_created})
            expected.open.append(change)
            status = await request(address, "PUT" if is_created else "DELETE", path, body)
            if status >= 300:
                raise AssertionError(f"HTTP {status} for {path}")
            expected.answered_change(change)


async def request(address: str, method: str, path: str, body: dict[str, object]) -> int:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        content = json.dumps(body).encode() if method == "PUT" else b""
        login = base64.b64encode(b"guest:guest").decode()
        writer.write(
            f"{method} /api/{path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n"
            f"Authorization: Basic {login}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(content)}\r\n\r\n".encode()
            + content
        )
        head = await reader.readuntil(b"\r\n")
        return int(head.split()[1])
    finally:
        writer.close()


async def _http_ready(address: str) -> None:
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                if await request(address, "GET", "whoami", {}) == 200:
                    return
            await asyncio.sleep(0.05)
