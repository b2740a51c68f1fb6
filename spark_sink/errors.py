"""The one error users see: a sentence that says what to do."""

from __future__ import annotations


class SourceError(Exception):
    """What is wrong with the input, and what to do about it, in one sentence."""
