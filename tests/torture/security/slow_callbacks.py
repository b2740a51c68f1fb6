"""Runs the broker on asyncio's own loop in debug mode and times callbacks: `python -m ... FILE`.

The time is CPU time of the loop's thread, which does not depend on the load of the machine;
blocking_calls.py finds calls that wait. SIGUSR1 writes callbacks of more than 100 ms to the file,
and starts again.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

SLOW_SECONDS = 0.1


class CallbackTimer:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._slow: list[str] = []
        self._run = asyncio.Handle._run
        signal.signal(signal.SIGUSR1, self._write)

    def run(self, handle: Any) -> None:
        began = time.thread_time()
        self._run(handle)
        took = time.thread_time() - began
        if took > SLOW_SECONDS:
            self._slow.append(f"{took:.3f} s in {handle!r}".replace("\n", " "))

    def _write(self, *_signal: object) -> None:
        slow, self._slow = self._slow, []
        new_file = self._path.with_suffix(".new")
        new_file.write_text("\n".join(slow), encoding="utf-8")
        os.replace(new_file, self._path)


def _debug_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.SelectorEventLoop()
    loop.set_debug(True)
    return loop


def main() -> None:
    timer = CallbackTimer(Path(sys.argv.pop(1)))
    import leveret.launch as launch
    from leveret.cli import main as leveret_main

    launch._new_loop = _debug_loop
    setattr(asyncio.Handle, "_run", lambda handle: timer.run(handle))  # noqa: B010 - typed otherwise
    leveret_main()


if __name__ == "__main__":
    main()
