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
    waiting = MAX_WAITING_CHANGES + 1

    def steps() -> Steps[str]:
        for number in range(3):
            done.append(number)
            yield
        return "all"

    running = asyncio.create_task(run_in_slices(steps(), lambda: waiting if len(done) == 2 else 0))
    await wait_until_async(lambda: len(done) == 2)
    await asyncio.sleep(20 * slices.PAUSE_SECONDS)
    assert done == [0, 1] and not running.done()
    waiting = MAX_WAITING_CHANGES
    assert await running == "all"
    assert done == [0, 1, 2]
