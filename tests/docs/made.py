"""Checks the `make` commands of the documentation without doing what they do.

What they do is done elsewhere: `make setup` and `make test` by whoever runs the tests, `make run`
by tests/packaging/test_first_steps.py; benchmarks and torture runs take too long.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable

from benchmarks import catalogue, runner
from benchmarks.cli import build_parser as benchmarks_parser
from benchmarks.spark import suite
from leveret.cli.serve import build_parser as serve_parser
from tests.docs.blocks import ROOT


def require_makeable(words: list[str]) -> None:
    """There is such a target, and the program behind it takes the options that `ARGS` has."""
    subprocess.run(["make", "-n", *words], cwd=ROOT, check=True, capture_output=True)
    for word in words:
        if word.startswith("ARGS="):
            assert words[0] in TAKES, f"what does `make {words[0]}` do with {word}?"
            TAKES[words[0]](shlex.split(word.removeprefix("ARGS=")))


def _serve(options: list[str]) -> None:
    serve_parser().parse_args(options)


def _bench(options: list[str]) -> None:
    only = benchmarks_parser().parse_args(options).only
    assert runner.select(catalogue.WORKLOADS, only) or suite.select(only), f"--only {only}"


def _torture(options: list[str]) -> None:
    from tests.torture.__main__ import arguments

    arguments(options)


TAKES: dict[str, Callable[[list[str]], None]] = {
    "run": _serve,
    "bench": _bench,
    "torture": _torture,
}
