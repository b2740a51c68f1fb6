"""R-31: frames and messages that announce more than is allowed. R-36: every channel there is."""

from __future__ import annotations

import asyncio
import struct
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from pamqp import commands, frame

from tests.support import wire
from tests.torture.outcome import Outcome, Progress, silent
from tests.torture.process import BrokerProcess
from tests.torture.security.raw import HEADER, Raw, start_ok

CHANNELS = 2047
KIB_EACH = 10.0
ROUND = 10
GROWTH_MB = 1.0
SHOWS = 50
"""Rounds after which growth would stand out against what the allocator does."""

_PUBLISH = wire.publish(1, "", "nowhere")
BEFORE_TUNE = {
    "8193 octets": (struct.pack(">BHI", 1, 0, 8193), 501),
    "200 KB": (struct.pack(">BHI", 1, 0, 200_000), 501),
    "4 GB": (struct.pack(">BHI", 1, 0, 2**32 - 1), 501),
    "4 GB of body": (struct.pack(">BHI", 3, 1, 2**32 - 1), 501),
    "2^63 of content": (wire.content_header(1, 2**63), 501),
    "2^63 of content on channel 0": (wire.content_header(0, 2**63), 501),
    "2^63 of content behind its method": (_PUBLISH + wire.content_header(1, 2**63), 504),
}
AFTER_TUNE = {
    "131073 octets": (struct.pack(">BHI", 1, 1, 131_073), 501),
    "200 KB": (struct.pack(">BHI", 1, 1, 200_000), 501),
    "4 GB": (struct.pack(">BHI", 3, 1, 2**32 - 1), 501),
    "2^63 of content": (_PUBLISH + wire.content_header(1, 2**63), 501),
    "2^63 of content nobody published": (wire.content_header(1, 2**63), 501),
    "2^63 of content on channel 0": (wire.content_header(0, 2**63), 501),
    "2^63 of content on no channel": (wire.content_header(9, 2**63), 501),
    "2^64 - 1 of content": (_PUBLISH + wire.content_header(1, 2**64 - 1), 501),
    "1 GB of content": (_PUBLISH + wire.content_header(1, 2**30), 501),
    "17 MiB of content": (_PUBLISH + wire.content_header(1, 17 << 20), 406),
    "table longer than its frame": (
        wire.queue_declare(1, "q", arguments=b"\xff\xff\xff\xff"),
        501,
    ),
}
"""What is announced, and the code of the answer; the octets announced never come. A method
that needs a channel is refused where there is none, before what follows it is looked at."""


async def _greet(one: Raw) -> None:
    one.send(HEADER)
    await one.next()


async def _log_in(one: Raw) -> None:
    """No further than to connection.tune, which is not answered."""
    await _greet(one)
    one.send(start_ok())
    await one.next()


async def _open_channel(one: Raw) -> None:
    await one.log_in()


STAGES = {
    "before start-ok": (_greet, BEFORE_TUNE),
    "before tune-ok": (_log_in, BEFORE_TUNE),
    "on a channel": (_open_channel, AFTER_TUNE),
}
KINDS = [
    (f"{what} {when}", reach, *said)
    for when, (reach, kinds) in STAGES.items()
    for what, said in kinds.items()
]


async def announce_much(
    directory: Path, rounds: int, _seed: int, progress: Progress = silent
) -> Outcome:
    broker = BrokerProcess(directory, "--memory")
    broker.settings = ("log_level=error", "login_tries_per_source=0")
    await broker.start()
    wrong: Counter[str] = Counter()
    for _ in range(max(ROUND, rounds // 5) // ROUND):  # warm up
        await _announce_all(broker, wrong)
    before, peak = broker.memory("VmRSS"), broker.memory()
    tries = 0
    for number in range(0, rounds, ROUND):
        tries += await _announce_all(broker, wrong)
        progress(min(number + ROUND, rounds), rounds)
    growth = max(broker.memory("VmRSS") - before, broker.memory() - peak)
    await broker.stop()  # it looks for tracebacks in the log
    problems = [f"{what}, {count} times" for what, count in wrong.items()]
    if growth > (GROWTH_MB if rounds >= SHOWS else 5 * GROWTH_MB):
        problems.append(f"{growth:.1f} MB more")
    figures = (
        f"{tries} announcements of {len(KINDS)} kinds, {', '.join(STAGES)}, up to "
        "4 GB in a frame and 2^64 octets in a message: refused unread with 501, 406 beyond the "
        f"largest message, 504 behind a method where no channel is; {growth:+.1f} MB"
    )
    return Outcome("R-31", "announced and never sent", figures, tuple(problems))


async def _announce_all(broker: BrokerProcess, wrong: Counter[str]) -> int:
    tries = [one for one in KINDS for _ in range(ROUND)]
    for start in range(0, len(tries), 40):
        some = tries[start : start + 40]
        await asyncio.gather(*(_announce(broker, *one, wrong) for one in some))
    return len(tries)


async def _announce(
    broker: BrokerProcess,
    what: str,
    reach: Callable[[Raw], Awaitable[None]],
    octets: bytes,
    code: int,
    wrong: Counter[str],
) -> None:
    one = await Raw.connect(broker.address)
    try:
        await reach(one)
        one.send(octets)
        said = await one.next()
        if getattr(said, "reply_code", None) != code:
            wrong[f"{what} was answered with {said and dict(said)}"] += 1
    finally:
        one.drop()


async def open_all_channels(
    directory: Path, rounds: int, _seed: int, progress: Progress = silent
) -> Outcome:
    """Open them all, close and reopen them at once, and speak on those that are not open."""
    broker = BrokerProcess(directory, "--memory")
    await broker.start()
    problems: list[str] = []
    opens = 0
    one = await _logged_in(broker)
    before = broker.memory("VmRSS")
    opens += await _open(one, range(2, CHANNELS + 1), problems)
    each = (broker.memory("VmRSS") - before) * 1024 / (CHANNELS - 1)
    for number in range(rounds):
        opens += await _reopen(one, problems)
        progress(number + 1, rounds)
    one.send(frame.marshal(_OPEN, CHANNELS + 1))
    said = await one.next()
    if getattr(said, "reply_code", None) != 530:
        problems.append(f"one channel too many was answered with {said and dict(said)}")
    one.drop()
    other = await _logged_in(broker)
    opens += await _open(other, range(65_534, 65_536), problems)  # the count is limited alone
    other.drop()
    for what, (octets, code) in _ILLEGAL.items():
        said = await _speak(broker, octets)
        if getattr(said, "reply_code", None) != code:
            problems.append(f"{what} was answered with {said and dict(said)}, not {code}")
    await broker.stop()
    if each > KIB_EACH:
        problems.append(f"{each:.1f} KiB for each channel")
    figures = (
        f"{CHANNELS} channels, {each:.1f} KiB each; {opens} opened, most of them at once after "
        f"their close; {len(_ILLEGAL)} ways to speak where no channel is answered as RabbitMQ does"
    )
    return Outcome("R-36", "channels", figures, tuple(problems))


_OPEN = commands.Channel.Open()
_CLOSE = commands.Channel.Close(200, "", 0, 0)
_ILLEGAL = {
    "a method on a channel never opened": (frame.marshal(commands.Basic.Qos(), 7), 504),
    "a method on channel 65535": (frame.marshal(commands.Basic.Qos(), 65_535), 504),
    "a method on a channel just closed": (
        frame.marshal(_CLOSE, 1) + frame.marshal(commands.Basic.Qos(), 1),
        504,
    ),
    "a channel opened twice": (frame.marshal(_OPEN, 1), 504),
    "content on a channel never opened": (wire.content_header(7, 1), 505),
    "content nobody announced": (wire.content_header(1, 1), 505),
    "content on channel 0": (wire.content_header(0, 1), 505),
    "a heartbeat on a channel": (wire.frame(wire.HEARTBEAT, 1), 505),
}


async def _logged_in(broker: BrokerProcess) -> Raw:
    one = await Raw.connect(broker.address)
    if not await one.log_in():
        raise RuntimeError("a connection was refused")
    return one


async def _open(one: Raw, numbers: range, problems: list[str]) -> int:
    for start in range(0, len(numbers), 200):
        some = numbers[start : start + 200]
        one.send(b"".join(frame.marshal(_OPEN, number) for number in some))
        for _ in some:
            said = await one.next()
            if not isinstance(said, commands.Channel.OpenOk):
                problems.append(f"channel.open was answered with {said and dict(said)}")
                return 0
    return len(numbers)


async def _reopen(one: Raw, problems: list[str]) -> int:
    """Close and open in one breath, all but the first."""
    for start in range(2, CHANNELS + 1, 200):
        some = range(start, min(start + 200, CHANNELS + 1))
        one.send(
            b"".join(frame.marshal(_CLOSE, each) + frame.marshal(_OPEN, each) for each in some)
        )
        for _ in some:
            pair = await one.next(), await one.next()
            if [type(said) for said in pair] != [commands.Channel.CloseOk, commands.Channel.OpenOk]:
                problems.append(f"close and open were answered with {pair}")
                return 0
    return CHANNELS - 1


async def _speak(broker: BrokerProcess, octets: bytes) -> Any:
    """The first close that comes back."""
    one = await _logged_in(broker)
    try:
        one.send(octets)
        said = await one.next()
        while said is not None and not hasattr(said, "reply_code"):
            said = await one.next()
        return said
    finally:
        one.drop()
