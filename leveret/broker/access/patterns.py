r"""Patterns that come from outside. RE2: linear in their input, whatever the pattern.

Linear is not quick: `(\pL?){400}` has half a million states, and a search may be in all of them at
every octet. So the size of a pattern is bounded, and once more without what only follows in line,
as letters of a name do: that costs little, and a hundred long names may be one pattern.

Groups are not captured, which nobody asks for: a thousand of them made one name take 0.8 s.
"""

from __future__ import annotations

import logging
import re
from functools import lru_cache

import re2

from leveret.model.errors import PreconditionFailed

log = logging.getLogger("leveret.broker")

MOST_OCTETS = 4096
MOST_CLASSES = 256
MOST_UNICODE_CLASSES = 16  # each takes a tenth of a millisecond to read
TOO_LARGE = (
    f"it is too large: at most {MOST_OCTETS} octets, {MOST_CLASSES} classes such as [a-z],"
    f" {MOST_UNICODE_CLASSES} such as \\pL, and some hundred alternatives and"
    " repetitions, with {n} counted n times"
)
_SHOWN = 200


def _options(most_memory: int = 8 << 20) -> re2.Options:
    options = re2.Options()
    options.log_errors = False  # whoever gave a bad pattern is told; the broker's log need not be
    options.never_capture = True
    options.max_mem = most_memory
    return options


_ANY_SIZE, _WHOLE, _BRANCHES = _options(), _options(64 << 10), _options(22 << 10)
_UNICODE_CLASS = re.compile(r"\\[pP]")
_IN_LINE = re.compile(
    r"(\\.|\[\^?\]?(?:\\.|[^\]\\])*\]?|\{\d+(?:,\d*)?\})|[0-9A-Za-z_.-]+([0-9A-Za-z_.-])", re.DOTALL
)
"""Escapes, classes and counts, which stay; or what follows in line, whose last may be repeated."""


@lru_cache(maxsize=4096)
def pattern(text: str) -> re2._Regexp:
    """One that was checked, or that a version without these bounds has stored: rights stay."""
    try:
        return _bounded(text)
    except re2.error:
        found = re2.compile(text, _ANY_SIZE)
        shown = text[:_SHOWN]
        log.warning("a stored pattern is used, but may take long: %r: %s", shown, TOO_LARGE)
        return found


def check_pattern(text: str) -> None:
    asked(text)


def asked(text: str) -> re2._Regexp:
    """A pattern for one question: not remembered, for anybody may ask."""
    try:
        return _bounded(text)
    except re2.error as error:
        raise PreconditionFailed(f"invalid pattern {text[:_SHOWN]!r}: {_why(error)}") from error


def _bounded(text: str) -> re2._Regexp:
    unicode_classes = len(_UNICODE_CLASS.findall(text))
    if (
        len(text.encode()) > MOST_OCTETS
        or text.count("[") > MOST_CLASSES
        or unicode_classes > MOST_UNICODE_CLASSES
    ):
        raise re2.error(TOO_LARGE)
    whole = re2.compile(text, _WHOLE)
    branches = _IN_LINE.sub(lambda found: found[1] or found[2], text)
    try:
        re2.compile(branches, _BRANCHES)
    except re2.error:  # also where cutting it short has made it wrong, as \pLu
        re2.compile(text, _BRANCHES)
    return whole


def _why(error: re2.error) -> str:
    said = error.args[0] if error.args else ""
    why = said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
    return TOO_LARGE if "too large" in why else why


def expand(text: str, **values: str) -> str:
    """A pattern with its variables: `{username}` is the name itself, never a pattern."""
    for name, value in values.items():
        text = text.replace("{" + name + "}", re2.escape(value))
    return text
