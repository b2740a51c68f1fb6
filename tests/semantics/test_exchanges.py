"""Rows C-47 to C-64: declaring, deleting and binding exchanges."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp.commands import Basic, Exchange, Queue

DEFAULT_EXCHANGE = "operation not permitted on the default exchange"


def test_c047_reserved_name(channel):
    channel.refused(Exchange.Declare(exchange="amq.nonsense"), 403, "reserved prefix 'amq.*'")


def test_c047_passive_declare_of_a_missing_reserved_name(channel):
    channel.refused(Exchange.Declare(exchange="amq.nonsense", passive=True), 404)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("amq.direct", "direct"),
        ("amq.fanout", "fanout"),
        ("amq.topic", "topic"),
        ("amq.headers", "headers"),
        ("amq.match", "headers"),
    ],
)
def test_c048_redeclare_of_a_predeclared_exchange(channel, name, kind):
    channel.exchange(name, kind, durable=True)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            {"exchange_type": "fanout"},
            "inequivalent arg 'type' for exchange '{}' in vhost '{}': "
            "received 'fanout' but current is 'direct'",
        ),
        (
            {"durable": True},
            "inequivalent arg 'durable' for exchange '{}' in vhost '{}': "
            "received 'true' but current is 'false'",
        ),
        (
            {"auto_delete": True},
            "inequivalent arg 'auto_delete' for exchange '{}' in vhost '{}': "
            "received 'true' but current is 'false'",
        ),
        (
            {"internal": True},
            "inequivalent arg 'internal' for exchange '{}' in vhost '{}': "
            "received 'true' but current is 'false'",
        ),
        (
            {"arguments": {"alternate-exchange": "other"}},
            "inequivalent arg 'alternate-exchange' for exchange '{}' in vhost '{}': "
            "received the value 'other' of type 'longstr' but current is none",
        ),
    ],
    ids=["type", "durable", "auto_delete", "internal", "alternate"],
)
def test_c049_redeclare_with_other_properties(channel, names, broker, change, text):
    exchange = names.exchange()
    channel.exchange(exchange)
    channel.exchange(exchange)
    channel.refused(
        Exchange.Declare(exchange=exchange, **change),
        406,
        "PRECONDITION_FAILED - " + text.format(exchange, broker.vhost),
    )


def test_c050_unknown_exchange_type(client, channel, names, expected):
    method = Exchange.Declare(exchange=names.exchange(), exchange_type="nonsense")
    if expected(leveret=True, rabbitmq=False):
        channel.refused(method, 406, "unknown exchange type 'nonsense'")
    else:
        channel.send(method)
        client.expect_close(503, "unknown exchange type 'nonsense'")


@pytest.mark.parametrize(
    "method",
    [
        Exchange.Declare(exchange=""),
        Exchange.Declare(exchange="", passive=True),
        Exchange.Delete(exchange=""),
        Exchange.Bind(source="", destination="amq.direct", routing_key="k"),
        Exchange.Bind(source="amq.direct", destination="", routing_key="k"),
        Exchange.Unbind(source="", destination="amq.direct", routing_key="k"),
        Exchange.Unbind(source="amq.direct", destination="", routing_key="k"),
    ],
    ids=["declare", "passive", "delete", "bind from", "bind to", "unbind from", "unbind to"],
)
def test_c051_default_exchange_cannot_be_changed(channel, method):
    channel.refused(method, 403, DEFAULT_EXCHANGE)


@pytest.mark.parametrize("kind", [Queue.Bind, Queue.Unbind], ids=["bind", "unbind"])
def test_c051_queue_and_default_exchange(channel, names, kind):
    queue = names.queue()
    channel.declare(queue)
    channel.refused(kind(queue=queue, exchange="", routing_key="k"), 403, DEFAULT_EXCHANGE)


def test_c052_predeclared_exchanges_cannot_be_deleted(channel):
    channel.refused(Exchange.Delete(exchange="amq.topic"), 403, "amq.topic")


def test_c053_delete_of_a_missing_exchange(channel):
    channel.call(Exchange.Delete(exchange="no-such-exchange"))


def test_c054_delete_if_unused(channel, names, broker):
    queue, used, source = names.queue(), names.exchange(), names.exchange()
    channel.exchange(used)
    channel.exchange(source)
    channel.declare(queue)
    channel.bind(queue, used, "k")
    text = f"exchange '{used}' in vhost '{broker.vhost}' in use"
    channel.refused(Exchange.Delete(exchange=used, if_unused=True), 406, text)
    channel.open()
    channel.call(Exchange.Bind(destination=used, source=source, routing_key="k"))
    channel.refused(Exchange.Delete(exchange=source, if_unused=True), 406, "in use")
    channel.open()
    # Being only the destination of a binding is not use.
    channel.call(Queue.Unbind(queue=queue, exchange=used, routing_key="k"))
    channel.call(Exchange.Delete(exchange=used, if_unused=True))
    channel.call(Exchange.Delete(exchange=source, if_unused=True))


def test_c055_passive_declare(channel, names, broker):
    exchange = names.exchange()
    channel.exchange(exchange, "fanout")
    channel.exchange(exchange, "topic", passive=True, durable=True)
    channel.refused(
        Exchange.Declare(exchange="no-such-exchange", passive=True),
        404,
        f"NOT_FOUND - no exchange 'no-such-exchange' in vhost '{broker.vhost}'",
    )


@pytest.mark.parametrize("confirms", [False, True])
def test_c056_publish_to_a_missing_exchange(channel, broker, confirms):
    if confirms:
        channel.confirm_select()
    channel.publish("no-such-exchange", "k")
    close = channel.expect_close(
        404, f"NOT_FOUND - no exchange 'no-such-exchange' in vhost '{broker.vhost}'"
    )
    assert (close.class_id, close.method_id) == (60, 40)


def test_c057_publish_to_an_internal_exchange(channel, names, broker):
    exchange = names.exchange()
    channel.exchange(exchange, internal=True)
    channel.publish(exchange, "k")
    channel.expect_close(
        403, f"cannot publish to internal exchange '{exchange}' in vhost '{broker.vhost}'"
    )


def test_c057_internal_exchange_is_refused_before_the_message_is_validated(channel, names):
    exchange = names.exchange()
    channel.exchange(exchange, internal=True)
    wrong: dict[str, Any] = {"CC": "no array"}
    channel.publish(exchange, "k", headers=wrong, expiration="-1", user_id="nobody")
    channel.expect_close(403, "internal exchange")


def test_c057_internal_exchange_routes_messages_from_other_exchanges(channel, names):
    queue, inner, outer = names.queue(), names.exchange(), names.exchange()
    channel.exchange(inner, "fanout", internal=True)
    channel.exchange(outer, "fanout")
    channel.declare(queue)
    channel.bind(queue, inner)
    channel.call(Exchange.Bind(destination=inner, source=outer))
    channel.publish(outer, "k")
    channel.wait_ready(queue, 1)
    assert channel.get_one(queue).method.exchange == outer


def test_c058_default_exchange_reaches_every_queue_by_name(channel, names):
    queue = names.queue()
    channel.declare(queue)
    channel.publish("", queue, b"direct")
    got = channel.get_one(queue)
    assert (got.method.exchange, got.method.routing_key, got.body) == ("", queue, b"direct")


def test_c059_bind_reports_the_missing_exchange_first(channel, names):
    queue, exchange = names.queue(), names.exchange()
    channel.declare(queue)
    channel.exchange(exchange)
    for missing_queue, missing_exchange, text in (
        ("no-such-queue", "no-such-exchange", "no exchange 'no-such-exchange'"),
        (queue, "no-such-exchange", "no exchange 'no-such-exchange'"),
        ("no-such-queue", exchange, "no queue 'no-such-queue'"),
    ):
        bind = Queue.Bind(queue=missing_queue, exchange=missing_exchange, routing_key="k")
        channel.refused(bind, 404, text)
        channel.open()


def test_c059_exchange_bind_to_missing_exchanges(channel, names):
    exchange = names.exchange()
    channel.exchange(exchange)
    for source, destination in (("no-such", exchange), (exchange, "no-such")):
        bind = Exchange.Bind(source=source, destination=destination, routing_key="k")
        channel.refused(bind, 404, "no exchange 'no-such'")
        channel.open()


def test_c060_unbind_of_missing_objects(channel, names):
    queue, exchange = names.queue(), names.exchange()
    channel.declare(queue)
    channel.exchange(exchange)
    for some_queue, some_exchange in (
        (queue, exchange),
        ("no-such-queue", exchange),
        (queue, "no-such-exchange"),
        ("no-such-queue", "no-such-exchange"),
    ):
        channel.call(Queue.Unbind(queue=some_queue, exchange=some_exchange, routing_key="k"))
    channel.call(Exchange.Unbind(destination=exchange, source="amq.direct", routing_key="k"))
    channel.call(Exchange.Unbind(destination="no-such", source="no-such", routing_key="k"))


def test_c061_key_and_arguments_are_the_identity_of_a_binding(channel, names):
    queue, exchange = names.queue(), names.exchange()
    channel.declare(queue)
    channel.exchange(exchange)
    channel.bind(queue, exchange, "k")
    channel.bind(queue, exchange, "k")
    channel.bind(queue, exchange, "k", {"note": "another"})
    channel.publish(exchange, "k")
    channel.wait_ready(queue, 1)
    # Two bindings, so unbinding one of them keeps the route, unbinding both ends it.
    channel.call(Queue.Unbind(queue=queue, exchange=exchange, routing_key="k"))
    channel.publish(exchange, "k")
    channel.wait_ready(queue, 2)
    channel.call(
        Queue.Unbind(queue=queue, exchange=exchange, routing_key="k", arguments={"note": "another"})
    )
    channel.publish(exchange, "k", mandatory=True)
    channel.returned()


def test_c062_several_matching_bindings_make_one_copy(channel, names):
    queue, exchange = names.queue(), names.exchange()
    channel.declare(queue)
    channel.exchange(exchange, "topic")
    for key in ("a.b", "a.*", "#", "*.b"):
        channel.bind(queue, exchange, key)
    channel.fill_through(exchange, "a.b", queue, 1)
    assert channel.drain(queue) == [b"x"]


def test_c062_cycle_of_exchanges_makes_one_copy(channel, names):
    queue, first, second = names.queue(), names.exchange(), names.exchange()
    channel.declare(queue)
    for exchange in (first, second):
        channel.exchange(exchange, "fanout")
        channel.bind(queue, exchange)
    channel.call(Exchange.Bind(destination=second, source=first))
    channel.call(Exchange.Bind(destination=first, source=second))
    channel.call(Exchange.Bind(destination=first, source=first))
    channel.fill_through(first, "", queue, 1)
    assert channel.drain(queue) == [b"x"]


def test_c063_auto_delete_exchange_is_deleted_with_its_last_binding(channel, names):
    queue, exchange = names.queue(), names.exchange()
    channel.declare(queue)
    channel.exchange(exchange, auto_delete=True)
    channel.exchange(exchange, passive=True)
    channel.bind(queue, exchange, "a")
    channel.bind(queue, exchange, "b")
    channel.call(Queue.Unbind(queue=queue, exchange=exchange, routing_key="a"))
    channel.exchange(exchange, passive=True)
    channel.call(Queue.Unbind(queue=queue, exchange=exchange, routing_key="b"))
    channel.refused(Exchange.Declare(exchange=exchange, passive=True), 404)


def test_c063_auto_delete_exchange_is_deleted_with_its_last_queue(channel, names):
    queue, exchange, source = names.queue(), names.exchange(), names.exchange()
    channel.declare(queue)
    channel.exchange(exchange, auto_delete=True)
    channel.exchange(source, auto_delete=True)
    channel.bind(queue, exchange, "a")
    channel.call(Exchange.Bind(destination=exchange, source=source, routing_key="a"))
    channel.call(Queue.Delete(queue=queue))
    channel.refused(Exchange.Declare(exchange=exchange, passive=True), 404)
    channel.open()
    channel.refused(Exchange.Declare(exchange=source, passive=True), 404)


def test_c063_auto_delete_exchange_that_was_only_a_destination_stays(channel, names):
    exchange, source = names.exchange(), names.exchange()
    channel.exchange(exchange, auto_delete=True)
    channel.exchange(source)
    channel.call(Exchange.Bind(destination=exchange, source=source, routing_key="k"))
    channel.call(Exchange.Unbind(destination=exchange, source=source, routing_key="k"))
    channel.exchange(exchange, passive=True)


@pytest.mark.parametrize("kind", [Queue.Bind, Queue.Unbind], ids=["bind", "unbind"])
def test_c064_binding_of_another_connections_exclusive_queue(connect, channel, names, kind):
    queue = names.queue()
    owner = connect().channel()
    owner.declare(queue, exclusive=True)
    owner.bind(queue, "amq.direct", "k")
    channel.refused(
        kind(queue=queue, exchange="amq.direct", routing_key="k"), 405, "RESOURCE_LOCKED"
    )


@pytest.mark.parametrize("exchange", ["amq.direct", "c064-missing"])
def test_c064_missing_binding_of_an_exclusive_queue_can_be_unbound(
    connect, channel, names, exchange
):
    queue = names.queue()
    connect().channel().declare(queue, exclusive=True)
    channel.call(Queue.Unbind(queue=queue, exchange=exchange, routing_key="k"))


def test_c064_the_owner_may_bind(channel, names):
    queue = names.queue()
    channel.declare(queue, exclusive=True)
    channel.bind(queue, "amq.direct", queue)
    channel.publish("amq.direct", queue)
    channel.send(Basic.Get(queue=queue, no_ack=True))
    assert channel.client.content(Basic.GetOk, 1).method.exchange == "amq.direct"
