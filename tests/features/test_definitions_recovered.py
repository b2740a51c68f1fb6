"""Definitions are recovered exactly as declared; unreadable ones are skipped."""

import datetime
from decimal import Decimal

import pytest

from leveret.bindings import Destination, DestinationKind
from leveret.exchange import ExchangeSpec
from leveret.model.definitions import (
    BindingDefinition,
    QueueDefinition,
    UserDefinition,
    VhostDefinition,
)
from leveret.queues.spec import QueueSpec
from tests.features.harness import BrokerHarness

LIKE_STORED = [
    {"!bytes": "YQ=="},
    {"a": {"!decimal": "abc"}},
    {"a": {"!decimal": "1.5"}},
    {"a": {"!time": 10**18}},
    {"a": [{"!!bytes": {"!time": 0}}]},
]


@pytest.mark.parametrize("arguments", LIKE_STORED, ids=str)
async def test_client_table_that_looks_like_a_stored_one_is_kept(tmp_path, arguments):
    harness = await BrokerHarness.start(tmp_path)
    harness.vhost.declare_queue(QueueSpec("q", True, arguments=arguments))
    harness.vhost.declare_exchange(ExchangeSpec("x", "direct", True, arguments=arguments))
    harness.vhost.bind("x", Destination(DestinationKind.QUEUE, "q"), "k", arguments)
    harness.publish("", "q", b"kept")
    harness = await harness.restart()
    assert harness.vhost.queues["q"].spec.arguments == arguments
    assert harness.vhost.exchanges["x"].spec.arguments == arguments
    assert [binding.arguments for binding in harness.vhost.exchanges["x"].bindings] == [arguments]
    assert await harness.bodies("q") == [b"kept"]
    await harness.stop()


HEADERS = {
    "bytes": bytearray(b"\xff\x00"),
    "decimal": Decimal("1.25"),
    "small": Decimal("0E-2"),
    "time": datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC),
    "float": 1.1,
    "text": "5",
    "number": 5,
    "void": None,
    "array": [1, "x", bytearray(b"y"), {"!time": 0}],
    "table": {"!bytes": "YQ=="},
}


@pytest.mark.parametrize("name", HEADERS)
async def test_header_bindings_match_the_same_after_a_restart(tmp_path, name):
    harness = await BrokerHarness.start(tmp_path)
    harness.queue("q")
    harness.bind("amq.headers", "q", v=HEADERS[name])
    for _ in range(2):
        for value in HEADERS.values():
            harness.publish("amq.headers", "", str(value).encode(), headers={"v": value})
        matched = HEADERS.values() if name == "void" else [HEADERS[name]]
        assert await harness.bodies("q") == [str(value).encode() for value in matched]
        harness = await harness.restart()
    await harness.stop()


async def test_byte_values_of_an_older_version_match(tmp_path):
    harness = await BrokerHarness.start(tmp_path)
    harness.queue("q")
    stored = '{"v":{"!bytes":"/wA="}}'
    harness.broker.store.save(BindingDefinition("/", "amq.headers", "q", "queue", "", stored))
    harness = await harness.restart()
    for value in (bytearray(b"\xff\x00"), bytearray(b"other"), "text"):
        harness.publish("amq.headers", "", str(value).encode(), headers={"v": value})
    assert await harness.bodies("q") == [str(bytearray(b"\xff\x00")).encode()]
    await harness.stop()


DAMAGED = [
    (VhostDefinition("odd", '"text"'), "VhostDefinition 'odd'"),
    (UserDefinition("odd", "hash", "argon2id", "", "[]"), "UserDefinition 'odd'"),
    (QueueDefinition(99, "/", "odd", arguments="[]"), "QueueDefinition 'odd'"),
    (BindingDefinition("/", "amq.topic", "q", "queue", "k", "5"), "BindingDefinition 'amq.topic"),
]


@pytest.mark.parametrize(
    ("damaged", "description"), DAMAGED, ids=lambda value: type(value).__name__
)
async def test_broker_starts_with_a_damaged_definition(tmp_path, caplog, damaged, description):
    harness = await BrokerHarness.start(tmp_path)
    harness.queue("q")
    harness.publish("", "q", b"kept")
    harness.broker.store.save(damaged)
    harness = await harness.restart()
    assert f"damaged {description}" in caplog.text
    assert "odd" not in [
        *harness.broker.vhosts,
        *harness.vhost.queues,
        *harness.broker.users.by_name,
    ]
    assert await harness.bodies("q") == [b"kept"]
    await harness.stop()
