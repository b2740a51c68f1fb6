"""An export that ends with SIGKILL: `python killed_export.py <point> <data dir> <output> …`.

Points: those of `POINTS`, at the call that `--call` names; `midway`, so many milliseconds after
files began to be written; `anytime`, so many after the start of this program; `never`. The JVM
dies with its process group.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from pathlib import Path

from spark_sink.export import ExportOptions, TableExport, run
from spark_sink.manifest import Manifest
from spark_sink.target import TableTarget, Target

POINTS = {
    "planned": (TableTarget, "span", True),
    "beginning": (TableTarget, "temporary", False),
    "during": (TableExport, "_write_files", True),
    "counted": (TableTarget, "publish", False),
    "visible": (TableTarget, "publish", True),
    "committing": (TableTarget, "record", True),
    "telling": (Manifest, "save", False),
    "ending": (TableTarget, "finish", True),
    "swapping": (Target, "_finish_swap", False),
}


def kill() -> None:
    os.killpg(os.getpgid(0), signal.SIGKILL)


def arm(point: str, call: int, seconds: float) -> None:
    """Replace one method by one that kills at its so-many-eth call."""
    owner, name, is_after = POINTS.get(point, (TableExport, "_write_files", False))
    whole, calls = getattr(owner, name), []

    def deadly(*args, **kwargs):
        calls.append(args)
        if len(calls) == call and point == "midway":
            threading.Timer(seconds, kill).start()
        elif len(calls) == call and not is_after:
            kill()
        result = whole(*args, **kwargs)
        if len(calls) == call and is_after:
            kill()
        return result

    setattr(owner, name, deadly)


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
    asked = parser.parse_args()
    if asked.point == "anytime":
        threading.Timer(asked.milliseconds / 1000, kill).start()
    elif asked.point != "never":
        arm(asked.point, asked.call, asked.milliseconds / 1000)
    options = ExportOptions(
        to=asked.output, data_dir=asked.data_dir, tables=tuple(asked.tables.split(",")),
        master="local[1]", batch_rows=asked.batch_rows, incremental=asked.incremental,
    )  # fmt: skip
    sys.exit(run(options))


if __name__ == "__main__":
    main()
