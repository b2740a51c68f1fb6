"""The error that users see."""

from __future__ import annotations


class SourceError(Exception):
    """One sentence for the user: what is wrong with the input, and what to do about it."""
