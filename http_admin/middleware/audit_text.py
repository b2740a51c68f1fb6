"""Requests as the audit log and the broker's log write them: bounded, and without passwords.

Little is kept of a refused request. Of a change, names are kept up to a size, and what was cut off
can be verified by a digest of the whole text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from starlette.types import Scope

from leveret.http_admin.middleware.raw_path import normalized

MAX_REFUSED_BYTES = 500
MAX_DONE_BYTES = 8 * 1024


def request_line(scope: Scope) -> str:
    """Method and path, not decoded: a vhost may be called `/`."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    path = normalized(raw.decode("ascii", "backslashreplace"))
    return f"{scope['method']} {without_password(path)}"


def without_password(path: str) -> str:
    """The path; that of `hash_password` ends with a password, which is left out."""
    head, separator, _ = path.partition("/hash_password/")
    return f"{head}{separator}..." if separator else path


def max_bytes(status: int) -> int:
    """How many bytes of a text are kept for a request with this status."""
    return MAX_REFUSED_BYTES if 400 <= status < 500 else MAX_DONE_BYTES


def bounded(parts: Sequence[str], limit: int) -> str:
    """The joined parts; beyond `limit` bytes, the number of missing parts and a digest of all."""
    encoded = [part.encode("utf-8", "replace") for part in parts]
    whole = b"".join(encoded)
    if len(whole) <= limit:
        return whole.decode()
    digest = f"(SHA-256 of all: {hashlib.sha256(whole).hexdigest()})"
    room = limit - len(digest) - len(f"... and {len(parts)} more ")
    missing = sum(end > room for end in accumulate(map(len, encoded)))
    more = f"and {missing} more " if len(parts) > 1 else ""
    return f"{whole[:room].decode(errors='ignore')}... {more}{digest}"


def comma_separated(names: Iterable[str], prefix: str = "") -> Iterator[str]:
    """Each distinct name with the text that precedes it: `prefix` or a comma."""
    for index, name in enumerate(dict.fromkeys(names)):
        yield f", {name}" if index else f"{prefix}{name}"
