"""The command `leveret`.

`leveret serve` must accept connections within half a second, so `main` checks the first word before
anything heavy is imported: `serve` goes to a small argparse parser, every other command to the
typer application, which costs another 0.2 s of imports and uses only the HTTP API.

Runs in the main thread and keeps no state.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence


def run(argv: Sequence[str]) -> int:
    """Run one command line (without the program's name) and return its exit code."""
    if argv and argv[0] == "serve":
        from leveret.cli.serve import serve, wants_help

        if not wants_help(argv[1:]):
            return serve(argv[1:])
    from leveret.cli.app import run_client

    return run_client(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """The console entry point: run the command line and exit with its exit code."""
    sys.exit(run(sys.argv[1:] if argv is None else argv))
