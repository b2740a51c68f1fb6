"""Runs the broker with a timer of 5 ms that records its delay: `python -m ... FILE serve ...`.

SIGUSR1 writes the delays so far, in seconds, to the file, and starts again.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

PERIOD = 0.005


def lags_of_stall(lag: float) -> list[float]:
    """The delays of all ticks during one stall: a late timer also delays the ticks after it."""
    return [lag, *(lag - PERIOD * tick for tick in range(1, int(lag / PERIOD) + 1))]


class LagProbe:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._lags: list[float] = []
        self._loop = asyncio.get_running_loop()
        self._loop.add_signal_handler(signal.SIGUSR1, self._write)
        self._wait()

    def _wait(self) -> None:
        # Uses the system's clock, since the loop's clock may be rounded to milliseconds.
        self._loop.call_later(PERIOD, self._tick, time.monotonic() + PERIOD)

    def _tick(self, due: float) -> None:
        self._lags += lags_of_stall(time.monotonic() - due)
        self._wait()

    def _write(self) -> None:
        lags, self._lags = self._lags, []
        new_file = self._path.with_suffix(".new")
        new_file.write_text(" ".join(f"{lag:.6f}" for lag in lags), encoding="ascii")
        os.replace(new_file, self._path)


def main() -> None:
    path = Path(sys.argv.pop(1))
    import leveret.launch as launch
    from leveret.cli import main as leveret_main

    announce = launch._announce

    def announce_and_probe(running: Any) -> None:
        LagProbe(path)
        announce(running)

    launch._announce = announce_and_probe
    leveret_main()


if __name__ == "__main__":
    main()
