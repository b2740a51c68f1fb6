"""Rows C-105 and C-133: which method needs which right on what, and that rights come first.

The matrix below names every method a channel understands. Each is tried by eight users, one for
every choice among configure, write and read: who lacks a right is refused with 403, who has what
the matrix asks for is not. RabbitMQ 3.10 passes the same matrix.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from pamqp import body, commands, header
from pamqp.commands import Basic, Channel, Confirm, Exchange, Queue, Tx

from amqp_server import channel as amqp_channel
from amqp_server import declare as amqp_declare
from tests.semantics.managed import NOTHING, PASSWORD, managing

CONFIGURE, WRITE, READ = "configure", "write", "read"
RIGHTS = (CONFIGURE, WRITE, READ)
CHOICES = [
    frozenset(chosen) for size in range(4) for chosen in itertools.combinations(RIGHTS, size)
]
SOURCE, TARGET, QUEUE, MISSING = "rights-x", "rights-y", "rights-q", "rights-nowhere"


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
        Exchange.Declare(exchange="rights-new-x", auto_delete=True, arguments=ELSE),
        {CONFIGURE, READ, WRITE},
    ),
    "exchange.declare again": (
        Exchange.Declare(exchange="rights-z", arguments=ELSE),
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
# Asked by every test here, or without meaning unless others are allowed, or twins of others.
NOT_ASKED = {
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
    """A connection for every choice of rights."""
    with managed.target.connect() as maker:
        channel = maker.channel()
        channel.declare(QUEUE)
        channel.exchange(SOURCE)
        channel.exchange(TARGET)
        channel.exchange("rights-z", arguments=ELSE)
        channel.bind(QUEUE, SOURCE, "k")
        clients = {}
        for chosen in CHOICES:
            lacking = {right: NOTHING for right in RIGHTS if right not in chosen}
            clients[chosen] = login(managed, managed.user(**lacking))
        yield clients
        for client in clients.values():
            client.close()
        channel.call(Queue.Delete(queue=QUEUE))
        for exchange in (SOURCE, TARGET, "rights-z", "rights-new-x"):
            channel.call(Exchange.Delete(exchange=exchange))


def login(managed, user):
    target = managed.target
    return target.socket().handshake(target.vhost, user, PASSWORD)


_channels = itertools.count(1)


def answer(client, things):
    """What a fresh channel is told about these methods: 0, or the code it is closed with."""
    channel = client.channel(next(_channels))
    channel.send(*things, Channel.Flow(active=True))
    while True:
        frame = client.next_on(channel.number)
        said = frame.decode() if frame.kind == 1 else None
        if isinstance(said, Channel.Close):
            channel.send(Channel.CloseOk())
            assert said.reply_code != 403 or "refused for user" in said.reply_text
            return said.reply_code
        if isinstance(said, Channel.FlowOk):
            channel.send(Channel.Close(0, "", 0, 0))
        if isinstance(said, Channel.CloseOk):  # deliveries may have come before it
            return 0


def as_list(method):
    return method if isinstance(method, tuple) else (method,)


def words(chosen):
    return "+".join(sorted(chosen)) or "nothing"


def test_c133_the_matrix_names_every_method():
    handled: set[Any] = {
        *amqp_channel._HANDLERS,
        *amqp_declare._HANDLERS,
        Queue.Declare,
        Basic.Publish,
    }
    names = {method.name.lower().replace("async", "-async") for method in handled}
    named = {row.split()[0].replace("-ok", "ok") for row in (*NEEDS, *NEEDS_NOTHING, *NOT_ASKED)}
    assert names == named


@pytest.mark.parametrize("row", NEEDS)
def test_c133_rights_of_a_method(users, row):
    method, needed = NEEDS[row]
    got = {words(chosen): answer(users[chosen], as_list(method)) for chosen in CHOICES}
    assert got == {words(chosen): 0 if needed <= chosen else 403 for chosen in CHOICES}


@pytest.mark.parametrize("row", NEEDS_NOTHING)
def test_c133_methods_that_need_no_right(users, row):
    assert answer(users[frozenset()], [NEEDS_NOTHING[row]]) == 0


@pytest.mark.parametrize("kind", PASSIVE)
def test_c133_passive_declare_needs_any_right(users, expected, kind):
    got = {words(chosen): answer(users[chosen], [PASSIVE[kind]]) for chosen in CHOICES}
    without = expected(leveret=403, rabbitmq=0)
    assert got == {words(chosen): 0 if chosen else without for chosen in CHOICES}


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
def test_c133_rights_come_before_existence(users, method):
    assert answer(users[frozenset()], as_list(method)) == 403


@pytest.mark.parametrize("chosen", [{WRITE}, {READ}], ids=words)
def test_c133_a_missing_end_is_not_told_to_who_has_half_the_rights(users, chosen):
    client = users[frozenset(chosen)]
    assert answer(client, [bind(Queue.Bind, exchange=MISSING)]) == 403
    assert answer(client, [bind(Queue.Bind, queue=MISSING)]) == 403


def test_c133_rights_come_before_the_lock_of_an_exclusive_queue(users, managed):
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
                assert answer(users[frozenset(RIGHTS)], [method]) == 405


def test_c133_what_nobody_may_do_is_told_before_rights(users):
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


def test_c133_each_right_is_asked_of_its_own_thing(users, managed):
    rights = {"configure": NOTHING, "write": f"^{QUEUE}$", "read": f"^{SOURCE}$"}
    with login(managed, managed.user(**rights)) as client:
        assert answer(client, [bind(Queue.Bind)]) == 0
        assert answer(client, [bind(Queue.Bind, exchange=TARGET)]) == 403
        assert answer(client, [join(Exchange.Bind)]) == 403
        assert answer(client, [Basic.Get(queue=QUEUE)]) == 403
        assert answer(client, publish(SOURCE)) == 403


def test_c133_the_default_exchange_is_called_amq_default_in_patterns(users, managed):
    with login(managed, managed.user(write=r"^amq\.default$")) as client:
        assert answer(client, publish("", QUEUE)) == 0
        assert answer(client, publish(SOURCE)) == 403
    with login(managed, managed.user(write=f"^{QUEUE}$")) as client:
        assert answer(client, publish("", QUEUE)) == 403


def test_c133_a_server_made_name_is_judged_by_patterns(managed):
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
