"""An export that ends with SIGKILL: `python killed_export.py <point> <data dir> <output> …`.

Points: those of `POINTS`, at the second call; `midway`, some milliseconds after files began to be
written; `never`. Further arguments: the tables (`events` unless given) and the milliseconds. The
JVM dies with its process group.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

from spark_sink.export import ExportOptions, TableExport, run
from spark_sink.target import TableTarget

POINTS = {
    "beginning": (TableTarget, "temporary", False),
    "during": (TableExport, "_write_files", True),
    "counted": (TableTarget, "publish", False),
    "visible": (TableTarget, "publish", True),
    "committing": (TableTarget, "record", True),
}
_CALL = 2


def kill() -> None:
    os.killpg(os.getpgid(0), signal.SIGKILL)


def arm(point: str, milliseconds: int) -> None:
    """Replace one method by one that kills at its second call: files of a batch are there then."""
    owner, name, is_after = POINTS.get(point, (TableExport, "_write_files", False))
    whole, calls = getattr(owner, name), []

    def deadly(*args, **kwargs):
        calls.append(args)
        if len(calls) == _CALL and point == "midway":
            threading.Timer(milliseconds / 1000, kill).start()
        elif len(calls) == _CALL and not is_after:
            kill()
        result = whole(*args, **kwargs)
        if len(calls) == _CALL and is_after:
            kill()
        return result

    setattr(owner, name, deadly)


def main(
    point: str, data_dir: str, output: str, tables: str = "events", milliseconds: str = "0"
) -> None:
    is_long = tables != "events"
    if point != "never":
        arm(point, int(milliseconds))
    options = ExportOptions(
        to=Path(output), data_dir=Path(data_dir), tables=tuple(tables.split(",")),
        master="local[1]", batch_rows=50_000 if is_long else 100, incremental=is_long,
    )  # fmt: skip
    sys.exit(run(options))


if __name__ == "__main__":
    main(*sys.argv[1:])
