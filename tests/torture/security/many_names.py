"""R-49: one user creates many objects: queues, bindings, exchanges, users; and the limits apply.

All of them are durable and on disk.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from pamqp import commands, frame, heartbeat

from tests.torture.outcome import Outcome, Progress, silent
from tests.torture.process import BrokerProcess
from tests.torture.security.raw import Raw

AT_ONCE = 100
WITH_PASSWORD = 10
"""One user in this many has a password, which is hashed; the others cannot log in."""
MAX_KIB = {"queue": 20.0, "binding": 4.0, "exchange": 20.0, "user": 8.0}
"""Allowed KiB of memory for each kind."""


async def create_many_names(
    directory: Path, names: int, _seed: int, progress: Progress = silent, users: int = 0
) -> Outcome:
    """Create queues and bindings, and a tenth as many exchanges and users; one more than each
    limit is refused."""
    broker = BrokerProcess(directory, "--http-port", "0", env={"LEVERET_HTTP_ENABLED": "true"})
    broker.settings = (f"queue_max={names}",)
    await broker.start()
    users = users or max(AT_ONCE + 1, names // 10)
    exchanges = max(AT_ONCE + 1, names // 10)
    total = 2 * names + exchanges + users
    async with httpx.AsyncClient(
        base_url=f"http://{broker.http}/api", auth=("guest", "guest"), timeout=60, verify=False
    ) as api:
        raw = await Raw.connect(broker.address)
        await raw.log_in()
        cost = {
            "queue": await _grow(broker, raw, names, _declare, lambda n: progress(n, total)),
            "binding": await _grow(broker, raw, names, _bind, lambda n: progress(names + n, total)),
            "exchange": await _grow(broker, raw, exchanges, _exchange, _no_progress),
            "user": await _add_users(
                broker, api, users, lambda n: progress(total - users + n, total)
            ),
        }
        refused = await _limits(broker, raw, api)
        raw.drop()
    await broker.stop()
    problems = [
        f"{case} beyond the limit: {actual}, not {expected}"
        for case, (actual, expected) in refused.items()
        if actual != expected
    ]
    problems += [f"{cost[kind]:.1f} KiB per {kind}" for kind in cost if cost[kind] > MAX_KIB[kind]]
    figures = (
        f"{names} queues ({cost['queue']:.1f} KiB each) and {names} bindings "
        f"({cost['binding']:.1f}) of one user, {exchanges} exchanges ({cost['exchange']:.1f}), "
        f"{users} users over HTTP ({cost['user']:.1f}), a tenth with a password; all on disk; "
        "beyond the limits: "
        + ", ".join(f"{case} {actual}" for case, (actual, _) in refused.items())
    )
    return Outcome("R-49", "a flood of names", figures, tuple(problems))


def _declare(number: int) -> tuple[Any, type]:
    declare = commands.Queue.Declare(queue=f"name-{number}", durable=True)
    return declare, commands.Queue.DeclareOk


def _bind(number: int) -> tuple[Any, type]:
    bind = commands.Queue.Bind(queue="name-0", exchange="amq.topic", routing_key=f"some.{number}")
    return bind, commands.Queue.BindOk


def _exchange(number: int) -> tuple[Any, type]:
    declare = commands.Exchange.Declare(
        exchange=f"some-{number}", exchange_type="topic", durable=True
    )
    return declare, commands.Exchange.DeclareOk


def _no_progress(_done: int) -> None:
    pass


async def _grow(
    broker: BrokerProcess,
    raw: Raw,
    count: int,
    make: Callable[[int], tuple[Any, type]],
    progress: Callable[[int], None],
) -> float:
    """KiB per object, without the first ones."""
    before = 0.0
    for first in range(0, count, AT_ONCE):
        methods = [make(number) for number in range(first, min(first + AT_ONCE, count))]
        raw.send(b"".join(frame.marshal(method, 1) for method, _ in methods))
        for _, answer in methods:
            if not isinstance(await _next(raw), answer):
                raise RuntimeError("a name was refused below the limit")
        if first == 0:
            before = broker.memory("VmRSS")
        progress(first + len(methods))
    return (broker.memory("VmRSS") - before) * 1024 / (count - AT_ONCE)


async def _add_users(
    broker: BrokerProcess, api: httpx.AsyncClient, count: int, progress: Callable[[int], None]
) -> float:
    before = 0.0
    for number in range(count):
        has_password = number % WITH_PASSWORD == 0
        secret = {"password": f"pw-{number}"} if has_password else {"password_hash": ""}
        body = secret | {"tags": "management"}
        (await api.put(f"/users/flood-{number}", json=body)).raise_for_status()
        if number == AT_ONCE:
            before = broker.memory("VmRSS")
        progress(number + 1)
    return (broker.memory("VmRSS") - before) * 1024 / max(1, count - AT_ONCE)


async def _limits(
    broker: BrokerProcess, raw: Raw, api: httpx.AsyncClient
) -> dict[str, tuple[object, int]]:
    """Answers to one more than each limit, and the expected answers."""
    refused = {"a queue": (await _reply(raw, _declare(-1)[0]), 406)}
    refused["a queue over HTTP"] = (
        (await api.put("/queues/%2F/one-more", json={})).status_code,
        400,
    )
    for path, value in (
        ("/vhosts/small", {}),
        ("/permissions/small/guest", {"configure": ".*", "write": ".*", "read": ".*"}),
        ("/vhost-limits/small/max-queues", {"value": 1}),
        ("/vhost-limits/small/max-connections", {"value": 1}),
    ):
        (await api.put(path, json=value)).raise_for_status()
    small = await Raw.connect(broker.address)
    await small.log_in(vhost="small")
    small.send(frame.marshal(_declare(0)[0], 1))
    await small.next()
    refused["a queue of a limited vhost"] = (await _reply(small, _declare(1)[0]), 406)
    refused["a queue of a limited vhost over HTTP"] = (
        (await api.put("/queues/small/one-more", json={})).status_code,
        400,
    )
    another = await Raw.connect(broker.address)
    refused["a connection of a limited vhost"] = (await _refusal_code(another, "small"), 530)
    (await api.put("/user-limits/guest/max-connections", json={"value": 1})).raise_for_status()
    more = await Raw.connect(broker.address)
    refused["a connection of a limited user"] = (await _refusal_code(more, "/"), 530)
    few = await _user_of_one_channel(broker, api)
    refused["a channel of a limited user"] = (await _reply(few, commands.Channel.Open(), 2), 530)
    for connection in (small, another, more, few):
        connection.drop()
    return refused


async def _user_of_one_channel(broker: BrokerProcess, api: httpx.AsyncClient) -> Raw:
    for path, value in (
        ("/users/few", {"password": "few", "tags": ""}),
        ("/permissions/%2F/few", {"configure": ".*", "write": ".*", "read": ".*"}),
        ("/user-limits/few/max-channels", {"value": 1}),
    ):
        (await api.put(path, json=value)).raise_for_status()
    few = await Raw.connect(broker.address)
    if not await few.log_in("few", "few"):
        raise RuntimeError("the only allowed channel was refused")
    return few


async def _reply(raw: Raw, method: Any, channel: int = 1) -> object:
    raw.send(frame.marshal(method, channel))
    answer = await _next(raw)
    is_refusal = isinstance(answer, commands.Channel.Close | commands.Connection.Close)
    return answer.reply_code if is_refusal else answer


async def _next(raw: Raw) -> Any:
    """The next method; skips heartbeats."""
    while isinstance(method := await raw.next(), heartbeat.Heartbeat):
        pass
    return method


async def _refusal_code(raw: Raw, vhost: str) -> object:
    if await raw.log_in(vhost=vhost):
        return "accepted"
    return raw.closed_with
