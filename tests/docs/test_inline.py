"""Commands within sentences exist, and so do their options.

They may be incomplete, so they are not run. Code blocks are run by test_blocks.py.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
from typing import Any

import pytest
import typer

from leveret.cli.app import expand_help, program
from leveret.cli.serve import build_parser
from tests.docs.blocks import PAGES, ROOT
from tests.docs.make_targets import check_make_command
from tests.docs.session import check_pip_install

FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`((?:\.venv/bin/)?(?:leveret|make|pip|python|pytest) [^`]+)`")
NOT_COMMANDS = {"ready", "COMMAND"}  # a line of output; a placeholder


def commands() -> list[tuple[str, str]]:
    return [
        (str(page.relative_to(ROOT)), " ".join(command.split()).removeprefix(".venv/bin/"))
        for page in PAGES
        if page.name != "CHANGELOG.md"
        for command in INLINE.findall(FENCED.sub("", page.read_text(encoding="utf-8")))
    ]


def check_leveret(words: list[str]) -> None:
    """Parse the options; raises the errors of the command line."""
    if words[0] == "serve":
        build_parser().parse_args(words[1:])
        return
    command = program()
    context = command.context_class(command, info_name="leveret")
    while hasattr(command, "resolve_command") and words and not words[0].startswith("-"):
        name, command, words = command.resolve_command(context, words)
        context = command.context_class(command, context, name)
    command.make_parser(context).parse_args(words)


def check_python(words: list[str]) -> None:
    """Raise unless the module of `-m`, or the script of the repository, exists."""
    if words[0] == "-m":
        assert importlib.util.find_spec(words[1]) is not None
    else:
        assert (ROOT / words[0]).is_file(), f"no such script: {words[0]}"


def check(line: str) -> None:
    program, *words = shlex.split(line)
    expanded = list(expand_help(words))
    if program == "leveret" and expanded[0] not in NOT_COMMANDS:
        check_leveret(expanded)
    elif program == "make":
        check_make_command(words)
    elif program == "pip":
        check_pip_install(words[1:])
    elif program == "python":
        check_python(words)
    elif program == "pytest":
        assert all((ROOT / word).exists() for word in words if word.startswith("tests/"))


@pytest.mark.parametrize("line", sorted({line for _, line in commands()}))
def test_inline_command_is_valid(line):
    check(line)


def test_inline_commands_are_found():
    assert {page for page, _ in commands()} >= {"README.md", "CONTRIBUTING.md", "docs/cli.md"}


INVALID = """
leveret sreve
leveret serve --prot 1
leveret log mend
leveret log list --fast
make tset
make run ARGS="--prot 1"
make bench ARGS="--only no-such-workload"
make bench ARGS="--quik"
make torture ARGS="--only R-99"
make docs ARGS="-v"
pip install leveret[x]
python -m tests.nothing
python tools/nothing.py
python -c pass
pytest tests/nothing
"""
USAGE_ERROR: Any = typer.BadParameter.__base__


@pytest.mark.parametrize("line", INVALID.split("\n")[1:-1])
def test_invalid_command_is_reported(line):
    with pytest.raises((AssertionError, USAGE_ERROR, SystemExit, subprocess.CalledProcessError)):
        check(line)
