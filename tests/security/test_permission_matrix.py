"""R-40: the table of permissions (`leveret/broker/access/permissions.py`) generates the cases.

Every action is tried over AMQP, and over HTTP where it exists, by a user with exactly the
permissions in the table; then with each of them missing, granted on a similar name only, or empty;
with all permissions that are not required; and with all permissions in another vhost. A refusal is
a 403 (over AMQP it closes the channel) and changes nothing; a permitted action changes the same
objects, with messages, scheduled messages and a group's offsets. Names contain a pattern character.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
import re2
from pamqp import body, header
from pamqp.commands import Basic, Channel, Exchange, Queue

from leveret.bindings import Destination, DestinationKind
from leveret.broker import Action, Broker, Permission
from leveret.broker.access.passwords import hash_password
from leveret.broker.access.permissions import REQUIREMENTS, Requirement
from leveret.broker.logs.service import NewRecord
from leveret.broker.messages import browse, publish
from leveret.exchange import ExchangeSpec
from leveret.model.definitions import PermissionDefinition
from leveret.model.message import Address, Message, encode_properties
from leveret.queues.classic.classic_queue import ClassicQueue
from leveret.queues.spec import QueueSpec
from tests.http.conftest import Served, serve
from tests.support.rawclient import RawClient

VHOST, ELSEWHERE, USER = "m", "elsewhere", "matrix"
Q, X, Y, NEW, DEAD = "q.1", "x.1", "y.1", "new.1", "dead.1"
LOG, SUPER, LATE, FOUND = "log.1", "super.1", "late.1", "found.1"
KEY, GROUP = "k", "g"
LATER_MS = 3_600_000
NOTHING = "^$"
Names = dict[str, str]
Patterns = dict[Permission, str]


@dataclass(frozen=True, slots=True)
class Case:
    """One operation: its actions, and how it is requested over AMQP and over HTTP."""

    actions: tuple[tuple[Action, Names], ...]
    frames: tuple[Any, ...] = ()
    http: tuple[str, str, Any] | None = None
    changes: bool = True
    """Whether the operation changes anything when it is permitted."""

    def needs(self) -> list[tuple[Requirement, str]]:
        return [
            (need, names[need.of])
            for action, names in self.actions
            for need in REQUIREMENTS[action]
        ]


def _url(*parts: str) -> str:
    return "/api/" + "/".join(quote(part, "") for part in parts)


def _publish(exchange: str) -> tuple[Any, ...]:
    properties = header.ContentHeader(0, 1, Basic.Properties())
    return Basic.Publish(exchange=exchange, routing_key=KEY), properties, body.ContentBody(b"x")


_DELAYED: Any = {"x-delayed-type": "direct"}
_STREAM: Any = {"x-queue-type": "stream"}
_PARTS: Any = {**_STREAM, "x-partitions": 2}
_MADE = tuple((Action.QUEUE_PARTITION, {"partition": f"{NEW}-{number}"}) for number in (0, 1))
_TAKEN = (
    (Action.QUEUE_DECLARE, {"queue": FOUND}),
    (Action.QUEUE_TAKE_OVER, {"partition": f"{FOUND}-0"}),
    (Action.QUEUE_PARTITION, {"partition": f"{FOUND}-1"}),
)
_LETTERS: Any = {"x-dead-letter-exchange": DEAD}
_OTHERS: Any = {"alternate-exchange": DEAD}
_BOUND = {"destination": Q, "source": X}
_JOINED = {"destination": Y, "source": X}
_MESSAGE = {"routing_key": KEY, "payload": "x", "properties": {}}

_RECORDS = {"records": [{"value": "v"}]}
_OFFSETS: Any = {"offsets": {"0": 2}}
_IN_GROUP = ("groups", GROUP)
_LATE = _url("exchanges", VHOST, LATE, "scheduled")


def _of_log(
    action: Action, method: str, *path: str, body: Any = None, log: str = LOG, changes: bool = True
) -> Case:
    request = method, _url("logs", VHOST, log, *path), body
    return Case(((action, {"log": log}),), http=request, changes=changes)


CASES = {
    "queue.declare": Case(
        ((Action.QUEUE_DECLARE, {"queue": NEW}),),
        (Queue.Declare(queue=NEW),),
        ("PUT", _url("queues", VHOST, NEW), {"durable": False}),
    ),
    "queue.declare passive": Case(
        ((Action.QUEUE_INSPECT, {"queue": Q}),),
        (Queue.Declare(queue=Q, passive=True),),
        changes=False,
    ),
    "queue.declare dead letters": Case(
        (
            (Action.QUEUE_DECLARE, {"queue": NEW}),
            (Action.QUEUE_DEAD_LETTER, {"queue": NEW, "exchange": DEAD}),
        ),
        (Queue.Declare(queue=NEW, arguments=_LETTERS),),
        ("PUT", _url("queues", VHOST, NEW), {"durable": False, "arguments": _LETTERS}),
    ),
    "queue.declare partitions": Case(
        ((Action.QUEUE_DECLARE, {"queue": NEW}), *_MADE),
        (Queue.Declare(queue=NEW, durable=True, arguments=_PARTS),),
        ("PUT", _url("queues", VHOST, NEW), {"durable": True, "arguments": _PARTS}),
    ),
    "queue.declare over a log": Case(
        _TAKEN,
        (Queue.Declare(queue=FOUND, durable=True, arguments=_PARTS),),
        ("PUT", _url("queues", VHOST, FOUND), {"durable": True, "arguments": _PARTS}),
    ),
    "queue.delete": Case(
        ((Action.QUEUE_DELETE, {"queue": Q}),),
        (Queue.Delete(queue=Q),),
        ("DELETE", _url("queues", VHOST, Q), None),
    ),
    "queue.bind": Case(
        ((Action.QUEUE_BIND, _BOUND),),
        (Queue.Bind(queue=Q, exchange=X, routing_key="more"),),
        ("POST", _url("bindings", VHOST, "e", X, "q", Q), {"routing_key": "more"}),
    ),
    "queue.unbind": Case(
        ((Action.QUEUE_UNBIND, _BOUND),),
        (Queue.Unbind(queue=Q, exchange=X, routing_key=KEY),),
        ("DELETE", _url("bindings", VHOST, "e", X, "q", Q, KEY), None),
    ),
    "queue.purge": Case(
        ((Action.QUEUE_PURGE, {"queue": Q}),),
        (Queue.Purge(queue=Q),),
        ("DELETE", _url("queues", VHOST, Q, "contents"), None),
    ),
    "exchange.declare": Case(
        ((Action.EXCHANGE_DECLARE, {"exchange": NEW}),),
        (Exchange.Declare(exchange=NEW),),
        ("PUT", _url("exchanges", VHOST, NEW), {"type": "direct", "durable": False}),
    ),
    "exchange.declare passive": Case(
        ((Action.EXCHANGE_INSPECT, {"exchange": X}),),
        (Exchange.Declare(exchange=X, passive=True),),
        changes=False,
    ),
    "exchange.declare alternate": Case(
        (
            (Action.EXCHANGE_DECLARE, {"exchange": NEW}),
            (Action.EXCHANGE_ALTERNATE, {"exchange": NEW, "alternate": DEAD}),
        ),
        (Exchange.Declare(exchange=NEW, arguments=_OTHERS),),
        ("PUT", _url("exchanges", VHOST, NEW), {"type": "direct", "arguments": _OTHERS}),
    ),
    "exchange.delete": Case(
        ((Action.EXCHANGE_DELETE, {"exchange": X}),),
        (Exchange.Delete(exchange=X),),
        ("DELETE", _url("exchanges", VHOST, X), None),
    ),
    "exchange.bind": Case(
        ((Action.EXCHANGE_BIND, _JOINED),),
        (Exchange.Bind(destination=Y, source=X, routing_key="more"),),
        ("POST", _url("bindings", VHOST, "e", X, "e", Y), {"routing_key": "more"}),
    ),
    "exchange.unbind": Case(
        ((Action.EXCHANGE_UNBIND, _JOINED),),
        (Exchange.Unbind(destination=Y, source=X, routing_key=KEY),),
        ("DELETE", _url("bindings", VHOST, "e", X, "e", Y, KEY), None),
    ),
    "basic.publish": Case(
        ((Action.PUBLISH, {"exchange": X}),),
        _publish(X),
        ("POST", _url("exchanges", VHOST, X, "publish"), _MESSAGE),
    ),
    "basic.publish default": Case(
        ((Action.PUBLISH, {"exchange": "amq.default"}),),
        _publish(""),
        ("POST", _url("exchanges", VHOST, "amq.default", "publish"), _MESSAGE),
    ),
    "basic.consume": Case(((Action.CONSUME, {"queue": Q}),), (Basic.Consume(queue=Q),)),
    "basic.get": Case(
        ((Action.GET, {"queue": Q}),),
        (Basic.Get(queue=Q),),
        ("POST", _url("queues", VHOST, Q, "get"), {"count": 1, "ackmode": "ack_requeue_false"}),
    ),
    "log declare": _of_log(Action.LOG_DECLARE, "PUT", body={"partitions": 1}, log=NEW),
    "log declare partitions": Case(
        ((Action.LOG_DECLARE, {"log": NEW}), *_MADE),
        http=("PUT", _url("logs", VHOST, NEW), {"partitions": 2}),
    ),
    "log declare over a log": Case(
        ((Action.LOG_DECLARE, {"log": FOUND}), *_TAKEN[1:]),
        http=("PUT", _url("logs", VHOST, FOUND), {"partitions": 2}),
    ),
    "super stream declare over a log": Case(
        ((Action.LOG_DECLARE, {"log": FOUND}), *_TAKEN[1:]),
        http=("PUT", _url("stream", "super-streams", VHOST, FOUND), {"partitions": 2}),
    ),
    "super stream declare": Case(
        ((Action.LOG_DECLARE, {"log": NEW}), *_MADE),
        http=("PUT", _url("stream", "super-streams", VHOST, NEW), {"partitions": 2}),
    ),
    "log delete": _of_log(Action.LOG_DELETE, "DELETE"),
    "super stream delete": Case(
        ((Action.LOG_DELETE, {"log": SUPER}),),
        http=("DELETE", _url("stream", "super-streams", VHOST, SUPER), None),
    ),
    "log append": _of_log(Action.LOG_APPEND, "POST", "publish", body=_RECORDS),
    "log read": _of_log(Action.LOG_READ, "GET", "records", changes=False),
    "log groups": _of_log(Action.LOG_READ, "GET", "groups", changes=False),
    "log fetch": _of_log(Action.LOG_GROUP, "POST", *_IN_GROUP, "fetch", body={}, changes=False),
    "log commit": _of_log(Action.LOG_GROUP, "POST", *_IN_GROUP, "commit", body=_OFFSETS),
    "log reset": _of_log(Action.LOG_GROUP, "POST", *_IN_GROUP, "reset", body={"to": "first"}),
    "log join": _of_log(Action.LOG_GROUP, "POST", *_IN_GROUP, "members", body={}),
    "log group delete": _of_log(Action.LOG_GROUP_DELETE, "DELETE", *_IN_GROUP),
    "scheduled": Case(
        ((Action.SCHEDULE_READ, {"exchange": LATE}),), http=("GET", _LATE, None), changes=False
    ),
    "scheduled cancel": Case(
        ((Action.SCHEDULE_CANCEL, {"exchange": LATE}),),
        http=("DELETE", f"{_LATE}/{{scheduled}}", None),
    ),
}


def _patterns(granted: list[tuple[Permission, str]]) -> Patterns:
    """Return patterns that grant each permission on exactly these names."""
    by_permission: dict[Permission, list[str]] = {permission: [] for permission in Permission}
    for permission, name in granted:
        by_permission[permission].append(f"^{re2.escape(name)}$")
    return {permission: "|".join(texts) or NOTHING for permission, texts in by_permission.items()}


def _variants(case: Case) -> Iterator[tuple[str, Patterns, bool]]:
    """Yield permissions to try, and whether they permit the operation."""
    needs = case.needs()
    if any(need.permission is None for need, _ in needs):
        ((_, name),) = needs
        for permission in Permission:
            yield f"only {permission}", _patterns([(permission, name)]), True
            yield f"neighbour {permission}", _patterns([(permission, f"{name}x")]), False
        yield "nothing", _patterns([]), False
        return
    exact = [(need.permission, name) for need, name in needs if need.permission is not None]
    yield "exactly", _patterns(exact), True
    for number, one in enumerate(exact):
        permission, name = one
        others = exact[:number] + exact[number + 1 :]
        if (permission, name) not in others:
            what = f"{number}:{permission}"
            yield f"without {what}", _patterns(others), False
            neighbour = name.replace(".", "_")
            yield f"neighbour {what}", _patterns([*others, (permission, neighbour)]), False
            yield f"empty {what}", {**_patterns(exact), permission: ""}, False
    rest = [(r, n) for r in Permission for n in {n for _, n in exact} if (r, n) not in exact]
    yield "everything else", _patterns(rest), False
    yield "everything", dict.fromkeys(Permission, ".*"), True
    yield "elsewhere", dict.fromkeys(Permission, NOTHING), False


ALL = [
    (name, what, patterns, allowed)
    for name, case in CASES.items()
    for what, patterns, allowed in _variants(case)
]
OVER_AMQP = [one for one in ALL if CASES[one[0]].frames]
OVER_HTTP = [one for one in ALL if CASES[one[0]].http is not None]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serve() as threaded:
        served = Served(threaded)
        served.on_loop(_make_user)
        yield served


def _make_user(hub: Broker) -> None:
    for vhost in (VHOST, ELSEWHERE):
        hub.add_vhost(vhost)
    hub.users.put_user(USER, hash_password(USER), ("management",))
    hub.users.set_permission(PermissionDefinition(USER, ELSEWHERE, ".*", ".*", ".*"))
    hub.users.set_permission(PermissionDefinition(USER, VHOST, *[NOTHING] * 3))


async def _prepare(hub: Broker, patterns: Patterns) -> None:
    vhost = hub.vhosts[VHOST]
    for queue in list(vhost.queues.values()):
        vhost.remove_queue(queue)
    for name in [name for name in vhost.exchanges if name and not name.startswith("amq.")]:
        vhost.delete_exchange(name)
    for name in (Q, KEY):
        vhost.declare_queue(QueueSpec(name))
    for name, arguments in ((LOG, _STREAM), (f"{FOUND}-0", _STREAM), (SUPER, _PARTS)):
        vhost.declare_queue(QueueSpec(name, True, arguments=arguments))
    for name in (X, Y):
        vhost.declare_exchange(ExchangeSpec(name, "direct"))
    vhost.declare_exchange(ExchangeSpec(LATE, "x-delayed-message", arguments=_DELAYED))
    vhost.bind(X, Destination(DestinationKind.QUEUE, Q), KEY, {})
    vhost.bind(X, Destination(DestinationKind.EXCHANGE, Y), KEY, {})
    await _fill(hub)
    texts = [patterns[each] for each in (Permission.CONFIGURE, Permission.WRITE, Permission.READ)]
    hub.users.set_permission(PermissionDefinition(USER, VHOST, *texts))


async def _fill(hub: Broker) -> None:
    """Put two messages into a queue, schedule one, and commit a group in the middle of a log."""
    vhost, guest = hub.vhosts[VHOST], hub.users.by_name["guest"]
    for exchange, headers in ((X, {}), (X, {}), (LATE, {"x-delay": LATER_MS})):
        properties = encode_properties({"headers": headers})
        publish(hub, vhost, guest, Message.build(Address.of(exchange, KEY), properties, b"held"))
    await hub.logs.publish(VHOST, LOG, [NewRecord(b"one"), NewRecord(b"two")])
    await hub.logs.commit(VHOST, LOG, GROUP, {0: 1})


async def _state(hub: Broker) -> dict[str, Any]:
    """Return everything that an operation could change."""
    vhost = hub.vhosts[VHOST]
    classic = [one for one in vhost.queues.values() if isinstance(one, ClassicQueue)]
    logs = [log.name for log in hub.logs.list(VHOST)]
    return {
        "queues": {one.name: (one.spec, len(one.consumers)) for one in vhost.queues.values()},
        "contents": {
            queue.name: [
                (seen.message.id, seen.redelivered, seen.is_unacked)
                for seen in await browse(hub, queue, 0, 10)
            ]
            for queue in classic
        },
        "exchanges": {one.name: one.spec for one in vhost.exchanges.values()},
        "bindings": {str(binding) for binding in vhost.bindings()},
        "records": {name: await _records(hub, name) for name in logs},
        "groups": {name: hub.logs.groups(VHOST, name) for name in logs},
        "scheduled": await _scheduled(hub),
    }


async def _records(hub: Broker, log: str) -> list[bytes]:
    partitions = range(len(hub.logs.describe(VHOST, log).partitions))
    read = [await hub.logs.read(VHOST, log, number) for number in partitions]
    return [record.body for records in read for record in records]


async def _scheduled(hub: Broker) -> list[int]:
    delayed = hub.plugin_exchanges.delay_queues.by_exchange.get(hub.vhosts[VHOST].exchange(LATE))
    assert delayed is not None
    return [one.message.id for one in await delayed.scheduled(0, 10)]


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[RawClient]:
    with RawClient(*served.threaded.amqp_address) as client:
        yield client.handshake(VHOST, USER, USER)


@pytest.fixture(scope="module")
def api(served: Served) -> Iterator[httpx.Client]:
    with served.client(USER) as client:
        yield client


_channels = itertools.cycle(range(1, 2000))


def _answer(client: RawClient, frames: tuple[Any, ...]) -> int:
    """Return 0, or the code with which a new channel was closed."""
    channel = client.channel(next(_channels))
    channel.send(*frames, Channel.Flow(active=True))
    while True:
        frame = client.next_on(channel.number)
        said = frame.decode() if frame.kind == 1 else None
        if isinstance(said, Channel.Close):
            channel.send(Channel.CloseOk())
            assert "refused for user 'matrix'" in said.reply_text
            return int(said.reply_code or 0)
        if isinstance(said, Channel.FlowOk):
            channel.send(Channel.Close(0, "", 0, 0))
        elif isinstance(said, Channel.CloseOk):
            return 0


@pytest.mark.parametrize(("name", "what", "patterns", "allowed"), OVER_AMQP)
def test_over_amqp(
    served: Served, client: RawClient, name: str, what: str, patterns: Patterns, allowed: bool
) -> None:
    served.on_loop(lambda hub: _prepare(hub, patterns))
    before = served.on_loop(_state)
    assert _answer(client, CASES[name].frames) == (0 if allowed else 403)
    assert (served.on_loop(_state) != before) == (allowed and CASES[name].changes)


@pytest.mark.parametrize(("name", "what", "patterns", "allowed"), OVER_HTTP)
def test_over_http(
    served: Served, api: httpx.Client, name: str, what: str, patterns: Patterns, allowed: bool
) -> None:
    served.on_loop(lambda hub: _prepare(hub, patterns))
    before = served.on_loop(_state)
    (scheduled,) = before["scheduled"]
    request = CASES[name].http
    assert request is not None
    method, path, content = request
    answer = api.request(method, path.replace("{scheduled}", str(scheduled)), json=content)
    assert answer.is_success if allowed else answer.status_code == 403, answer.text
    assert (served.on_loop(_state) != before) == (allowed and CASES[name].changes)


def test_every_action_of_the_table_has_a_case() -> None:
    assert {action for case in CASES.values() for action, _ in case.actions} == set(Action)
    assert set(REQUIREMENTS) == set(Action)
    assert len(OVER_AMQP) + len(OVER_HTTP) >= 250


@pytest.mark.parametrize("front", ["amqp_server", "http_admin"])
def test_fronts_use_actions_instead_of_permissions(front: str) -> None:
    """A front that checks permissions itself would be a second table."""
    forbidden = re.compile(
        r"\bPermission\b|\busers\.(has|require)_permission\("
        r"|access\.permissions import .*REQUIREMENTS"
    )
    for path in sorted((Path(__file__).parents[2] / front).rglob("*.py")):
        assert not forbidden.search(path.read_text(encoding="utf-8")), path
