"""Limits on unauthenticated connections: which are admitted, rejected or evicted."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

import leveret
from leveret.broker.access.rate_limited_log import RateLimitedLog
from leveret.broker.access.unauthenticated import UnauthenticatedLimits
from leveret.config import Settings
from tests.support.polling import wait_until_async

SECONDS = 30.0
MAX = 6
MAX_PER_ADDRESS = 4
HELLO = b"AMQP\x00\x00\x09\x01"
ASK = b"GET /api/whoami HTTP/1.1\r\nhost: localhost\r\n\r\n"

Steps = list[tuple[int, int, bool]]


class _FakeConnection:
    def __init__(self) -> None:
        self.is_dropped = False

    def drop(self) -> None:
        self.is_dropped = True


def _limits(maximum: int, per_address: int) -> UnauthenticatedLimits:
    settings = Settings(unauthenticated_max=maximum, unauthenticated_max_per_address=per_address)
    return UnauthenticatedLimits(
        settings, logging.getLogger("leveret.test"), lambda seconds, call: None
    )


def test_connections_are_counted_by_address_and_in_total() -> None:
    limits = _limits(3, 2)
    first, second, third, fourth = (_FakeConnection() for _ in range(4))
    assert limits.admit("10.0.0.1", first) and limits.admit("::ffff:10.0.0.1", second)
    assert not limits.admit("10.0.0.1", third)
    assert limits.admit("10.0.0.2", third)
    assert not limits.admit("10.0.0.2", fourth)  # three are connected, and no address has many more
    limits.remove("10.0.0.1", first)
    assert limits.admit("10.0.0.1", fourth)
    assert len(limits) == 3 and limits.rejected == 2


def test_burst_is_logged_once_a_second_with_its_last_event() -> None:
    """After the second, the log reports as many events as have happened."""
    lines: list[tuple[str, str, int]] = []
    due: list[Callable[[], None]] = []
    log = RateLimitedLog(lambda *line: lines.append(line), lambda seconds, call: due.append(call))
    log.add("10.0.0.1", "a")
    assert lines == [("10.0.0.1", "a", 1)] and len(due) == 1
    for number in range(2, 500):
        log.add(f"10.0.0.{number}", "b")
    assert len(lines) == 1 and len(due) == 1
    due.pop()()
    assert lines[1:] == [("10.0.0.499", "b", 499)] and len(due) == 1
    due.pop()()
    assert len(lines) == 2 and not due  # no more events
    log.add("10.0.0.1", "c")
    assert lines[2:] == [("10.0.0.1", "c", 500)] and len(due) == 1


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3), st.booleans()), max_size=80))
def test_admission_and_eviction_match_a_model(steps: Steps) -> None:
    """The model is a list of connections for each address, oldest first."""
    limits = _limits(MAX, MAX_PER_ADDRESS)
    waiting: list[list[_FakeConnection]] = [[] for _ in range(5)]
    for address, leaving, arrives in steps:
        if arrives:
            _arrive(limits, waiting, address)
        else:
            _leave(limits, waiting, address, leaving)
        assert len(limits) == sum(map(len, waiting)) <= MAX


def _arrive(
    limits: UnauthenticatedLimits, waiting: list[list[_FakeConnection]], address: int
) -> None:
    count, busiest = len(waiting[address]), max(map(len, waiting))
    is_full = sum(map(len, waiting)) == MAX
    arrived = _FakeConnection()
    is_admitted = limits.admit(f"10.0.0.{address}", arrived)
    assert is_admitted == (count < MAX_PER_ADDRESS and (not is_full or count + 1 < busiest))
    evicted = [connections for connections in waiting if connections and connections[0].is_dropped]
    assert len(evicted) == (is_admitted and is_full)
    for connections in evicted:
        assert len(connections) == busiest
        del connections[0]
    if is_admitted:
        waiting[address].append(arrived)
    assert not any(each.is_dropped for connections in waiting for each in connections)


def _leave(
    limits: UnauthenticatedLimits, waiting: list[list[_FakeConnection]], address: int, number: int
) -> None:
    for connection in waiting[address][number : number + 1]:
        waiting[address].remove(connection)
        for _ in range(2):  # the second removal has no effect
            limits.remove(f"10.0.0.{address}", connection)


async def test_many_connections_from_one_address_do_not_block_others() -> None:
    """Applies to AMQP and HTTP; no more may connect than may be unauthenticated."""
    settings = leveret.in_process_settings(
        http_enabled=True, unauthenticated_max=4, http_connection_max=4
    )
    async with leveret.Broker(settings) as running:
        await running.http_ready()
        assert running.http_address is not None and running._http_start is not None
        await _check_eviction(running.amqp_address, running.amqp.unauthenticated, HELLO)
        await _check_eviction(
            running.http_address, running._http_start.result().unauthenticated, ASK
        )


async def _check_eviction(
    address: tuple[str, int], unauthenticated: UnauthenticatedLimits, request: bytes
) -> None:
    silent = await _connect_four(address, unauthenticated)
    reader, writer = await asyncio.open_connection(*address, local_addr=("127.0.0.77", 0))
    writer.write(request)
    assert await asyncio.wait_for(reader.read(4), SECONDS)
    assert await _read_to_end(silent[0][0]) == b""  # the oldest one
    refused = await asyncio.open_connection(*address)
    assert await _read_to_end(refused[0]) == b""
    assert len(unauthenticated) == 4 and unauthenticated.rejected == 2
    for _, each in (*silent, refused, (reader, writer)):
        each.close()
    await wait_until_async(lambda: len(unauthenticated) == 0)


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _connect_four(
    address: tuple[str, int], unauthenticated: UnauthenticatedLimits
) -> list[Streams]:
    """Open four silent connections, in the order in which they are admitted."""
    silent: list[Streams] = []
    while len(silent) < 4:
        silent.append(await asyncio.open_connection(*address))
        await wait_until_async(lambda: len(unauthenticated) == len(silent))
    return silent


async def _read_to_end(reader: asyncio.StreamReader) -> bytes:
    with contextlib.suppress(ConnectionError):
        return await asyncio.wait_for(reader.read(), SECONDS)
    return b""
