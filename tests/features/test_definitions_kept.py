"""What a client declared is there after a restart, as it was; what cannot be read is left out."""

import datetime
from decimal import Decimal

import pytest

from bindings import Destination, DestinationKind
from exchange import ExchangeSpec
from leveret.model.store import BindingDefinition, QueueDefinition, UserDefinition, VhostDefinition
from queues import QueueSpec
from tests.features.hub import Hub

LIKE_OURS = [
    {"!bytes": "YQ=="},
    {"a": {"!decimal": "abc"}},
    {"a": {"!decimal": "1.5"}},
    {"a": {"!time": 10**18}},
    {"a": [{"!!bytes": {"!time": 0}}]},
]


@pytest.mark.parametrize("arguments", LIKE_OURS, ids=str)
async def test_a_clients_table_that_looks_like_one_of_the_stores(tmp_path, arguments):
    hub = await Hub.start(tmp_path)
    hub.vhost.declare_queue(QueueSpec("q", True, arguments=arguments))
    hub.vhost.declare_exchange(ExchangeSpec("x", "direct", True, arguments=arguments))
    hub.vhost.bind("x", Destination(DestinationKind.QUEUE, "q"), "k", arguments)
    hub.publish("", "q", b"kept")
    hub = await hub.restart()
    assert hub.vhost.queues["q"].spec.arguments == arguments
    assert hub.vhost.exchanges["x"].spec.arguments == arguments
    assert [one.arguments for one in hub.vhost.exchanges["x"].bindings] == [arguments]
    assert await hub.bodies("q") == [b"kept"]
    await hub.stop()


HEADERS = {
    "octets": bytearray(b"\xff\x00"),
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
async def test_headers_match_after_a_restart_what_they_matched_before(tmp_path, name):
    hub = await Hub.start(tmp_path)
    hub.queue("q")
    hub.bind("amq.headers", "q", v=HEADERS[name])
    for _ in range(2):
        for value in HEADERS.values():
            hub.publish("amq.headers", "", str(value).encode(), headers={"v": value})
        matched = HEADERS.values() if name == "void" else [HEADERS[name]]
        assert await hub.bodies("q") == [str(value).encode() for value in matched]
        hub = await hub.restart()
    await hub.stop()


async def test_octets_of_an_older_version_match(tmp_path):
    hub = await Hub.start(tmp_path)
    hub.queue("q")
    stored = '{"v":{"!bytes":"/wA="}}'
    hub.broker.store.save(BindingDefinition("/", "amq.headers", "q", "queue", "", stored))
    hub = await hub.restart()
    for value in (bytearray(b"\xff\x00"), bytearray(b"other"), "text"):
        hub.publish("amq.headers", "", str(value).encode(), headers={"v": value})
    assert await hub.bodies("q") == [str(bytearray(b"\xff\x00")).encode()]
    await hub.stop()


DAMAGED = [
    (VhostDefinition("odd", '"text"'), "VhostDefinition 'odd'"),
    (UserDefinition("odd", "hash", "argon2id", "", "[]"), "UserDefinition 'odd'"),
    (QueueDefinition(99, "/", "odd", arguments="[]"), "QueueDefinition 'odd'"),
    (BindingDefinition("/", "amq.topic", "q", "queue", "k", "5"), "BindingDefinition 'amq.topic"),
]


@pytest.mark.parametrize(("damaged", "named"), DAMAGED, ids=lambda one: type(one).__name__)
async def test_one_bad_definition_does_not_keep_the_broker_from_starting(
    tmp_path, caplog, damaged, named
):
    hub = await Hub.start(tmp_path)
    hub.queue("q")
    hub.publish("", "q", b"kept")
    hub.broker.store.save(damaged)
    hub = await hub.restart()
    assert f"a damaged {named}" in caplog.text
    assert "odd" not in [*hub.broker.vhosts, *hub.vhost.queues, *hub.broker.users.by_name]
    assert await hub.bodies("q") == [b"kept"]
    await hub.stop()
