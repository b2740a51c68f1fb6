"""An export that ends with SIGKILL: `python killed_export.py <point> <data dir> <output> …`.

Points: those of `POINTS`, at call number `--call`; `midway`, `--milliseconds` after files began to
be written; `anytime`, `--milliseconds` after the start of this program; `never`. The JVM is killed
with its process group.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from pathlib import Path

from leveret.spark_sink.export import ExportOptions, TableExport, run
from leveret.spark_sink.manifest import Manifest
from leveret.spark_sink.target import ExportTarget, TableTarget

POINTS = {
    "planned": (TableTarget, "span", True),
    "beginning": (TableTarget, "temporary", False),
    "during": (TableExport, "_write_files", True),
    "counted": (TableTarget, "publish", False),
    "visible": (TableTarget, "publish", True),
    "committing": (TableTarget, "record", True),
    "telling": (Manifest, "save", False),
    "ending": (TableTarget, "finish", True),
    "swapping": (ExportTarget, "_finish_swap", False),
}


def kill() -> None:
    os.killpg(os.getpgid(0), signal.SIGKILL)


def arm(point: str, call: int, seconds: float) -> None:
    """Replace a method by one that kills the process at call number `call`."""
    owner, name, is_after = POINTS.get(point, (TableExport, "_write_files", False))
    method, calls = getattr(owner, name), []

    def killing(*args, **kwargs):
        calls.append(args)
        if len(calls) == call and point == "midway":
            threading.Timer(seconds, kill).start()
        elif len(calls) == call and not is_after:
            kill()
        result = method(*args, **kwargs)
        if len(calls) == call and is_after:
            kill()
        return result

    setattr(owner, name, killing)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("point", choices=(*POINTS, "midway", "anytime", "never"))
    parser.add_argument("data_dir", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--tables", default="events")
    parser.add_argument("--call", type=int, default=2)
    parser.add_argument("--milliseconds", type=int, default=0)
    parser.add_argument("--batch-rows", type=int, default=100)
    parser.add_argument("--incremental", action="store_true")
    given = parser.parse_args()
    if given.point == "anytime":
        threading.Timer(given.milliseconds / 1000, kill).start()
    elif given.point != "never":
        arm(given.point, given.call, given.milliseconds / 1000)
    options = ExportOptions(
        to=given.output, data_dir=given.data_dir, tables=tuple(given.tables.split(",")),
        master="local[1]", batch_rows=given.batch_rows, incremental=given.incremental,
    )  # fmt: skip
    sys.exit(run(options))


if __name__ == "__main__":
    main()
