"""The broker, asked how many objects it holds: `python -m ... FILE serve ...`.

What a process holds may be free memory that its allocators keep; objects are in use. SIGUSR1
collects what can be collected and writes their number to the file.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from pathlib import Path


def main() -> None:
    path = Path(sys.argv.pop(1))

    def write(*_signal: object) -> None:
        gc.collect()
        fresh = path.with_suffix(".new")
        count = len(gc.get_objects()) + gc.get_freeze_count()
        fresh.write_text(str(count), encoding="ascii")
        os.replace(fresh, path)

    signal.signal(signal.SIGUSR1, write)
    from leveret.cli import main as leveret_main

    leveret_main()


if __name__ == "__main__":
    main()
