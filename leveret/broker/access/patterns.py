"""Patterns that come from outside. RE2: linear in their input, whatever the pattern.

Groups are not captured, which nobody asks for: a thousand of them made one name take 0.8 s.
"""

from __future__ import annotations

from functools import lru_cache

import re2

from leveret.model.errors import PreconditionFailed

_QUIET = re2.Options()
_QUIET.log_errors = False  # whoever gave a bad pattern is told; the broker's log need not be
_QUIET.never_capture = True
_SMALL = re2.Options()
_SMALL.log_errors = False
_SMALL.never_capture = True
_SMALL.max_mem = 1 << 16


@lru_cache(maxsize=4096)
def pattern(text: str) -> re2._Regexp:
    return re2.compile(text, _QUIET)


def check_pattern(text: str) -> None:
    try:
        pattern(text)
    except re2.error as error:
        raise _refusal(text, error) from error


def asked(text: str) -> re2._Regexp:
    """A pattern for one question: small, and not remembered, for anybody may ask."""
    try:
        return re2.compile(text, _SMALL)
    except re2.error as error:
        raise _refusal(text, error) from error


def _refusal(text: str, error: re2.error) -> PreconditionFailed:
    said = error.args[0] if error.args else ""
    why = said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
    return PreconditionFailed(f"invalid pattern {text!r}: {why}")


def expand(text: str, **values: str) -> str:
    """A pattern with its variables: `{username}` is the name itself, never a pattern."""
    for name, value in values.items():
        text = text.replace("{" + name + "}", re2.escape(value))
    return text
