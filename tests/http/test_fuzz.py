"""R-43: requests made up from the API's own description, by every role.

Nothing they contain may break the broker, no answer may differ from its description, and a client
of AMQP beside them must not notice. Here a few requests for each operation; `make torture` makes a
thousand, and follows the ids in answers to the next request, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pika
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test
from schemathesis import Case
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from http_admin.openapi import describe
from leveret.broker import Broker
from leveret.broker.users import hash_password
from leveret.model.store import PermissionDefinition
from tests.http.conftest import Served, serve
from tests.http.rights import RULES
from tests.torture.suites import size_or

EXAMPLES = size_or(6)
WALKS = max(1, EXAMPLES // 20)
# Ends the broker, empties it, or never ends itself.
LEFT_OUT = ("/api/shutdown", "/api/reset", "/api/stream")
# A walk knows the names of what is there: it would lock itself out, or the canary.
NOT_WALKED = r"^/api/(users|permissions|vhosts|connections/|definitions)"
ROLES = ("guest", "guest", "guest", "policymaker", "monitoring", "management", "plain")
"""Half of the requests are an administrator's: the others get less far."""
REFUSALS = (405, 501, 503)
"""405: a walk fills in the default exchange's name, which is empty, and is at another path."""
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
    # Made up log-ins would use up what tries there are here, and shut everybody out.
    unlimited = {"login_tries_per_source": 0, "login_tries_per_user": 0}
    with serve(data_dir=folder, **unlimited) as threaded:
        served = Served(threaded)
        served.on_loop(_add_users)
        yield served


def _add_users(hub: Broker) -> None:
    for role in set(ROLES) - {"guest"}:
        tags = () if role == "plain" else (role,)
        hub.users.put_user(role, hash_password(role), tags)
        hub.users.set_permission(PermissionDefinition(role, "/", ".*", ".*", ".*"))


@pytest.fixture(scope="module", autouse=True)
def canary(fuzzed: Served) -> Iterator[Any]:
    """A client of AMQP that is there all the time."""
    connection = pika.BlockingConnection(pika.URLParameters(f"{fuzzed.amqp_url}?heartbeat=0"))
    yield connection.channel()
    connection.close()


@pytest.fixture(scope="module")
def described(fuzzed: Served) -> schemathesis.BaseSchema:
    schema = schemathesis.openapi.from_dict(describe(fuzzed.app))
    schema.config.update(base_url=fuzzed.url)
    return schema


def _lines() -> list[str]:
    unlisted = ("/{path}", "/api/openapi.json", "/api/docs", "/api/index.html")
    return [line for line in RULES if line.split()[1] not in (*LEFT_OUT, *unlisted)]


def _check(case: Case[Any], answer: Any) -> None:
    assert answer.status_code < 500 or answer.status_code in (501, 503), answer.text
    if answer.status_code >= 400:
        assert answer.json().keys() >= {"reason"}, answer.text
    if answer.status_code in REFUSALS:
        return
    checks = [content_type_conformance, status_code_conformance]
    if not (case.query or {}).get("columns"):  # a row cut to some columns lacks the others
        checks.append(response_schema_conformance)
    case.validate_response(answer, checks=checks)


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("line", _lines())
def test_no_request_makes_the_broker_fail(described: schemathesis.BaseSchema, line: str) -> None:
    method, path = line.split()

    with requests.Session() as session:

        @given(case=described[path][method].as_strategy(), role=st.sampled_from(ROLES))
        @settings(max_examples=EXAMPLES, **SETTINGS)
        def ask(case: Case[Any], role: str) -> None:
            _check(case, case.call(auth=(role, role), timeout=60, session=session))

        ask()


@pytest.mark.timeout(7200)
@pytest.mark.torture
def test_no_walk_makes_the_broker_fail(described: schemathesis.BaseSchema) -> None:
    """What one answer named is used by the next request."""
    chosen = described.exclude(path=list(LEFT_OUT)).exclude(path_regex=NOT_WALKED)

    class Walk(chosen.as_state_machine(), RuleBasedStateMachine):  # type: ignore[misc]
        def get_call_kwargs(self, case: Case[Any]) -> dict[str, Any]:
            return {"auth": ("guest", "guest"), "timeout": 60}

        def validate_response(self, response: Any, case: Case[Any], **_: Any) -> None:
            _check(case, response)

    run_state_machine_as_test(
        Walk, settings=settings(max_examples=WALKS, stateful_step_count=20, **SETTINGS)
    )


def test_broker_is_well_afterwards(fuzzed: Served, canary: Any) -> None:
    with fuzzed.client() as client:
        for path in ("overview", "queues", "exchanges", "bindings", "users", "policies", "vhosts"):
            assert client.get(f"/api/{path}").status_code == 200, path
        assert client.put("/api/queues/%2F/after", json={}).status_code in (201, 204)
        assert client.get("/api/health/checks/is-in-service").status_code == 200
    canary.queue_declare("beside", exclusive=True)
    canary.basic_publish("", "beside", b"alive")
    assert canary.basic_get("beside", auto_ack=True)[2] == b"alive"
