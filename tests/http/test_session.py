"""Sessions: cookies, CSRF, expiry, rate limits; and the security headers of responses."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
import pytest_asyncio

import leveret
from leveret.http_admin.auth import ABSOLUTE_SECONDS, IDLE_SECONDS, SessionStore
from leveret.http_admin.middleware.security import AllowedHosts
from leveret.model.clock import ManualClock

LOGIN = {"username": "guest", "password": "guest"}
TRIES = 5
QUEUE = "/api/queues/%2F/q"


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def clock() -> ManualClock:
    return ManualClock()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(clock: ManualClock) -> AsyncIterator[leveret.Broker]:
    settings = leveret.in_process_settings(http_enabled=True, login_tries_per_source=TRIES)
    async with leveret.Broker(settings, clock) as broker:
        await broker.http_ready()
        yield broker


@pytest_asyncio.fixture(loop_scope="module")
async def web(running: leveret.Broker) -> AsyncIterator[httpx.AsyncClient]:
    """A browser: it has no credentials, but keeps cookies."""
    async with httpx.AsyncClient(base_url=running.http_url, verify=False, timeout=60) as client:
        yield client


async def _sign_in(web: httpx.AsyncClient) -> dict[str, Any]:
    answer = await web.post("/api/login", json=LOGIN)
    assert answer.status_code == 200
    identity: dict[str, Any] = answer.json()
    return identity


async def test_login_sets_a_protected_cookie(web: httpx.AsyncClient) -> None:
    answer = await web.post("/api/login", json=LOGIN)
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie and "Path=/" in cookie
    assert "Secure" not in cookie  # the test speaks plain HTTP
    assert answer.json()["tags"] == ["administrator"]
    assert (await web.get("/api/whoami")).json() == answer.json()


async def test_login_accepts_a_form_like_rabbitmq(web: httpx.AsyncClient) -> None:
    assert (await web.post("/api/login", data=LOGIN)).status_code == 200


@pytest.mark.parametrize("body", [b"", b"[]", b'{"username": "guest"}', b'{"username": 1}'])
async def test_invalid_login_body_is_refused(web: httpx.AsyncClient, body: bytes) -> None:
    assert (await web.post("/api/login", content=body)).status_code == 400


async def test_login_creates_a_new_session_and_ends_the_old_one(web: httpx.AsyncClient) -> None:
    await _sign_in(web)
    old = dict(web.cookies)
    await _sign_in(web)
    assert dict(web.cookies) != old
    assert (await _asked_with(web, old)).status_code == 401


async def _asked_with(web: httpx.AsyncClient, cookies: dict[str, str]) -> httpx.Response:
    header = "; ".join(f"{name}={value}" for name, value in cookies.items())
    web.cookies.clear()
    return await web.get("/api/whoami", headers={"cookie": header})


async def test_logout_ends_the_session_on_the_server(web: httpx.AsyncClient) -> None:
    identity = await _sign_in(web)
    old = dict(web.cookies)
    answer = await web.post("/api/logout", headers={"X-CSRF-Token": identity["csrf"]})
    assert answer.status_code == 204
    assert not web.cookies
    assert (await _asked_with(web, old)).status_code == 401


async def test_changes_need_the_csrf_token(web: httpx.AsyncClient) -> None:
    identity = await _sign_in(web)
    assert (await web.put(QUEUE, json={})).status_code == 403
    wrong = {b"X-CSRF-Token": "é".encode()}
    assert (await web.put(QUEUE, json={}, headers=wrong)).status_code == 403
    assert (await web.get(QUEUE)).status_code == 404
    right = {"X-CSRF-Token": identity["csrf"]}
    assert (await web.put(QUEUE, json={}, headers=right)).status_code == 201


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
async def test_cross_site_changes_are_refused_even_with_a_password(
    web: httpx.AsyncClient, headers: dict[str, str]
) -> None:
    answer = await web.put(QUEUE, json={}, headers=headers, auth=("guest", "guest"))
    assert answer.status_code == 403
    assert (await web.post("/api/login", json=LOGIN, headers=headers)).status_code == 403


async def test_same_origin_changes_are_accepted(web: httpx.AsyncClient) -> None:
    headers = {"Origin": str(web.base_url).rstrip("/"), "Sec-Fetch-Site": "same-origin"}
    answer = await web.put(f"{QUEUE}2", json={}, headers=headers, auth=("guest", "guest"))
    assert answer.status_code == 201


async def test_idle_session_ends(web: httpx.AsyncClient, clock: ManualClock) -> None:
    await _sign_in(web)
    clock.advance(IDLE_SECONDS - 1)
    assert (await web.get("/api/whoami")).status_code == 200
    clock.advance(IDLE_SECONDS + 1)
    assert (await web.get("/api/whoami")).status_code == 401


async def test_session_ends_after_eight_hours(web: httpx.AsyncClient, clock: ManualClock) -> None:
    await _sign_in(web)
    passed = 0.0
    while passed + IDLE_SECONDS / 2 <= ABSOLUTE_SECONDS:
        clock.advance(IDLE_SECONDS / 2)
        passed += IDLE_SECONDS / 2
        assert (await web.get("/api/whoami")).status_code == 200
    clock.advance(1)
    assert (await web.get("/api/whoami")).status_code == 401


async def test_wrong_passwords_slow_down_only_their_source(
    web: httpx.AsyncClient, clock: ManualClock
) -> None:
    assert (await web.post("/api/login", json=LOGIN)).status_code == 200
    for number in range(TRIES):
        assert (await web.get("/api/whoami", auth=("x", str(number)))).status_code == 401
    answer = await web.get("/api/whoami", auth=("y", "new"))
    assert answer.status_code == 429
    assert "wait" in answer.json()["reason"] and 0 < int(answer.headers["retry-after"]) <= 60
    # A user who has logged in from here before has its own attempts.
    for number in range(TRIES):
        assert (await web.get("/api/whoami", auth=("guest", str(number)))).status_code == 401
    assert (await web.post("/api/login", json=LOGIN)).status_code == 429
    clock.advance(61)
    assert (await web.post("/api/login", json=LOGIN)).status_code == 200


async def test_deleted_user_is_signed_out(web: httpx.AsyncClient) -> None:
    admin = httpx.BasicAuth("guest", "guest")
    body = {"password": "p", "tags": "management"}
    assert (await web.put("/api/users/short", json=body, auth=admin)).status_code == 201
    await web.post("/api/login", json={"username": "short", "password": "p"})
    cookies = dict(web.cookies)
    assert (await web.get("/api/whoami")).json()["name"] == "short"
    assert (await web.delete("/api/users/short", auth=admin)).status_code == 204
    assert (await _asked_with(web, cookies)).status_code == 401


@pytest.mark.parametrize(
    "change",
    [
        {"password": "another", "tags": "administrator"},
        {"password_hash": "", "tags": "administrator"},
        {"password": "p", "tags": ""},
        {"password": "p", "tags": "management"},
    ],
)
async def test_changed_user_is_signed_out(web: httpx.AsyncClient, change: dict[str, str]) -> None:
    """The old password and the old cookie are refused; new tags apply at once."""
    admin = httpx.BasicAuth("guest", "guest")
    body = {"password": "p", "tags": "administrator"}
    path = "/api/users/changing"
    assert (await web.put(path, json=body, auth=admin)).status_code in (201, 204)
    signed_in = await web.post("/api/login", json={"username": "changing", "password": "p"})
    assert signed_in.status_code == 200
    cookies = dict(web.cookies)
    assert (await web.get("/api/users")).status_code == 200
    assert (await web.put(path, json=change, auth=admin)).status_code == 204
    assert (await _asked_with(web, cookies)).status_code == 401


async def test_user_without_a_tag_is_403(running: leveret.Broker, web: httpx.AsyncClient) -> None:
    """403 to a right password; a session from before the tag was taken away is over."""
    admin, plain = httpx.BasicAuth("guest", "guest"), {"username": "plain", "password": "p"}
    body = {"password": "p", "tags": "management"}
    assert (await web.put("/api/users/plain", json=body, auth=admin)).status_code == 201
    assert (await web.post("/api/login", json=plain)).status_code == 200
    cookies = dict(web.cookies)
    assert (await _asked_with(web, cookies)).status_code == 200
    users = running.broker.users
    users.put_user(
        "plain", users.by_name["plain"].password_hash, (), users.by_name["plain"].hashing
    )
    assert (await _asked_with(web, cookies)).status_code == 401
    for answer in (
        await web.post("/api/login", json=plain),
        await web.get("/api/whoami", auth=("plain", "p")),
    ):
        assert answer.status_code == 403
        assert answer.json()["reason"] == "user has no management tag"
        assert "www-authenticate" not in answer.headers


async def test_sessions_end_after_an_idle_hour_or_eight_hours() -> None:
    assert (IDLE_SECONDS, ABSOLUTE_SECONDS) == (3_600, 28_800)


@pytest.mark.parametrize("given", ["Basic", "Basic !!!", "Basic Z3Vlc3Q=", "Bearer x", "x"])
async def test_malformed_credentials_are_401(web: httpx.AsyncClient, given: str) -> None:
    answer = await web.get("/api/whoami", headers={"authorization": given})
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Basic")


async def test_scripts_of_a_page_get_no_basic_challenge(web: httpx.AsyncClient) -> None:
    answer = await web.get("/api/whoami", headers={"sec-fetch-mode": "cors"})
    assert answer.status_code == 401
    assert "www-authenticate" not in answer.headers


@pytest.mark.parametrize("path", ["/", "/nope", "/api/whoami", "/api/nope", "/metrics"])
async def test_every_response_has_the_security_headers(web: httpx.AsyncClient, path: str) -> None:
    headers = (await web.get(path)).headers
    policy = headers["content-security-policy"]
    assert "default-src 'self'" in policy and "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    if not path.startswith(("/nope", "/a", "/m")):
        assert headers["cache-control"] == "no-cache" or headers["cache-control"] == "no-store"
    if path.startswith(("/api", "/metrics")):
        assert headers["cache-control"] == "no-store"


async def test_foreign_host_is_refused_on_loopback(web: httpx.AsyncClient) -> None:
    answer = await web.get("/api/whoami", headers={"host": "evil.example:15672"})
    assert answer.status_code == 400
    assert "x-content-type-options" in answer.headers
    answer = await web.get(
        "/api/whoami", headers={"host": "localhost:15672"}, auth=("guest", "guest")
    )
    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("bound", "header", "accepted"),
    [
        ("127.0.0.1", "127.0.0.1:15672", True),
        ("127.0.0.1", "localhost", True),
        ("127.0.0.1", "LOCALHOST:1", True),
        ("127.0.0.1", "localhost.:1", True),
        ("127.0.0.1", "[::1]:15672", True),
        ("127.0.0.1", "leveret.localhost:1", True),
        ("127.0.0.1", None, True),
        ("127.0.0.1", "127.0.0.1.evil.example", False),
        ("127.0.0.1", "localhost.evil.example", False),
        ("127.0.0.1", "192.168.0.1", False),
        ("127.0.0.1", "[bad", False),
        ("::1", "evil.example", False),
        ("localhost", "evil.example", False),
        ("0.0.0.0", "broker.example:15672", True),
        ("192.168.0.1", "broker.example", True),
    ],
)
async def test_allowed_hosts(bound: str, header: str | None, accepted: bool) -> None:
    assert AllowedHosts(bound).accept(header, "192.168.0.7") is accepted


@pytest.mark.parametrize("peer", ["127.0.0.1", "::1", "::ffff:127.0.0.1"])
@pytest.mark.parametrize(
    ("header", "accepted"),
    [
        ("localhost:15672", True),
        ("127.0.0.1:15672", True),
        ("192.168.0.1:15672", True),
        ("[fe80::1]:15672", True),
        (f"{socket.gethostname()}:15672", True),
        ("proxied.example", True),
        ("evil.example", False),
        ("evil.example:15672", False),
        ("127.0.0.1.evil.example", False),
    ],
)
async def test_local_client_must_use_a_name_of_this_machine(
    peer: str, header: str, accepted: bool
) -> None:
    """A page of another site cannot use the browser here with its own host name."""
    assert AllowedHosts("0.0.0.0", frozenset({"proxied.example"})).accept(header, peer) is accepted


async def test_many_logins_of_a_user_end_only_its_own_sessions(
    running: leveret.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten thousand logins of one user once ended the sessions of all users."""
    monkeypatch.setattr("leveret.http_admin.auth.MAX_SESSIONS_PER_USER", 2)
    monkeypatch.setattr("leveret.http_admin.auth.MAX_SESSIONS", 3)
    sessions = SessionStore(running.broker)
    guest = running.broker.users.by_name["guest"]
    other, _ = sessions.create(replace(guest, name="other"))
    tokens = [sessions.create(guest)[0] for _ in range(5)]
    assert sessions.maybe_get(other) is not None
    assert [sessions.maybe_get(one) is not None for one in tokens] == [False] * 3 + [True] * 2
    sessions.create(replace(guest, name="third"))
    assert sessions.maybe_get(tokens[-1]) is not None
    assert len(sessions._sessions) == 3
