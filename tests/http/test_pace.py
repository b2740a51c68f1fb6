"""Requests that come together begin in turns of the loop of their own."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import httpx
import pytest

from http_admin.pace import CROWD, OneByOne
from tests.http.conftest import Served


class Begun:
    """An application that notes who has begun."""

    def __init__(self) -> None:
        self.names: list[str] = []

    async def __call__(self, scope: Any, _receive: Any, _send: Any) -> None:
        self.names.append(scope["name"])


@pytest.fixture
def begun() -> Begun:
    return Begun()


@pytest.fixture
def paced(begun: Begun) -> OneByOne:
    return OneByOne(begun)


def _ask(paced: OneByOne, name: str) -> asyncio.Task[None]:
    return asyncio.create_task(paced({"type": "http", "name": name}, _unused, _unused))


async def _unused(*_message: Any) -> Any:
    raise AssertionError("nobody reads or writes here")


async def test_one_begins_in_a_turn_in_the_order_they_came(paced: OneByOne, begun: Begun) -> None:
    tasks = [_ask(paced, name) for name in "abcd"]
    assert max(await _begun_in_each_turn(begun, 4)) == 1
    assert begun.names == list("abcd")
    await asyncio.gather(*tasks)


async def test_of_a_crowd_some_begin_in_a_turn(paced: OneByOne, begun: Begun) -> None:
    tasks = [_ask(paced, str(number)) for number in range(10 * CROWD)]
    turns = await _begun_in_each_turn(begun, 10 * CROWD)
    assert max(turns) <= 10
    assert len(turns) < 5 * CROWD
    assert begun.names == [str(number) for number in range(10 * CROWD)]
    await asyncio.gather(*tasks)


async def _begun_in_each_turn(begun: Begun, all_of_them: int) -> list[int]:
    seen = [0]
    while seen[-1] < all_of_them:
        await asyncio.sleep(0)
        seen.append(len(begun.names))
    return [after - before for before, after in itertools.pairwise(seen)]


async def test_who_has_gone_is_passed_over(paced: OneByOne, begun: Begun) -> None:
    first, gone, last = (_ask(paced, name) for name in "abc")
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.gather(first, last)
    assert begun.names == ["a", "c"]
    await _ask(paced, "d")
    assert begun.names == ["a", "c", "d"]


async def test_who_goes_when_it_is_their_turn_holds_nobody_up(
    paced: OneByOne, begun: Begun
) -> None:
    first, gone, last = (_ask(paced, name) for name in "abc")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.gather(first, last)
    assert begun.names == ["a", "c"]


async def test_many_at_once_are_all_answered(broker: Served) -> None:
    async with httpx.AsyncClient(base_url=broker.url, verify=False, auth=("guest", "guest")) as api:
        answers = await asyncio.gather(*(api.get("/api/whoami") for _ in range(60)))
    assert {answer.status_code for answer in answers} == {200}
