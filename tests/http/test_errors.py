"""All failures have a status and the same error JSON."""

from __future__ import annotations

import logging

import httpx
import pytest

from leveret.config import Settings
from tests.http.conftest import Served

LARGEST_BODY, LARGEST_IMPORT = Settings().http_max_body, Settings().http_max_import


def _is_error(answer: httpx.Response, status: int) -> None:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert answer.json().keys() == {"error", "reason"}
    assert answer.json()["reason"]


@pytest.mark.parametrize("path", ["/api/nothing", "/api", "/api/", "/api/queues/%2F/none", "/nope"])
def test_unknown_path_is_404(api: httpx.Client, path: str) -> None:
    answer = api.get(path)
    _is_error(answer, 404)
    assert answer.json()["error"] == "Object Not Found"


def test_unknown_path_stays_404_for_changes(api: httpx.Client) -> None:
    _is_error(api.post("/api/nothing", json={}), 404)


def test_wrong_method_is_405(api: httpx.Client) -> None:
    _is_error(api.post("/api/overview"), 405)


@pytest.mark.parametrize(
    "body",
    [b"{", b"nonsense", b"[1]", b'{"durable": "perhaps"}', b'{"arguments": {"x": "\\ud800"}}',
     b'{"arguments": ' + b"[" * 100_000,
     b'{"arguments": {"x": "\xed\xa0\x80"}}',
     '{"arguments": {"x": "\ud800\x80"}}'.encode("utf-16-le", "surrogatepass"),
     b'{"arguments": {"x": 123456789012345678901234567890}}',
     b'{"arguments": {"x": ' + b"[" * 300 + b"]" * 300 + b"}}",
     b'{"arguments": {"' + b"k" * 256 + b'": 1}}'],
    ids=["cut", "no JSON", "no object", "wrong type", "lone surrogate", "too deep",
         "lone surrogate in UTF-8", "lone surrogate in UTF-16", "more than 64 bits",
         "deeper than AMQP allows", "key longer than AMQP allows"],
)  # fmt: skip
def test_bad_body_is_400(api: httpx.Client, body: bytes) -> None:
    _is_error(api.put("/api/queues/%2F/q", content=body), 400)
    assert api.get("/api/queues/%2F/q").status_code == 404


def test_binding_argument_that_amqp_cannot_encode_is_400(api: httpx.Client) -> None:
    api.put("/api/queues/%2F/bound", json={})
    body = {"routing_key": "", "arguments": {"x": 1 << 64}}
    _is_error(api.post("/api/bindings/%2F/e/amq.headers/q/bound", json=body), 400)


def test_lone_surrogate_does_not_fail_the_store(api: httpx.Client) -> None:
    body = b'{"password_hash": "", "tags": "monitoring,\xed\xa0\x80"}'
    _is_error(api.put("/api/users/half", content=body), 400)
    assert api.put("/api/queues/%2F/after", json={"durable": True}).status_code == 201


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"durable=yes", "the body is not valid JSON: Expecting value (at 0)"),
        (b'{"a": 1,}', "the body is not valid JSON: "),
        (b"[1]", "the body must be a JSON object"),
        (b'{"durable": "perhaps"}', "durable: "),
    ],
)
def test_bad_body_is_described(api: httpx.Client, body: bytes, reason: str) -> None:
    assert api.put("/api/queues/%2F/q", content=body).json()["reason"].startswith(reason)


def test_body_is_json_whatever_its_content_type(api: httpx.Client) -> None:
    form = {"content-type": "application/x-www-form-urlencoded"}
    answer = api.put("/api/queues/%2F/curl", content=b'{"durable": false}', headers=form)
    assert answer.status_code == 201
    assert api.get("/api/queues/%2F/curl").json()["durable"] is False


def test_too_large_body_is_413(api: httpx.Client) -> None:
    _is_error(api.put("/api/queues/%2F/q", content=b" " * (LARGEST_BODY + 1)), 413)


def test_too_large_body_without_declared_length_is_413(api: httpx.Client) -> None:
    pieces = (b" " * 65536 for _ in range(LARGEST_BODY // 65536 + 1))
    _is_error(api.put("/api/queues/%2F/q", content=pieces), 413)


def test_definitions_may_be_larger(api: httpx.Client) -> None:
    body = b'{"vhosts": []' + b" " * (2 * LARGEST_BODY) + b"}"
    assert api.post("/api/definitions", content=body).status_code == 204
    _is_error(api.post("/api/definitions", content=b" " * (LARGEST_IMPORT + 1)), 413)


def test_broker_errors_keep_their_text(api: httpx.Client) -> None:
    assert api.put("/api/queues/%2F/again", json={"durable": True}).status_code == 201
    assert api.put("/api/queues/%2F/again", json={"durable": True}).status_code == 204
    answer = api.put("/api/queues/%2F/again", json={"durable": False})
    _is_error(answer, 400)
    assert "inequivalent arg 'durable' for queue 'again'" in answer.json()["reason"]
    reserved = api.put("/api/queues/%2F/amq.mine", json={})
    _is_error(reserved, 403)


def test_internal_error_is_500_with_the_same_json(
    broker: Served, api: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("planted")

    whole = broker.hub.metrics.totals_of
    broker.hub.metrics.totals_of = fail  # type: ignore[assignment,method-assign]
    try:
        with caplog.at_level(logging.ERROR, "leveret.http"):
            _is_error(api.get("/api/overview"), 500)
    finally:
        broker.hub.metrics.totals_of = whole  # type: ignore[method-assign]
    assert "planted" in caplog.text
    assert "planted" not in api.get("/api/overview").text


def test_head_is_get_without_body(api: httpx.Client) -> None:
    answer = api.head("/api/queues")
    assert (answer.status_code, answer.content) == (200, b"")
    assert int(answer.headers["content-length"]) == len(api.get("/api/queues").content)
