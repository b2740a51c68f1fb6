"""docs/http-api.md lists every operation. tests/docs runs its examples."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tools import openapi_document
from tools.http_reference import PAGE, description, rewritten


@pytest.fixture(scope="module")
def described() -> dict[str, Any]:
    return description()


def test_http_api_page_has_every_operation(described: dict[str, Any]) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert rewritten(page, described) == page, "run python tools/http_reference.py"


def test_leveret_operations_are_marked(described: dict[str, Any]) -> None:
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


def test_openapi_document_is_written_to_a_file(
    described: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "new" / "openapi.json"
    monkeypatch.setattr(sys, "argv", ["openapi_document.py", str(target)])
    openapi_document.main()
    assert json.loads(target.read_text(encoding="utf-8")) == json.loads(json.dumps(described))
