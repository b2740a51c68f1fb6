"""Commands about messages, streams, logs and history."""

from __future__ import annotations

from typing import Any

from tests.cli.conftest import Turns
from tests.cli.rows import DELETE, GET, POST, PUT, Row, asks

LOG: dict[str, Any] = {
    "name": "l",
    "vhost": "/",
    "partitions": [
        {
            "index": 0,
            "queue": "l-0",
            "first_offset": 2,
            "next_offset": 9,
            "bytes": 7,
            "segments": 1,
        },
        {
            "index": 1,
            "queue": "l-1",
            "first_offset": 0,
            "next_offset": 0,
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
            asks(
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
            asks(
                POST + "queues/%2F/q/get",
                {"count": 3, "ackmode": "ack_requeue_false", "encoding": "auto", "truncate": 10},
            )
        ],
        {POST + "queues/%2F/q/get": []},
    ),
    Row(
        "consume q --count 2",
        [
            asks(
                POST + "queues/%2F/q/get",
                {"count": 2, "ackmode": "ack_requeue_false", "encoding": "auto", "wait": 20.0},
            ),
            asks(
                POST + "queues/%2F/q/get",
                {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto", "wait": 20.0},
            ),
        ],
        {POST + "queues/%2F/q/get": Turns([[{"payload": "a"}], [{"payload": "b"}]])},
    ),
    Row(
        "browse q --count 5 --offset 2",
        [asks(GET + "queues/%2F/q/browse", count="5", offset="2")],
        {GET + "queues/%2F/q/browse": []},
    ),
    Row(
        "route -x e -k a.b -H n=1",
        [asks(POST + "route/%2F", {"exchange": "e", "routing_key": "a.b", "headers": {"n": 1}})],
        {POST + "route/%2F": {"queues": ["q"], "path": []}},
    ),
    Row(
        "list_scheduled x --count 5 --offset 2",
        [asks(GET + "exchanges/%2F/x/scheduled", count="5", offset="2")],
        {GET + "exchanges/%2F/x/scheduled": []},
    ),
    Row("cancel_scheduled x 7", [asks(DELETE + "exchanges/%2F/x/scheduled/7")]),
    # streams
    Row(
        "add_super_stream s --partitions 4 --max-age 7D",
        [
            asks(
                PUT + "stream/super-streams/%2F/s",
                {"partitions": 4, "arguments": {"x-max-age": "7D"}},
            )
        ],
    ),
    Row(
        "add_super_stream s --binding-keys a,b",
        [asks(PUT + "stream/super-streams/%2F/s", {"binding-keys": "a,b", "arguments": {}})],
    ),
    Row("delete_super_stream s", [asks(DELETE + "logs/%2F/s")]),
    Row(
        "list_stream_consumer_groups",
        [asks(GET + "logs/%2F"), asks(GET + "logs/%2F/l/groups")],
        {GET + "logs/%2F": [LOG], GET + "logs/%2F/l/groups": [GROUP]},
    ),
    Row(
        "list_stream_group_consumers --stream l-0 --reference g",
        [asks(GET + "logs/%2F"), asks(GET + "logs/%2F/l/groups")],
        {GET + "logs/%2F": [LOG], GET + "logs/%2F/l/groups": [GROUP]},
    ),
    Row(
        "list_stream_tracking s",
        [asks(GET + "stream/%2F/s/tracking")],
        {GET + "stream/%2F/s/tracking": {"offsets": {"g": 4}}},
    ),
    Row(
        "reset_offset --stream l-1 --reference g",
        [
            asks(GET + "logs/%2F"),
            asks(
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
            asks(GET + "logs/%2F/l"),
            asks(
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
    Row("log list", [asks(GET + "logs/%2F")], {GET + "logs/%2F": [LOG]}),
    Row("log describe l", [asks(GET + "logs/%2F/l")], {GET + "logs/%2F/l": LOG}),
    Row("log delete l", [asks(DELETE + "logs/%2F/l")]),
    Row("log groups l", [asks(GET + "logs/%2F/l/groups")], {GET + "logs/%2F/l/groups": [GROUP]}),
    Row("log forget l --group g", [asks(DELETE + "logs/%2F/l/groups/g")]),
    Row(
        "log reset l --group g --to 7 --partition 1 --dry-run",
        [asks(POST + "logs/%2F/l/groups/g/reset", {"to": 7, "partition": 1, "dry_run": True})],
        {POST + "logs/%2F/l/groups/g/reset": [{"partition": 1, "from": 3, "to": 7}]},
    ),
    Row(
        "log consume l --partition 0 --offset 5 --count 1",
        [
            asks(GET + "logs/%2F/l"),
            asks(GET + "logs/%2F/l/records", partition="0", offset="5", count="1", wait="20.0"),
        ],
        {
            GET + "logs/%2F/l": LOG,
            GET + "logs/%2F/l/records": {"records": [{"partition": 0, "offset": 5, "value": "v"}]},
        },
    ),
    Row(
        "log consume l --group g --count 2",
        [
            asks(POST + "logs/%2F/l/groups/g/members", {"start": "first"}),
            asks(POST + "logs/%2F/l/groups/g/members/m/fetch", {"count": 2, "wait": 20.0}),
            asks(POST + "logs/%2F/l/groups/g/members/m/commit", {"offsets": {"0": 6, "1": 10}}),
            asks(DELETE + "logs/%2F/l/groups/g/members/m"),
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
    Row("trace 7", [asks(GET + "trace", message_id="7")], {GET + "trace": TRACE}),
    Row(
        "trace 7 --internal -p v", [asks(GET + "trace", id="7", vhost="v")], {GET + "trace": TRACE}
    ),
    Row(
        "history",
        [asks(GET + "history")],
        {GET + "history": {"messages": 1, "events": 2, "size_bytes": 3}},
    ),
]
