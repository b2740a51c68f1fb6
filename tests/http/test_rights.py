"""R-42: every route, as nobody and as each role, in one's own vhost and in another's."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from urllib.parse import quote

import httpx
import pytest
from fastapi.routing import APIRoute

from exchange import ExchangeSpec
from leveret.broker import Broker
from leveret.broker.users import hash_password
from leveret.model.store import PermissionDefinition
from queues import QueueSpec
from tests.http.conftest import Served
from tests.http.rights import RULES, Needs, Rule

ROLES = ("management", "policymaker", "monitoring", "administrator")
OWN, OTHER = "own", "other"
UNAVAILABLE = {
    # Nobody listens on port 1, and a broker in memory has no history to hand out.
    ("GET /api/health/checks/port-listener/{port}", 503),
    ("GET /api/history/ranges", 501),
    ("GET /api/history/export", 501),
}
VALUES = {
    "message_id": "1",
    "name": "thing", "user": "somebody", "user_name": "somebody",
    "source": "amq.topic", "kind": "q",
    "destination": "thing", "properties_key": "k", "exchange": "amq.topic",
    "component": "some", "limit": "max-queues", "password": "secret", "node": "leveret@x",
    "within": "1", "unit": "days", "port": "1", "protocol": "amqp", "group": "g", "member": "m",
    "path": "",
}  # fmt: skip


@pytest.fixture(scope="module")
def clients(broker: Served) -> Iterator[dict[str, httpx.Client]]:
    """A client for every role, of a broker that nobody can stop."""
    broker.app.state.surroundings.request_stop = lambda: None
    broker.on_loop(_prepare)
    with contextlib.ExitStack() as stack:
        made = {role: stack.enter_context(broker.client(role)) for role in (*ROLES, "plain")}
        made["nobody"] = stack.enter_context(broker.client(None))
        made["liar"] = stack.enter_context(broker.client("liar", "wrong"))
        # Before the liar uses up what tries strangers have here, and all of its own.
        for role in (*ROLES, "plain"):
            assert made[role].get("/api/whoami").status_code == (403 if role == "plain" else 200)
        yield made


def _prepare(hub: Broker) -> None:
    """Users and objects as every case expects them."""
    for vhost in (OWN, OTHER):
        if vhost not in hub.vhosts:
            hub.add_vhost(vhost)
        held = hub.vhosts[vhost]
        if "thing" not in held.queues:
            held.declare_queue(QueueSpec("thing", True, False, False, {}))
        if "thing" not in held.exchanges:
            held.declare_exchange(ExchangeSpec("thing", "topic"))
    for role in (*ROLES, "plain"):
        tags = () if role == "plain" else (role,)
        if role not in hub.users.by_name:
            hub.users.put_user(role, hash_password(role), tags)
        hub.users.set_permission(PermissionDefinition(role, OWN, ".*", ".*", ".*"))
    hub.users.put_user("somebody", hash_password("somebody"), ())
    if "liar" not in hub.users.by_name:
        hub.users.put_user("liar", hash_password("liar"), ("administrator",))
    hub.turn.schedule()


def _all_routes(broker: Served) -> set[str]:
    return {
        f"{method} {re.sub(r':[a-z]+}', '}', route.path)}"
        for route in broker.app.routes
        if isinstance(route, APIRoute)
        for method in route.methods or ()
    }


def test_table_names_every_route_and_no_other(broker: Served) -> None:
    assert _all_routes(broker) == set(RULES)


def test_every_route_is_one_of_ours(broker: Served) -> None:
    assert all(isinstance(route, APIRoute) for route in broker.app.routes)


def test_few_routes_are_open_to_everybody() -> None:
    assert sum(rule.needs is Needs.NOTHING for rule in RULES.values()) <= 4


def _filled_in(template: str, vhost: str) -> str:
    values = VALUES | {"vhost": vhost}
    return re.sub(r"{(\w+)}", lambda match: quote(values[match[1]], ""), template)


def _ask(client: httpx.Client, line: str, rule: Rule, vhost: str) -> int:
    method, template = line.split(" ", 1)
    path = _filled_in(template, vhost)
    body = None if rule.body is None else json.dumps(rule.body)
    client.cookies.clear()
    # Streamed, because one of them never ends.
    with client.stream(method, path, params=rule.query, content=body) as answer:
        return answer.status_code


@pytest.mark.parametrize("line", RULES)
def test_nobody_gets_in_without_login(clients: dict[str, httpx.Client], line: str) -> None:
    rule = RULES[line]
    for vhost in (OWN, OTHER):
        status = _ask(clients["nobody"], line, rule, vhost)
        assert (status == 401) is (rule.needs is not Needs.NOTHING), status
        assert status < 500
        if rule.needs is not Needs.NOTHING:
            assert _ask(clients["plain"], line, rule, vhost) == 403
            assert _ask(clients["liar"], line, rule, vhost) in (401, 429)


METHODS = ("GET", "HEAD", "OPTIONS", "PUT", "POST", "PATCH", "DELETE", "TRACE")


@pytest.mark.parametrize("path", sorted({line.split()[1] for line in RULES}))
def test_no_other_method_opens_a_route(clients: dict[str, httpx.Client], path: str) -> None:
    """HEAD is GET, and so needs the same; what is not in the table is answered to nobody."""
    listed = {line.split()[0] for line in RULES if line.split()[1] == path}
    for method in METHODS:
        if method in listed:
            continue
        rule = RULES.get(f"GET {path}", Rule(Needs.A_TAG))
        status = _ask(clients["nobody"], f"{method} {path}", rule, OWN)
        if method == "HEAD" and rule.needs is Needs.NOTHING:
            assert status == 200
        else:
            assert status in (401, 404, 405), (method, status)


NAMES_OF_USERS_TOO = ("/api/users/bulk-delete", "/api/users/without-permissions")


@pytest.mark.parametrize(
    "path", sorted({line.split()[1] for line in RULES}.difference(NAMES_OF_USERS_TOO))
)
def test_other_methods_are_told_which_there_are(
    clients: dict[str, httpx.Client], path: str
) -> None:
    listed = {line.split()[0] for line in RULES if line.split()[1] == path}
    for method in set(METHODS) - listed - ({"HEAD"} if "GET" in listed else set()):
        answer = clients["administrator"].request(method, _filled_in(path, OWN))
        assert answer.status_code == 405, (method, answer.text)
        assert set(answer.headers["allow"].split(", ")) == listed


@pytest.mark.parametrize("line", RULES)
def test_roles_in_own_vhost(broker: Served, clients: dict[str, httpx.Client], line: str) -> None:
    rule = RULES[line]
    for role in ROLES:
        status = _ask(clients[role], line, rule, OWN)
        if not line.startswith("GET"):
            broker.on_loop(_prepare)
        allowed = rule.needs is Needs.NOTHING or role in rule.needs.value
        assert (status != 403) is allowed, (role, status)
        assert status not in (401, 429), (role, status)
        assert status < 500 or (line, status) in UNAVAILABLE


def _only_looks(line: str) -> bool:
    """Reading messages is more than looking: it takes the right to read."""
    if line.endswith(("/browse", "/records", "/groups", "/scheduled")):
        return False
    return line.startswith(("GET", "POST /api/route/"))


def _may_from_outside(role: str, line: str, rule: Rule) -> bool:
    """Without permissions in the vhost: what a tag alone is enough for, and to look."""
    if role not in rule.needs.value or role not in ("monitoring", "administrator"):
        return False
    return _only_looks(line) or rule.needs is not Needs.A_TAG


ABOUT_A_VHOST = [line for line, rule in RULES.items() if rule.in_vhost or "{vhost}" in line]


@pytest.mark.parametrize("line", ABOUT_A_VHOST)
def test_roles_in_other_vhost(broker: Served, clients: dict[str, httpx.Client], line: str) -> None:
    """Monitoring users and administrators may look, and administrators give themselves rights.

    To declare, publish and read takes permissions there, of administrators, too.
    """
    rule = RULES[line]
    for role in ROLES:
        status = _ask(clients[role], line, rule, OTHER)
        if not line.startswith("GET"):
            broker.on_loop(_prepare)
        if _may_from_outside(role, line, rule):
            assert status < 500 and status not in (401, 403, 429), (role, status)
        else:
            assert status in (403, 404), (role, status)
