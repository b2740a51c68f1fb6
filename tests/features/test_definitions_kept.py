"""What a client declared is there after a restart, as it was; what cannot be read is left out."""

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
