"""`leveret log`: requests of the produce, consume, group and stream commands."""

from __future__ import annotations

import pytest

from tests.cli.conftest import AnswerSequence
from tests.cli.rows_messages import GROUP, LOG

PUBLISH = "POST /api/logs/%2F/l/publish"
RECORDS = "GET /api/logs/%2F/l/records"
JOIN = "POST /api/logs/%2F/l/groups/g/members"
FETCH = f"{JOIN}/m/fetch"
COMMIT = f"{JOIN}/m/commit"
LEAVE = "DELETE /api/logs/%2F/l/groups/g/members/m"


def record(partition, offset, value="v", **more):
    return {"partition": partition, "offset": offset, "value": value, **more}


def test_produce_lines_with_keys(server, cli, stdin):
    stdin(b"k1:v1\nk2:a:b\n")
    ended = cli("log", "produce", "l", "--key-separator", ":")
    assert (ended.code, ended.err) == (0, "2 records produced.\n")
    assert server.bodies(PUBLISH) == [
        {"records": [{"key": "k1", "value": "v1"}, {"key": "k2", "value": "a:b"}]}
    ]


def test_produce_to_a_partition_with_headers_and_bytes(server, cli, stdin):
    stdin(b"\xff\n")
    cli("log", "produce", "l", "--partition", "2", "-H", "a=1")
    expected = {"partition": 2, "headers": {"a": 1}, "value": "/w==", "encoding": "base64"}
    assert server.bodies(PUBLISH) == [{"records": [expected]}]


def test_produce_in_batches(server, cli, stdin):
    stdin(b"x\n" * 1200)
    assert cli("log", "produce", "l").err == "1200 records produced.\n"
    assert [len(body["records"]) for body in server.bodies(PUBLISH)] == [500, 500, 200]


@pytest.mark.parametrize(
    "command",
    [("log", "produce", "l"), ("publish",), ("publish", "--lines"), ("publish", "-f", "-")],
)
def test_no_progress_bar_over_typed_input(server, cli, stdin, monkeypatch, command):
    monkeypatch.setenv("TTY_COMPATIBLE", "1")  # standard error is a terminal
    server.answers["POST /api/exchanges/%2F/amq.default/publish"] = {"routed": True}
    stdin(b"x\n")
    assert "\x1b" in cli(*command).err
    stdin(b"x\n")
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    ended = cli(*command)
    assert ended.code == 0
    assert "\x1b" not in ended.err


def test_produce_a_line_without_key(server, cli, stdin):
    stdin(b"nokey\n")
    ended = cli("log", "produce", "l", "--key-separator", ":")
    assert (ended.code, server.requests) == (1, [])
    assert ended.err == "leveret: the line 'nokey' has no separator ':' after its key.\n"


def test_consume_from_beginning_reads_every_partition(server, cli):
    server.answers["GET /api/logs/%2F/l"] = LOG
    server.answers[RECORDS] = AnswerSequence(
        [[record(0, 2, "a"), record(0, 3, "b")], [], [record(1, 0, "c", key="k")]]
    )
    ended = cli(
        *("log", "consume", "l", "--from-beginning", "--count", "3"),
        *("--print-offset", "--print-key", "--separator", "|"),
    )
    assert ended.out == "0:2||a\n0:3||b\n1:0|k|c\n"
    asked = [request.query for request in server.requests if request.line == RECORDS]
    assert [(query["partition"], query["offset"]) for query in asked] == [
        ("0", "2"),
        ("0", "4"),
        ("1", "0"),
    ]


def test_consume_starts_at_the_end_by_default(server, cli):
    server.answers["GET /api/logs/%2F/l"] = LOG
    server.answers[RECORDS] = []
    ended = cli("log", "consume", "l", "--partition", "0", "--idle", "0")
    assert (ended.code, ended.out) == (0, "")
    assert server.requests[1].query["offset"] == "9"


def test_consume_clamps_the_offset(server, cli):
    server.answers["GET /api/logs/%2F/l"] = LOG
    server.answers[RECORDS] = []
    for offset, expected in (("last", "8"), ("100", "9"), ("0", "2")):
        server.requests.clear()
        cli("log", "consume", "l", "--partition", "0", "--offset", offset, "--idle", "0")
        assert server.requests[1].query["offset"] == expected


def test_consume_a_missing_partition(server, cli):
    server.answers["GET /api/logs/%2F/l"] = LOG
    ended = cli("log", "consume", "l", "--partition", "7")
    expected = "leveret: log 'l' has no partition 7; its partitions are 0 to 1.\n"
    assert (ended.code, ended.err) == (66, expected)


def test_group_consumer_joins_commits_and_leaves(server, cli):
    server.answers[JOIN] = {"member": "m", "partitions": [0, 1]}
    server.answers[FETCH] = AnswerSequence(
        [{"records": [record(0, 5), record(1, 3)]}, {"records": [record(0, 6)]}, {"records": []}]
    )
    ended = cli("log", "consume", "l", "--group", "g", "--idle", "0")
    assert (ended.code, ended.out) == (0, "v\nv\nv\n")
    assert server.lines() == [JOIN, FETCH, COMMIT, FETCH, COMMIT, FETCH, LEAVE]
    assert server.bodies(JOIN) == [{"start": "first"}]
    assert server.bodies(COMMIT) == [{"offsets": {"0": 6, "1": 4}}, {"offsets": {"0": 7}}]


def test_group_consumer_rejoins_after_its_session_expired(server, cli):
    server.answers[JOIN] = AnswerSequence([{"member": "gone"}, {"member": "m"}])
    server.answers[f"{JOIN}/gone/fetch"] = (404, {"error": "Object Not Found", "reason": "gone"})
    server.answers[FETCH] = AnswerSequence([{"records": [record(0, 5)]}, {"records": []}])
    ended = cli("log", "consume", "l", "--group", "g", "--offset", "next", "--idle", "0")
    assert (ended.code, ended.out) == (0, "v\n")
    lost = f"{JOIN}/gone/fetch"
    assert server.lines() == [JOIN, lost, JOIN, FETCH, COMMIT, FETCH, LEAVE]
    assert server.bodies(JOIN) == [{"start": "next"}] * 2


def test_group_consumer_refuses_partition(server, cli):
    ended = cli("log", "consume", "l", "--group", "g", "--partition", "1")
    assert ended.code == 2
    assert ended.err.startswith("leveret: the members of a group share all partitions")


def test_consume_prints_raw_values(server, cli):
    server.answers["GET /api/logs/%2F/l"] = LOG
    server.answers[RECORDS] = AnswerSequence([[record(0, 2, "w7w=", encoding="base64")]])
    ended = cli("log", "consume", "l", "--partition", "0", "--offset", "first", "--count", "1")
    assert ended.out == "ü\n"


def test_list_sums_the_partitions(server, cli):
    server.answers["GET /api/logs/%2F"] = [LOG]
    assert cli("log", "list", "-s").out == "l\t2\t7\t7\tdelete\n"


def test_describe_counts_segments(server, cli):
    parts = [{**LOG["partitions"][0], "segments": [{"base_offset": 0}, {"base_offset": 5}]}]
    server.answers["GET /api/logs/%2F/l"] = {**LOG, "partitions": parts}
    assert cli("log", "describe", "l", "-s").out == "0\tl-0\t2\t9\t7\t2\n"


def test_describe_reports_damage(server, cli):
    damage = {"first_offset": 20, "next_offset": 40, "reason": "wrong checksum"}
    part = {**LOG["partitions"][0], "damage": [damage, {**damage, "next_offset": None}]}
    server.answers["GET /api/logs/%2F/l"] = {**LOG, "partitions": [part]}
    ended = cli("log", "describe", "l")
    assert "Partition 0: offsets 20 to 39 are lost and skipped (wrong checksum).\n" in ended.err
    assert "Partition 0: offsets from 20 on are lost" in ended.err


def test_groups_show_lag_and_reader(server, cli):
    server.answers["GET /api/logs/%2F/l/groups"] = [GROUP, {**GROUP, "group": "other"}]
    assert cli("log", "groups", "l", "--group", "g", "-s").out == "g\t0\t5\t9\t4\tt\tc\n"


def test_reset_dry_run(server, cli):
    server.answers["POST /api/logs/%2F/l/groups/g/reset"] = [{"partition": 0, "from": 5, "to": 2}]
    ended = cli("log", "reset", "l", "-g", "g", "--to", "first", "--dry-run")
    assert (ended.out, ended.err) == (
        "partition\tfrom\tto\n0\t5\t2\n",
        "Nothing changed (--dry-run).\n",
    )


def test_stream_groups_have_a_line_per_partition(server, cli):
    server.answers |= {"GET /api/logs/%2F": [LOG], "GET /api/logs/%2F/l/groups": [GROUP]}
    ended = cli("list_stream_consumer_groups", "-s")
    assert ended.out == "l-0\tg\t0\t1\nl-1\tg\t1\t0\n"


def test_stream_group_members_of_one_partition(server, cli):
    server.answers |= {"GET /api/logs/%2F": [LOG], "GET /api/logs/%2F/l/groups": [GROUP]}
    line = ("list_stream_group_consumers", "-s", "--reference", "g", "--stream")
    assert cli(*line, "l").out == "t\tc\tactive\t[0]\n"
    assert cli(*line, "l-1").out == ""
    assert cli(*line, "nope").code == 66
