"""Reading history pauses while clients publish: both need the interpreter lock."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from leveret.http_admin.routes import history


@pytest.mark.parametrize("is_publishing", [True, False])
async def test_reading_pauses_as_long_as_a_chunk_took(
    monkeypatch: pytest.MonkeyPatch, is_publishing: bool
) -> None:
    broker: Any = SimpleNamespace(counters=SimpleNamespace(published=0))
    times, pauses = iter(range(100)), list[float]()
    sleep = asyncio.sleep

    def chunks() -> Iterator[bytes]:
        for chunk in (b"b", b"c"):
            broker.counters.published += is_publishing
            yield chunk

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    monkeypatch.setattr(history, "time", SimpleNamespace(monotonic=lambda: next(times) / 100))
    monkeypatch.setattr("leveret.http_admin.routes.history.asyncio.sleep", pause)
    parts = [part async for part in history._stream(broker, chunks(), b"a")]
    assert parts == [b"a", b"b", b"c"]
    assert pauses == (pytest.approx([0.01, 0.01]) if is_publishing else [])
