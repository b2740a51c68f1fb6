"""The broker, watched for calls that could block its loop: `python -m ... FILE serve ...`.

blockbuster knows such calls and asks of each whether it may; here every answer is yes, but it is
written down who asked. SIGUSR1 writes the callers so far to the file, one on each line with the
number of its calls, and starts anew.
"""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from blockbuster import BlockBuster

ROOT = str(Path(__file__).parents[3]) + os.sep


class Watch:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: Counter[str] = Counter()
        signal.signal(signal.SIGUSR1, self._write)
        buster = BlockBuster()
        for name, function in buster.functions.items():
            function.can_block_predicate = self._noting(name, function.can_block_predicate)
        buster.activate()

    def _noting(self, name: str, can_block: Any) -> Any:
        def note(*arguments: Any, **options: Any) -> bool:
            if not can_block(*arguments, **options):
                self._seen[f"{name} in {_caller()}"] += 1
            return True

        return note

    def _write(self, *_signal: object) -> None:
        seen, self._seen = self._seen, Counter()
        fresh = self._path.with_suffix(".new")
        lines = [f"{count} {what}" for what, count in seen.most_common()]
        fresh.write_text("\n".join(lines), encoding="utf-8")
        os.replace(fresh, self._path)


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
