"""An export that ends with SIGKILL: `python killed_export.py <point> <data dir> <output>`.

Points: `during` (files of the second batch written, not visible) and `committing` (visible and in
the manifest, Spark has not committed). The JVM dies with its process group.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from spark_sink.export import ExportOptions, TableExport, run
from spark_sink.target import TableTarget


def main(point: str, data_dir: str, output: str) -> None:
    owner, name = (TableExport, "_write_files") if point == "during" else (TableTarget, "record")
    whole, calls = getattr(owner, name), []

    def kill(*args, **kwargs):
        result = whole(*args, **kwargs)
        calls.append(result)
        if len(calls) == 2:
            os.killpg(os.getpgid(0), signal.SIGKILL)
        return result

    setattr(owner, name, kill)
    sys.exit(
        run(
            ExportOptions(
                to=Path(output), data_dir=Path(data_dir), tables=("events",), master="local[1]",
                batch_rows=100,
            )
        )
    )  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
