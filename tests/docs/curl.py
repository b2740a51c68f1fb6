"""Runs the curl commands of the documentation with httpx, against any broker.

Only the options that the documentation uses are known.
"""

from __future__ import annotations

from pathlib import Path

import httpx

SITE = "http://localhost:15672"
FORM = {"content-type": "application/x-www-form-urlencoded"}  # what curl sends with -d
TIMEOUT_SECONDS = 60


def run_curl(arguments: list[str], url: str, folder: Path) -> None:
    """Send the request of a curl command to `url` in place of `SITE`."""
    method, path, user, body, target = "", "", "", b"", None
    rest = iter(arguments)
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
            assert word.startswith(f"{SITE}/"), f"unknown argument of curl: {word}"
            path = word.removeprefix(SITE)
    response = httpx.request(
        method or ("POST" if body else "GET"),
        url + path,
        auth=tuple(user.split(":", 1)) if user else None,  # type: ignore[arg-type]
        content=body,
        headers=FORM if body else {},
        timeout=TIMEOUT_SECONDS,
    )
    assert response.is_success, f"{arguments}: {response.status_code} {response.text}"
    if target is not None:
        target.write_bytes(response.content)


def _data(value: str, folder: Path) -> bytes:
    return (folder / value[1:]).read_bytes() if value.startswith("@") else value.encode()
