"""R-43: requests generated from the OpenAPI document, as users of all roles.

No request may break the broker, all responses must match the document, requests that violate the
document are refused, and an AMQP client works on all the while. These tests send a few requests per
operation; `make torture` sends a thousand, uses ids from responses in the next request as every
role, and measures what the AMQP client notices (tests/torture/security/expensive_bodies.py).

These checks of schemathesis are not used:

- `unsupported_method` and `missing_required_header` belong to a phase that is not run here. Other
  methods are tested in test_route_permissions.py; no operation needs a header.
- `ignored_auth` repeats every request twice for authenticated users, so it runs only without
  credentials. test_route_permissions.py sends a wrong password to every route.
- `positive_data_acceptance`: which values are valid depends on the broker's state (a page beyond
  the end, a deleted user), which no document describes.
- `negative_data_rejection`: like RabbitMQ, some wrong spellings are accepted; a test here lists
  them.

`use_after_free` and `ensure_resource_availability` apply to walks, which seldom delete what they
created; a test for each kind of object covers them here.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import jsonschema_rs
import pika
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test
from schemathesis import Case
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    ensure_resource_availability,
    ignored_auth,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    use_after_free,
)

from leveret.broker import Broker
from leveret.broker.access.users import hash_password
from leveret.http_admin.openapi import OPEN_PATHS, describe
from leveret.model.definitions import PermissionDefinition
from tests.http.conftest import Served, serve
from tests.http.route_permissions import RULES
from tests.torture.suites import size_or

EXAMPLES = size_or(6)
WRONG_EXAMPLES = max(2, EXAMPLES // 3)
WALKS = max(1, EXAMPLES // 20)
# Operations that stop the broker, empty it, block its publishers, or never end.
LEFT_OUT = ("/api/shutdown", "/api/reset", "/api/memory-high-watermark", "/api/stream")
NOTHING_TO_GET_WRONG = "GET /metrics"
# Sequences know the names of existing objects: these would lock out the test or the canary.
NOT_WALKED = r"^/api/(users|permissions|vhosts|connections/|definitions)"
TAGS = ("policymaker", "monitoring", "management")
ROLES = ("guest", "guest", "guest", *TAGS, "plain")
"""Half of the requests are sent as administrator: other roles reach less code."""
NOBODY = "nobody"
EMPTY_NAME = 405
"""Sequences use the name of the default exchange, which is empty: that is another path."""
UNWELL = {"/api/health/checks/": 503}
"""Requests for which a status of 500 or more is the documented response."""
PATIENCE = 60.0
CANARY_PAUSE = 0.02
SETTINGS: dict[str, Any] = {
    "phases": [Phase.explicit, Phase.generate],
    "suppress_health_check": list(HealthCheck),
    "deadline": None,
    "derandomize": True,
    "database": None,
}


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("data")
    # Generated logins would use up the allowed attempts and lock out all users.
    unlimited = {"login_tries_per_source": 0, "login_tries_per_user": 0}
    with serve(data_dir=folder, **unlimited) as threaded:
        served = Served(threaded)
        served.on_loop(_add_users)
        yield served


def _add_users(hub: Broker) -> None:
    for role in (*TAGS, "plain"):
        tags = () if role == "plain" else (role,)
        hub.users.put_user(role, hash_password(role), tags)
        hub.users.set_permission(PermissionDefinition(role, "/", ".*", ".*", ".*"))


class Canary(threading.Thread):
    """An AMQP client that sends messages to itself all the time."""

    def __init__(self, url: str) -> None:
        super().__init__(name="canary")
        self._url = url
        self._is_ending = False
        self._wanted = threading.Event()
        self._told = threading.Condition()
        self._begun = self._trips = 0
        self._failure = ""

    def run(self) -> None:
        try:
            with pika.BlockingConnection(pika.URLParameters(self._url)) as connection:
                channel = connection.channel()
                channel.queue_declare("beside", exclusive=True)
                while not self._is_ending:
                    self._fly(channel)
                    self._wanted.wait(CANARY_PAUSE)
        except (pika.exceptions.AMQPError, AssertionError, OSError) as error:
            self._failure = repr(error)
            self._tell()

    def _fly(self, channel: Any) -> None:
        self._wanted.clear()
        self._begun += 1
        body = f"trip {self._begun}".encode()
        channel.basic_publish("", "beside", body)
        got = channel.basic_get("beside", auto_ack=True)[2]
        assert got == body, f"{got!r} came back for {body!r}"
        self._trips += 1
        self._tell()

    def _tell(self) -> None:
        with self._told:
            self._told.notify_all()

    def wait_for_more(self) -> None:
        """Wait until a new message has made the round trip; raise if the client has failed."""
        with self._told:
            enough = self._begun + 1
            self._wanted.set()
            self._told.wait_for(lambda: self._failure or self._trips >= enough, PATIENCE)
            assert not self._failure, self._failure
            assert self._trips >= enough, "the canary is stuck"

    def end(self) -> None:
        self._is_ending = True
        self._wanted.set()
        self.join()


@pytest.fixture(scope="module")
def flying(fuzzed: Served) -> Iterator[Canary]:
    one = Canary(f"{fuzzed.amqp_url}?heartbeat=0")
    one.start()
    yield one
    one.end()


@pytest.fixture(autouse=True)
def canary(flying: Canary) -> Iterator[None]:
    """The canary works before and after each test."""
    yield
    flying.wait_for_more()


@pytest.fixture(scope="module")
def described(fuzzed: Served) -> schemathesis.BaseSchema:
    schema = schemathesis.openapi.from_dict(describe(fuzzed.app))
    schema.config.update(base_url=fuzzed.url)
    return schema


def _lines() -> list[str]:
    unlisted = ("/{path}", "/api/openapi.json", "/api/docs", "/api/index.html")
    return [line for line in RULES if line.split()[1] not in (*LEFT_OUT, *unlisted)]


def _login(role: str) -> tuple[str, str] | None:
    return None if role == NOBODY else (role, role)


def _check(case: Case[Any], answer: Any, role: str, recorder: Any = None) -> None:
    if answer.status_code >= 500:
        allowed = [code for path, code in UNWELL.items() if case.operation.path.startswith(path)]
        assert answer.status_code in allowed, answer.text
    if answer.status_code >= 400:
        assert answer.json().keys() >= {"reason"}, answer.text
    elif role in (NOBODY, "plain"):
        assert case.operation.path in OPEN_PATHS, answer.text
    if answer.status_code == EMPTY_NAME:
        return
    checks = [content_type_conformance, status_code_conformance, response_headers_conformance]
    if recorder is not None:  # only a walk knows what went before
        checks += [use_after_free, ensure_resource_availability]
    if not (case.query or {}).get("columns"):  # a row cut to some columns lacks the others
        checks.append(response_schema_conformance)
    if role == NOBODY:
        checks.append(ignored_auth)
    case.validate_response(answer, checks=checks, recorder=recorder)


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("line", _lines())
def test_no_request_fails(described: schemathesis.BaseSchema, line: str) -> None:
    method, path = line.split()

    with requests.Session() as session:

        @given(case=described[path][method].as_strategy(), role=st.sampled_from(ROLES))
        @settings(max_examples=EXAMPLES, **SETTINGS)
        def ask(case: Case[Any], role: str) -> None:
            _check(case, case.call(auth=_login(role), timeout=60, session=session), role)

        ask()


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("line", _lines())
def test_routes_refuse_missing_credentials(described: schemathesis.BaseSchema, line: str) -> None:
    method, path = line.split()

    with requests.Session() as session:

        @given(case=described[path][method].as_strategy())
        @settings(max_examples=WRONG_EXAMPLES, **SETTINGS)
        def ask(case: Case[Any]) -> None:
            _check(case, case.call(timeout=60, session=session), NOBODY)

        ask()


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("line", [line for line in _lines() if line != NOTHING_TO_GET_WRONG])
def test_requests_that_violate_the_document_are_refused(
    described: schemathesis.BaseSchema, line: str
) -> None:
    method, path = line.split()
    operation = described[path][method]
    wrong = operation.as_strategy(generation_mode=GenerationMode.NEGATIVE)

    with requests.Session() as session:

        @given(case=wrong, role=st.sampled_from(ROLES))
        @settings(max_examples=WRONG_EXAMPLES, **SETTINGS)
        def ask(case: Case[Any], role: str) -> None:
            is_body_wrong = _is_wrong_in(case, "BODY")
            if is_body_wrong and "vhost" in case.path_parameters:
                case.path_parameters["vhost"] = "%2F"  # a name made up would be refused for itself
            answer = case.call(auth=_login(role), timeout=60, session=session)
            _check(case, answer, role)
            if answer.status_code < 400 and is_body_wrong:
                assert _is_spelled_otherwise(case, described.raw_schema), case.body

        ask()


def _is_wrong_in(case: Case[Any], part: str) -> bool:
    assert case.meta is not None
    modes = {where.name: what.mode for where, what in case.meta.components.items()}
    return modes.get(part) is GenerationMode.NEGATIVE


def _is_spelled_otherwise(case: Case[Any], document: dict[str, Any]) -> bool:
    """RabbitMQ tools write `"5"` for 5, 0 for false and [] for {}: these are accepted."""
    operation = document["paths"][case.operation.path][case.operation.method.lower()]
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    whole = _without_required({**schema, "components": document["components"]})
    return jsonschema_rs.is_valid(whole, _without_spelling(case.body))


def _without_required(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_required(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: _without_required(one) for key, one in schema.items() if key != "required"}


def _without_spelling(value: Any) -> Any:
    """Without empty values; a missing required value was refused already."""
    if isinstance(value, dict):
        return {key: _without_spelling(one) for key, one in value.items() if _holds(one)}
    if isinstance(value, list):
        return [_without_spelling(one) for one in value if _holds(one)]
    return value


def _holds(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and bool(value))


@pytest.mark.timeout(7200)
@pytest.mark.torture
@pytest.mark.parametrize("role", dict.fromkeys((*ROLES, NOBODY)))
def test_no_sequence_of_requests_fails(described: schemathesis.BaseSchema, role: str) -> None:
    """Names from a response are used in the next request."""
    chosen = described.exclude(path=list(LEFT_OUT)).exclude(path_regex=NOT_WALKED)

    class Walk(chosen.as_state_machine(), RuleBasedStateMachine):  # type: ignore[misc]
        def get_call_kwargs(self, case: Case[Any]) -> dict[str, Any]:
            return {"auth": _login(role), "timeout": 60}

        def validate_response(self, response: Any, case: Case[Any], **_: Any) -> None:
            _check(case, response, role, self.recorder)

    run_state_machine_as_test(
        Walk, settings=settings(max_examples=WALKS, stateful_step_count=20, **SETTINGS)
    )


def _objects() -> list[str]:
    paths = dict.fromkeys(line.split()[1] for line in RULES)
    return [path for path in paths if all(f"{m} {path}" in RULES for m in ("GET", "PUT", "DELETE"))]


@pytest.mark.parametrize("path", _objects())
def test_created_object_exists_until_it_is_deleted(fuzzed: Served, path: str) -> None:
    values = {} if path == "/api/vhosts/{vhost}" else {"vhost": "/"}
    real = re.sub(r"{(\w+)}", lambda match: quote(values.get(match[1], "made"), ""), path)
    with fuzzed.client() as client:
        if path.endswith("permissions/{vhost}/{user}"):
            client.put("/api/users/made", json=RULES["PUT /api/users/{name}"].body)
        assert client.get(real).status_code == 404
        assert client.put(real, json=RULES[f"PUT {path}"].body).status_code == 201
        assert client.get(real).status_code == 200
        assert client.delete(real).status_code == 204
        assert client.get(real).status_code == 404
        assert client.delete(real).status_code == 404
        client.delete("/api/users/made")


def test_broker_is_healthy_afterwards(fuzzed: Served) -> None:
    with fuzzed.client() as client:
        for path in ("overview", "queues", "exchanges", "bindings", "users", "policies", "vhosts"):
            assert client.get(f"/api/{path}").status_code == 200, path
        assert client.put("/api/queues/%2F/after", json={}).status_code in (201, 204)
        assert client.get("/api/health/checks/is-in-service").status_code == 200
