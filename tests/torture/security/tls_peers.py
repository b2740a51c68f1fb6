"""R-38: peers that stall, or speak something else, on every port."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.torture.process import BrokerProcess
from tests.torture.security.new_keys import Address, ask_for_keys
from tests.torture.security.raw import HEADER, Raw

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
SECONDS = 60.0


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
    broker: BrokerProcess, places: dict[str, Address], stalls: int, updates: int, directory: Path
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
    done = await ask_for_keys(directory, places["amqps"], updates)
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
