"""Requests that arrive together start in separate iterations of the loop."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import httpx
import pytest

from leveret.http_admin.middleware.concurrency import WAITING_PER_EXTRA_START, RequestPacing
from tests.http.conftest import Served


class Started:
    """An application that records the requests that have started."""

    def __init__(self) -> None:
        self.names: list[str] = []

    async def __call__(self, scope: Any, _receive: Any, _send: Any) -> None:
        self.names.append(scope["name"])


@pytest.fixture
def started() -> Started:
    return Started()


@pytest.fixture
def pacing(started: Started) -> RequestPacing:
    return RequestPacing(started)


def _ask(pacing: RequestPacing, name: str) -> asyncio.Task[None]:
    return asyncio.create_task(pacing({"type": "http", "name": name}, _unused, _unused))


async def _unused(*_message: Any) -> Any:
    raise AssertionError("the application neither receives nor sends")


async def test_one_request_starts_per_iteration_in_order(
    pacing: RequestPacing, started: Started
) -> None:
    tasks = [_ask(pacing, name) for name in "abcd"]
    assert max(await _starts_per_iteration(started, 4)) == 1
    assert started.names == list("abcd")
    await asyncio.gather(*tasks)


async def test_several_start_per_iteration_if_many_wait(
    pacing: RequestPacing, started: Started
) -> None:
    tasks = [_ask(pacing, str(number)) for number in range(10 * WAITING_PER_EXTRA_START)]
    starts = await _starts_per_iteration(started, 10 * WAITING_PER_EXTRA_START)
    assert max(starts) <= 10
    assert len(starts) < 5 * WAITING_PER_EXTRA_START
    assert started.names == [str(number) for number in range(10 * WAITING_PER_EXTRA_START)]
    await asyncio.gather(*tasks)


async def _starts_per_iteration(started: Started, count: int) -> list[int]:
    seen = [0]
    while seen[-1] < count:
        await asyncio.sleep(0)
        seen.append(len(started.names))
    return [after - before for before, after in itertools.pairwise(seen)]


async def test_cancelled_request_is_skipped(pacing: RequestPacing, started: Started) -> None:
    first, cancelled, last = (_ask(pacing, name) for name in "abc")
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.gather(first, last)
    assert started.names == ["a", "c"]
    await _ask(pacing, "d")
    assert started.names == ["a", "c", "d"]


async def test_request_cancelled_after_its_grant_blocks_no_other(
    pacing: RequestPacing, started: Started
) -> None:
    first, cancelled, last = (_ask(pacing, name) for name in "abc")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.gather(first, last)
    assert started.names == ["a", "c"]


async def test_all_of_many_concurrent_requests_are_answered(broker: Served) -> None:
    async with httpx.AsyncClient(base_url=broker.url, verify=False, auth=("guest", "guest")) as api:
        answers = await asyncio.gather(*(api.get("/api/whoami") for _ in range(60)))
    assert {answer.status_code for answer in answers} == {200}
