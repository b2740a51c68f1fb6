"""The code blocks of the documentation, and what is to be done with each.

A comment in the line before a block says so, in words that no reader of the page sees:

    <!-- test: save as test_orders.py -->     run by pytest, with the other saved blocks of the page
    <!-- test: fragment -->                   Python with `channel`, `connection`, `url`, `handle`
    <!-- test: elsewhere tests/x.py::name -->  that test takes it from the page and runs it

Without one, `python` is a program of its own and `sh` is a session against a running broker. There
is none for code that nobody runs.
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
    r"(?:^<!-- test: (?P<mark>[^\n]*?) -->\n+)?"
    r"^```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
COMMAND = re.compile(r"^(leveret|make|pip|python|curl|pytest|git|docker|systemctl) ", re.MULTILINE)


class Fate(Enum):
    PROGRAM = auto()
    SESSION = auto()
    SAVED = auto()
    FRAGMENT = auto()
    ELSEWHERE = auto()
    NOTHING = auto()
    """No code: a configuration, an output, a picture."""


@dataclass(frozen=True, slots=True)
class Block:
    page: str
    line: int
    language: str
    text: str
    fate: Fate
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def fate_of(mark: str, language: str) -> tuple[Fate, str]:
    for beginning, fate in (
        ("save as ", Fate.SAVED),
        ("fragment", Fate.FRAGMENT),
        ("elsewhere ", Fate.ELSEWHERE),
    ):
        if mark.startswith(beginning):
            return fate, mark.removeprefix(beginning)
    if mark:
        raise ValueError(f"no such mark: {mark!r}")
    return {"python": Fate.PROGRAM, "sh": Fate.SESSION}.get(language, Fate.NOTHING), ""


def blocks_of(text: str, page: str) -> list[Block]:
    found = []
    for match in BLOCK.finditer(text):
        line = text.count("\n", 0, match.start("language")) + 1
        fate, detail = fate_of(match["mark"] or "", match["language"])
        found.append(Block(page, line, match["language"], match["text"], fate, detail))
    return found


def all_blocks() -> list[Block]:
    return [
        block
        for page in PAGES
        for block in blocks_of(page.read_text(encoding="utf-8"), str(page.relative_to(ROOT)))
    ]
