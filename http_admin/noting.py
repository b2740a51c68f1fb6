"""Requests as they are written down: bounded, without secrets, and so that nothing hides.

Of what was refused little is kept. Of a change that was made all names are kept as far as there is
room for them, and whatever is left out can be recognised by the digest of the whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from starlette.types import Scope

from http_admin.paths import tidy

LONGEST_REFUSED = 500
LONGEST_DONE = 8 * 1024


def asked(scope: Scope) -> str:
    """Method and path, as routing sees it but before anybody decoded it: a vhost may be `/`."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    path = tidy(raw.decode("ascii", "backslashreplace"))
    return f"{scope['method']} {shown_path(path)}"


def shown_path(path: str) -> str:
    """A path as it may be written down: one of them ends with a password."""
    head, found, _ = path.partition("/hash_password/")
    return f"{head}{found}..." if found else path


def room_for(status: int) -> int:
    """How many octets are kept of one text, by what came of the request."""
    return LONGEST_REFUSED if 400 <= status < 500 else LONGEST_DONE


def bounded(names: Sequence[str], most: int) -> str:
    """Names in a row; beyond `most` octets, how many are missing and a digest of the whole row."""
    encoded = [name.encode("utf-8", "replace") for name in names]
    whole = b"".join(encoded)
    if len(whole) <= most:
        return whole.decode()
    digest = f"(SHA-256 of all: {hashlib.sha256(whole).hexdigest()})"
    room = most - len(digest) - len(f"... and {len(names)} more ")
    missing = sum(end > room for end in accumulate(map(len, encoded)))
    more = f"and {missing} more " if len(names) > 1 else ""
    return f"{whole[:room].decode(errors='ignore')}... {more}{digest}"


def in_a_row(names: Iterable[str], before: str = "") -> Iterator[str]:
    """Each name once, with what stands between it and the one before."""
    for index, name in enumerate(dict.fromkeys(names)):
        yield f", {name}" if index else f"{before}{name}"
