"""The features of log mode, and the tests that show each of them with real clients.

The numbers are those of the project's feature list. A feature without a test, or with the name of a
test that does not exist, fails here.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

FEATURES: dict[int, tuple[str, tuple[str, ...]]] = {
    70: (
        "a log has partitions, offsets count up in each, nothing is updated or deleted",
        (
            "log/test_partitions.py::test_partitioned_log_has_the_topology_of_a_super_stream",
            "log/test_partitions.py::test_explicit_partition_header",
            "log/test_consuming.py::test_consuming_removes_no_record",
            "log/test_invalid_arguments.py::test_get_and_purge",
        ),
    ),
    71: (
        "equal keys go to the same partition, over restarts and from every client",
        (
            "log/test_partitions.py::test_keys_go_to_the_partition_that_rabbitmq_clients_choose",
            "log/test_aio_pika.py::test_all_clients_choose_the_same_partition_for_a_key",
        ),
    ),
    72: (
        "without a key partitions take turns; an explicit partition is used",
        (
            "log/test_partitions.py::test_records_without_a_key_are_distributed_round_robin",
            "log/test_partitions.py::test_explicit_partition_header",
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
            "log/test_groups.py::test_group_continues_at_its_committed_offsets_after_a_restart",
            "log/test_groups.py::test_commit_on_delivery_never_redelivers",
            "log/test_groups.py::test_commit_at_intervals_saves_delivered_positions",
            "log/test_groups.py::test_records_delivered_since_the_last_interval_are_redelivered",
        ),
    ),
    75: (
        "each partition has one member of a group; groups are independent",
        (
            "log/test_groups.py::test_each_partition_has_one_member_and_extra_members_are_idle",
            "log/test_groups.py::test_groups_are_independent",
            "log/test_aio_pika.py::test_group_shares_the_partitions_of_a_log",
        ),
    ),
    76: (
        "members beyond the number of partitions wait until one leaves",
        ("log/test_groups.py::test_each_partition_has_one_member_and_extra_members_are_idle",),
    ),
    77: (
        "join, leave and crash move partitions; no record is skipped, order per key holds",
        (
            "log/test_groups.py::test_no_record_is_skipped_when_members_join_and_leave",
            "log/test_groups.py::test_order_per_key_is_kept_across_rebalances",
            "log/test_crash.py::test_killed_members_and_brokers_lose_nothing",
            "log/test_http_members.py::test_member_is_removed_after_its_session_timeout",
        ),
    ),
    78: (
        "retention by age and bytes deletes old segments; the first offset rises",
        (
            "log/test_storage.py::test_max_length_bytes_deletes_old_segments",
            "log/test_storage.py::test_max_age_deletes_old_segments",
            "log/test_policies.py::test_max_length_bytes_policy_applies_at_once_and_to_later_records",
        ),
    ),
    79: (
        "segments roll by size; a sync interval may delay the sync",
        (
            "log/test_policies.py::test_segment_size_policy_applies_from_the_next_segment",
            "log/test_storage.py::test_sync_interval_delays_the_sync",
            "log/test_storage.py::test_confirmed_records_are_synced_by_default",
        ),
    ),
    80: (
        "compaction keeps the newest record of a key, offsets unchanged",
        ("log/test_storage.py::test_compaction_keeps_the_newest_value_of_each_key",),
    ),
    81: (
        "a tombstone is kept for a while, then its key is deleted",
        ("log/test_storage.py::test_tombstone_deletes_its_key_and_is_deleted_later",),
    ),
    82: (
        "idempotent producers: duplicates stored once, gaps rejected, also after a restart",
        (
            "log/test_producers.py::test_duplicate_is_confirmed_and_stored_once",
            "log/test_producers.py::test_gap_is_rejected",
            "log/test_producers.py::test_sequence_numbers_survive_a_restart",
        ),
    ),
    83: (
        "a transaction commits outputs and the input offset together, or neither",
        ("log/test_transactions.py::test_each_record_is_processed_exactly_once_despite_kills",),
    ),
    84: (
        "open and rolled-back transactions are invisible to consumers",
        ("log/test_transactions.py::test_open_and_rolled_back_transactions_are_invisible",),
    ),
    85: (
        "many records share a commit",
        ("log/test_storage.py::test_many_records_share_a_commit",),
    ),
    86: (
        "everything can be read again, by consumers and by groups",
        (
            "log/test_aio_pika.py::test_replay_twice",
            "log/test_groups.py::test_groups_are_independent",
            "log/test_groups.py::test_replay_by_reset_while_members_read",
        ),
    ),
    93: (
        "producers, consumers and administration over AMQP and HTTP",
        (
            "log/test_service.py::test_create_list_describe_delete",
            "http/manage/test_logs.py::test_records_are_written_and_read_by_offset",
            "http/manage/test_logs.py::test_members_share_the_partitions_of_a_group",
        ),
    ),
    94: (
        "a connector reads logs, whole and while they grow",
        ("spark/test_datasource.py::test_messages_and_logs_equal_the_ledger",),
    ),
    97: (
        "the commands that Kafka users know",
        (
            "cli/test_against_leveret.py::test_log_commands",
            "cli/test_log_session.py::test_kafka_quickstart",
        ),
    ),
    99: (
        "the cost of a read does not depend on the length of the log",
        (
            "log/test_storage.py::test_cost_of_a_read_does_not_depend_on_the_log_length",
            "unit/log/test_partition.py::test_cost_of_a_read_does_not_grow_with_the_log",
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


def test_every_core_feature_is_listed():
    assert set(FEATURES) == CORE | BEYOND


@pytest.mark.parametrize("number", FEATURES)
def test_tests_of_each_feature_exist(number):
    feature, tests = FEATURES[number]
    assert tests, f"no test shows that {feature}"
    for test in tests:
        module, _, name = test.partition("::")
        assert name in names_in(module), f"{test} does not exist; it showed that {feature}"
