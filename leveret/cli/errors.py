"""How a command ends: exit codes, and errors that are one sentence.

Invariant: whatever goes wrong in a command becomes a `CliError` at the border where it is met
(HTTP in `api`, files and JSON in `inputs`); nothing else is expected to escape a command.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes, in the numbers of sysexits.h where it has one; listed in docs/cli.md."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 66
    UNAVAILABLE = 69
    TIMEOUT = 75
    NO_PERMISSION = 77
    INTERRUPTED = 130


class CliError(Exception):
    """A command cannot do what was asked; the text is one sentence for people."""

    def __init__(self, text: str, code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(" ".join(text.split()))
        self.code = code
