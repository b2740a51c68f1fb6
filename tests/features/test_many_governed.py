"""A policy of very many queues takes effect some of them at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from operator import length_hint
from typing import Any

import pytest

from leveret.broker import Broker, governing
from leveret.broker.policies import Policy
from leveret.launch import RunningBroker, in_process_settings
from queues import QueueSpec

QUEUES = 10


@pytest.fixture
async def hub() -> AsyncIterator[Broker]:
    async with RunningBroker(in_process_settings()) as running:
        for number in range(QUEUES):
            running.broker.vhosts["/"].declare_queue(QueueSpec(f"q{number}"))
        yield running.broker


@pytest.fixture
def applied(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = []
    apply = governing.apply_policy

    def noted(broker: Any, vhost: Any, made: Any) -> None:
        names.append(made.name)
        apply(broker, vhost, made)

    monkeypatch.setattr(governing, "AT_ONCE", 3)
    monkeypatch.setattr(governing, "apply_policy", noted)
    return names


def limits(hub: Broker) -> set[int | None]:
    held: Any = hub.vhosts["/"].queues.values()
    return {queue.options.max_length for queue in held}


async def ended(hub: Broker, applied: list[str]) -> int:
    """The most that were governed in one turn."""
    most = 0
    while length_hint(hub.vhosts["/"].ungoverned):
        before = len(applied)
        await asyncio.sleep(0)
        most = max(most, len(applied) - before)
    return most


def rule(name: str, length: int) -> Policy:
    return Policy("/", name, "^q", {"max-length": length}, "queues", length, False)


async def test_others_go_on_while_a_policy_takes_effect(hub: Broker, applied: list[str]) -> None:
    """Beside a hundred policies one of 10,000 queues kept everybody waiting for 2.4 s."""
    hub.policies.put(rule("a", 5))
    assert len(applied) == 3
    hub.vhosts["/"].declare_queue(QueueSpec("q-late"))
    hub.vhosts["/"].delete_queue("q9")
    assert await ended(hub, applied) == 3
    assert limits(hub) == {5} and "q9" not in applied


async def test_the_last_of_many_changes_counts(hub: Broker, applied: list[str]) -> None:
    everything = len(hub.vhosts["/"].exchanges) + QUEUES
    for length in (5, 6, 7):
        hub.policies.put(rule(f"to {length}", length))
    await ended(hub, applied)
    assert limits(hub) == {7}
    assert len(applied) == 2 * 3 + everything
