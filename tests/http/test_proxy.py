"""Behind a reverse proxy: its host names are a setting."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from leveret.http_admin.server import TRUSTED_PROXIES
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
def test_host_name_of_a_reverse_proxy_is_a_setting(
    proxied: Served, host: str, origin: str, status: int
) -> None:
    headers = {"host": host, "origin": origin}
    with proxied.client() as client:
        answer = client.put("/api/cluster-name", json={"name": "n"}, headers=headers)
    assert answer.status_code == status, answer.text


@pytest.mark.parametrize(
    ("forwarded", "status"),
    [
        (None, 200),
        ("127.0.0.1", 200),
        ("10.0.0.5", 401),
        ("127.0.0.1, 10.0.0.5", 401),  # the last is what the proxy says
        ("10.0.0.5, 127.0.0.1", 401),
        ("nonsense", 401),
    ],
)
def test_default_user_is_refused_for_remote_clients_behind_a_proxy(
    proxied: Served, forwarded: str | None, status: int
) -> None:
    headers = {} if forwarded is None else {"x-forwarded-for": forwarded}
    with proxied.client() as client:
        assert client.get("/api/whoami", headers=headers).status_code == status


def test_session_of_the_default_user_is_refused_from_another_machine(proxied: Served) -> None:
    with proxied.client(None) as client:
        login = {"username": "guest", "password": "guest"}
        assert client.post("/api/login", json=login).status_code == 200
        assert client.get("/api/whoami").status_code == 200
        answer = client.get("/api/whoami", headers={"x-forwarded-for": "10.0.0.5"})
        assert answer.status_code == 401
        assert answer.json()["reason"] == "User can only log in via localhost"


def test_trusted_proxies_ignore_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "10.9.9.9")
    with serve(http_hosts="broker.example.com") as threaded, Served(threaded).client() as client:
        answer = client.get("/api/whoami", headers={"x-forwarded-for": "10.0.0.5"})
        assert answer.status_code == 401


@pytest.mark.parametrize(
    ("peer", "seen"),
    [
        ("127.0.0.1", "10.0.0.5"),
        ("127.3.2.1", "10.0.0.5"),
        ("::1", "10.0.0.5"),
        ("::ffff:127.0.0.1", "10.0.0.5"),  # over IPv4 to a listener on `::`
        ("10.0.0.4", "10.0.0.4"),
        ("::ffff:10.0.0.4", "::ffff:10.0.0.4"),
        ("::2", "::2"),
    ],
)
def test_proxies_on_this_machine_are_trusted(peer: str, seen: str) -> None:
    hosts: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        hosts.append(scope["client"][0])

    scope: Any = {
        "type": "http",
        "client": (peer, 1),
        "headers": [(b"x-forwarded-for", b"10.0.0.5")],
    }
    asyncio.run(ProxyHeadersMiddleware(app, TRUSTED_PROXIES)(scope, None, None))  # type: ignore[arg-type]
    assert hosts == [seen]
