"""Plays the curl commands of the documentation: the few options it uses, against any broker."""

from __future__ import annotations

from pathlib import Path

import httpx

SITE = "http://localhost:15672"
FORM = {"content-type": "application/x-www-form-urlencoded"}  # what curl says of -d
SECONDS = 60


def play(words: list[str], url: str, folder: Path) -> None:
    """`words` follow `curl`; an address at `SITE` means the same at `url`."""
    method, path, user, body, target = "", "", "", b"", None
    rest = iter(words)
    for word in rest:
        if word == "-X":
            method = next(rest)
        elif word == "-u":
            user = next(rest)
        elif word == "-o":
            target = folder / next(rest)
        elif word == "-d":
            body = _data(next(rest), folder)
        else:
            assert word.startswith(f"{SITE}/"), f"curl {word}?"
            path = word.removeprefix(SITE)
    answer = httpx.request(
        method or ("POST" if body else "GET"),
        url + path,
        auth=tuple(user.split(":", 1)) if user else None,  # type: ignore[arg-type]
        content=body,
        headers=FORM if body else {},
        timeout=SECONDS,
    )
    assert answer.is_success, f"{words}: {answer.status_code} {answer.text}"
    if target is not None:
        target.write_bytes(answer.content)


def _data(given: str, folder: Path) -> bytes:
    return (folder / given[1:]).read_bytes() if given.startswith("@") else given.encode()
