"""R-41: permissions are revoked over HTTP while their user publishes and consumes without a pause.

Every message contains its sender and its time, so messages sent after the answer of the API are
known: none of them may be accepted from, or delivered to, a user without permission.
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
from tests.torture.security.raw import DEADLINE_SECONDS, Raw, percentile

NAMES = ("plain", "a.b", "^.*$", "x|y", "(", "[^a]+", "{username}")
ALL: Any = {"configure": ".*", "write": ".*", "read": ".*"}
MAX_SECONDS = 1.0
PERIOD = 0.001
BEFORE, AFTER = 20, 20
"""Messages of each sender delivered before a revocation, and sent after it."""
CONSUMING, PUBLISHING = 1, 2
REVOKED, OTHER = b"v", b"o"
_BODY = struct.Struct(">cd")


async def revoke(directory: Path, cycles: int, _seed: int, progress: Progress = silent) -> Outcome:
    """Each cycle revokes read, write and the permission, and deletes the user and the vhost; names
    contain pattern characters."""
    broker = BrokerProcess(directory, "--http-port", "0", env={"LEVERET_HTTP_ENABLED": "true"})
    await broker.start()
    seen: dict[str, list[float]] = {case: [] for case in _CASES}
    problems, late, delivered = list[str](), list[str](), 0
    async with httpx.AsyncClient(
        base_url=f"http://{broker.http}/api", auth=("guest", "guest"), timeout=60, verify=False
    ) as api:
        for cycle in range(cycles):
            name = NAMES[cycle % len(NAMES)]
            for case, run_case in _CASES.items():
                revoked_user = _RevokedUser(broker, api, name)
                await revoked_user.set_up()
                seconds = await run_case(revoked_user)
                await revoked_user.tear_down()
                seen[case].append(seconds)
                delivered += len(revoked_user.delivered)
                problems += [
                    f"{case}, user {name!r}: {problem}" for problem in revoked_user.problems
                ]
                if seconds > MAX_SECONDS:
                    late.append(f"{case}, user {name!r}: after {seconds:.1f} s")
            progress(cycle + 1, cycles)
    await broker.stop()
    figures = (
        f"{sum(map(len, seen.values()))} revocations for connections that published and "
        f"received {delivered} messages until then; "
        + ", ".join(
            f"{case} after {percentile(times, 0.5) * 1000:.0f} ms, {max(times) * 1000:.0f} at most"
            for case, times in seen.items()
        )
    )
    return Outcome("R-41", "revoked permissions", figures, tuple(problems), tuple(late))


class _RevokedUser:
    """A user with its own vhost, who consumes and publishes on one connection.

    Another user publishes to the same queue, and continues after the revocation.
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
        self._methods: asyncio.Queue[tuple[float, Any]] = asyncio.Queue()
        self.may_publish = True
        self.sent = 0
        """Messages sent by the other user."""
        self.delivered: list[tuple[bytes, float]] = []
        """Sender and time of each message."""
        self.answered = float("inf")
        self.problems: list[str] = []

    @property
    def raw(self) -> Raw:
        assert self._raw is not None
        return self._raw

    @property
    def other(self) -> Raw:
        assert self._other is not None
        return self._other

    # Set-up ------------------------------------------------------------------------------------

    async def set_up(self) -> None:
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
        self._tasks = [
            asyncio.create_task(activity()) for activity in (self._publish, self._listen)
        ]
        await self.wait_until(
            lambda: all(self.count(activity) >= BEFORE for activity in (REVOKED, OTHER))
        )

    async def tear_down(self) -> None:
        for task in self._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        self.raw.drop()
        self.other.drop()
        for path in (self.user, self.vhost):
            await self._api.delete(path)

    # Background tasks --------------------------------------------------------------------------

    async def _publish(self) -> None:
        while True:
            if self.may_publish:
                self.raw.send(_message(PUBLISHING, REVOKED))
            self.other.send(_message(1, OTHER))
            self.sent += 1
            await asyncio.sleep(PERIOD)

    async def _listen(self) -> None:
        while (method := await self.raw.next()) is not None:
            if isinstance(method, body.ContentBody):
                self.delivered.append(_BODY.unpack(method.value))
            elif not isinstance(
                method, commands.Basic.Deliver | header.ContentHeader | heartbeat.Heartbeat
            ):
                self._methods.put_nowait((time.monotonic(), method))
        self._methods.put_nowait((time.monotonic(), None))

    def count(self, sender: bytes, since: float = 0.0) -> int:
        return sum(
            message_sender == sender and when > since for message_sender, when in self.delivered
        )

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        for _ in range(round(DEADLINE_SECONDS / PERIOD)):
            if condition():
                return
            await asyncio.sleep(PERIOD)
        self.problems.append("expected messages did not arrive")

    # Revocations and checks --------------------------------------------------------------------

    async def allow(self, **permissions: str) -> None:
        await self._change(self._api.put(self._permission, json=ALL | permissions))

    async def forbid(self) -> None:
        await self.delete(self._permission)

    async def delete(self, path: str) -> None:
        await self._change(self._api.delete(path))

    async def _change(self, request: Awaitable[httpx.Response]) -> None:
        (await request).raise_for_status()
        self.answered = time.monotonic()

    async def wait_for(self, *expected: tuple[type, int]) -> float:
        """When the last of these methods arrived, each with its code; no others may arrive."""
        missing, when = list(expected), 0.0
        while missing:
            try:
                when, method = await asyncio.wait_for(self._methods.get(), DEADLINE_SECONDS)
            except TimeoutError:
                self.problems.append(f"received nothing, expected {missing}")
                return time.monotonic()
            signature = type(method), int(getattr(method, "reply_code", 0) or 0)
            if signature in missing:
                missing.remove(signature)
            else:
                self.problems.append(f"received {method and dict(method)}, expected {missing}")
            if method is None:
                self._methods.put_nowait((when, None))  # for the next wait after the end
                return when
            if isinstance(method, commands.Channel.Close | commands.Connection.Close):
                self.may_publish = False
        return when

    async def publish_more(self) -> None:
        """Wait until the other user has published more, which is then queued or delivered."""
        sent = self.sent
        await self.wait_until(lambda: self.sent >= sent + AFTER)
        await _call(self.other, commands.Queue.Declare(queue="q", passive=True))

    async def sync(self, channel: int) -> None:
        """Check that the channel is open; deliveries before the answer have been received."""
        self.raw.send(frame.marshal(commands.Basic.Qos(), channel))
        await self.wait_for((commands.Basic.QosOk, 0))

    def check_nothing_delivered_from(self, *senders: bytes) -> None:
        """Check that no message sent after the answer of the API was delivered."""
        count = sum(self.count(sender, self.answered) for sender in senders)
        if count:
            self.problems.append(f"{count} messages delivered that were sent after the answer")


_CANCELLED = (commands.Basic.Cancel, 0)
_REFUSED = (commands.Channel.Close, 403)
_CLOSED = (commands.Connection.Close, 320)
_ENDED = (type(None), 0)


async def _revoke_read(revoked_user: _RevokedUser) -> float:
    """The consumer is cancelled and gets no more messages, but may still publish."""
    began = time.monotonic()
    await revoked_user.allow(read="^$")
    seconds = await revoked_user.wait_for(_CANCELLED) - began
    await _check_no_more_deliveries(revoked_user, CONSUMING, PUBLISHING)
    return seconds


async def _revoke_write(revoked_user: _RevokedUser) -> float:
    """Publishes are refused, also with a cached route, and deliveries continue."""
    began = time.monotonic()
    await revoked_user.allow(write="^$")
    seconds = await revoked_user.wait_for(_REFUSED) - began
    await revoked_user.wait_until(lambda: revoked_user.count(OTHER, revoked_user.answered) >= AFTER)
    revoked_user.check_nothing_delivered_from(REVOKED)
    return seconds


async def _revoke_permission(revoked_user: _RevokedUser) -> float:
    began = time.monotonic()
    await revoked_user.forbid()
    seconds = await revoked_user.wait_for(_CANCELLED, _REFUSED) - began
    await _check_no_more_deliveries(revoked_user, CONSUMING)
    return seconds


async def _check_no_more_deliveries(revoked_user: _RevokedUser, *channels: int) -> None:
    delivered_before = len(revoked_user.delivered)
    await revoked_user.publish_more()
    for channel in channels:
        await revoked_user.sync(channel)
    if more := len(revoked_user.delivered) - delivered_before:
        revoked_user.problems.append(f"{more} messages delivered to a cancelled consumer")
    revoked_user.check_nothing_delivered_from(REVOKED, OTHER)


async def _delete_user(revoked_user: _RevokedUser) -> float:
    began = time.monotonic()
    await revoked_user.delete(revoked_user.user)
    seconds = await revoked_user.wait_for(_CLOSED) - began
    delivered_before = len(revoked_user.delivered)
    await revoked_user.publish_more()
    await _check_closed(revoked_user, delivered_before)
    return seconds


async def _delete_vhost(revoked_user: _RevokedUser) -> float:
    began = time.monotonic()
    await revoked_user.delete(revoked_user.vhost)
    seconds = await revoked_user.wait_for(_CLOSED) - began
    await _check_closed(revoked_user, len(revoked_user.delivered))
    return seconds


async def _check_closed(revoked_user: _RevokedUser, delivered_before: int) -> None:
    revoked_user.raw.send(frame.marshal(commands.Connection.CloseOk(), 0))
    await revoked_user.wait_for(_ENDED)
    if len(revoked_user.delivered) > delivered_before:
        revoked_user.problems.append(
            f"{len(revoked_user.delivered) - delivered_before} messages delivered after the close"
        )
    revoked_user.check_nothing_delivered_from(REVOKED, OTHER)


_CASES: dict[str, Callable[[_RevokedUser], Awaitable[float]]] = {
    "consumers cancelled": _revoke_read,
    "publishes refused": _revoke_write,
    "both without the permission": _revoke_permission,
    "a deleted user's connection closed": _delete_user,
    "a deleted vhost's connection closed": _delete_vhost,
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
    answer = await raw.next()
    while isinstance(answer, heartbeat.Heartbeat):
        answer = await raw.next()
    if answer is None or answer.name != f"{method.name}Ok":
        raise RuntimeError(f"{method.name} was answered with {answer}")


def _message(channel: int, sender: bytes) -> bytes:
    publish = commands.Basic.Publish(exchange="amq.direct", routing_key="k")
    content = b"\x00\x3c\x00\x00" + _BODY.size.to_bytes(8, "big") + PROPERTIES["transient"]
    number, payload = channel.to_bytes(2, "big"), _BODY.pack(sender, time.monotonic())
    return (
        frame.marshal(publish, channel)
        + b"\x02" + number + len(content).to_bytes(4, "big") + content + b"\xce"
        + b"\x03" + number + len(payload).to_bytes(4, "big") + payload + b"\xce"
    )  # fmt: skip
