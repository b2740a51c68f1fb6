"""Input of commands: JSON, `key=value` pairs, files and standard input."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import typer

from leveret.cli.api import Json
from leveret.cli.errors import CliError, ExitCode


def json_object(text: str, what: str, example: str) -> dict[str, Json]:
    """Parse a JSON object given on the command line."""
    expected = f"{what} must be a JSON object such as {example}"
    try:
        value = json.loads(text)
    except ValueError as error:
        raise CliError(f"{expected}: {error}.", ExitCode.USAGE) from None
    if not isinstance(value, dict):
        raise CliError(f"{expected}.", ExitCode.USAGE)
    return value


def pairs(texts: Sequence[str] | None, what: str) -> dict[str, Json]:
    """Parse `key=value` pairs; a value that is valid JSON is parsed, any other is text."""
    return dict(_pair(text, what) for text in texts or ())


def _pair(text: str, what: str) -> tuple[str, Json]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise CliError(f"{what} {text!r} is not of the form key=value.", ExitCode.USAGE)
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def read_all(source: str) -> bytes:
    """Return a file's content, or all of standard input for `-`."""
    if source == "-":
        announce_typed_input()
    try:
        return sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
    except OSError as error:
        raise CliError(f"cannot read {source}: {error.strerror}.", ExitCode.NOT_FOUND) from None


def announce_typed_input() -> None:
    """At a terminal, say that input is read; otherwise the command would seem to hang."""
    if sys.stdin.isatty():
        sys.stderr.write("Reading from the terminal; end with Ctrl-D.\n")


def require_overwrite(target: str) -> None:
    """Ask before a file is overwritten; without a terminal, refuse."""
    if target == "-" or not Path(target).exists():
        return
    if sys.stdin.isatty() and typer.confirm(f"{target} exists. Overwrite it?", err=True):
        return
    raise CliError(f"{target} exists and was not overwritten; --force overwrites it.")


def write_all(target: str, text: str) -> None:
    """Write a file, or standard output for `-`."""
    if target == "-":
        sys.stdout.write(text)
        return
    try:
        Path(target).write_text(text, encoding="utf-8")
    except OSError as error:
        raise CliError(f"cannot write {target}: {error.strerror}.") from None


def line_batches(descriptor: int) -> Iterator[list[bytes]]:
    """Yield the lines available at once, in batches: fast for files, prompt for `tail -f`."""
    rest: list[bytes] = []
    while chunk := os.read(descriptor, 65536):
        head, newline, tail = chunk.rpartition(b"\n")
        if not newline:
            rest.append(chunk)
            continue
        complete = b"".join([*rest, head])
        rest = [tail] if tail else []
        yield [line.removesuffix(b"\r") for line in complete.split(b"\n")]
    if rest:
        yield [b"".join(rest)]


def lines(descriptor: int) -> Iterable[bytes]:
    return (line for batch in line_batches(descriptor) for line in batch)
