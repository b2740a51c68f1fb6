"""When a crowd has gone, its memory is given back; once, and not in the middle of things."""

from __future__ import annotations

import asyncio

import pytest

import leveret
from amqp_server import tidying
from amqp_server.tidying import CROWD, LONGEST_SECONDS, QUIET_SECONDS, Tidier


@pytest.fixture
def tidied(monkeypatch: pytest.MonkeyPatch) -> Tidier:
    tidier = Tidier(lambda: None)
    monkeypatch.setattr(tidier, "tidy", lambda: setattr(tidier, "times", tidier.times + 1))
    return tidier


def test_crowd_that_has_gone_is_tidied_up_after_once(tidied: Tidier) -> None:
    for _ in range(CROWD):
        tidied.went(100.0)
    tidied.look(100.0 + QUIET_SECONDS - 0.1)
    assert tidied.times == 0
    tidied.look(100.0 + QUIET_SECONDS)
    tidied.look(100.0 + 10 * QUIET_SECONDS)
    assert tidied.times == 1


def test_few_are_not_worth_it(tidied: Tidier) -> None:
    for _ in range(CROWD - 1):
        tidied.went(100.0)
    tidied.look(10_000.0)
    assert tidied.times == 0


def test_coming_and_going_does_not_put_it_off_for_ever(tidied: Tidier) -> None:
    for number in range(int(LONGEST_SECONDS) * 20):
        tidied.went(number / 10)
        tidied.look(number / 10)
    assert tidied.times == 1


async def test_tidying_leaves_a_broker_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tidying, "CROWD", 1)
    monkeypatch.setattr(tidying, "QUIET_SECONDS", 0.0)
    import aio_pika

    async with leveret.Broker(leveret.in_process_settings()) as running:
        await (await aio_pika.connect(running.url)).close()
        deadline = asyncio.get_running_loop().time() + 30
        while not running.amqp._tidier.times:
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0.01)
        client = await aio_pika.connect(running.url)
        channel = await client.channel()
        await channel.declare_queue("", exclusive=True)
        await client.close()
