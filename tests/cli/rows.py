"""A row of the table of requests: a command line, scripted answers, the requests that result."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Row:
    line: str
    requests: list[Any]
    answers: dict[str, Any] = field(default_factory=dict)


def expect(line: str, body: Any = None, **query: str) -> tuple[str, Any, dict[str, str]]:
    return line, body, query


GET, PUT, POST, DELETE = "GET /api/", "PUT /api/", "POST /api/", "DELETE /api/"
