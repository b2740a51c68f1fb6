"""Commands about messages, streams, logs and history."""

from __future__ import annotations

from typing import Any

from tests.cli.conftest import AnswerSequence
from tests.cli.rows import DELETE, GET, POST, PUT, Row, expect

LOG: dict[str, Any] = {
    "name": "l",
    "vhost": "/",
    "partitions": [
        {
            "index": 0,
            "queue": "l-0",
            "first_offset": 2,
            "next_offset": 9,
            "messages": 7,
            "bytes": 7,
            "segments": 1,
        },
        {
            "index": 1,
            "queue": "l-1",
            "first_offset": 0,
            "next_offset": 0,
            "messages": 0,
            "bytes": 0,
            "segments": 1,
        },
    ],
}
GROUP = {
    "group": "g",
    "members": [{"consumer_tag": "t", "connection": "c", "partitions": [0]}],
    "partitions": [{"partition": 0, "committed": 5, "end": 9, "lag": 4}],
}
TRACE = {"message": {"id": 1}, "events": [{"time_ms": 1, "event": "published"}]}

ROWS = [
    # messages
    Row(
        "publish hi -x e -k k -H n=1 -P message_id=7 -P priority=3 --transient",
        [
            expect(
                POST + "exchanges/%2F/e/publish",
                {
                    "routing_key": "k",
                    "properties": {
                        "delivery_mode": 1,
                        "message_id": "7",
                        "priority": 3,
                        "headers": {"n": 1},
                    },
                    "payload": "hi",
                    "payload_encoding": "string",
                },
            )
        ],
        {POST + "exchanges/%2F/e/publish": {"routed": True}},
    ),
    Row(
        "get q --count 3 --ack --truncate 10",
        [
            expect(
                POST + "queues/%2F/q/get",
                {"count": 3, "ackmode": "ack_requeue_false", "encoding": "auto", "truncate": 10},
            )
        ],
        {POST + "queues/%2F/q/get": []},
    ),
    Row(
        "consume q --count 2",
        [
            expect(
                POST + "queues/%2F/q/get",
                {"count": 2, "ackmode": "ack_requeue_false", "encoding": "auto", "wait": 20.0},
            ),
            expect(
                POST + "queues/%2F/q/get",
                {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto", "wait": 20.0},
            ),
        ],
        {POST + "queues/%2F/q/get": AnswerSequence([[{"payload": "a"}], [{"payload": "b"}]])},
    ),
    Row(
        "browse q --count 5 --offset 2",
        [expect(GET + "queues/%2F/q/browse", count="5", offset="2")],
        {GET + "queues/%2F/q/browse": []},
    ),
    Row(
        "route -x e -k a.b -H n=1",
        [expect(POST + "route/%2F", {"exchange": "e", "routing_key": "a.b", "headers": {"n": 1}})],
        {POST + "route/%2F": {"queues": ["q"], "path": []}},
    ),
    Row(
        "list_scheduled x --count 5 --offset 2",
        [expect(GET + "exchanges/%2F/x/scheduled", count="5", offset="2")],
        {GET + "exchanges/%2F/x/scheduled": []},
    ),
    Row("cancel_scheduled x 7", [expect(DELETE + "exchanges/%2F/x/scheduled/7")]),
    # streams
    Row(
        "add_super_stream s --partitions 4 --max-age 7D",
        [
            expect(
                PUT + "stream/super-streams/%2F/s",
                {"partitions": 4, "arguments": {"x-max-age": "7D"}},
            )
        ],
    ),
    Row(
        "add_super_stream s --binding-keys a,b",
        [expect(PUT + "stream/super-streams/%2F/s", {"binding-keys": "a,b", "arguments": {}})],
    ),
    Row("delete_super_stream s", [expect(DELETE + "logs/%2F/s")]),
    Row(
        "list_stream_consumer_groups",
        [expect(GET + "logs/%2F"), expect(GET + "logs/%2F/l/groups")],
        {GET + "logs/%2F": [LOG], GET + "logs/%2F/l/groups": [GROUP]},
    ),
    Row(
        "list_stream_group_consumers --stream l-0 --reference g",
        [expect(GET + "logs/%2F"), expect(GET + "logs/%2F/l/groups")],
        {GET + "logs/%2F": [LOG], GET + "logs/%2F/l/groups": [GROUP]},
    ),
    Row(
        "list_stream_tracking s",
        [expect(GET + "stream/%2F/s/tracking")],
        {GET + "stream/%2F/s/tracking": {"offsets": {"g": 4}}},
    ),
    Row(
        "reset_offset --stream l-1 --reference g",
        [
            expect(GET + "logs/%2F"),
            expect(
                POST + "logs/%2F/l/groups/g/reset",
                {"to": "first", "partition": 1, "dry_run": False},
            ),
        ],
        {GET + "logs/%2F": [LOG]},
    ),
    # logs
    Row(
        "log create l --partitions 3 --max-age 7D --max-bytes 1000 --compact",
        [
            expect(GET + "logs/%2F/l"),
            expect(
                PUT + "logs/%2F/l",
                {
                    "partitions": 3,
                    "max_age": "7D",
                    "max_length_bytes": 1000,
                    "cleanup_policy": "compact",
                },
            ),
        ],
    ),
    Row("log list", [expect(GET + "logs/%2F")], {GET + "logs/%2F": [LOG]}),
    Row("log describe l", [expect(GET + "logs/%2F/l")], {GET + "logs/%2F/l": LOG}),
    Row("log delete l", [expect(DELETE + "logs/%2F/l")]),
    Row("log groups l", [expect(GET + "logs/%2F/l/groups")], {GET + "logs/%2F/l/groups": [GROUP]}),
    Row("log forget l --group g", [expect(DELETE + "logs/%2F/l/groups/g")]),
    Row(
        "log reset l --group g --to 7 --partition 1 --dry-run",
        [expect(POST + "logs/%2F/l/groups/g/reset", {"to": 7, "partition": 1, "dry_run": True})],
        {POST + "logs/%2F/l/groups/g/reset": [{"partition": 1, "from": 3, "to": 7}]},
    ),
    Row(
        "log consume l --partition 0 --offset 5 --count 1",
        [
            expect(GET + "logs/%2F/l"),
            expect(GET + "logs/%2F/l/records", partition="0", offset="5", count="1", wait="20.0"),
        ],
        {
            GET + "logs/%2F/l": LOG,
            GET + "logs/%2F/l/records": {"records": [{"partition": 0, "offset": 5, "value": "v"}]},
        },
    ),
    Row(
        "log consume l --group g --count 2",
        [
            expect(POST + "logs/%2F/l/groups/g/members", {"start": "first"}),
            expect(POST + "logs/%2F/l/groups/g/members/m/fetch", {"count": 2, "wait": 20.0}),
            expect(POST + "logs/%2F/l/groups/g/members/m/commit", {"offsets": {"0": 6, "1": 10}}),
            expect(DELETE + "logs/%2F/l/groups/g/members/m"),
        ],
        {
            POST + "logs/%2F/l/groups/g/members": {"member": "m", "partitions": [0, 1]},
            POST + "logs/%2F/l/groups/g/members/m/fetch": {
                "records": [
                    {"partition": 0, "offset": 5, "value": "v"},
                    {"partition": 1, "offset": 9, "value": "w"},
                ]
            },
        },
    ),
    # history
    Row("trace 7", [expect(GET + "trace", message_id="7")], {GET + "trace": TRACE}),
    Row(
        "trace 7 --internal -p v",
        [expect(GET + "trace", id="7", vhost="v")],
        {GET + "trace": TRACE},
    ),
    Row(
        "history",
        [expect(GET + "history")],
        {GET + "history": {"messages": 1, "events": 2, "size_bytes": 3}},
    ),
]
