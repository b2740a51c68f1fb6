"""docs/http-api.md has every operation, and its examples work."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.docs.session import lines_of
from tests.http.conftest import Served
from tools.http_reference import PAGE, description, rewritten

BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SITE = "http://localhost:15672"


@pytest.fixture(scope="module")
def described() -> dict[str, Any]:
    return description()


def test_page_has_every_operation(described: dict[str, Any]) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert rewritten(page, described) == page, "run python tools/http_reference.py"


def _request(line: str, folder: Path) -> tuple[str, str, bytes | None, Path | None]:
    """Method, path, body and where the answer goes of a curl command."""
    words = iter(shlex.split(line))
    method, path, body, target = "GET", "", None, None
    assert next(words) == "curl"
    for word in words:
        if word == "-X":
            method = next(words)
        elif word == "-u":
            assert next(words) == "guest:guest"
        elif word == "-o":
            target = folder / next(words)
        elif word == "-d":
            given = next(words)
            is_file = given.startswith("@")
            body = (folder / given[1:]).read_bytes() if is_file else given.encode()
        else:
            assert word.startswith(SITE), word
            path = word.removeprefix(SITE)
    return method, path, body, target


def test_examples_work(broker: Served, api: httpx.Client, tmp_path: Path) -> None:
    blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    lines = [line for block in blocks for line in lines_of(block) if line.startswith("curl ")]
    assert len(lines) > 12
    form = {"content-type": "application/x-www-form-urlencoded"}  # what curl says of -d
    for line in lines:
        method, path, body, target = _request(line, tmp_path)
        answer = api.request(method, path, content=body, headers=form if body else {})
        assert answer.is_success, f"{line}: {answer.text}"
        if target is not None:
            target.write_bytes(answer.content)


def test_own_operations_are_marked(described: dict[str, Any]) -> None:
    named = {
        f"{method.upper()} {path}"
        for path, methods in described["paths"].items()
        for method, operation in methods.items()
        if operation.get("x-leveret")
    }
    assert named >= {
        "GET /api/queues/{vhost}/{name}/browse",
        "PUT /api/logs/{vhost}/{name}",
        "DELETE /api/exchanges/{vhost}/{name}/scheduled/{message_id}",
    }
    assert not named & {"GET /api/queues/{vhost}/{name}", "GET /api/definitions"}
