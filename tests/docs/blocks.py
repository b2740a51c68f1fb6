"""The code blocks of the documentation, and how each of them is run.

A comment in the line before a block decides it; comments are not shown on the rendered page:

    <!-- test: save as test_orders.py -->     run by pytest, with the other saved blocks of the page
    <!-- test: fragment -->                   Python with `channel`, `connection`, `url`, `handle`
    <!-- test: elsewhere tests/x.py::name -->  that test reads it from the page and runs it

Without a comment, `python` is a complete program and `sh` is a session with a running broker. No
comment excludes a block from being run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "examples").rglob("*.md"),
    ]
)
BLOCK = re.compile(
    r"(?:^<!-- test: (?P<comment>[^\n]*?) -->\n+)?"
    r"^```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
COMMAND = re.compile(r"^(leveret|make|pip|python|curl|pytest|git|docker|systemctl) ", re.MULTILINE)


class RunMode(Enum):
    PROGRAM = auto()
    SESSION = auto()
    SAVED = auto()
    FRAGMENT = auto()
    ELSEWHERE = auto()
    NOT_CODE = auto()
    """A configuration, an output or a diagram."""


@dataclass(frozen=True, slots=True)
class Block:
    page: str
    line: int
    language: str
    text: str
    mode: RunMode
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def run_mode(comment: str, language: str) -> tuple[RunMode, str]:
    """How a block is run, and the rest of its comment."""
    for prefix, mode in (
        ("save as ", RunMode.SAVED),
        ("fragment", RunMode.FRAGMENT),
        ("elsewhere ", RunMode.ELSEWHERE),
    ):
        if comment.startswith(prefix):
            return mode, comment.removeprefix(prefix)
    if comment:
        raise ValueError(f"unknown test comment: {comment!r}")
    return {"python": RunMode.PROGRAM, "sh": RunMode.SESSION}.get(language, RunMode.NOT_CODE), ""


def blocks_of(text: str, page: str) -> list[Block]:
    blocks = []
    for match in BLOCK.finditer(text):
        line = text.count("\n", 0, match.start("language")) + 1
        mode, detail = run_mode(match["comment"] or "", match["language"])
        blocks.append(Block(page, line, match["language"], match["text"], mode, detail))
    return blocks


def all_blocks() -> list[Block]:
    return [
        block
        for page in PAGES
        for block in blocks_of(page.read_text(encoding="utf-8"), str(page.relative_to(ROOT)))
    ]
