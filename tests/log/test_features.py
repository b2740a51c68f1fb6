"""What log mode promises, feature by feature, and the tests that show it with real clients.

The numbers are those of the list of features the project works from. A promise without a test, or
with the name of a test that is gone, fails here.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PROMISES: dict[int, tuple[str, tuple[str, ...]]] = {
    70: (
        "a log has partitions, offsets count up in each, nothing is updated or deleted",
        (
            "log/test_partitions.py::test_the_topology_is_that_of_a_super_stream",
            "log/test_partitions.py::test_an_explicit_partition",
            "log/test_consuming.py::test_reading_takes_nothing_away",
            "log/test_refusals.py::test_get_and_purge",
        ),
    ),
    71: (
        "equal keys go to the same partition, over restarts and from every client",
        (
            "log/test_partitions.py::test_equal_keys_stay_together_as_rabbitmqs_clients_place_them",
            "log/test_aio_pika.py::test_every_client_places_a_key_alike",
        ),
    ),
    72: (
        "without a key partitions take turns; a named partition is honoured",
        (
            "log/test_partitions.py::test_without_a_key_in_turn",
            "log/test_partitions.py::test_an_explicit_partition",
        ),
    ),
    73: (
        "a consumer starts at first, last, next, a number, a time or an age; others are clamped",
        (
            "log/test_consuming.py::test_start",
            "log/test_consuming.py::test_start_at_the_end",
            "log/test_consuming.py::test_start_at_a_time",
        ),
    ),
    74: (
        "offsets are committed in the broker, by ack or automatically, and survive a restart",
        (
            "log/test_groups.py::test_a_group_goes_on_where_it_committed_also_after_a_restart",
            "log/test_groups.py::test_commit_on_delivery_never_repeats",
            "log/test_groups.py::test_commit_at_intervals_saves_what_was_delivered",
            "log/test_groups.py::test_what_was_delivered_since_the_last_interval_comes_again",
        ),
    ),
    75: (
        "each partition has one member of a group; groups do not know of each other",
        (
            "log/test_groups.py::test_each_partition_has_one_member_and_extra_members_wait",
            "log/test_groups.py::test_groups_do_not_know_of_each_other",
            "log/test_aio_pika.py::test_a_group_shares_a_partitioned_log",
        ),
    ),
    76: (
        "members beyond the number of partitions wait until one leaves",
        ("log/test_groups.py::test_each_partition_has_one_member_and_extra_members_wait",),
    ),
    77: (
        "join, leave and crash move partitions; no record is skipped, order per key holds",
        (
            "log/test_groups.py::test_members_come_and_go_and_nothing_is_skipped",
            "log/test_groups.py::test_the_order_of_each_key_holds_across_rebalances",
            "log/test_crash.py::test_killed_members_and_brokers_lose_nothing",
            "log/test_members.py::test_a_silent_member_is_taken_for_dead",
        ),
    ),
    78: (
        "retention by age and bytes drops whole old segments; the first offset rises",
        (
            "log/test_keeping.py::test_bytes_drop_whole_old_segments",
            "log/test_keeping.py::test_age_drops_what_is_old",
            "log/test_policies.py::test_max_length_bytes_drops_at_once_and_keeps_on",
        ),
    ),
    79: (
        "segments roll by size; syncing may be put off by an interval",
        (
            "log/test_policies.py::test_segments_are_smaller_from_the_next_on",
            "log/test_keeping.py::test_a_log_may_sync_later",
            "log/test_keeping.py::test_by_default_every_confirm_is_on_disk",
        ),
    ),
    80: (
        "compaction keeps the newest record of a key, offsets unchanged",
        ("log/test_keeping.py::test_compaction_keeps_the_newest_value_of_each_key",),
    ),
    81: (
        "a tombstone is seen for a while, then its key is gone",
        ("log/test_keeping.py::test_a_tombstone_removes_its_key_and_then_goes_itself",),
    ),
    82: (
        "idempotent producers: resent once stored, gaps refused, over a restart",
        (
            "log/test_producers.py::test_a_resent_message_is_confirmed_and_stored_once",
            "log/test_producers.py::test_a_gap_is_refused",
            "log/test_producers.py::test_the_numbers_survive_a_restart",
        ),
    ),
    83: (
        "a transaction commits outputs and the place in the input together, or neither",
        ("log/test_transactions.py::test_every_record_is_processed_exactly_once_over_kills",),
    ),
    84: (
        "readers see nothing of a transaction that is open or was abandoned",
        ("log/test_transactions.py::test_nothing_of_an_open_or_abandoned_transaction_is_seen",),
    ),
    85: (
        "many records share a commit",
        ("log/test_keeping.py::test_many_records_share_a_commit",),
    ),
    86: (
        "everything can be read again, by consumers and by groups",
        (
            "log/test_aio_pika.py::test_replay_twice",
            "log/test_groups.py::test_groups_do_not_know_of_each_other",
            "log/test_groups.py::test_replay_by_reset_while_members_read",
        ),
    ),
    93: (
        "producers, consumers and administration over AMQP and HTTP",
        (
            "log/test_hub.py::test_create_list_describe_delete",
            "http/manage/test_logs.py::test_records_are_written_and_read_by_offset",
            "http/manage/test_logs.py::test_members_share_a_group",
        ),
    ),
    94: (
        "a connector reads logs, whole and while they grow",
        ("spark/test_datasource.py::test_messages_and_logs_equal_the_ledger",),
    ),
    97: (
        "the commands Kafka's users know",
        (
            "cli/test_against_leveret.py::test_logs_are_written_read_and_followed",
            "cli/test_log_session.py::test_a_session_as_in_kafkas_quickstart",
        ),
    ),
    99: (
        "reading costs what is read, not what is there",
        (
            "log/test_keeping.py::test_reading_costs_what_is_read_not_what_is_there",
            "unit/log/test_partition.py::test_the_cost_of_a_read_does_not_grow_with_the_log",
        ),
    ),
}
CORE = {*range(70, 83), 85, 86, 93, 94, 97, 99}
BEYOND = {83, 84}


@cache
def names_in(module: str) -> frozenset[str]:
    tree = ast.parse((ROOT / "tests" / module).read_text(encoding="utf-8"))
    return frozenset(
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def test_every_core_feature_is_promised():
    assert set(PROMISES) == CORE | BEYOND


@pytest.mark.parametrize("number", PROMISES)
def test_the_tests_of_a_feature_exist(number):
    promise, tests = PROMISES[number]
    assert tests, f"nothing shows that {promise}"
    for test in tests:
        module, _, name = test.partition("::")
        assert name in names_in(module), f"{test} is gone, which showed that {promise}"
