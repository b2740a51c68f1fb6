"""Patterns from outside are small enough to be quick; what an older version stored stays in force.

How long they take is judged by R-35 (`make torture`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import re2

from leveret.broker import Broker, governing
from leveret.broker.access import patterns
from leveret.broker.access.patterns import MOST_OCTETS, asked, check_pattern, expand, pattern
from leveret.broker.policies import Policy
from leveret.broker.users import Right
from leveret.launch import RunningBroker, in_process_settings
from leveret.model.errors import PreconditionFailed
from leveret.model.store import PermissionDefinition, TopicPermissionDefinition
from queues import QueueSpec
from tests.http.conftest import Served, serve

LARGE = r"(\pL\pN?){300}$"
TOO_LARGE = [
    LARGE, r"(\pL\pN?\pL?){200}$", r"(\pL?){400}$", r"(\pL?){2}", r"(.?){1000}$", "(a?b?){500}c",
    "((a?b?){30}){30}c$", "(a|b|ab){1,800}$", "a?" * 1_500, r"\pL" * 1_000, r"[\pL\pN]" * 9,
    "a" * (MOST_OCTETS + 1), "é" * 2_049, r"\\{1}(a?){1000}b", r"[\]](a?){1000}b",
    "|".join(f"[ab]{number}[^c]" for number in range(400)),
]  # fmt: skip
A_HUNDRED = [f"orders-{number}.created.v{number % 7}" for number in range(100)]
LONG = [f"{number * 7919 % 1000:03}-8f14e45f-ceea-467f-a2c8-{number:08}" for number in range(100)]
FINE = {
    ".*": "anything", "": "", "^$": "", "^amq\\.": "amq.gen-x", "^(a|b|c).*": "c1",
    r"^(amq\.gen.*|amq\.default)$": "amq.gen-JzTY", "^[^.]+\\.dlq$": "a.dlq",
    r"^\w{1,60}-(in|out)$": "orders-in", r"^[\pL\pN_.-]+$": "straße.1", "(?i)^ORDERS": "orders",
    "^.{1,64}$": "q", r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$":
    "8f14e45f-ceea-467f-a2c8-0123456789ab", r"^\p{Greek}+$": "λ", r"\Qa+b\E": "a+b",
    "|".join(A_HUNDRED): A_HUNDRED[99], f"^({'|'.join(LONG)})$": LONG[50],
    "^(" + "|".join(name.replace(".", r"\.") for name in A_HUNDRED) + ").*": A_HUNDRED[7] + "x",
}  # fmt: skip


@pytest.mark.parametrize("text", TOO_LARGE)
def test_too_large_is_refused_with_what_would_do(text: str) -> None:
    for taken in (check_pattern, asked):
        with pytest.raises(PreconditionFailed) as refused:
            taken(text)
        said = refused.value.explanation
        assert said.startswith("invalid pattern ") and patterns.TOO_LARGE in said
        assert len(said) < 1_000


@pytest.mark.parametrize(("text", "name"), FINE.items())
def test_what_people_write_is_taken(text: str, name: str) -> None:
    check_pattern(text)
    assert pattern(text).search(name) is not None


def test_long_names_in_place_of_variables_are_taken() -> None:
    check_pattern(expand("^{username}.{vhost}$", username=".-" * 127, vhost="ä|" * 85))


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serve() as threaded:
        yield Served(threaded)


RIGHTS = {"configure": "", "write": LARGE, "read": ""}
TOPIC_RIGHTS = {"exchange": "amq.topic", "write": "", "read": LARGE}
POLICY = {"pattern": LARGE, "definition": {"max-length": 1}}
NAMED = {"vhost": "/", "user": "guest", "name": "p"}
REQUESTS: list[tuple[str, str, Any]] = [
    ("PUT", "permissions/%2F/guest", RIGHTS),
    ("PUT", "topic-permissions/%2F/guest", TOPIC_RIGHTS),
    ("PUT", "policies/%2F/p", POLICY),
    ("PUT", "operator-policies/%2F/p", POLICY),
    ("POST", "definitions", {"permissions": [NAMED | RIGHTS]}),
    ("POST", "definitions", {"topic_permissions": [NAMED | TOPIC_RIGHTS]}),
    ("POST", "definitions", {"policies": [NAMED | POLICY]}),
    ("GET", f"queues?{httpx.QueryParams(use_regex='true', name=LARGE)}", None),
]


@pytest.mark.parametrize(("method", "path", "body"), REQUESTS)
def test_over_http_it_is_answered_with_400(
    served: Served, method: str, path: str, body: Any
) -> None:
    with served.client() as api:
        before = api.get("/api/definitions").json()
        answer = api.request(method, f"/api/{path}", json=body)
        assert answer.status_code == 400
        assert patterns.TOO_LARGE in answer.json()["reason"]
        assert api.get("/api/definitions").json() == before


async def test_what_an_older_version_stored_is_in_force_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings = in_process_settings(data_dir=tmp_path / "data")
    with monkeypatch.context() as older:
        older.setattr(patterns, "_bounded", re2.compile)
        async with RunningBroker(settings) as running:
            _store(running.broker)
    pattern.cache_clear()
    async with RunningBroker(settings) as running:
        hub = running.broker
        for _ in range(2):
            assert hub.users.may("guest", "/", Right.WRITE, "a" * 300)
            assert not hub.users.may("guest", "/", Right.WRITE, "a" * 299)
        assert hub.policies.effective("/", "b" * 300, "classic").policy == "p"
    said = [one for one in caplog.records if "a stored pattern" in one.getMessage()]
    assert len(said) == 1 and said[0].levelno == logging.WARNING


def _store(hub: Broker) -> None:
    hub.users.set_permission(PermissionDefinition("guest", "/", "", LARGE, ""))
    hub.users.set_topic_permission(TopicPermissionDefinition("guest", "/", "x", LARGE, ""))
    hub.policies.put(Policy("/", "p", LARGE, {"max-length": 1}))


async def test_a_policy_that_takes_long_lets_others_in_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Milliseconds for each of thousands of names."""
    applied: list[str] = []
    monkeypatch.setattr(governing, "AT_ONCE_SECONDS", -1)  # all take long
    monkeypatch.setattr(governing, "apply_policy", lambda hub, vhost, one: applied.append(one.name))
    async with RunningBroker(in_process_settings()) as running:
        hub, vhost = running.broker, running.broker.vhosts["/"]
        later: list[Any] = []
        monkeypatch.setattr(hub.turn, "later", later.append)
        vhost.declare_queue(QueueSpec("q"))
        applied.clear()
        hub.policies.put(Policy("/", "p", ".*", {"max-length": 1}))
        everything = [*vhost.exchanges, *vhost.queues]
        for count in range(1, len(everything) + 1):
            assert applied == everything[:count]
            later.pop()()
        assert applied == everything and not later
