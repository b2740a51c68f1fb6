"""docs/http-api.md has every operation; that its examples work is shown by tests/docs."""

from __future__ import annotations

from typing import Any

import pytest

from tools.http_reference import PAGE, description, rewritten


@pytest.fixture(scope="module")
def described() -> dict[str, Any]:
    return description()


def test_page_has_every_operation(described: dict[str, Any]) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert rewritten(page, described) == page, "run python tools/http_reference.py"


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
