"""What people type, as values: JSON, `key=value` pairs, files and standard input."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from leveret.cli.api import Json
from leveret.cli.errors import CliError, ExitCode


def json_object(text: str, what: str, example: str) -> dict[str, Json]:
    """A JSON object from the command line."""
    wanted = f"{what} must be a JSON object such as {example}"
    try:
        value = json.loads(text)
    except ValueError as error:
        raise CliError(f"{wanted}: {error}.", ExitCode.USAGE) from None
    if not isinstance(value, dict):
        raise CliError(f"{wanted}.", ExitCode.USAGE)
    return value


def pairs(texts: Sequence[str] | None, what: str) -> dict[str, Json]:
    """`key=value` pairs; a value that reads as JSON (number, true, {…}) is that, else a text."""
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
    """A file's content, or all of standard input for `-`."""
    if source == "-":
        tell_who_types()
    try:
        return sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
    except OSError as error:
        raise CliError(f"{source} cannot be read: {error.strerror}.", ExitCode.NOT_FOUND) from None


def tell_who_types() -> None:
    """Else a command that reads what is typed looks as if it hung."""
    if sys.stdin.isatty():
        sys.stderr.write("Reading what you type; Ctrl-D ends it.\n")


def write_all(target: str, text: str) -> None:
    """Write a file, or standard output for `-`."""
    if target == "-":
        sys.stdout.write(text)
        return
    try:
        Path(target).write_text(text, encoding="utf-8")
    except OSError as error:
        raise CliError(f"{target} cannot be written: {error.strerror}.") from None


def line_batches(descriptor: int) -> Iterator[list[bytes]]:
    """Lines from a pipe in batches of what is there now: fast for files, prompt for `tail -f`."""
    rest: list[bytes] = []
    while chunk := os.read(descriptor, 65536):
        head, newline, tail = chunk.rpartition(b"\n")
        if not newline:
            rest.append(chunk)
            continue
        whole = b"".join([*rest, head])
        rest = [tail] if tail else []
        yield [line.removesuffix(b"\r") for line in whole.split(b"\n")]
    if rest:
        yield [b"".join(rest)]


def lines(descriptor: int) -> Iterable[bytes]:
    return (line for batch in line_batches(descriptor) for line in batch)
