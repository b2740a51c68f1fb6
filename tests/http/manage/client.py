"""A client for the HTTP API that quotes path segments and checks every response."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import httpx


class Api:
    """`api.get("queues", vhost, name)`: a request under /api, its parts quoted one by one."""

    def __init__(self, url: str, user: str = "guest", password: str = "guest") -> None:
        self.url = url
        self.http = httpx.Client(base_url=url, auth=(user, password), timeout=120)

    def call(self, method: str, *parts: str, body: Any = None, **query: Any) -> httpx.Response:
        path = "/api/" + "/".join(quote(part, safe="") for part in parts)
        return self.http.request(method, path, json=body, params=query or None)

    def get(self, *parts: str, **query: Any) -> Any:
        """The JSON of a request that must succeed."""
        answer = self.call("GET", *parts, **query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def put(self, *parts: str, body: Any = None) -> int:
        """The status of a change that must succeed."""
        return self._changed(self.call("PUT", *parts, body={} if body is None else body))

    def delete(self, *parts: str, **query: Any) -> int:
        return self._changed(self.call("DELETE", *parts, **query))

    def post(self, *parts: str, body: Any = None) -> Any:
        answer = self.call("POST", *parts, body={} if body is None else body)
        assert answer.status_code < 300, answer.text
        return answer.json() if answer.content else answer.status_code

    def refused(self, method: str, *parts: str, body: Any = None, **query: Any) -> tuple[int, str]:
        """Status and reason of a request that must fail, in RabbitMQ's error form."""
        answer = self.call(method, *parts, body=body, **query)
        content = answer.json()
        assert answer.status_code >= 400 and content.keys() == {"error", "reason"}, answer.text
        return answer.status_code, content["reason"]

    @staticmethod
    def _changed(answer: httpx.Response) -> int:
        assert answer.status_code in (201, 204), answer.text
        return answer.status_code
