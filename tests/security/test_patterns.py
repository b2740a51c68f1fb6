"""The size limits of patterns; patterns stored by older versions stay in effect.

R-35 (`make torture`) measures how long patterns take.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import re2

from leveret.broker import Broker
from leveret.broker.access import patterns
from leveret.broker.access.patterns import (
    MAX_PATTERN_BYTES,
    check_pattern,
    compile_pattern,
    expand,
    pattern,
)
from leveret.broker.access.users import Permission
from leveret.broker.policies import policy_effects
from leveret.broker.policies.policies import Policy
from leveret.launch import RunningBroker, in_process_settings
from leveret.model.definitions import PermissionDefinition, TopicPermissionDefinition
from leveret.model.errors import PreconditionFailed
from leveret.queues.spec import QueueSpec
from tests.http.conftest import Served, serve

LARGE = r"(\pL\pN?){300}$"
TOO_LARGE = [
    LARGE, r"(\pL\pN?\pL?){200}$", r"(\pL?){400}$", r"(\pL?){2}", r"(.?){1000}$", "(a?b?){500}c",
    "((a?b?){30}){30}c$", "(a|b|ab){1,800}$", "a?" * 1_500, r"\pL" * 1_000, r"[\pL\pN]" * 9,
    "a" * (MAX_PATTERN_BYTES + 1), "é" * 2_049, r"\\{1}(a?){1000}b", r"[\]](a?){1000}b",
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


@pytest.mark.parametrize(
    ("text", "matching", "other"),
    [
        (r"^(?!amq\.).*", ["", "orders", "xamq.", "amqp"], ["amq.gen-1", "amq."]),
        (r"^(?!amq\.)(?!tmp)[a-z]+$", ["orders"], ["amq.x", "tmp1", "tmp", "1"]),
        (r"^(?!(a|b)[)\]])c?", ["a", "b", "x"], ["a)", "b]"]),
        ("^(?!a)(x|y)", ["x", "y"], ["a", "z"]),
        ("^(?!)", [], ["", "a"]),
    ],
)
def test_pattern_may_begin_with_a_negative_lookahead(
    text: str, matching: list[str], other: list[str]
) -> None:
    """RE2 has none, but RabbitMQ's documentation recommends the first of these for policies."""
    compiled = compile_pattern(text)
    assert [name for name in matching + other if compiled.search(name)] == matching


@pytest.mark.parametrize("text", ["^(?!a)b|c", "^a(?!b)", "(?!a)", "^(?!a", "^(?=a)", "^(?!((a)))"])
def test_other_lookaheads_are_refused(text: str) -> None:
    with pytest.raises(PreconditionFailed, match="invalid pattern"):
        compile_pattern(text)


@pytest.mark.parametrize("text", [f"^(?!{LARGE}).*", f"^(?!a){LARGE}", "^(?!a)" * 1000])
def test_size_of_a_pattern_with_lookahead_is_limited(text: str) -> None:
    with pytest.raises(PreconditionFailed, match="too large"):
        compile_pattern(text)


@pytest.mark.parametrize("text", TOO_LARGE)
def test_too_large_pattern_is_refused_with_the_limits(text: str) -> None:
    for check in (check_pattern, compile_pattern):
        with pytest.raises(PreconditionFailed) as refused:
            check(text)
        said = refused.value.explanation
        assert said.startswith("invalid pattern ") and patterns.TOO_LARGE in said
        assert len(said) < 1_000


@pytest.mark.parametrize(("text", "name"), FINE.items())
def test_usual_patterns_are_accepted(text: str, name: str) -> None:
    check_pattern(text)
    assert pattern(text).search(name) is not None


def test_long_values_of_variables_are_accepted() -> None:
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
def test_too_large_pattern_over_http_is_400(
    served: Served, method: str, path: str, body: Any
) -> None:
    with served.client() as api:
        before = api.get("/api/definitions").json()
        answer = api.request(method, f"/api/{path}", json=body)
        assert answer.status_code == 400
        assert patterns.TOO_LARGE in answer.json()["reason"]
        assert api.get("/api/definitions").json() == before


async def test_pattern_stored_by_an_older_version_works_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings = in_process_settings(data_dir=tmp_path / "data")
    with monkeypatch.context() as older:
        older.setattr(patterns, "_compile_bounded", re2.compile)
        async with RunningBroker(settings) as running:
            _store(running.broker)
    pattern.cache_clear()
    async with RunningBroker(settings) as running:
        hub = running.broker
        for _ in range(2):
            assert hub.users.has_permission("guest", "/", Permission.WRITE, "a" * 300)
            assert not hub.users.has_permission("guest", "/", Permission.WRITE, "a" * 299)
        assert hub.policies.effective("/", "b" * 300, "classic").policy == "p"
    said = [one for one in caplog.records if "stored pattern" in one.getMessage()]
    assert len(said) == 1 and said[0].levelno == logging.WARNING


def _store(hub: Broker) -> None:
    hub.users.set_permission(PermissionDefinition("guest", "/", "", LARGE, ""))
    hub.users.set_topic_permission(TopicPermissionDefinition("guest", "/", "x", LARGE, ""))
    hub.policies.put(Policy("/", "p", LARGE, {"max-length": 1}))


async def test_slow_policy_is_applied_in_slices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pattern may take milliseconds for each of thousands of names."""
    applied: list[str] = []
    monkeypatch.setattr(policy_effects, "SLICE_SECONDS", -1)  # every name exceeds the time limit
    monkeypatch.setattr(
        policy_effects, "apply_policy", lambda hub, vhost, one: applied.append(one.name)
    )
    async with RunningBroker(in_process_settings()) as running:
        hub, vhost = running.broker, running.broker.vhosts["/"]
        later: list[Any] = []
        monkeypatch.setattr(hub.scheduler, "call_soon", later.append)
        vhost.declare_queue(QueueSpec("q"))
        applied.clear()
        hub.policies.put(Policy("/", "p", ".*", {"max-length": 1}))
        everything = [*vhost.exchanges, *vhost.queues]
        for count in range(1, len(everything) + 1):
            assert applied == everything[:count]
            later.pop()()
        assert applied == everything and not later
