"""The command `leveret`: one door, two paths.

`leveret serve` must accept connections within half a second, so `main` looks at the first word
before anything heavy is imported: `serve` goes to a small argparse parser, every other command to
the typer application, which costs another 0.2 s of imports and speaks only to the HTTP API.

Runs in the main thread. Nothing here keeps state: a crash leaves nothing behind.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence


def run(argv: Sequence[str]) -> int:
    """Run one command line (without the program's name) and return its exit code."""
    if argv and argv[0] == "serve":
        from leveret.cli.serve import serve

        return serve(argv[1:])
    from leveret.cli.app import run_client

    return run_client(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """The console entry: run the command line and leave the process with its exit code."""
    sys.exit(run(sys.argv[1:] if argv is None else argv))
