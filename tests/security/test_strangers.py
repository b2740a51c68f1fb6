"""Who gets a place among those that have not logged in, when there are few places."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

import leveret
from leveret.broker.access.strangers import Strangers
from leveret.broker.access.tally import Tally
from leveret.config import Settings

PATIENCE = 30.0
PLACES = 6
PLACES_OF_ONE = 4
HELLO = b"AMQP\x00\x00\x09\x01"
ASK = b"GET /api/whoami HTTP/1.1\r\nhost: localhost\r\n\r\n"

Steps = list[tuple[int, int, bool]]


class _Stranger:
    def __init__(self) -> None:
        self.is_dropped = False

    def drop(self) -> None:
        self.is_dropped = True


def _strangers(most: int, most_from_one: int) -> Strangers:
    settings = Settings(unauthenticated_max=most, unauthenticated_max_per_address=most_from_one)
    return Strangers(settings, logging.getLogger("leveret.test"), lambda seconds, call: None)


def test_strangers_are_counted_by_address_and_in_all() -> None:
    some = _strangers(3, 2)
    first, second, third, fourth = (_Stranger() for _ in range(4))
    assert some.admit("10.0.0.1", first) and some.admit("::ffff:10.0.0.1", second)
    assert not some.admit("10.0.0.1", third)
    assert some.admit("10.0.0.2", third)
    assert not some.admit("10.0.0.2", fourth)  # three are here, and no address has many more
    some.go("10.0.0.1", first)
    assert some.admit("10.0.0.1", fourth)
    assert len(some) == 3 and some.turned_away == 2


def test_flood_is_told_once_a_second_and_to_its_end() -> None:
    """No line says less than has happened, once the second is over."""
    told: list[tuple[str, str, int]] = []
    due: list[Callable[[], None]] = []
    tally = Tally(lambda *line: told.append(line), lambda seconds, call: due.append(call))
    tally.add("10.0.0.1", "a")
    assert told == [("10.0.0.1", "a", 1)] and len(due) == 1
    for number in range(2, 500):
        tally.add(f"10.0.0.{number}", "b")
    assert len(told) == 1 and len(due) == 1
    due.pop()()
    assert told[1:] == [("10.0.0.499", "b", 499)] and len(due) == 1
    due.pop()()
    assert len(told) == 2 and not due  # nothing more has come
    tally.add("10.0.0.1", "c")
    assert told[2:] == [("10.0.0.1", "c", 500)] and len(due) == 1


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3), st.booleans()), max_size=80))
def test_places_go_to_addresses_with_few_strangers(steps: Steps) -> None:
    """As a plain model says: lists of who waits at each address, the longest first."""
    some = _strangers(PLACES, PLACES_OF_ONE)
    waiting: list[list[_Stranger]] = [[] for _ in range(5)]
    for place, leaving, comes in steps:
        if comes:
            _come(some, waiting, place)
        else:
            _leave(some, waiting, place, leaving)
        assert len(some) == sum(map(len, waiting)) <= PLACES


def _come(some: Strangers, waiting: list[list[_Stranger]], place: int) -> None:
    count, most = len(waiting[place]), max(map(len, waiting))
    is_full = sum(map(len, waiting)) == PLACES
    newcomer = _Stranger()
    is_let_in = some.admit(f"10.0.0.{place}", newcomer)
    assert is_let_in == (count < PLACES_OF_ONE and (not is_full or count + 1 < most))
    dropped = [those for those in waiting if those and those[0].is_dropped]
    assert len(dropped) == (is_let_in and is_full)
    for those in dropped:
        assert len(those) == most
        del those[0]
    if is_let_in:
        waiting[place].append(newcomer)
    assert not any(one.is_dropped for those in waiting for one in those)


def _leave(some: Strangers, waiting: list[list[_Stranger]], place: int, number: int) -> None:
    for one in waiting[place][number : number + 1]:
        waiting[place].remove(one)
        for _ in range(2):  # it has a place to give back only once
            some.go(f"10.0.0.{place}", one)


async def test_crowd_from_one_address_keeps_nobody_else_out() -> None:
    """Neither from AMQP nor from HTTP, where no more may connect than there may be strangers."""
    settings = leveret.in_process_settings(
        http_enabled=True, unauthenticated_max=4, http_connection_max=4
    )
    async with leveret.Broker(settings) as running:
        await running.http_ready()
        assert running.http_address is not None and running._http_start is not None
        await _push_in(running.amqp_address, running.amqp.strangers, HELLO)
        await _push_in(running.http_address, running._http_start.result().strangers, ASK)


async def _push_in(address: tuple[str, int], strangers: Strangers, words: bytes) -> None:
    crowd = await _crowd(address, strangers)
    reader, writer = await asyncio.open_connection(*address, local_addr=("127.0.0.77", 0))
    writer.write(words)
    assert await asyncio.wait_for(reader.read(4), PATIENCE)
    assert await _ends(crowd[0][0]) == b""  # it has waited longest
    refused = await asyncio.open_connection(*address)
    assert await _ends(refused[0]) == b""
    assert len(strangers) == 4 and strangers.turned_away == 2
    for _, each in (*crowd, refused, (reader, writer)):
        each.close()
    await _until(lambda: len(strangers) == 0)


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _crowd(address: tuple[str, int], strangers: Strangers) -> list[Streams]:
    """Four that say nothing, in the order in which they were let in."""
    crowd: list[Streams] = []
    while len(crowd) < 4:
        crowd.append(await asyncio.open_connection(*address))
        await _until(lambda: len(strangers) == len(crowd))
    return crowd


async def _ends(reader: asyncio.StreamReader) -> bytes:
    with contextlib.suppress(ConnectionError):
        return await asyncio.wait_for(reader.read(), PATIENCE)
    return b""


async def _until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)
