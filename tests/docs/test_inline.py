"""Commands in running text are right: the command is there, and so are its options.

What stands in a block of its own is run (test_blocks.py); a sentence may leave out things.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
from typing import Any

import pytest
import typer

from leveret.cli.app import asking_help, program
from leveret.cli.serve import build_parser
from tests.docs.blocks import PAGES, ROOT
from tests.docs.made import require_makeable
from tests.docs.session import require_known

FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`((?:\.venv/bin/)?(?:leveret|make|pip|python|pytest) [^`]+)`")
NO_COMMAND = {"ready", "COMMAND"}  # a line that is printed; any of them


def commands() -> list[tuple[str, str]]:
    return [
        (str(page.relative_to(ROOT)), " ".join(found.split()).removeprefix(".venv/bin/"))
        for page in PAGES
        if page.name != "CHANGELOG.md"
        for found in INLINE.findall(FENCED.sub("", page.read_text(encoding="utf-8")))
    ]


def check_leveret(words: list[str]) -> None:
    """As far as its options go; raises what the command line would."""
    if words[0] == "serve":
        build_parser().parse_args(words[1:])
        return
    command = program()
    context = command.context_class(command, info_name="leveret")
    while hasattr(command, "resolve_command") and words and not words[0].startswith("-"):
        name, command, words = command.resolve_command(context, words)
        context = command.context_class(command, context, name)
    command.make_parser(context).parse_args(words)


def check(line: str) -> None:
    program, *words = shlex.split(line)
    asked = list(asking_help(words))
    if program == "leveret" and asked[0] not in NO_COMMAND:
        check_leveret(asked)
    elif program == "make":
        require_makeable(words)
    elif program == "pip":
        require_known(words[1:])
    elif program == "python":
        assert words[0] == "-m" and importlib.util.find_spec(words[1]) is not None
    elif program == "pytest":
        assert all((ROOT / word).exists() for word in words if word.startswith("tests/"))


@pytest.mark.parametrize("line", sorted({line for _, line in commands()}))
def test_command(line):
    check(line)


def test_they_are_found():
    assert {page for page, _ in commands()} >= {"README.md", "CONTRIBUTING.md", "docs/cli.md"}


WRONG = """
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
pytest tests/nothing
"""
USAGE_ERROR: Any = typer.BadParameter.__base__


@pytest.mark.parametrize("line", WRONG.split("\n")[1:-1])
def test_a_wrong_one_is_found(line):
    with pytest.raises((AssertionError, USAGE_ERROR, SystemExit, subprocess.CalledProcessError)):
        check(line)
