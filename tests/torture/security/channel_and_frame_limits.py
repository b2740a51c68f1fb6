"""R-31: frames and messages that announce too much. R-36: all channels of a connection."""

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
MAX_KIB_EACH = 10.0
ROUND = 10
GROWTH_MB = 1.0
LEAK_ROUNDS = 50
"""Rounds after which growth is larger than fluctuations of the allocator."""

_PUBLISH = wire.publish(1, "", "nowhere")
BEFORE_TUNE = {
    "8193 bytes": (struct.pack(">BHI", 1, 0, 8193), 501),
    "200 KB": (struct.pack(">BHI", 1, 0, 200_000), 501),
    "4 GB": (struct.pack(">BHI", 1, 0, 2**32 - 1), 501),
    "4 GB of body": (struct.pack(">BHI", 3, 1, 2**32 - 1), 501),
    "2^63 of content": (wire.content_header(1, 2**63), 505),
    "2^63 of content on channel 0": (wire.content_header(0, 2**63), 505),
    "2^63 of content behind its method": (_PUBLISH + wire.content_header(1, 2**63), 504),
}
AFTER_TUNE = {
    "131073 bytes": (struct.pack(">BHI", 1, 1, 131_073), 501),
    "200 KB": (struct.pack(">BHI", 1, 1, 200_000), 501),
    "4 GB": (struct.pack(">BHI", 3, 1, 2**32 - 1), 501),
    "2^63 of content": (_PUBLISH + wire.content_header(1, 2**63), 501),
    "2^63 of content without a publish": (wire.content_header(1, 2**63), 505),
    "2^63 of content on channel 0": (wire.content_header(0, 2**63), 505),
    "2^63 of content on a closed channel": (wire.content_header(9, 2**63), 505),
    "2^64 - 1 of content": (_PUBLISH + wire.content_header(1, 2**64 - 1), 501),
    "1 GB of content": (_PUBLISH + wire.content_header(1, 2**30), 501),
    "129 MiB of content": (_PUBLISH + wire.content_header(1, 129 << 20), 406),
    "table longer than its frame": (
        wire.queue_declare(1, "q", arguments=b"\xff\xff\xff\xff"),
        501,
    ),
}
"""What is announced, and the code of the answer; the announced bytes are never sent. A method
that needs a channel is refused if there is none, before the frames behind it are read."""


async def _greet(connection: Raw) -> None:
    connection.send(HEADER)
    await connection.next()


async def _log_in(connection: Raw) -> None:
    """Continue the handshake until connection.tune, which is not answered."""
    await _greet(connection)
    connection.send(start_ok())
    await connection.next()


async def _open_channel(connection: Raw) -> None:
    await connection.log_in()


STAGES = {
    "before start-ok": (_greet, BEFORE_TUNE),
    "before tune-ok": (_log_in, BEFORE_TUNE),
    "on a channel": (_open_channel, AFTER_TUNE),
}
KINDS = [
    (f"{kind} {when}", prepare, *case)
    for when, (prepare, kinds) in STAGES.items()
    for kind, case in kinds.items()
]


async def announce_large_sizes(
    directory: Path, rounds: int, _seed: int, progress: Progress = silent
) -> Outcome:
    broker = BrokerProcess(directory, "--memory")
    broker.settings = ("log_level=error", "login_tries_per_source=0")
    await broker.start()
    wrong_answers: Counter[str] = Counter()
    for _ in range(max(ROUND, rounds // 5) // ROUND):  # warm up
        await _announce_all(broker, wrong_answers)
    before, peak = broker.memory("VmRSS"), broker.memory()
    tries = 0
    for number in range(0, rounds, ROUND):
        tries += await _announce_all(broker, wrong_answers)
        progress(min(number + ROUND, rounds), rounds)
    growth = max(broker.memory("VmRSS") - before, broker.memory() - peak)
    await broker.stop()  # fails if the log contains a traceback
    problems = [f"{problem}, {count} times" for problem, count in wrong_answers.items()]
    if growth > (GROWTH_MB if rounds >= LEAK_ROUNDS else 5 * GROWTH_MB):
        problems.append(f"{growth:.1f} MB more")
    figures = (
        f"{tries} announcements of {len(KINDS)} kinds, {', '.join(STAGES)}, up to "
        "4 GB in a frame and 2^64 bytes in a message: refused unread with 501, 505 without a "
        "publish, 406 beyond the largest message, 504 behind a method on a closed channel; "
        f"{growth:+.1f} MB"
    )
    return Outcome("R-31", "sizes announced and never sent", figures, tuple(problems))


async def _announce_all(broker: BrokerProcess, wrong_answers: Counter[str]) -> int:
    tries = [case for case in KINDS for _ in range(ROUND)]
    for start in range(0, len(tries), 40):
        some = tries[start : start + 40]
        await asyncio.gather(*(_announce(broker, *case, wrong_answers) for case in some))
    return len(tries)


async def _announce(
    broker: BrokerProcess,
    kind: str,
    prepare: Callable[[Raw], Awaitable[None]],
    data: bytes,
    code: int,
    wrong_answers: Counter[str],
) -> None:
    connection = await Raw.connect(broker.address)
    try:
        await prepare(connection)
        connection.send(data)
        method = await connection.next()
        if getattr(method, "reply_code", None) != code:
            wrong_answers[f"{kind} was answered with {method and dict(method)}"] += 1
    finally:
        connection.drop()


async def open_all_channels(
    directory: Path, rounds: int, _seed: int, progress: Progress = silent
) -> Outcome:
    """Open all channels, close and reopen them at once, and use channels that are not open."""
    broker = BrokerProcess(directory, "--memory")
    await broker.start()
    problems: list[str] = []
    opens = 0
    connection = await _logged_in(broker)
    before = broker.memory("VmRSS")
    opens += await _open(connection, range(2, CHANNELS + 1), problems)
    each = (broker.memory("VmRSS") - before) * 1024 / (CHANNELS - 1)
    for number in range(rounds):
        opens += await _reopen(connection, problems)
        progress(number + 1, rounds)
    connection.send(frame.marshal(_OPEN, CHANNELS + 1))
    method = await connection.next()
    if getattr(method, "reply_code", None) != 530:
        problems.append(f"one channel too many was answered with {method and dict(method)}")
    connection.drop()
    other = await _logged_in(broker)
    opens += await _open(other, range(65_534, 65_536), problems)  # other limits stay
    other.drop()
    for case, (data, code) in _ILLEGAL.items():
        method = await _send_illegal(broker, data)
        if getattr(method, "reply_code", None) != code:
            problems.append(f"{case} was answered with {method and dict(method)}, not {code}")
    await broker.stop()
    if each > MAX_KIB_EACH:
        problems.append(f"{each:.1f} KiB per channel")
    figures = (
        f"{CHANNELS} channels, {each:.1f} KiB each; {opens} opened, most of them directly "
        f"after their close; {len(_ILLEGAL)} illegal uses are answered as RabbitMQ answers them"
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
    "content without a publish": (wire.content_header(1, 1), 505),
    "content on channel 0": (wire.content_header(0, 1), 505),
    "a heartbeat on a channel": (wire.frame(wire.HEARTBEAT, 1), 505),
}


async def _logged_in(broker: BrokerProcess) -> Raw:
    connection = await Raw.connect(broker.address)
    if not await connection.log_in():
        raise RuntimeError("a connection was refused")
    return connection


async def _open(connection: Raw, numbers: range, problems: list[str]) -> int:
    for start in range(0, len(numbers), 200):
        some = numbers[start : start + 200]
        connection.send(b"".join(frame.marshal(_OPEN, number) for number in some))
        for _ in some:
            method = await connection.next()
            if not isinstance(method, commands.Channel.OpenOk):
                problems.append(f"channel.open was answered with {method and dict(method)}")
                return 0
    return len(numbers)


async def _reopen(connection: Raw, problems: list[str]) -> int:
    """Close and reopen all channels but the first in one write."""
    for start in range(2, CHANNELS + 1, 200):
        some = range(start, min(start + 200, CHANNELS + 1))
        connection.send(
            b"".join(frame.marshal(_CLOSE, each) + frame.marshal(_OPEN, each) for each in some)
        )
        for _ in some:
            pair = await connection.next(), await connection.next()
            if [type(method) for method in pair] != [
                commands.Channel.CloseOk,
                commands.Channel.OpenOk,
            ]:
                problems.append(f"close and open were answered with {pair}")
                return 0
    return CHANNELS - 1


async def _send_illegal(broker: BrokerProcess, data: bytes) -> Any:
    """The first close that the broker sends."""
    connection = await _logged_in(broker)
    try:
        connection.send(data)
        method = await connection.next()
        while method is not None and not hasattr(method, "reply_code"):
            method = await connection.next()
        return method
    finally:
        connection.drop()
