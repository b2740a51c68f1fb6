"""Checks the `make` commands of the documentation without running them.

`make setup` and `make test` are run to get here, and tests/packaging/test_first_steps.py runs
`make run`. Benchmarks and torture runs take too long.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable

from benchmarks import catalogue, runner, scaling
from benchmarks.cli import build_parser as benchmarks_parser
from benchmarks.spark import suite
from leveret.cli.serve import build_parser as serve_parser
from tests.docs.blocks import ROOT


def check_make_command(words: list[str]) -> None:
    """Raise unless the target exists and its program accepts the options in `ARGS`."""
    subprocess.run(["make", "-n", *words], cwd=ROOT, check=True, capture_output=True)
    for word in words:
        if word.startswith("ARGS="):
            assert words[0] in PARSERS, f"`make {words[0]}` takes no ARGS: {word}"
            PARSERS[words[0]](shlex.split(word.removeprefix("ARGS=")))


def _serve(options: list[str]) -> None:
    serve_parser().parse_args(options)


def _bench(options: list[str]) -> None:
    parsed = benchmarks_parser().parse_args(options)
    only = parsed.only
    found = runner.select(catalogue.WORKLOADS, only) or suite.select(only)
    assert runner.select(scaling.SERIES, only) if parsed.scaling else found, f"--only {only}"


def _torture(options: list[str]) -> None:
    from tests.torture.__main__ import arguments

    arguments(options)


def _lock(options: list[str]) -> None:
    assert options == ["--upgrade"]  # an option of `uv pip compile`


PARSERS: dict[str, Callable[[list[str]], None]] = {
    "run": _serve,
    "bench": _bench,
    "torture": _torture,
    "lock": _lock,
}
