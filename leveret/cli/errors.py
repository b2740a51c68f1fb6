"""Exit codes, and errors of one sentence.

Invariant: a failure in a command becomes a `CliError` where it is detected (HTTP in `api`, files
and JSON in `inputs`); a command raises no other exceptions.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes, with the numbers of sysexits.h where it has one; listed in docs/cli.md."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 66
    UNAVAILABLE = 69
    TIMEOUT = 75
    NO_PERMISSION = 77
    INTERRUPTED = 130


class CliError(Exception):
    """A command has failed; the text is one sentence for people."""

    def __init__(self, text: str, code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(" ".join(text.split()))
        self.code = code
