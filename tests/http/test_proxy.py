"""Behind a reverse proxy: the names it is asked under are a setting."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.http.conftest import Served, serve


@pytest.fixture(scope="module")
def proxied() -> Iterator[Served]:
    with serve(http_hosts="broker.example.com, other.example.com") as threaded:
        yield Served(threaded)


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("broker.example.com", "https://broker.example.com", 204),
        ("BROKER.example.com:443", "https://broker.example.com", 204),
        ("other.example.com", "https://other.example.com", 204),
        ("127.0.0.1:15672", "https://broker.example.com", 204),  # a proxy that sets its own Host
        ("127.0.0.1:15672", "https://evil.example", 403),
        ("broker.example.com", "null", 403),
        ("evil.example", "https://evil.example", 400),
    ],
)
def test_reverse_proxy_is_named_by_a_setting(
    proxied: Served, host: str, origin: str, status: int
) -> None:
    headers = {"host": host, "origin": origin}
    with proxied.client() as client:
        answer = client.put("/api/cluster-name", json={"name": "n"}, headers=headers)
    assert answer.status_code == status, answer.text
