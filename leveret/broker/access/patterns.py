r"""Regular expressions from users. RE2 is linear in its input, whatever the pattern.

Linear is not the same as fast: `(\pL?){400}` has half a million states, and a search may visit all
of them for every byte. So the size of a compiled pattern is limited, with a tighter limit once
literal text has been shortened: a run of letters costs little, and a hundred long names may be one
pattern.

RE2 has no lookahead. The one that RabbitMQ's documentation recommends for policies, `^(?!amq\.).*`,
is supported nevertheless: a pattern that begins with `^(?!...)` is two patterns, of which the first
must not match.

Groups are not captured because no caller needs them; a thousand groups made one search take 0.8 s.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import re2

from leveret.model.errors import PreconditionFailed

log = logging.getLogger("leveret.broker")

MAX_PATTERN_BYTES = 4096
MAX_CLASSES = 256
MAX_UNICODE_CLASSES = 16  # each takes a tenth of a millisecond to parse
TOO_LARGE = (
    f"it is too large: at most {MAX_PATTERN_BYTES} bytes, {MAX_CLASSES} classes such as [a-z],"
    f" {MAX_UNICODE_CLASSES} such as \\pL, and a few hundred alternatives and"
    " repetitions, with {n} counted n times"
)
_MAX_SHOWN = 200


def _options(max_memory: int = 8 << 20) -> re2.Options:
    options = re2.Options()
    options.log_errors = False  # the caller reports a bad pattern; RE2 need not log it
    options.never_capture = True
    options.max_mem = max_memory
    return options


_ANY_SIZE, _WHOLE, _BRANCHES = _options(), _options(64 << 10), _options(22 << 10)
_UNICODE_CLASS = re.compile(r"\\[pP]")
_LITERAL_RUN = re.compile(
    r"(\\.|\[\^?\]?(?:\\.|[^\]\\])*\]?|\{\d+(?:,\d*)?\})|[0-9A-Za-z_.-]+([0-9A-Za-z_.-])", re.DOTALL
)
"""Matches an escape, class or count, which stays, or a run of literals, of which only the last
stays because it may be repeated."""


_ATOM = r"[^()\[\\]|\\.|\[\^?\]?(?:\\.|[^\]\\])*\]"
_NOT_AT_START = re.compile(rf"\^\(\?!((?:{_ATOM}|\((?:{_ATOM})*\))*)\)", re.DOTALL)
"""Matches `^(?!...)`; inside, groups have one level."""
_SKIPPED = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
"""Matches what contains no operator: escapes and classes."""


class Pattern(Protocol):
    @property
    def groups(self) -> int: ...

    def search(self, text: str) -> object | None: ...


@dataclass(frozen=True, slots=True)
class _Excluding:
    """A pattern that begins with `^(?!...)`."""

    excluded: Pattern
    rest: Pattern

    @property
    def groups(self) -> int:
        return 0

    def search(self, text: str) -> object | None:
        return None if self.excluded.search(text) is not None else self.rest.search(text)


@lru_cache(maxsize=4096)
def pattern(text: str) -> Pattern:
    """Compile a stored pattern. One stored by a version without these limits still works."""
    try:
        return _compile_bounded(text)
    except re2.error:
        compiled: Pattern = re2.compile(text, _ANY_SIZE)
        shown = text[:_MAX_SHOWN]
        log.warning("stored pattern %r is used but may be slow: %s", shown, TOO_LARGE)
        return compiled


def check_pattern(text: str) -> None:
    compile_pattern(text)


def compile_pattern(text: str) -> Pattern:
    """Compile a pattern for one request. Not cached, so requests cannot flush the cache."""
    try:
        return _compile_bounded(text)
    except re2.error as error:
        shown = text[:_MAX_SHOWN]
        raise PreconditionFailed(f"invalid pattern {shown!r}: {_reason(error)}") from error


def _compile_bounded(text: str) -> Pattern:
    start = _NOT_AT_START.match(text)
    if start is None or _has_alternatives(text):
        compiled: Pattern = _compile_re2(text)
        return compiled
    excluded, rest = f"^(?:{start[1]})", f"^{text[start.end() :]}"
    if len(text.encode()) > MAX_PATTERN_BYTES:
        raise re2.error(TOO_LARGE)
    return _Excluding(_compile_re2(excluded), _compile_bounded(rest))


def _has_alternatives(text: str) -> bool:
    """Whether the pattern has a `|` outside groups: then `^(?!...)` is part of one of several."""
    depth = 0
    for char in _SKIPPED.sub("", text):
        depth += (char == "(") - (char == ")")
        if char == "|" and depth == 0:
            return True
    return False


def _compile_re2(text: str) -> re2._Regexp:
    unicode_classes = len(_UNICODE_CLASS.findall(text))
    if (
        len(text.encode()) > MAX_PATTERN_BYTES
        or text.count("[") > MAX_CLASSES
        or unicode_classes > MAX_UNICODE_CLASSES
    ):
        raise re2.error(TOO_LARGE)
    whole = re2.compile(text, _WHOLE)
    branches = _LITERAL_RUN.sub(lambda match: match[1] or match[2], text)
    try:
        re2.compile(branches, _BRANCHES)
    except re2.error:  # also if shortening has made the pattern invalid, as in \pLu
        re2.compile(text, _BRANCHES)
    return whole


def _reason(error: re2.error) -> str:
    message = error.args[0] if error.args else ""
    text = message.decode("utf-8", "replace") if isinstance(message, bytes) else str(message)
    return TOO_LARGE if "too large" in text else text


def expand(text: str, **values: str) -> str:
    """Replace variables such as `{username}` by their values, escaped to match literally."""
    for name, value in values.items():
        text = text.replace("{" + name + "}", re2.escape(value))
    return text
