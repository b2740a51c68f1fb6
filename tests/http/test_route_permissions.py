"""R-42: every route, without credentials and as each role, in own and other vhosts."""

from __future__ import annotations

import contextlib
import inspect
import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from leveret.broker import Broker
from leveret.broker.access.users import hash_password
from leveret.exchange import ExchangeSpec
from leveret.model.definitions import PermissionDefinition
from leveret.queues.spec import QueueSpec
from tests.http.conftest import Served, serve
from tests.http.route_permissions import RULES, Needs, Rule

ROLES = ("management", "policymaker", "monitoring", "administrator")
OWN, OTHER = "own", "other"
UNAVAILABLE = {
    # There is no listener on port 1, and a broker in memory has no history.
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
def broker() -> Iterator[Served]:
    """Without limits on logins: many tests send a wrong password, in any order."""
    with serve(login_tries_per_source=0, login_tries_per_user=0) as threaded:
        yield Served(threaded)


@pytest.fixture(scope="module")
def clients(broker: Served) -> Iterator[dict[str, httpx.Client]]:
    """A client for every role. Requests to stop the broker are ignored."""
    broker.app.state.context.request_stop = lambda: None
    broker.on_loop(_prepare)
    with contextlib.ExitStack() as stack:
        made = {role: stack.enter_context(broker.client(role)) for role in (*ROLES, "plain")}
        made["nobody"] = stack.enter_context(broker.client(None))
        made["liar"] = stack.enter_context(broker.client("liar", "wrong"))
        for role in (*ROLES, "plain"):
            assert made[role].get("/api/whoami").status_code == (403 if role == "plain" else 200)
        yield made


def _prepare(hub: Broker) -> None:
    """Create the users and objects that every case expects."""
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
    hub.scheduler.schedule()


def _all_routes(broker: Served) -> set[str]:
    return {
        f"{method} {re.sub(r':[a-z]+}', '}', route.path)}"
        for route in broker.app.routes
        if isinstance(route, APIRoute)
        for method in route.methods or ()
    }


def test_table_has_exactly_the_routes_of_the_application(broker: Served) -> None:
    assert _all_routes(broker) == set(RULES)


def test_all_routes_are_api_routes(broker: Served) -> None:
    assert all(isinstance(route, APIRoute) for route in broker.app.routes)


def test_endpoints_and_dependencies_are_coroutines(broker: Served) -> None:
    """FastAPI would call plain functions on a worker thread, beside the broker's own thread."""

    def calls_of(dependant: Dependant) -> Iterator[Any]:
        yield dependant.call
        for inner in dependant.dependencies:
            yield from calls_of(inner)

    calls = [call for route in broker.app.routes for call in calls_of(route.dependant)]
    assert calls and all(inspect.iscoroutinefunction(call) for call in calls)


def test_few_routes_need_no_authentication() -> None:
    assert sum(rule.needs is Needs.NOTHING for rule in RULES.values()) <= 4


def _filled_in(template: str, vhost: str) -> str:
    values = VALUES | {"vhost": vhost}
    return re.sub(r"{(\w+)}", lambda match: quote(values[match[1]], ""), template)


def _ask(client: httpx.Client, line: str, rule: Rule, vhost: str) -> int:
    method, template = line.split(" ", 1)
    path = _filled_in(template, vhost)
    body = None if rule.body is None else json.dumps(rule.body)
    client.cookies.clear()
    # Streamed, because one response never ends.
    with client.stream(method, path, params=rule.query, content=body) as answer:
        return answer.status_code


@pytest.mark.parametrize("line", RULES)
def test_routes_need_a_login(clients: dict[str, httpx.Client], line: str) -> None:
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
def test_other_methods_do_not_reach_a_route(clients: dict[str, httpx.Client], path: str) -> None:
    """HEAD needs the same as GET; methods that are not in the table are refused."""
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
def test_405_lists_the_allowed_methods(clients: dict[str, httpx.Client], path: str) -> None:
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
    """Reading messages needs the read permission; a tag is not enough."""
    if line.endswith(("/browse", "/records", "/groups", "/scheduled")):
        return False
    return line.startswith(("GET", "POST /api/route/"))


def _may_from_outside(role: str, line: str, rule: Rule) -> bool:
    """Without permissions in the vhost, a tag allows these routes, and viewing."""
    if role not in rule.needs.value or role not in ("monitoring", "administrator"):
        return False
    return _only_looks(line) or rule.needs is not Needs.A_TAG


ABOUT_A_VHOST = [line for line, rule in RULES.items() if rule.in_vhost or "{vhost}" in line]


@pytest.mark.parametrize("line", ABOUT_A_VHOST)
def test_roles_in_other_vhost(broker: Served, clients: dict[str, httpx.Client], line: str) -> None:
    """Monitoring users and administrators may view; administrators can grant permissions.

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
