from __future__ import annotations

import asyncio

import pytest

from leveret.broker.runtime import slices
from leveret.broker.runtime.slices import MAX_WAITING_CHANGES, Steps, run_in_slices
from tests.support.polling import wait_until_async


async def test_the_next_slice_waits_until_the_writer_has_the_changes(
    monkeypatch: pytest.MonkeyPatch,
):
    """Otherwise one batch has all changes of a long import, and confirms wait for it."""
    monkeypatch.setattr(slices, "SLICE_SECONDS", -1.0)  # each step is a slice
    done: list[int] = []
    waiting, asked = MAX_WAITING_CHANGES + 1, 0

    def steps() -> Steps[str]:
        for number in range(3):
            done.append(number)
            yield
        return "all"

    def waiting_changes() -> int:
        nonlocal asked
        asked += 1
        return waiting if len(done) == 2 else 0

    running = asyncio.create_task(run_in_slices(steps(), waiting_changes))
    await wait_until_async(lambda: asked > 10)
    assert done == [0, 1] and not running.done()
    waiting = MAX_WAITING_CHANGES
    assert await running == "all"
    assert done == [0, 1, 2]
