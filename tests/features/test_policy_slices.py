"""A policy that matches many queues is applied to a limited number of them per tick."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from operator import length_hint
from typing import Any

import pytest

from leveret.broker import Broker
from leveret.broker.policies import policy_effects
from leveret.broker.policies.policies import Policy
from leveret.launch import RunningBroker, in_process_settings
from leveret.queues.spec import QueueSpec

QUEUES = 10


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with RunningBroker(in_process_settings()) as running:
        for number in range(QUEUES):
            running.broker.vhosts["/"].declare_queue(QueueSpec(f"q{number}"))
        yield running.broker


@pytest.fixture
def applied(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = []
    apply = policy_effects.apply_policy

    def apply_and_record(broker: Any, vhost: Any, target: Any) -> None:
        names.append(target.name)
        apply(broker, vhost, target)

    monkeypatch.setattr(policy_effects, "SLICE", 3)
    monkeypatch.setattr(policy_effects, "apply_policy", apply_and_record)
    return names


def limits(broker: Broker) -> set[int | None]:
    queues: Any = broker.vhosts["/"].queues.values()
    return {queue.options.max_length for queue in queues}


async def run_to_end(broker: Broker, applied: list[str]) -> int:
    """Apply the policy to all queues; the largest number of queues per tick."""
    largest = 0
    while length_hint(broker.vhosts["/"].policy_pass):
        before = len(applied)
        await asyncio.sleep(0)
        largest = max(largest, len(applied) - before)
    return largest


def length_policy(name: str, length: int) -> Policy:
    return Policy("/", name, "^q", {"max-length": length}, "queues", length, False)


async def test_policy_is_applied_in_slices(broker: Broker, applied: list[str]) -> None:
    """Applied at once to 10,000 queues, it would block the event loop for seconds."""
    broker.policies.put(length_policy("a", 5))
    assert len(applied) == 3
    broker.vhosts["/"].declare_queue(QueueSpec("q-late"))
    broker.vhosts["/"].delete_queue("q9")
    assert await run_to_end(broker, applied) == 3
    assert limits(broker) == {5} and "q9" not in applied


async def test_last_policy_change_wins(broker: Broker, applied: list[str]) -> None:
    targets = len(broker.vhosts["/"].exchanges) + QUEUES
    for length in (5, 6, 7):
        broker.policies.put(length_policy(f"to {length}", length))
    await run_to_end(broker, applied)
    assert limits(broker) == {7}
    assert len(applied) == 2 * 3 + targets
