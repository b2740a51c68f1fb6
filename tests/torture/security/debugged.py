"""The broker on asyncio's own loop in debug mode, whose callbacks are timed: `python -m ... FILE`.

In processor time of the loop's thread: what a busy machine takes away is not the callback's, and
calls that wait are found in another way (blocking.py). SIGUSR1 writes those of more than a tenth
of a second to the file, and starts anew.
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


class Timed:
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
        fresh = self._path.with_suffix(".new")
        fresh.write_text("\n".join(slow), encoding="utf-8")
        os.replace(fresh, self._path)


def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.SelectorEventLoop()
    loop.set_debug(True)
    return loop


def main() -> None:
    timed = Timed(Path(sys.argv.pop(1)))
    import leveret.launch as launch
    from leveret.cli import main as leveret_main

    launch._new_loop = _loop
    setattr(asyncio.Handle, "_run", lambda handle: timed.run(handle))  # noqa: B010 - typed otherwise
    leveret_main()


if __name__ == "__main__":
    main()
