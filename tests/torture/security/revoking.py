"""R-41: rights taken away over HTTP while their user publishes and consumes: how soon it shows.

A pause of the machine is not the broker's: what takes too long is tried again, and is late if it
does thrice.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
from pamqp import commands, frame

from tests.torture.client import PROPERTIES
from tests.torture.outcome import Outcome, Progress, silent
from tests.torture.process import BrokerProcess
from tests.torture.security.raw import Raw, percentile

NAMES = ("plain", "a.b", "^.*$", "x|y", "(", "[^a]+", "{username}")
ALL: Any = {"configure": ".*", "write": ".*", "read": ".*"}
LONGEST = 1.0
TRIES = 3


async def revoke(directory: Path, cycles: int, _seed: int, progress: Progress = silent) -> Outcome:
    """Each cycle: reading, writing, the user, the vhost; names hold pattern characters."""
    broker = BrokerProcess(directory, "--http-port", "0", env={"LEVERET_HTTP_ENABLED": "true"})
    await broker.start()
    seen: dict[str, list[float]] = {what: [] for what in _WAYS}
    problems, late = list[str](), list[str]()
    async with httpx.AsyncClient(
        base_url=f"http://{broker.http}/api", auth=("guest", "guest"), timeout=60, verify=False
    ) as api:
        for cycle in range(cycles):
            for what in seen:
                tries = await _take_away(broker, api, NAMES[cycle % len(NAMES)], what, problems)
                seen[what] += tries
                if min(tries) > LONGEST:
                    late.append(f"{what} took {min(tries):.1f} s and more, thrice")
            progress(cycle + 1, cycles)
    await broker.stop()
    figures = (
        f"{sum(map(len, seen.values()))} rights taken away from open connections; "
        + ", ".join(
            f"{what} after {percentile(times, 0.5) * 1000:.0f} ms, {max(times) * 1000:.0f} at most"
            for what, times in seen.items()
        )
    )
    return Outcome("R-41", "rights taken away", figures, tuple(problems), tuple(late))


async def _take_away(
    broker: BrokerProcess, api: httpx.AsyncClient, name: str, what: str, problems: list[str]
) -> list[float]:
    """The seconds of each try until one is in time."""
    times: list[float] = []
    while len(times) < TRIES and (not times or times[-1] > LONGEST):
        one = _Victim(broker, api, name)
        await one.arrive()
        seconds, heard = await _WAYS[what](one)
        times.append(seconds)
        if heard:
            problems.append(f"{what} of {name!r}: {heard}")
        await one.leave()
    return times


class _Victim:
    """A user with a vhost of its own, who consumes from one queue on one connection."""

    def __init__(self, broker: BrokerProcess, api: httpx.AsyncClient, name: str) -> None:
        self._broker = broker
        self.api = api
        self.name = name
        self.vhost = f"of {name}"
        self._raw: Raw | None = None

    @property
    def raw(self) -> Raw:
        assert self._raw is not None
        return self._raw

    def path(self, *parts: str) -> str:
        return "/" + "/".join(quote(part, "") for part in parts)

    async def arrive(self) -> None:
        body = {"password": "secret", "tags": ""}
        for path, content in (
            (self.path("users", self.name), body),
            (self.path("vhosts", self.vhost), {}),
            (self.path("permissions", self.vhost, self.name), ALL),
        ):
            answer = await self.api.put(path, json=content)
            answer.raise_for_status()
        self._raw = await Raw.connect(self._broker.address)
        if not await self.raw.log_in(self.name, "secret", self.vhost):
            raise RuntimeError(f"{self.name!r} could not log in")
        for method, answered in (
            (commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk),
            (commands.Basic.Consume(queue="q"), commands.Basic.ConsumeOk),
        ):
            self.raw.send(frame.marshal(method, 1))
            if not isinstance(await self.raw.next(), answered):
                raise RuntimeError(f"{answered.__name__} did not come")

    async def leave(self) -> None:
        self.raw.drop()
        await self.api.delete(self.path("users", self.name))
        await self.api.delete(self.path("vhosts", self.vhost))

    async def allow(self, **rights: str) -> None:
        path = self.path("permissions", self.vhost, self.name)
        (await self.api.put(path, json=ALL | rights)).raise_for_status()


async def _reading(one: _Victim) -> tuple[float, str]:
    began = time.monotonic()
    await one.allow(read="^$")
    heard = await one.raw.next()
    wrong = "" if isinstance(heard, commands.Basic.Cancel) else f"not cancelled: {heard}"
    return time.monotonic() - began, wrong


async def _writing(one: _Victim) -> tuple[float, str]:
    """Publishes go on until one is refused; a way known before counts no more."""
    await one.allow(read="^$")
    await one.raw.next()
    publish = _publish("amq.direct")
    one.raw.send(publish)
    began = time.monotonic()
    await one.allow(write="^$")
    one.raw.send(publish)
    heard = await one.raw.next()
    code = heard.reply_code if isinstance(heard, commands.Channel.Close) else heard
    return time.monotonic() - began, "" if code == 403 else f"publish heard {code}"


def _publish(exchange: str) -> bytes:
    method = frame.marshal(commands.Basic.Publish(exchange=exchange, routing_key="k"), 1)
    content = b"\x00\x3c\x00\x00" + (1).to_bytes(8, "big") + PROPERTIES["transient"]
    header = b"\x02\x00\x01" + len(content).to_bytes(4, "big") + content + b"\xce"
    return method + header + b"\x03\x00\x01\x00\x00\x00\x01x\xce"


async def _user(one: _Victim) -> tuple[float, str]:
    return await _gone(one, one.path("users", one.name))


async def _vhost(one: _Victim) -> tuple[float, str]:
    return await _gone(one, one.path("vhosts", one.vhost))


async def _gone(one: _Victim, path: str) -> tuple[float, str]:
    began = time.monotonic()
    (await one.api.delete(path)).raise_for_status()
    heard = await one.raw.next()
    while isinstance(heard, commands.Basic.Cancel):  # its queue goes first
        heard = await one.raw.next()
    code = heard.reply_code if isinstance(heard, commands.Connection.Close) else heard
    return time.monotonic() - began, "" if code == 320 else f"connection heard {code}"


_WAYS = {
    "consumers cancelled": _reading,
    "publishes refused": _writing,
    "a deleted user's connection closed": _user,
    "a deleted vhost's connection closed": _vhost,
}
