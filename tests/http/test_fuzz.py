"""Requests made up from the API's own description: nothing they contain may break the broker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import Case

from http_admin.openapi import describe
from tests.http.conftest import Served, serve
from tests.http.rights import RULES

EXAMPLES = 4
# Ends the broker, empties it, or never ends itself.
LEFT_OUT = ("/api/shutdown", "/api/reset", "/api/stream")


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve(data_dir=tmp_path_factory.mktemp("data")) as threaded:
        yield Served(threaded)


@pytest.fixture(scope="module")
def described(fuzzed: Served) -> schemathesis.BaseSchema:
    schema = schemathesis.openapi.from_dict(describe(fuzzed.app))
    schema.config.update(base_url=fuzzed.url)
    return schema


def _lines() -> list[str]:
    unlisted = ("/{path}", "/api/openapi.json", "/api/docs", "/api/index.html")
    return [line for line in RULES if line.split()[1] not in (*LEFT_OUT, *unlisted)]


@pytest.mark.parametrize("line", _lines())
def test_no_request_makes_the_broker_fail(
    fuzzed: Served, described: schemathesis.BaseSchema, line: str
) -> None:
    method, path = line.split()

    @given(case=described[path][method].as_strategy())
    @settings(
        max_examples=EXAMPLES,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
        deadline=None,
        derandomize=True,
        database=None,
    )
    def ask(case: Case[Any]) -> None:
        answer = case.call(auth=("guest", "guest"), timeout=60)
        assert answer.status_code < 500 or answer.status_code in (501, 503), answer.text
        if answer.status_code >= 400:
            assert answer.json().keys() >= {"reason"}, answer.text

    ask()


def test_broker_is_well_afterwards(fuzzed: Served) -> None:
    with fuzzed.client() as client:
        for path in ("overview", "queues", "exchanges", "bindings", "users", "policies", "vhosts"):
            assert client.get(f"/api/{path}").status_code == 200, path
        assert client.put("/api/queues/%2F/after", json={}).status_code in (201, 204)
        assert client.get("/api/health/checks/is-in-service").status_code == 200
