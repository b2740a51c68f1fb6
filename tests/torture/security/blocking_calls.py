"""Runs the broker and records calls that could block its loop: `python -m ... FILE serve ...`.

blockbuster intercepts such calls, and some are added here. It asks whether each call may block; the
answer is always yes, but the caller is recorded. SIGUSR1 writes the callers so far to the file, one
per line with the number of calls, and starts again.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import argon2.low_level
from blockbuster import BlockBuster, BlockBusterFunction

ROOT = str(Path(__file__).parents[3]) + os.sep

ADDED_CALLS: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (os, ("fsync", "fdatasync", "open", "pread", "pwrite", "truncate", "ftruncate", "rmdir")),
    (argon2.low_level, ("hash_secret", "verify_secret")),
)
"""Calls that may wait or take long, but are unknown to blockbuster."""


class BlockingCallWatch:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: Counter[str] = Counter()
        signal.signal(signal.SIGUSR1, self._write)
        buster = BlockBuster()
        for module, names in ADDED_CALLS:
            for name in names:
                function = BlockBusterFunction(module, name)
                buster.functions[f"{module.__name__}.{name}"] = function
        for name, function in buster.functions.items():
            function.can_block_predicate = self._recording(name, function.can_block_predicate)
        buster.activate()

    def _recording(self, name: str, can_block: Any) -> Any:
        def record(*arguments: Any, **options: Any) -> bool:
            if not can_block(*arguments, **options):
                self._seen[f"{_described(name)} in {_caller()}"] += 1
            return True

        return record

    def _write(self, *_signal: object) -> None:
        new_file = self._path.with_suffix(".new")
        lines = [f"{count} {call}" for call, count in self._seen.most_common()]
        new_file.write_text("\n".join(lines), encoding="utf-8")
        os.replace(new_file, self._path)
        self._seen.clear()  # including the calls that wrote the file


def _described(name: str) -> str:
    """The name of the call; for a lock also its owner, which says how long it can be held."""
    if not name.startswith("threading."):
        return name
    frame = sys._getframe(3)
    while frame.f_back is not None and frame.f_code.co_filename == threading.__file__:
        frame = frame.f_back
    return f"{name} of {'/'.join(Path(frame.f_code.co_filename).parts[-3:])}"


def _caller() -> str:
    """The innermost function of this project on the stack."""
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(ROOT) and ".venv" not in name and name != __file__:
            return f"{name.removeprefix(ROOT)}:{frame.f_code.co_name}"
        frame = frame.f_back  # type: ignore[assignment]
    return "a library"


def main() -> None:
    path = Path(sys.argv.pop(1))
    import leveret.launch as launch
    from leveret.cli import main as leveret_main

    announce = launch._announce

    def announce_and_watch(running: Any) -> None:
        BlockingCallWatch(path)
        announce(running)

    launch._announce = announce_and_watch
    leveret_main()


if __name__ == "__main__":
    main()
