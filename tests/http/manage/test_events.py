"""Events of changes made over HTTP name the user of the request."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pika
import pytest

from leveret.broker.events.actor import INTERNAL_USER, CurrentActor


@pytest.fixture
def events(leveret) -> Iterator[pika.adapters.blocking_connection.BlockingChannel]:
    with pika.BlockingConnection(pika.URLParameters(leveret.url)) as connection:
        yield connection.channel()


def listening(channel, *keys):
    queue = channel.queue_declare("", exclusive=True).method.queue
    for key in keys:
        channel.queue_bind(queue, "amq.rabbitmq.event", key)
    channel.queue_purge(queue)
    return queue


def told(channel, queue, last):
    """Keys of the events up to the last, and the users they name."""
    keys, users = [], set()
    for _ in range(3_000):
        method, properties, _ = channel.basic_get(queue, auto_ack=True)
        if method is None:
            channel.connection.process_data_events(0.01)
            continue
        keys.append(method.routing_key)
        users.add(properties.headers["user_who_performed_action"])
        if keys[-1] == last:
            break
    return keys, users


def test_events_name_the_user_of_the_request(api, sign_in, events):
    heard = listening(events, "user.created", "user.password.changed", "user.deleted",
                      "permission.*", "queue.*", "policy.*", "vhost.#")  # fmt: skip
    api.put("users", "boss", body={"password": "pw", "tags": "administrator"})
    boss = sign_in("boss", "pw")
    boss.put("vhosts", "of-boss")
    boss.put("users", "eve", body={"password": "pw", "tags": ""})
    boss.put(
        "permissions", "of-boss", "eve", body=dict.fromkeys(("configure", "write", "read"), "")
    )
    boss.put("policies", "of-boss", "p", body={"pattern": "x", "definition": {"max-length": 1}})
    boss.put("queues", "of-boss", "q")
    boss.delete("vhosts", "of-boss")
    boss.delete("users", "eve")
    assert told(events, heard, "user.created") == (["user.created"], {"guest"})
    keys, users = told(events, heard, "user.deleted")
    assert users == {"boss"}
    assert set(keys) == {
        "vhost.created", "user.created", "permission.created", "policy.set", "queue.created",
        "queue.deleted", "permission.deleted", "policy.cleared", "vhost.deleted", "user.deleted",
    }  # fmt: skip
    api.delete("users", "boss")
    assert told(events, heard, "user.deleted") == (["user.deleted"], {"guest"})


def test_internal_changes_are_made_by_the_internal_user(leveret, events):
    heard = listening(events, "queue.deleted")
    with pika.BlockingConnection(pika.URLParameters(leveret.url)) as other:
        other.channel().queue_declare("", exclusive=True)
    assert told(events, heard, "queue.deleted") == (["queue.deleted"], {INTERNAL_USER})


def test_actor_is_set_only_while_its_coroutine_runs():
    actor, seen = CurrentActor(), []

    async def work(gate):
        seen.append(actor.name)
        try:
            await gate.wait()
        finally:
            seen.append(actor.name)
        return "done"

    async def named(name, gate):
        return await actor.run_as(name, work(gate))

    async def two():
        gate = asyncio.Event()
        task = asyncio.create_task(named("ann", gate))
        gone = asyncio.create_task(named("bob", gate))
        await asyncio.sleep(0)
        assert (seen, actor.name) == (["ann", "bob"], INTERNAL_USER)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        gate.set()
        assert await task == "done"
        assert (seen[2:], actor.name) == (["bob", "ann"], INTERNAL_USER)

    asyncio.run(two())


@pytest.mark.parametrize("value", [{"k" * 300: 1}, 2**63, [[[[1]]] * 3, {"a": 2**64 - 1}]])
def test_event_values_that_no_table_can_hold_become_text(api, events, value):
    heard = listening(events, "parameter.set", "queue.created")
    api.put("global-parameters", "odd", body={"value": value})
    refused = api.refused("PUT", "queues", "/", "odd", body={"arguments": {"x-odd": value}})
    assert refused[0] == 400 and "cannot be written as AMQP" in refused[1]
    api.put("queues", "/", "odd")
    api.delete("queues", "/", "odd")
    api.delete("global-parameters", "odd")
    assert told(events, heard, "queue.created")[0] == ["parameter.set", "queue.created"]
