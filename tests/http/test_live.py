"""The live stream: views that are sent repeatedly, with the permissions of the user."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest

from leveret.http_admin.routes.live import MAX_STREAMS, MAX_VIEWS
from tests.http.conftest import Served
from tests.support.polling import wait_until


def _stream(*paths: str) -> str:
    return "/api/stream?" + urlencode([("view", path) for path in paths])


def _views(answer: httpx.Response) -> Iterator[dict[str, Any]]:
    event = ""
    for line in answer.iter_lines():
        if line.startswith("event: "):
            event = line[7:]
        elif line.startswith("data: "):
            assert event == "view"
            yield json.loads(line[6:])


def _open_streams(broker: Served) -> int:
    return sum(broker.app.state.context.streams.values())


def _wait_until_closed(broker: Served) -> None:
    wait_until(lambda: not _open_streams(broker))


def test_views_are_sent_at_once_and_again(broker: Served, api: httpx.Client) -> None:
    with api.stream("GET", _stream("/api/whoami", "/api/queues?page=1&name=e%25")) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        views = _views(answer)
        first, second = next(views), next(views)
        assert first["path"] == "/api/whoami"
        assert (first["status"], first["body"]["name"]) == (200, "guest")
        assert second["path"] == "/api/queues?page=1&name=e%25"
        assert second["body"]["total_count"] == 0
        with broker.client() as other:
            assert other.put("/api/queues/%2F/live%25", json={}).status_code == 201
        rows = (view["body"]["items"] for view in views if view["path"] != "/api/whoami")
        assert [row["name"] for row in next(filter(None, rows))] == ["live%"]
        assert _open_streams(broker) == 1
    _wait_until_closed(broker)


def test_failed_view_has_its_status_and_reason(api: httpx.Client) -> None:
    views_of = _stream("/api/queues/%2F/none", "/api/nothing", "/api/docs")
    with api.stream("GET", views_of) as answer:
        views = _views(answer)
        missing, unknown, page = next(views), next(views), next(views)
    assert (missing["status"], missing["body"]["reason"]) == (404, "Not Found")
    assert unknown["status"] == 404
    assert (page["status"], page["body"]) == (200, None)


def test_view_has_the_permissions_of_the_user(broker: Served, api: httpx.Client) -> None:
    body = {"password": "small", "tags": "management"}
    assert api.put("/api/users/small", json=body).status_code == 201
    with (
        broker.client("small") as small,
        small.stream("GET", "/api/stream?view=/api/users&view=/api/overview") as answer,
    ):
        views = _views(answer)
        assert next(views)["status"] == 403
        assert next(views)["body"]["object_totals"]["queues"] == 0


@pytest.mark.parametrize(
    "path", ["/", "/metrics", "api/whoami", "http://elsewhere/api/", "/api/stream?view=/api/x",
             "/api/history/export?table=events"]
)  # fmt: skip
def test_view_must_be_a_finite_path_of_the_api(api: httpx.Client, path: str) -> None:
    answer = api.get("/api/stream", params={"view": path})
    assert answer.status_code == 400
    assert "view" in answer.json()["reason"]


def test_views_and_streams_are_bounded(broker: Served, api: httpx.Client) -> None:
    too_many = _stream(*["/api/whoami"] * (MAX_VIEWS + 1))
    assert api.get(too_many).status_code == 400
    assert api.get("/api/stream").status_code == 400
    streams = broker.app.state.context.streams
    streams["guest"] = MAX_STREAMS
    try:
        assert api.get("/api/stream?view=/api/whoami").status_code == 429
    finally:
        del streams["guest"]


def test_stream_ends_with_the_session(broker: Served) -> None:
    with broker.client(None) as web:
        login = {"username": "guest", "password": "guest"}
        csrf = web.post("/api/login", json=login).json()["csrf"]
        with web.stream("GET", "/api/stream?view=/api/whoami") as answer:
            views = _views(answer)
            assert next(views)["status"] == 200
            signed_out = web.post("/api/logout", headers={"X-CSRF-Token": csrf})
            assert signed_out.status_code == 204
            *before, last = [view["status"] for view in views]
            assert last == 401 and set(before) <= {200}
    _wait_until_closed(broker)


@pytest.mark.parametrize(
    ("change", "last_status"),
    [
        ({"password": "other", "tags": "management"}, 401),
        ({"password": "small", "tags": ""}, 403),
    ],
)
def test_stream_with_basic_auth_ends_with_the_password_or_the_last_tag(
    broker: Served, api: httpx.Client, change: dict[str, str], last_status: int
) -> None:
    known = {"password": "small", "tags": "management"}
    assert api.put("/api/users/once", json=known).status_code in (201, 204)
    with (
        broker.client("once", "small") as once,
        once.stream("GET", "/api/stream?view=/api/whoami") as answer,
    ):
        views = _views(answer)
        assert next(views)["status"] == 200
        assert api.put("/api/users/once", json=change).status_code == 204
        *before, last = [view["status"] for view in views]
        assert last == last_status and set(before) <= {200}
    _wait_until_closed(broker)
