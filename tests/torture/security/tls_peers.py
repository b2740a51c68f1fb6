"""R-38: peers that stall, speak something else, or ask for new keys without end, on every port."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import httpx
from pamqp import commands, frame

from tests.torture.process import BrokerProcess
from tests.torture.security.raw import HEADER, Raw, start_ok, tune_and_open

Address = tuple[str, int]
HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
"""The beginning of a TLS handshake."""
REQUEST = b"GET / HTTP/1.1\r\n\r\n"
_IN_TLS = (b"", HELLO[:5], HELLO)
STALLS = {
    "amqps": (5.0, _IN_TLS),
    "https": (5.0, _IN_TLS),
    "amqp": (10.0, (b"", HEADER[:4], HEADER)),
    "http": (30.0, (b"", REQUEST[:7], REQUEST[:-2])),
}
"""The seconds each port waits, and what has come when a peer stalls there."""
WRONG = {
    "amqps": (HEADER, REQUEST),
    "https": (HEADER, REQUEST),
    "amqp": (HELLO, REQUEST),
    "http": (HELLO, HEADER),
}
WRONG_LIMIT, GROWTH_MB = 1.0, 10.0
KEYS_AT_ONCE = 100
SECONDS = 60.0
_ASK = frame.marshal(commands.Basic.Qos(), 1)
_ANSWER = frame.marshal(commands.Basic.QosOk(), 1)


@dataclass(frozen=True, slots=True)
class Seen:
    stalls: dict[str, list[float]]
    wrong: list[float]
    updates: int
    growth: float

    @property
    def late(self) -> list[str]:
        late = []
        for name, waits in self.stalls.items():
            limit, _ = STALLS[name]
            if max(waits) > limit + 1 or min(waits) < limit - 1:
                late.append(f"stalled at {name} for {min(waits):.1f} to {max(waits):.1f} s")
        if max(self.wrong) > WRONG_LIMIT:
            late.append(f"another protocol was closed after {max(self.wrong):.1f} s")
        return late

    def __str__(self) -> str:
        stalls = ", ".join(
            f"{len(waits)} at {name} after {min(waits):.1f} to {max(waits):.1f} s"
            for name, waits in self.stalls.items()
        )
        return (
            f"peers that stalled were dropped: {stalls}; {len(self.wrong)} of another protocol, "
            f"on four ports, closed within {max(self.wrong):.2f} s; {self.updates} key updates, "
            f"unasked, asked for and answered, asked for and not read: {self.growth:+.1f} MB"
        )


async def meet(
    broker: BrokerProcess, places: dict[str, Address], stalls: int, updates: int
) -> Seen:
    """`stalls` peers at each port, and `updates` of each of three kinds."""
    await password_is_hashed(places["http"])
    broker.forget_peak()
    before = broker.memory("VmRSS")
    waits = dict(
        zip(
            STALLS,
            await asyncio.gather(*(_stall(places[name], name, stalls) for name in STALLS)),
            strict=True,
        )
    )
    wrong = await speak_something_else(places)
    done = await asyncio.to_thread(ask_for_keys, places["amqps"], updates)
    return Seen(waits, wrong, done, broker.memory() - before)


async def password_is_hashed(web: Address) -> None:
    """Wait until the default user has its lasting hash, which takes 19 MiB for a moment."""
    async with httpx.AsyncClient(
        base_url="http://{}:{}/api".format(*web), auth=("guest", "guest"), verify=False
    ) as api:
        for _ in range(600):
            answer = await api.get("/users/guest", timeout=SECONDS)
            if answer.raise_for_status().json()["hashing_algorithm"].endswith("argon2id"):
                return
            await asyncio.sleep(0.1)
    raise AssertionError("the default user's password was not hashed anew")


async def _stall(address: Address, name: str, count: int) -> list[float]:
    _, said = STALLS[name]
    return await asyncio.gather(*(_ends(address, said[n % len(said)]) for n in range(count)))


async def speak_something_else(places: dict[str, Address]) -> list[float]:
    """The seconds until each such peer was closed."""
    return [
        await _ends(places[name], octets) for name, all_said in WRONG.items() for octets in all_said
    ]


async def _ends(address: Address, octets: bytes) -> float:
    one = await Raw.connect(address)
    one.send(octets)
    try:
        return await one.ends()
    finally:
        one.drop()


# New keys ----------------------------------------------------------------------------------------


def ask_for_keys(address: Address, updates: int) -> int:
    """Ask for new keys so often in each of three ways; how often that was in all.

    Between two of them there is a request of AMQP, since OpenSSL sends its own new keys with the
    next thing it has to send. In the end every request must have been answered.
    """
    from tlslite.constants import KeyUpdateMessageType

    unasked = KeyUpdateMessageType.update_not_requested
    asked = KeyUpdateMessageType.update_requested
    for kind, at_once in ((unasked, KEYS_AT_ONCE), (asked, KEYS_AT_ONCE), (asked, updates)):
        with contextlib.closing(socket.create_connection(address, SECONDS)) as raw:
            client = _logged_in(raw)
            theirs = bytes(client.session.sr_app_secret)
            for first in range(0, updates, at_once):
                count = min(at_once, updates - first)
                for _ in range(count):
                    _exhaust(client.send_keyupdate_request(kind))
                    client.write(_ASK)
                _hear(client, _ANSWER * count)
            if (bytes(client.session.sr_app_secret) != theirs) != (kind == asked):
                raise AssertionError("new keys came back unasked, or did not come back")
    return 3 * updates


def _exhaust(sending: Iterable[Any]) -> None:
    for _ in sending:
        pass


def _logged_in(raw: socket.socket) -> Any:
    from tlslite.api import HandshakeSettings, TLSConnection

    settings = HandshakeSettings()
    settings.minVersion = settings.maxVersion = (3, 4)
    client = TLSConnection(raw)
    client.handshakeClientCert(settings=settings, serverName="localhost")
    opening = tune_and_open() + frame.marshal(commands.Channel.Open(), 1)
    client.write(HEADER + start_ok() + opening + _ASK)
    _hear(client, _ANSWER)
    return client


def _hear(client: Any, wanted: bytes) -> None:
    """Read until this is the last that came; other frames may come first."""
    heard = b""
    while not heard.endswith(wanted):
        said = client.read(min=1, max=65536)
        if not said:
            raise AssertionError(f"the connection ended, {wanted[-30:]!r} was awaited")
        heard += said
