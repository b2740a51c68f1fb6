"""R-38: peers that stall in a handshake, speak something else, or ask for new keys without end."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from dataclasses import dataclass

from tests.torture.process import BrokerProcess
from tests.torture.security.raw import HEADER, Raw

Address = tuple[str, int]
HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
"""The beginning of a TLS handshake."""
STALLS = (b"", HELLO[:5], HELLO)
STALL_LIMIT, WRONG_LIMIT, GROWTH_MB = 5.0, 1.0, 10.0
KEYS_AT_ONCE = 100
SECONDS = 60.0
HASHED_SECONDS = 3.0
"""By then the default user's password is hashed, which takes 19 MiB for a moment."""


@dataclass(frozen=True, slots=True)
class Seen:
    stalls: list[float]
    wrong: list[float]
    updates: int
    growth: float

    @property
    def late(self) -> list[str]:
        late = []
        if max(self.stalls) > STALL_LIMIT + 1 or min(self.stalls) < STALL_LIMIT - 1:
            late.append(f"stalled for {min(self.stalls):.1f} to {max(self.stalls):.1f} s")
        if max(self.wrong) > WRONG_LIMIT:
            late.append(f"another protocol was closed after {max(self.wrong):.1f} s")
        return late

    def __str__(self) -> str:
        return (
            f"{len(self.stalls)} stalled handshakes dropped after {min(self.stalls):.1f} to "
            f"{max(self.stalls):.1f} s, {len(self.wrong)} peers of another protocol closed within "
            f"{max(self.wrong):.2f} s, {self.updates} key updates: {self.growth:+.1f} MB"
        )


async def meet(broker: BrokerProcess, secure: Address, stalls: int, updates: int) -> Seen:
    await asyncio.sleep(HASHED_SECONDS)
    broker.forget_peak()
    before = broker.memory("VmRSS")
    waits = await asyncio.gather(
        *(_ends(secure, STALLS[number % len(STALLS)]) for number in range(stalls))
    )
    wrong = [
        await _ends(address, octets)
        for address, octets in (
            (secure, HEADER), (secure, b"GET / HTTP/1.1\r\n\r\n"), (broker.address, HELLO),
            (broker.address, b"GET / HTTP/1.1\r\n\r\n"),
        )
    ]  # fmt: skip
    done = await asyncio.to_thread(_update_keys, secure, updates)
    return Seen(list(waits), wrong, done, broker.memory() - before)


async def _ends(address: Address, octets: bytes) -> float:
    one = await Raw.connect(address)
    one.send(octets)
    try:
        return await one.ends()
    finally:
        one.drop()


def _update_keys(address: Address, updates: int) -> int:
    """Ask for new keys again and again; how often before the broker had enough of it.

    Its own new keys are read in between, and in the end it must still speak AMQP.
    """
    from tlslite.api import HandshakeSettings, TLSConnection
    from tlslite.constants import KeyUpdateMessageType

    settings = HandshakeSettings()
    settings.minVersion = settings.maxVersion = (3, 4)
    with contextlib.closing(socket.create_connection(address, SECONDS)) as raw:
        client = TLSConnection(raw)
        client.handshakeClientCert(settings=settings, serverName="localhost")
        for _ in range(updates):
            for _ in client.send_keyupdate_request(KeyUpdateMessageType.update_not_requested):
                pass
        client.write(HEADER)
        said = client.read(min=11, max=4096)
        if b"\x00\x0a\x00\x0a" not in said:
            raise AssertionError(f"connection.start expected after new keys, got {said!r}")
    return updates
