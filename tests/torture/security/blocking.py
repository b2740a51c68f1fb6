"""The broker, watched for calls that could block its loop: `python -m ... FILE serve ...`.

blockbuster knows such calls, some more are added, and it asks of each whether it may; here every
answer is yes, but it is written down who asked. SIGUSR1 writes the callers so far to the file, one
on each line with the number of its calls, and starts anew.
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

UNKNOWN: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (os, ("fsync", "fdatasync", "open", "pread", "pwrite", "truncate", "ftruncate", "rmdir")),
    (argon2.low_level, ("hash_secret", "verify_secret")),
)
"""Calls that may wait, or take long, and that blockbuster does not look for."""


class Watch:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: Counter[str] = Counter()
        signal.signal(signal.SIGUSR1, self._write)
        buster = BlockBuster()
        for module, names in UNKNOWN:
            for name in names:
                function = BlockBusterFunction(module, name)
                buster.functions[f"{module.__name__}.{name}"] = function
        for name, function in buster.functions.items():
            function.can_block_predicate = self._noting(name, function.can_block_predicate)
        buster.activate()

    def _noting(self, name: str, can_block: Any) -> Any:
        def note(*arguments: Any, **options: Any) -> bool:
            if not can_block(*arguments, **options):
                self._seen[f"{_described(name)} in {_caller()}"] += 1
            return True

        return note

    def _write(self, *_signal: object) -> None:
        fresh = self._path.with_suffix(".new")
        lines = [f"{count} {what}" for what, count in self._seen.most_common()]
        fresh.write_text("\n".join(lines), encoding="utf-8")
        os.replace(fresh, self._path)
        self._seen.clear()  # with what writing it down was


def _described(name: str) -> str:
    """Of a lock also who keeps it: that says for how long it can be held."""
    if not name.startswith("threading."):
        return name
    frame = sys._getframe(3)
    while frame.f_back is not None and frame.f_code.co_filename == threading.__file__:
        frame = frame.f_back
    return f"{name} of {'/'.join(Path(frame.f_code.co_filename).parts[-3:])}"


def _caller() -> str:
    """The innermost function of ours that led to the call."""
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
        Watch(path)
        announce(running)

    launch._announce = announce_and_watch
    leveret_main()


if __name__ == "__main__":
    main()
