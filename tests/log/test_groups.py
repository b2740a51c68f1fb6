"""Consumer groups: assignment, commits and rebalances."""

from __future__ import annotations

import contextlib
import random
import sqlite3
from collections import defaultdict

import pytest

from leveret.broker.logs.service import OffsetMove
from leveret.queues.log.consumer_group import CommitPlan
from leveret.queues.log.group_coordinator import CommitMode, assign
from tests.log.conftest import Reader, declare, numbered, publish, wait_for

FIRST = {"x_stream_offset": "first"}


@pytest.fixture
def orders(channel):
    declare(channel, "orders", partitions=3)
    return "orders"


def group(home, name="G"):
    return next(info for info in home.hub.logs.groups("/", "orders") if info.name == name)


def committed(home, name="G"):
    return [part.committed for part in group(home, name).partitions]


def shares(home, name="G"):
    return [member.partitions for member in group(home, name).members]


def all_places(count):
    return [(partition, offset) for partition in range(3) for offset in range(count)]


def test_each_partition_has_one_member_and_extra_members_are_idle(orders, home, channel, readers):
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


def test_many_members_leaving_at_once_cause_one_rebalance(
    orders, home, channel, readers, monkeypatch
):
    members = readers(orders, x_group="G", acks=False, **FIRST)
    for _ in range(60):
        members.channel.basic_consume(orders, members._on_record, arguments={"x-group": "G"})
    heir = readers(orders, x_group="G")
    publish(channel, orders, numbered(30))
    members.read(30)
    assert not heir.records
    looked_at = []

    def counted(partitions, members, current):
        looked_at.append(len(members))
        return assign(partitions, members, current)

    monkeypatch.setattr("leveret.queues.log.group_coordinator.assign", counted)
    members.die()
    assert sorted(heir.read(30).places) == all_places(10)
    assert looked_at == [1]
    assert shares(home) == [[0, 1, 2]]


def test_groups_are_independent(orders, channel, readers):
    publish(channel, orders, numbered(30))
    first, second = readers(orders, x_group="A", **FIRST), readers(orders, x_group="B", **FIRST)
    for reader in (first, second):
        assert sorted(reader.read(30).places) == all_places(10)


def test_group_continues_at_its_committed_offsets_after_a_restart(orders, home, channel, readers):
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


def test_commit_never_passes_an_unacked_record(home, channel, readers):
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
    wait_for(lambda: group(home).lag == 0, again)


def test_commit_on_delivery_never_redelivers(orders, home, channel, readers):
    publish(channel, orders, numbered(30))
    options = {"prefetch": 5, "acks": False, "x_group": "G", "x_commit": "delivery", **FIRST}
    first = readers(orders, **options).read(5)
    assert sum(committed(home)) == 5
    first.die()
    wait_for(lambda: not group(home).members)
    second = readers(orders, **{**options, "prefetch": 100}).read(25)
    assert not set(first.places) & set(second.quiet(0.1).places)
    assert group(home).plan.mode is CommitMode.ON_DELIVERY


def test_commit_at_intervals_saves_delivered_positions(orders, home, channel, readers):
    """Like Kafka's automatic commits: saved at intervals, independently of acks."""
    publish(channel, orders, numbered(30))
    options = {"prefetch": 5, "acks": False, "x_group": "G", "x_commit": "interval", **FIRST}
    first = readers(orders, x_commit_interval=30, **options).read(5)
    wait_for(lambda: sum(committed(home)) == 5, first)
    assert group(home).plan == CommitPlan(CommitMode.AT_INTERVALS, 30)
    for method, _, _ in first.records:
        first.channel.basic_ack(method.delivery_tag)
    first.read(10)
    wait_for(lambda: sum(committed(home)) == 10, first)
    first.die()
    wait_for(lambda: not group(home).members)
    home.restart()
    assert sum(committed(home)) == 10
    second = readers(orders, x_commit_interval=30, **{**options, "prefetch": 50}).read(20)
    assert not set(first.places) & set(second.quiet(0.1).places)


def test_records_delivered_since_the_last_interval_are_redelivered(orders, home, channel, readers):
    publish(channel, orders, numbered(30))
    options = {"x_group": "G", "x_commit": "interval", "x_commit_interval": 3_600_000, **FIRST}
    first = readers(orders, **options).read(30)
    assert committed(home) == [0, 0, 0]
    first.die()
    wait_for(lambda: not group(home).members)
    assert sorted(readers(orders, **options).read(30).places) == all_places(10)


def test_no_record_is_skipped_when_members_join_and_leave(orders, home, channel, readers):
    """First deliveries keep the order per key; only unacked records are redelivered."""
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
    wait_for(lambda: group(home).lag == 0, *members)
    assert sum(committed(home)) == total
    assert len(shares(home)) == len(members)


def test_order_per_key_is_kept_across_rebalances(orders, home, channel, readers):
    """First deliveries of a key's records are in order, whichever member gets them."""
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
    wait_for(lambda: group(home).lag == 0, *members)
    by_key: dict[str, list[int]] = defaultdict(list)
    for key, number in dict.fromkeys(processed):
        by_key[key].append(number)
    assert all(numbers == sorted(numbers) for numbers in by_key.values())
    assert {number for _, number in processed} == set(range(sent))
    assert len(by_key) == 9


def test_first_member_sets_the_start_offset_of_a_new_group(orders, home, channel, readers):
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
    wait_for(lambda: group(home).lag == 0, reader)
    hub = home.hub
    assert hub.logs.reset("/", "orders", "G", "first", dry_run=True) == [
        OffsetMove(number, 10, 0) for number in range(3)
    ]
    assert committed(home) == [10, 10, 10]
    on_broker_thread(home, lambda: hub.logs.reset("/", "orders", "G", 4, partition=1))
    assert reader.read(36).places[30:] == [(1, offset) for offset in range(4, 10)]
    wait_for(lambda: committed(home) == [10, 10, 10], reader)


def test_acks_from_before_a_reset_are_ignored(orders, home, channel, readers):
    """The member that has the partition gets all records from the new offset on again."""
    publish(channel, orders, numbered(12), x_partition=1)
    reader = readers(orders, acks=False, x_group="G", **FIRST).read(12)
    for method, _, _ in reader.records[:6]:
        reader.channel.basic_ack(method.delivery_tag)
    wait_for(lambda: committed(home)[1] == 6, reader)
    on_broker_thread(home, lambda: home.hub.logs.reset("/", orders, "G", 2, partition=1))
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


def on_broker_thread(home, call):
    home._running._loop.call_soon_threadsafe(call)


def test_group_on_a_single_partition_has_a_standby_member(home, channel, readers):
    declare(channel, "orders")
    first, second = (readers("orders", x_group="G", **FIRST) for _ in range(2))
    publish(channel, "", numbered(3), "orders")
    assert first.read(3) and not second.quiet(0.1).records
    wait_for(lambda: committed(home) == [3], first)
    first.die()
    wait_for(lambda: len(group(home).members) == 1)
    publish(channel, "", numbered(2), "orders")
    assert second.read(2).offsets == [3, 4]


def test_group_cannot_consume_from_a_single_partition(orders, readers):
    with pytest.raises(Exception, match="consume from 'orders'"):
        readers("orders-0", x_group="G")


@pytest.mark.parametrize("partitions", [None, 3])
def test_deleted_log_leaves_no_offsets(home, channel, readers, partitions):
    """Neither stored ones nor those that are saved in the batch that deletes the log."""
    declare(channel, "orders", partitions=partitions)
    for name in ("A", "B"):
        readers("orders", x_group=name, **FIRST)
    wait_for(lambda: len(home.hub.logs.groups("/", "orders")) == 2)
    channel.queue_declare("other", durable=True)  # answered when everything so far is on disk

    def reset_and_delete():
        home.hub.logs.reset("/", "orders", "A", 0)
        home.hub.logs.delete("/", "orders")

    home._running.call(reset_and_delete)
    channel.queue_declare("another", durable=True)
    with contextlib.closing(sqlite3.connect(home.data_dir / "leveret.db")) as database:
        assert database.execute("SELECT count(*) FROM group_offsets").fetchone() == (0,)
