"""Rows C-105 and C-133: which method needs which permission, checked before anything else.

The matrix below contains every method of a channel. Each is tried by eight users, one for every
combination of configure, write and read: a user without a required permission is refused with 403,
a user with all of them is not. RabbitMQ 3.10 passes the same matrix.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from pamqp import body, commands, header
from pamqp.commands import Basic, Channel, Confirm, Exchange, Queue, Tx

from leveret.amqp_server import channel as amqp_channel
from leveret.amqp_server import topology_methods as amqp_declare
from tests.semantics.managed import NOTHING, PASSWORD, managing

CONFIGURE, WRITE, READ = "configure", "write", "read"
PERMISSIONS = (CONFIGURE, WRITE, READ)
COMBINATIONS = [
    frozenset(granted) for size in range(4) for granted in itertools.combinations(PERMISSIONS, size)
]
SOURCE, TARGET, QUEUE, MISSING = (
    "permissions-x",
    "permissions-y",
    "permissions-q",
    "permissions-nowhere",
)


def publish(exchange, key="k"):
    return (
        Basic.Publish(exchange=exchange, routing_key=key),
        header.ContentHeader(0, 1, Basic.Properties()),
        body.ContentBody(b"x"),
    )


def bind(kind, exchange=SOURCE, queue=QUEUE):
    return kind(queue=queue, exchange=exchange, routing_key="k")


def join(kind, source=SOURCE, destination=TARGET):
    return kind(source=source, destination=destination, routing_key="k")


DEAD: Any = {"x-dead-letter-exchange": MISSING}
ELSE: Any = {"alternate-exchange": MISSING}

NEEDS = {
    "exchange.declare": (Exchange.Declare(exchange=SOURCE), {CONFIGURE}),
    "exchange.declare alternate": (
        Exchange.Declare(exchange="permissions-new-x", auto_delete=True, arguments=ELSE),
        {CONFIGURE, READ, WRITE},
    ),
    "exchange.declare again": (
        Exchange.Declare(exchange="permissions-z", arguments=ELSE),
        {CONFIGURE},
    ),
    "exchange.delete": (Exchange.Delete(exchange=MISSING), {CONFIGURE}),
    "exchange.bind": (join(Exchange.Bind), {WRITE, READ}),
    "exchange.unbind": (join(Exchange.Unbind), {WRITE, READ}),
    "queue.declare": (Queue.Declare(queue=QUEUE), {CONFIGURE}),
    "queue.declare server-named": (Queue.Declare(queue="", exclusive=True), {CONFIGURE}),
    "queue.declare dead letters": (
        Queue.Declare(queue="", exclusive=True, arguments=DEAD),
        {CONFIGURE, READ, WRITE},
    ),
    "queue.delete": (Queue.Delete(queue=MISSING), {CONFIGURE}),
    "queue.bind": (bind(Queue.Bind), {WRITE, READ}),
    "queue.unbind": (bind(Queue.Unbind), {WRITE, READ}),
    "queue.purge": (Queue.Purge(queue=QUEUE), {READ}),
    "basic.consume": (Basic.Consume(queue=QUEUE), {READ}),
    "basic.get": (Basic.Get(queue=QUEUE), {READ}),
    "basic.publish": (publish(SOURCE), {WRITE}),
    "basic.publish default exchange": (publish("", QUEUE), {WRITE}),
}
NEEDS_NOTHING = {
    "basic.consume replies": Basic.Consume(queue="amq.rabbitmq.reply-to", no_ack=True),
    "basic.qos": Basic.Qos(prefetch_count=1),
    "basic.cancel": Basic.Cancel(consumer_tag="unknown"),
    "basic.recover": Basic.Recover(requeue=True),
    "basic.ack": Basic.Ack(delivery_tag=0, multiple=True),
    "basic.nack": Basic.Nack(delivery_tag=0, multiple=True),
    "confirm.select": Confirm.Select(),
    "tx.select": Tx.Select(),
}
# Sent by every test here, or without effect unless others are allowed, or like others.
NOT_TESTED = {
    "basic.cancel-ok",
    "basic.recover-async",
    "basic.reject",
    "channel.flow",
    "channel.flow-ok",
    "tx.commit",
    "tx.rollback",
}
PASSIVE = {
    "queue": Queue.Declare(queue=QUEUE, passive=True),
    "exchange": Exchange.Declare(exchange=SOURCE, passive=True),
}


@pytest.fixture(scope="module")
def managed(broker):
    with managing(broker) as managed:
        yield managed


@pytest.fixture(scope="module")
def users(managed):
    """A connection for every combination of permissions."""
    with managed.target.connect() as maker:
        channel = maker.channel()
        channel.declare(QUEUE)
        channel.exchange(SOURCE)
        channel.exchange(TARGET)
        channel.exchange("permissions-z", arguments=ELSE)
        channel.bind(QUEUE, SOURCE, "k")
        clients = {}
        for granted in COMBINATIONS:
            lacking = {
                permission: NOTHING for permission in PERMISSIONS if permission not in granted
            }
            clients[granted] = login(managed, managed.user(**lacking))
        yield clients
        for client in clients.values():
            client.close()
        channel.call(Queue.Delete(queue=QUEUE))
        for exchange in (SOURCE, TARGET, "permissions-z", "permissions-new-x"):
            channel.call(Exchange.Delete(exchange=exchange))


def login(managed, user):
    target = managed.target
    return target.socket().handshake(target.vhost, user, PASSWORD)


_channels = itertools.count(1)


def answer(client, methods):
    """Send methods on a new channel; return 0, or the code of the channel close."""
    channel = client.channel(next(_channels))
    channel.send(*methods, Channel.Flow(active=True))
    while True:
        frame = client.next_on(channel.number)
        method = frame.decode() if frame.kind == 1 else None
        if isinstance(method, Channel.Close):
            channel.send(Channel.CloseOk())
            assert method.reply_code != 403 or "refused for user" in method.reply_text
            return method.reply_code
        if isinstance(method, Channel.FlowOk):
            channel.send(Channel.Close(0, "", 0, 0))
        if isinstance(method, Channel.CloseOk):  # deliveries may arrive before it
            return 0


def as_list(method):
    return method if isinstance(method, tuple) else (method,)


def words(granted):
    return "+".join(sorted(granted)) or "nothing"


def test_c133_matrix_contains_every_method():
    handled: set[Any] = {
        *amqp_channel._HANDLERS,
        *amqp_declare._HANDLERS,
        Queue.Declare,
        Basic.Publish,
    }
    names = {method.name.lower().replace("async", "-async") for method in handled}
    named = {row.split()[0].replace("-ok", "ok") for row in (*NEEDS, *NEEDS_NOTHING, *NOT_TESTED)}
    assert names == named


@pytest.mark.parametrize("row", NEEDS)
def test_c133_permissions_of_a_method(users, row):
    method, needed = NEEDS[row]
    got = {words(granted): answer(users[granted], as_list(method)) for granted in COMBINATIONS}
    assert got == {words(granted): 0 if needed <= granted else 403 for granted in COMBINATIONS}


@pytest.mark.parametrize("row", NEEDS_NOTHING)
def test_c133_methods_without_required_permissions(users, row):
    assert answer(users[frozenset()], [NEEDS_NOTHING[row]]) == 0


@pytest.mark.parametrize("kind", PASSIVE)
def test_c133_passive_declare_needs_any_permission(users, expected, kind):
    got = {words(granted): answer(users[granted], [PASSIVE[kind]]) for granted in COMBINATIONS}
    without = expected(leveret=403, rabbitmq=0)
    assert got == {words(granted): 0 if granted else without for granted in COMBINATIONS}


@pytest.mark.parametrize(
    "method",
    [
        publish(MISSING),
        Basic.Consume(queue=MISSING),
        Basic.Get(queue=MISSING),
        Queue.Purge(queue=MISSING),
        Queue.Delete(queue=MISSING),
        bind(Queue.Bind, queue=MISSING),
        bind(Queue.Bind, exchange=MISSING),
        bind(Queue.Unbind, queue=MISSING),
        bind(Queue.Unbind, exchange=MISSING),
        join(Exchange.Bind, source=MISSING),
        join(Exchange.Bind, destination=MISSING),
        join(Exchange.Unbind, source=MISSING),
        Exchange.Delete(exchange=MISSING),
    ],
    ids=lambda method: as_list(method)[0].name,
)
def test_c133_permissions_are_checked_before_existence(users, method):
    assert answer(users[frozenset()], as_list(method)) == 403


@pytest.mark.parametrize("granted", [{WRITE}, {READ}], ids=words)
def test_c133_missing_object_is_not_revealed_with_half_the_permissions(users, granted):
    client = users[frozenset(granted)]
    assert answer(client, [bind(Queue.Bind, exchange=MISSING)]) == 403
    assert answer(client, [bind(Queue.Bind, queue=MISSING)]) == 403


def test_c133_permissions_are_checked_before_exclusive_ownership(users, managed):
    with managed.target.connect() as owner:
        queue = owner.channel().declare(exclusive=True).queue
        for method in (
            Basic.Consume(queue=queue),
            Basic.Get(queue=queue),
            Queue.Purge(queue=queue),
            Queue.Delete(queue=queue),
            bind(Queue.Bind, queue=queue),
            bind(Queue.Unbind, queue=queue),
        ):
            assert answer(users[frozenset()], [method]) == 403
            if not isinstance(method, Queue.Unbind):  # of a binding that does not exist
                assert answer(users[frozenset(PERMISSIONS)], [method]) == 405


def test_c133_forbidden_methods_are_refused_before_permissions_are_checked(users):
    client = users[frozenset()]
    for method, text in (
        (Queue.Declare(queue="amq.rights"), "reserved prefix"),
        (Exchange.Declare(exchange=""), "default exchange"),
        (Exchange.Delete(exchange=""), "default exchange"),
        (Exchange.Delete(exchange="amq.direct"), "system exchange"),
        (Exchange.Delete(exchange="amq.missing"), "system exchange"),
    ):
        channel = client.channel(next(_channels))
        channel.refused(method, 403, text)


def test_c133_each_permission_is_checked_on_its_own_object(users, managed):
    rights = {"configure": NOTHING, "write": f"^{QUEUE}$", "read": f"^{SOURCE}$"}
    with login(managed, managed.user(**rights)) as client:
        assert answer(client, [bind(Queue.Bind)]) == 0
        assert answer(client, [bind(Queue.Bind, exchange=TARGET)]) == 403
        assert answer(client, [join(Exchange.Bind)]) == 403
        assert answer(client, [Basic.Get(queue=QUEUE)]) == 403
        assert answer(client, publish(SOURCE)) == 403


def test_c133_default_exchange_is_amq_default_in_patterns(users, managed):
    with login(managed, managed.user(write=r"^amq\.default$")) as client:
        assert answer(client, publish("", QUEUE)) == 0
        assert answer(client, publish(SOURCE)) == 403
    with login(managed, managed.user(write=f"^{QUEUE}$")) as client:
        assert answer(client, publish("", QUEUE)) == 403


def test_c133_server_generated_name_must_match_the_patterns(managed):
    with login(managed, managed.user(configure=r"^amq\.gen-.+$")) as client:
        assert answer(client, [Queue.Declare(queue="", exclusive=True)]) == 0
        assert answer(client, [Queue.Declare(queue="amqgen")]) == 403


def test_c105_publish_without_write_closes_instead_of_a_nack(users):
    channel = users[frozenset({READ})].channel(next(_channels))
    channel.confirm_select()
    channel.publish(SOURCE, "k")
    close = channel.expect_close(403, f"exchange '{SOURCE}' in vhost")
    assert (close.class_id, close.method_id) == (60, 40)
    assert isinstance(close, commands.Channel.Close)
