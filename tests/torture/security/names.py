"""R-49: a flood of names by one user: queues, bindings, users; and what the limits say to it.

All of it is durable and on disk.
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
"""One of so many users has a password, which is hashed; the others cannot log in with any."""
MOST = {"queue": 20.0, "binding": 4.0, "exchange": 20.0, "user": 8.0}
"""KiB of memory that each may take."""


async def flood_names(
    directory: Path, names: int, _seed: int, progress: Progress = silent, users: int = 0
) -> Outcome:
    """So many queues and bindings, a tenth of it exchanges and users; the next one of each limit is
    refused."""
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
            "exchange": await _grow(broker, raw, exchanges, _exchange, _none),
            "user": await _add_users(
                broker, api, users, lambda n: progress(total - users + n, total)
            ),
        }
        refused = await _limits(broker, raw, api)
        raw.drop()
    await broker.stop()
    problems = [
        f"{what} beyond the limit: {got}, not {wanted}"
        for what, (got, wanted) in refused.items()
        if got != wanted
    ]
    problems += [f"{cost[one]:.1f} KiB for each {one}" for one in cost if cost[one] > MOST[one]]
    figures = (
        f"{names} queues ({cost['queue']:.1f} KiB each) and {names} bindings "
        f"({cost['binding']:.1f}) of one user, {exchanges} exchanges ({cost['exchange']:.1f}), "
        f"{users} users over HTTP ({cost['user']:.1f}), a tenth with a password; all on disk; "
        "beyond the limits: " + ", ".join(f"{what} {got}" for what, (got, _) in refused.items())
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


def _none(_done: int) -> None:
    pass


async def _grow(
    broker: BrokerProcess,
    raw: Raw,
    count: int,
    make: Callable[[int], tuple[Any, type]],
    progress: Callable[[int], None],
) -> float:
    """KiB for each; what the first ones take is not counted."""
    before = 0.0
    for first in range(0, count, AT_ONCE):
        made = [make(number) for number in range(first, min(first + AT_ONCE, count))]
        raw.send(b"".join(frame.marshal(method, 1) for method, _ in made))
        for _, answer in made:
            if not isinstance(await _next(raw), answer):
                raise RuntimeError("a name was refused below the limit")
        if first == 0:
            before = broker.memory("VmRSS")
        progress(first + len(made))
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
    """What is answered to the next one, and what should be."""
    refused = {"a queue": (await _heard(raw, _declare(-1)[0]), 406)}
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
    refused["a queue of a limited vhost"] = (await _heard(small, _declare(1)[0]), 406)
    refused["a queue of a limited vhost over HTTP"] = (
        (await api.put("/queues/small/one-more", json={})).status_code,
        400,
    )
    another = await Raw.connect(broker.address)
    refused["a connection of a limited vhost"] = (await _turned_away(another, "small"), 530)
    (await api.put("/user-limits/guest/max-connections", json={"value": 1})).raise_for_status()
    more = await Raw.connect(broker.address)
    refused["a connection of a limited user"] = (await _turned_away(more, "/"), 530)
    few = await _user_of_one_channel(broker, api)
    refused["a channel of a limited user"] = (await _heard(few, commands.Channel.Open(), 2), 530)
    for one in (small, another, more, few):
        one.drop()
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
        raise RuntimeError("the one channel was refused")
    return few


async def _heard(raw: Raw, method: Any, channel: int = 1) -> object:
    raw.send(frame.marshal(method, channel))
    answer = await _next(raw)
    is_refusal = isinstance(answer, commands.Channel.Close | commands.Connection.Close)
    return answer.reply_code if is_refusal else answer


async def _next(raw: Raw) -> Any:
    """The next method; a flood takes longer than a heartbeat."""
    while isinstance(said := await raw.next(), heartbeat.Heartbeat):
        pass
    return said


async def _turned_away(raw: Raw, vhost: str) -> object:
    if await raw.log_in(vhost=vhost):
        return "let in"
    return raw.closed_with
