"""R-08: SIGKILL while objects come and go; every answered change is there, and no half object."""

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
from tests.torture.client import Client, ConnectionGone
from tests.torture.outcome import Outcome, Progress, silent
from tests.torture.process import BrokerProcess
from tests.torture.waiting import until_reaches

Key = tuple[str, ...]
CHANGERS = 3
MARK = "def-"


@dataclass(slots=True)
class Change:
    """What one request makes there (True) or not there (False)."""

    effects: dict[Key, bool]


@dataclass(slots=True)
class Expected:
    present: set[Key] = field(default_factory=set)
    open: list[Change] = field(default_factory=list)
    answered: int = 0

    def answered_change(self, change: Change) -> None:
        self.open.remove(change)
        self.answered += 1
        for key, there in change.effects.items():
            (self.present.add if there else self.present.discard)(key)

    def compare(self, found: set[Key]) -> list[str]:
        """What is wrong in `found`; afterwards it is what is expected."""
        problems = []
        unsure = {key for change in self.open for key in change.effects}
        for key in self.present - found - unsure:
            problems.append(f"missing: {key}")
        for key in found - self.present - unsure:
            problems.append(f"came back: {key}")
        for change in self.open:
            done = {key in found for key in change.effects}
            before = all((key in found) == (key in self.present) for key in change.effects)
            after = all((key in found) == there for key, there in change.effects.items())
            if not (before or after):
                problems.append(f"half done: {change.effects} {done}")
        names = {key[1] for key in found if key[0] in ("queue", "exchange")}
        for key in found:
            if key[0] == "binding" and not (key[1] in names and key[2] in names):
                problems.append(f"a binding without its ends: {key}")
        self.present, self.open = found, []
        return problems


async def kill_while_defining(
    directory: Path, cycles: int, seed: int, progress: Progress = silent
) -> Outcome:
    """Each fourth cycle also changes users, policies and vhosts through the HTTP API."""
    chance, expected = random.Random(seed), Expected()
    problems: list[str] = []
    for done in range(cycles):
        over_http = done % 4 == 1
        env = {"LEVERET_HTTP_ENABLED": "true", "LEVERET_HTTP_PORT": "0"} if over_http else {}
        broker = BrokerProcess(directory, env=env)
        await broker.start()
        jobs = [_change_over_amqp(broker, expected, chance, n) for n in range(CHANGERS)]
        if over_http:
            await _http_ready(broker.http)
            jobs.append(_change_over_http(broker.http, expected, chance))
        running = asyncio.gather(*jobs)
        target = expected.answered + chance.randint(10, 150)
        await until_reaches(lambda: expected.answered, target)
        await asyncio.sleep(chance.uniform(0, 0.01))
        await broker.kill()
        await running
        problems += expected.compare(await what_is_there(directory))
        progress(done + 1, cycles)
    figures = f"{cycles} kills, {expected.answered} answered changes, {len(problems)} wrong"
    return Outcome("R-08", "kill -9 while defining", figures, tuple(problems))


async def what_is_there(directory: Path) -> set[Key]:
    """Start a broker on the data, here, and look."""
    settings: Settings = in_process_settings(data_dir=directory)
    async with RunningBroker(settings) as running:
        return {key for key in _keys(running.broker) if key[1].startswith(MARK)}


def _keys(broker: Broker) -> list[Key]:
    vhost = broker.vhosts["/"]
    keys: list[Key] = [("queue", name) for name in vhost.queues]
    keys += [("exchange", name) for name in vhost.exchanges]
    keys += [
        ("binding", one.source, one.destination.name, one.routing_key)
        for one in vhost.bindings()
        if one.source
    ]
    keys += [("user", name) for name in broker.users.by_name]
    keys += [("policy", policy.name) for policy in broker.policies]
    keys += [("vhost", name) for name in broker.vhosts]
    return keys


async def _change_over_amqp(
    broker: BrokerProcess, expected: Expected, chance: random.Random, number: int
) -> None:
    queues = [f"{MARK}q{number}-{n}" for n in range(4)]
    exchanges = [f"{MARK}x{number}-{n}" for n in range(3)]
    with contextlib.suppress(ConnectionGone, ConnectionError, TimeoutError):
        client = await Client.connect(broker.address)
        while not client.gone.is_set():
            change, method, answer = _pick(expected.present, chance, queues, exchanges)
            expected.open.append(change)
            await client.call(method, answer)
            expected.answered_change(change)


def _pick(
    present: set[Key], chance: random.Random, queues: list[str], exchanges: list[str]
) -> tuple[Change, object, type]:
    queue, exchange = chance.choice(queues), chance.choice(exchanges)
    key = chance.choice(("red", "green"))
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
    if chance.random() < 0.3:
        unbind = commands.Queue.Unbind(queue=queue, exchange=exchange, routing_key=key)
        return Change({binding: False}), unbind, commands.Queue.UnbindOk
    place, name = chance.choice(((2, queue), (1, exchange)))
    gone = {one: False for one in present if one[0] == "binding" and one[place] == name}
    if place == 2:
        gone["queue", queue] = False
        return Change(gone), commands.Queue.Delete(queue=queue), commands.Queue.DeleteOk
    gone["exchange", exchange] = False
    return Change(gone), commands.Exchange.Delete(exchange=exchange), commands.Exchange.DeleteOk


# Over HTTP ---------------------------------------------------------------------------------------


async def _change_over_http(address: str, expected: Expected, chance: random.Random) -> None:
    user, policy, vhost = f"{MARK}user", f"{MARK}policy", f"{MARK}vhost"
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
            key = chance.choice(list(bodies))
            path, body = bodies[key]
            there = key not in expected.present
            change = Change({key: there})
            expected.open.append(change)
            status = await request(address, "PUT" if there else "DELETE", path, body)
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
