"""R-38: peers that stall or use another protocol, on every port."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.torture.process import BrokerProcess
from tests.torture.security.key_updates import Address, ask_for_keys
from tests.torture.security.raw import HEADER, Raw

HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
"""The start of a TLS handshake."""
REQUEST = b"GET / HTTP/1.1\r\n\r\n"
_IN_TLS = (b"", HELLO[:5], HELLO)
STALLS = {
    "amqps": (5.0, _IN_TLS),
    "https": (5.0, _IN_TLS),
    "amqp": (10.0, (b"", HEADER[:4], HEADER)),
    "http": (30.0, (b"", REQUEST[:7], REQUEST[:-2])),
}
"""The timeout of each port, and what a peer sends before it stalls."""
OTHER_PROTOCOLS = {
    "amqps": (HEADER, REQUEST),
    "https": (HEADER, REQUEST),
    "amqp": (HELLO, REQUEST),
    "http": (HELLO, HEADER),
}
OTHER_PROTOCOL_LIMIT, GROWTH_MB = 1.0, 10.0
SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class PeerResults:
    stalls: dict[str, list[float]]
    other_protocol_seconds: list[float]
    updates: int
    growth: float

    @property
    def late(self) -> list[str]:
        late = []
        for name, waits in self.stalls.items():
            limit, _ = STALLS[name]
            if max(waits) > limit + 1 or min(waits) < limit - 1:
                late.append(f"stalled at {name} for {min(waits):.1f} to {max(waits):.1f} s")
        if max(self.other_protocol_seconds) > OTHER_PROTOCOL_LIMIT:
            late.append(
                f"another protocol was closed after {max(self.other_protocol_seconds):.1f} s"
            )
        return late

    def __str__(self) -> str:
        stalls = ", ".join(
            f"{len(waits)} at {name} after {min(waits):.1f} to {max(waits):.1f} s"
            for name, waits in self.stalls.items()
        )
        closed = self.other_protocol_seconds
        return (
            f"stalled peers were closed: {stalls}; {len(closed)} with another protocol on four "
            f"ports were closed within {max(closed):.2f} s; {self.updates} key updates, without a "
            f"request, with one that is answered or not read: {self.growth:+.1f} MB"
        )


async def run_peers(
    broker: BrokerProcess, places: dict[str, Address], stalls: int, updates: int, directory: Path
) -> PeerResults:
    """Run `stalls` peers at each port, and `updates` key updates of each of three kinds."""
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
    other_protocol_seconds = await send_other_protocols(places)
    done = await ask_for_keys(directory, places["amqps"], updates)
    return PeerResults(waits, other_protocol_seconds, done, broker.memory() - before)


async def password_is_hashed(web: Address) -> None:
    """Wait until the default user has its final hash, which needs 19 MiB for a moment."""
    async with httpx.AsyncClient(
        base_url="http://{}:{}/api".format(*web), auth=("guest", "guest"), verify=False
    ) as api:
        for _ in range(600):
            answer = await api.get("/users/guest", timeout=SECONDS)
            if answer.raise_for_status().json()["hashing_algorithm"].endswith("argon2id"):
                return
            await asyncio.sleep(0.1)
    raise AssertionError("the default user's password was not hashed again")


async def _stall(address: Address, name: str, count: int) -> list[float]:
    _, openings = STALLS[name]
    return await asyncio.gather(
        *(_ends(address, openings[n % len(openings)]) for n in range(count))
    )


async def send_other_protocols(places: dict[str, Address]) -> list[float]:
    """The seconds until each peer was closed."""
    return [
        await _ends(places[name], data)
        for name, openings in OTHER_PROTOCOLS.items()
        for data in openings
    ]


async def _ends(address: Address, data: bytes) -> float:
    connection = await Raw.connect(address)
    connection.send(data)
    try:
        return await connection.wait_closed()
    finally:
        connection.drop()
