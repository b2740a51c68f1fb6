"""R-41: rights taken away over HTTP while their user publishes and is delivered to without a pause.

Every message says who sent it and when, so that what was sent after the API had answered is known
by itself: of that nothing may be taken from, or handed to, somebody without the right.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
from pamqp import body, commands, frame, header, heartbeat

from tests.torture.client import PROPERTIES
from tests.torture.outcome import Outcome, Progress, silent
from tests.torture.process import BrokerProcess
from tests.torture.security.raw import PATIENCE, Raw, percentile

NAMES = ("plain", "a.b", "^.*$", "x|y", "(", "[^a]+", "{username}")
ALL: Any = {"configure": ".*", "write": ".*", "read": ".*"}
LONGEST = 1.0
PERIOD = 0.001
BEFORE, AFTER = 20, 20
"""Messages of each sender that are delivered before a right goes, and sent after it has gone."""
CONSUMING, PUBLISHING = 1, 2
VICTIM, OTHER = b"v", b"o"
_BODY = struct.Struct(">cd")


async def revoke(directory: Path, cycles: int, _seed: int, progress: Progress = silent) -> Outcome:
    """Each cycle: reading, writing, the permission, the user, the vhost; names hold pattern
    characters."""
    broker = BrokerProcess(directory, "--http-port", "0", env={"LEVERET_HTTP_ENABLED": "true"})
    await broker.start()
    seen: dict[str, list[float]] = {what: [] for what in _WAYS}
    problems, late, delivered = list[str](), list[str](), 0
    async with httpx.AsyncClient(
        base_url=f"http://{broker.http}/api", auth=("guest", "guest"), timeout=60, verify=False
    ) as api:
        for cycle in range(cycles):
            name = NAMES[cycle % len(NAMES)]
            for what, way in _WAYS.items():
                one = _Victim(broker, api, name)
                await one.arrive()
                seconds = await way(one)
                await one.leave()
                seen[what].append(seconds)
                delivered += len(one.delivered)
                problems += [f"{what}, user {name!r}: {wrong}" for wrong in one.wrong]
                if seconds > LONGEST:
                    late.append(f"{what}, user {name!r}: after {seconds:.1f} s")
            progress(cycle + 1, cycles)
    await broker.stop()
    figures = (
        f"{sum(map(len, seen.values()))} rights taken away from connections that published and "
        f"were handed {delivered} messages until then; "
        + ", ".join(
            f"{what} after {percentile(times, 0.5) * 1000:.0f} ms, {max(times) * 1000:.0f} at most"
            for what, times in seen.items()
        )
    )
    return Outcome("R-41", "rights taken away", figures, tuple(problems), tuple(late))


class _Victim:
    """A user with a vhost of its own, who consumes and publishes on one connection.

    Somebody else publishes to the same queue, and goes on when the user may not.
    """

    def __init__(self, broker: BrokerProcess, api: httpx.AsyncClient, name: str) -> None:
        self._broker = broker
        self._api = api
        self._permission = _path("permissions", f"of {name}", name)
        self.user = _path("users", name)
        self.vhost = _path("vhosts", f"of {name}")
        self._name = name
        self._raw: Raw | None = None
        self._other: Raw | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._heard: asyncio.Queue[tuple[float, Any]] = asyncio.Queue()
        self.may_publish = True
        self.sent = 0
        """By the other one."""
        self.delivered: list[tuple[bytes, float]] = []
        """Who sent it, and when."""
        self.answered = float("inf")
        self.wrong: list[str] = []

    @property
    def raw(self) -> Raw:
        assert self._raw is not None
        return self._raw

    @property
    def other(self) -> Raw:
        assert self._other is not None
        return self._other

    # Coming and going --------------------------------------------------------------------------

    async def arrive(self) -> None:
        vhost = f"of {self._name}"
        for path, content in (
            (self.user, {"password": "secret", "tags": ""}),
            (self.vhost, {}),
            (self._permission, ALL),
            (_path("permissions", vhost, "guest"), ALL),
        ):
            (await self._api.put(path, json=content)).raise_for_status()
        self._raw = await _logged_in(self._broker, self._name, "secret", vhost)
        self._other = await _logged_in(self._broker, "guest", "guest", vhost)
        bind = commands.Queue.Bind(queue="q", exchange="amq.direct", routing_key="k")
        await _call(self.raw, commands.Channel.Open(), PUBLISHING)
        await _call(self.raw, commands.Queue.Declare(queue="q"))
        await _call(self.raw, bind)
        await _call(self.raw, commands.Basic.Consume(queue="q", no_ack=True))
        self._tasks = [asyncio.create_task(one()) for one in (self._publish, self._listen)]
        await self.until(lambda: all(self.count(one) >= BEFORE for one in (VICTIM, OTHER)))

    async def leave(self) -> None:
        for task in self._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        self.raw.drop()
        self.other.drop()
        for path in (self.user, self.vhost):
            await self._api.delete(path)

    # What it does all the time -----------------------------------------------------------------

    async def _publish(self) -> None:
        while True:
            if self.may_publish:
                self.raw.send(_message(PUBLISHING, VICTIM))
            self.other.send(_message(1, OTHER))
            self.sent += 1
            await asyncio.sleep(PERIOD)

    async def _listen(self) -> None:
        while (said := await self.raw.next()) is not None:
            if isinstance(said, body.ContentBody):
                self.delivered.append(_BODY.unpack(said.value))
            elif not isinstance(
                said, commands.Basic.Deliver | header.ContentHeader | heartbeat.Heartbeat
            ):
                self._heard.put_nowait((time.monotonic(), said))
        self._heard.put_nowait((time.monotonic(), None))

    def count(self, sender: bytes, since: float = 0.0) -> int:
        return sum(who == sender and when > since for who, when in self.delivered)

    async def until(self, holds: Callable[[], bool]) -> None:
        for _ in range(round(PATIENCE / PERIOD)):
            if holds():
                return
            await asyncio.sleep(PERIOD)
        self.wrong.append("messages stayed away")

    # What is done to it ------------------------------------------------------------------------

    async def allow(self, **rights: str) -> None:
        await self._change(self._api.put(self._permission, json=ALL | rights))

    async def forbid(self) -> None:
        await self.delete(self._permission)

    async def delete(self, path: str) -> None:
        await self._change(self._api.delete(path))

    async def _change(self, request: Awaitable[httpx.Response]) -> None:
        (await request).raise_for_status()
        self.answered = time.monotonic()

    async def hears(self, *wanted: tuple[type, int]) -> float:
        """When the last of these methods came, each with its code; nothing else may come before."""
        missing, when = list(wanted), 0.0
        while missing:
            try:
                when, said = await asyncio.wait_for(self._heard.get(), PATIENCE)
            except TimeoutError:
                self.wrong.append(f"heard nothing, awaited {missing}")
                return time.monotonic()
            one = type(said), int(getattr(said, "reply_code", 0) or 0)
            if one in missing:
                missing.remove(one)
            else:
                self.wrong.append(f"heard {said and dict(said)}, awaited {missing}")
            if said is None:
                self._heard.put_nowait((when, None))  # for whoever waits after the end
                return when
            if isinstance(said, commands.Channel.Close | commands.Connection.Close):
                self.may_publish = False
        return when

    async def go_on(self) -> None:
        """The other one publishes more, which is in the queue or delivered afterwards."""
        sent = self.sent
        await self.until(lambda: self.sent >= sent + AFTER)
        await _call(self.other, commands.Queue.Declare(queue="q", passive=True))

    async def asks(self, channel: int) -> None:
        """The channel is still open: all that was delivered before its answer has been seen."""
        self.raw.send(frame.marshal(commands.Basic.Qos(), channel))
        await self.hears((commands.Basic.QosOk, 0))

    def must_get_nothing_of(self, *senders: bytes) -> None:
        """Of what was sent after the API had answered."""
        got = sum(self.count(sender, self.answered) for sender in senders)
        if got:
            self.wrong.append(f"{got} messages delivered that were sent after the answer")


_CANCELLED = (commands.Basic.Cancel, 0)
_REFUSED = (commands.Channel.Close, 403)
_CLOSED = (commands.Connection.Close, 320)
_ENDED = (type(None), 0)


async def _reading(one: _Victim) -> float:
    """It is cancelled, gets nothing more, and may still publish."""
    began = time.monotonic()
    await one.allow(read="^$")
    seconds = await one.hears(_CANCELLED) - began
    await _nothing_more(one, CONSUMING, PUBLISHING)
    return seconds


async def _writing(one: _Victim) -> float:
    """Its publishes are refused, on a way known before, and it still gets what others publish."""
    began = time.monotonic()
    await one.allow(write="^$")
    seconds = await one.hears(_REFUSED) - began
    await one.until(lambda: one.count(OTHER, one.answered) >= AFTER)
    one.must_get_nothing_of(VICTIM)
    return seconds


async def _permission(one: _Victim) -> float:
    began = time.monotonic()
    await one.forbid()
    seconds = await one.hears(_CANCELLED, _REFUSED) - began
    await _nothing_more(one, CONSUMING)
    return seconds


async def _nothing_more(one: _Victim, *channels: int) -> None:
    got = len(one.delivered)
    await one.go_on()
    for channel in channels:
        await one.asks(channel)
    if len(one.delivered) > got:
        one.wrong.append(f"{len(one.delivered) - got} messages delivered to a cancelled consumer")
    one.must_get_nothing_of(VICTIM, OTHER)


async def _user(one: _Victim) -> float:
    began = time.monotonic()
    await one.delete(one.user)
    seconds = await one.hears(_CLOSED) - began
    got = len(one.delivered)
    await one.go_on()
    await _ended(one, got)
    return seconds


async def _vhost(one: _Victim) -> float:
    began = time.monotonic()
    await one.delete(one.vhost)
    seconds = await one.hears(_CLOSED) - began
    await _ended(one, len(one.delivered))
    return seconds


async def _ended(one: _Victim, got: int) -> None:
    one.raw.send(frame.marshal(commands.Connection.CloseOk(), 0))
    await one.hears(_ENDED)
    if len(one.delivered) > got:
        one.wrong.append(f"{len(one.delivered) - got} messages delivered after the close")
    one.must_get_nothing_of(VICTIM, OTHER)


_WAYS: dict[str, Callable[[_Victim], Awaitable[float]]] = {
    "consumers cancelled": _reading,
    "publishes refused": _writing,
    "both without the permission": _permission,
    "a deleted user's connection closed": _user,
    "a deleted vhost's connection closed": _vhost,
}


def _path(*parts: str) -> str:
    return "/" + "/".join(quote(part, "") for part in parts)


async def _logged_in(broker: BrokerProcess, user: str, password: str, vhost: str) -> Raw:
    raw = await Raw.connect(broker.address)
    if not await raw.log_in(user, password, vhost):
        raise RuntimeError(f"{user!r} could not log in")
    return raw


async def _call(raw: Raw, method: Any, channel: int = 1) -> None:
    raw.send(frame.marshal(method, channel))
    said = await raw.next()
    while isinstance(said, heartbeat.Heartbeat):
        said = await raw.next()
    if said is None or said.name != f"{method.name}Ok":
        raise RuntimeError(f"{method.name} was answered with {said}")


def _message(channel: int, sender: bytes) -> bytes:
    publish = commands.Basic.Publish(exchange="amq.direct", routing_key="k")
    content = b"\x00\x3c\x00\x00" + _BODY.size.to_bytes(8, "big") + PROPERTIES["transient"]
    number, octets = channel.to_bytes(2, "big"), _BODY.pack(sender, time.monotonic())
    return (
        frame.marshal(publish, channel)
        + b"\x02" + number + len(content).to_bytes(4, "big") + content + b"\xce"
        + b"\x03" + number + len(octets).to_bytes(4, "big") + octets + b"\xce"
    )  # fmt: skip
