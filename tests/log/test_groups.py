"""Consumer groups: who reads what, what a commit means, and what happens when members go."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest

from queues.log.groups import assign
from tests.log.conftest import Reader, declare, numbered, publish, wait_for

FIRST = {"x_stream_offset": "first"}


@pytest.fixture
def orders(channel):
    declare(channel, "orders", partitions=3)
    return "orders"


def group(home, name="G"):
    return next(one for one in home.hub.logs.groups("/", "orders") if one["group"] == name)


def committed(home, name="G"):
    return [part["committed"] for part in group(home, name)["partitions"]]


def shares(home, name="G"):
    return [member["partitions"] for member in group(home, name)["members"]]


def all_places(count):
    return [(partition, offset) for partition in range(3) for offset in range(count)]


def test_each_partition_has_one_member_and_extra_members_wait(orders, home, channel, readers):
    members = [readers(orders, x_group="G", **FIRST) for _ in range(4)]
    wait_for(lambda: sorted(shares(home)) == [[], [0], [1], [2]], *members)
    publish(channel, orders, numbered(30))
    wait_for(lambda: sum(len(m.records) for m in members) == 30, *members)
    idle = next(m for m in members if not m.records)
    assert sorted(p for m in members for p in m.places) == all_places(10)
    gone = next(m for m in members if m.records)
    lost = {partition for partition, _ in gone.places}
    wait_for(lambda: committed(home) == [10, 10, 10], *members)
    gone.close()
    publish(channel, orders, numbered(30))
    wait_for(lambda: len(idle.records) == 10, *[m for m in members if m is not gone])
    assert {partition for partition, _ in idle.places} == lost
    assert [offset for _, offset in idle.places] == list(range(10, 20))


def test_a_crowd_of_members_that_dies_at_once_is_shared_out_once(
    orders, home, channel, readers, monkeypatch
):
    crowd = readers(orders, x_group="G", acks=False, **FIRST)
    for _ in range(60):
        crowd.channel.basic_consume(orders, crowd._on_record, arguments={"x-group": "G"})
    heir = readers(orders, x_group="G")
    publish(channel, orders, numbered(30))
    crowd.read(30)
    assert not heir.records
    looked_at = []

    def counted(partitions, members, current):
        looked_at.append(len(members))
        return assign(partitions, members, current)

    monkeypatch.setattr("queues.log.groups.assign", counted)
    crowd.die()
    assert sorted(heir.read(30).places) == all_places(10)
    assert looked_at == [1]
    assert shares(home) == [[0, 1, 2]]


def test_groups_do_not_know_of_each_other(orders, channel, readers):
    publish(channel, orders, numbered(30))
    one, two = readers(orders, x_group="A", **FIRST), readers(orders, x_group="B", **FIRST)
    for reader in (one, two):
        assert sorted(reader.read(30).places) == all_places(10)


def test_a_group_goes_on_where_it_committed_also_after_a_restart(orders, home, channel, readers):
    publish(channel, orders, numbered(30))
    first = readers(orders, prefetch=7, acks=False, x_group="G", **FIRST).read(7)
    tags = {
        place: m.delivery_tag for place, (m, _, _) in zip(first.places, first.records, strict=True)
    }
    for place in first.places[:4]:
        first.channel.basic_ack(tags[place])
    done = set(first.places[:4])
    wait_for(lambda: sum(committed(home)) == 4, first)
    first.close()
    home.restart()
    assert sum(committed(home)) == 4
    second = readers(orders, x_group="G", **FIRST).read(26)
    assert sorted(second.quiet(0.1).places) == sorted(set(all_places(10)) - done)


def test_a_commit_never_passes_what_is_not_acked(home, channel, readers):
    declare(channel, "orders")
    publish(channel, "", numbered(10), "orders")
    reader = readers("orders", prefetch=10, acks=False, x_group="G", **FIRST).read(10)
    tags = [method.delivery_tag for method, _, _ in reader.records]
    for number in (1, 2, 5):
        reader.channel.basic_ack(tags[number])
    reader.channel.basic_nack(tags[3], requeue=True)
    assert reader.read(11).offsets[-1] == 3
    assert committed(home) == [0]
    reader.channel.basic_ack(tags[0])
    wait_for(lambda: committed(home) == [3], reader)
    reader.channel.basic_ack(reader.records[-1][0].delivery_tag)
    wait_for(lambda: committed(home) == [4], reader)
    reader.die()
    again = readers("orders", x_group="G").read(6)
    assert again.offsets == list(range(4, 10))
    assert all(method.redelivered for method, _, _ in again.records)
    wait_for(lambda: group(home)["lag"] == 0, again)


def test_commit_on_delivery_never_repeats(orders, home, channel, readers):
    publish(channel, orders, numbered(30))
    options = {"prefetch": 5, "acks": False, "x_group": "G", "x_commit": "delivery", **FIRST}
    first = readers(orders, **options).read(5)
    assert sum(committed(home)) == 5
    first.die()
    wait_for(lambda: not group(home)["members"])
    second = readers(orders, **{**options, "prefetch": 100}).read(25)
    assert not set(first.places) & set(second.quiet(0.1).places)
    assert group(home)["commit"] == "delivery"


def test_commit_at_intervals_saves_what_was_delivered(orders, home, channel, readers):
    """As Kafka's automatic commits: saved now and then, whatever the member does with it."""
    publish(channel, orders, numbered(30))
    options = {"prefetch": 5, "acks": False, "x_group": "G", "x_commit": "interval", **FIRST}
    first = readers(orders, x_commit_interval=30, **options).read(5)
    wait_for(lambda: sum(committed(home)) == 5, first)
    assert group(home)["commit"] == "interval" and group(home)["commit_interval_ms"] == 30
    for method, _, _ in first.records:
        first.channel.basic_ack(method.delivery_tag)
    first.read(10)
    wait_for(lambda: sum(committed(home)) == 10, first)
    first.die()
    wait_for(lambda: not group(home)["members"])
    home.restart()
    assert sum(committed(home)) == 10
    second = readers(orders, x_commit_interval=30, **{**options, "prefetch": 50}).read(20)
    assert not set(first.places) & set(second.quiet(0.1).places)


def test_what_was_delivered_since_the_last_interval_comes_again(orders, home, channel, readers):
    publish(channel, orders, numbered(30))
    options = {"x_group": "G", "x_commit": "interval", "x_commit_interval": 3_600_000, **FIRST}
    first = readers(orders, **options).read(30)
    assert committed(home) == [0, 0, 0]
    first.die()
    wait_for(lambda: not group(home)["members"])
    assert sorted(readers(orders, **options).read(30).places) == all_places(10)


def test_members_come_and_go_and_nothing_is_skipped(orders, home, channel, readers):
    """Order per key holds for what is processed first; only what was not acked comes again."""
    members = [readers(orders, prefetch=20, x_group="G", **FIRST)]
    total = 0
    for step in range(6):
        for number in range(60):
            publish(channel, orders, [b"%d" % total], f"key-{number % 11}")
            total += 1
        if step % 2 == 0:
            members.append(readers(orders, prefetch=20, x_group="G", **FIRST))
        else:
            members.pop(0).die()
        for member in members:
            member.pump()
    wait_for(lambda: group(home)["lag"] == 0, *members)
    assert sum(committed(home)) == total
    assert len(shares(home)) == len(members)


def test_the_order_of_each_key_holds_across_rebalances(orders, home, channel, readers):
    """Whoever processes a record of a key first has the earlier ones of that key before it."""
    dice, sent = random.Random(6), 0
    processed: list[tuple[str, int]] = []
    members: list[Reader] = []

    def note(method, body):
        processed.append((method.routing_key, int(body)))

    for step in range(12):
        if len(members) < 2 or (step % 3 and len(members) < 5):
            members.append(readers(orders, prefetch=7, x_group="G", on_record=note, **FIRST))
        else:
            leaver = members.pop(dice.randrange(len(members)))
            leaver.die() if step % 2 else leaver.close()
        for _ in range(25):
            publish(channel, orders, [b"%d" % sent], f"key-{dice.randrange(9)}")
            sent += 1
        for member in members:
            member.pump(0.005)
    wait_for(lambda: group(home)["lag"] == 0, *members)
    by_key: dict[str, list[int]] = defaultdict(list)
    for key, number in dict.fromkeys(processed):
        by_key[key].append(number)
    assert all(numbers == sorted(numbers) for numbers in by_key.values())
    assert {number for _, number in processed} == set(range(sent))
    assert len(by_key) == 9


def test_a_new_group_begins_where_its_first_member_asks_and_stays_there(
    orders, home, channel, readers
):
    publish(channel, orders, numbered(9))
    reader = readers(orders, x_group="G").quiet(0.1)
    assert reader.records == [] and committed(home) == [3, 3, 3]
    reader.close()
    publish(channel, orders, numbered(9))
    home.restart()
    assert sorted(readers(orders, x_group="G").read(9).places) == [
        (partition, offset) for partition in range(3) for offset in range(3, 6)
    ]


def test_replay_by_reset_while_members_read(orders, home, channel, readers):
    publish(channel, orders, numbered(30))
    reader = readers(orders, x_group="G", **FIRST).read(30)
    wait_for(lambda: group(home)["lag"] == 0, reader)
    hub = home.hub
    assert hub.logs.reset("/", "orders", "G", "first", dry_run=True) == [
        (0, 10, 0), (1, 10, 0), (2, 10, 0)
    ]  # fmt: skip
    assert committed(home) == [10, 10, 10]
    on_its_thread(home, lambda: hub.logs.reset("/", "orders", "G", 4, partition=1))
    assert reader.read(36).places[30:] == [(1, offset) for offset in range(4, 10)]
    wait_for(lambda: committed(home) == [10, 10, 10], reader)


def test_acks_from_before_a_reset_change_nothing(orders, home, channel, readers):
    """Whoever has the partition gets everything from the new place on, once more."""
    publish(channel, orders, numbered(12), x_partition=1)
    reader = readers(orders, acks=False, x_group="G", **FIRST).read(12)
    for method, _, _ in reader.records[:6]:
        reader.channel.basic_ack(method.delivery_tag)
    wait_for(lambda: committed(home)[1] == 6, reader)
    on_its_thread(home, lambda: home.hub.logs.reset("/", orders, "G", 2, partition=1))
    reader.read(22)
    for method, _, _ in reader.records[6:12]:
        reader.channel.basic_ack(method.delivery_tag)
    reader.channel.queue_declare(orders, passive=True)  # answered after the acks
    assert committed(home)[1] == 2
    assert reader.quiet(0.1).places[12:] == [(1, offset) for offset in range(2, 12)]
    assert all(method.redelivered for method, _, _ in reader.records[12:])
    for method, _, _ in reader.records[12:]:
        reader.channel.basic_ack(method.delivery_tag)
    wait_for(lambda: committed(home)[1] == 12, reader)


def on_its_thread(home, call):
    home._running._loop.call_soon_threadsafe(call)


def test_a_group_on_a_log_of_one_partition_has_a_standby(home, channel, readers):
    declare(channel, "orders")
    first, second = (readers("orders", x_group="G", **FIRST) for _ in range(2))
    publish(channel, "", numbered(3), "orders")
    assert first.read(3) and not second.quiet(0.1).records
    wait_for(lambda: committed(home) == [3], first)
    first.die()
    wait_for(lambda: len(group(home)["members"]) == 1)
    publish(channel, "", numbered(2), "orders")
    assert second.read(2).offsets == [3, 4]


def test_a_partition_is_not_read_by_a_group_of_its_own(orders, readers):
    with pytest.raises(Exception, match="consume from 'orders'"):
        readers("orders-0", x_group="G")
