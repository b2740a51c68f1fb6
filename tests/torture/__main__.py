"""`make torture`: the long forms, with progress and a one-page report."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

from tests.torture.crashes import kill_under_load


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
    parser.add_argument("--cycles", type=int, default=200, help="kills under load")
    parser.add_argument("--confirmed", type=int, default=1_000_000, help="messages at least")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--report", type=Path, default=Path("torture-report.md"))
    asked = parser.parse_args()
    sys.stdout.write(f"seed {asked.seed}\n")

    def progress(text: str) -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    with tempfile.TemporaryDirectory() as directory:
        report = asyncio.run(
            kill_under_load(Path(directory), asked.cycles, asked.confirmed, asked.seed, progress)
        )
    passed = report.verdict.is_clean
    asked.report.write_text(
        f"# Torture report\n\nseed {asked.seed}\n\n## R-01 kill -9 under load\n\n"
        f"{report.cycles} cycles: {report.verdict}\n\n"
        f"slowest start {report.slowest_start:.2f} s\n",
        encoding="utf-8",
    )
    sys.stdout.write(f"{int(passed)} passed, {int(not passed)} failed\n")
    return 0 if passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
