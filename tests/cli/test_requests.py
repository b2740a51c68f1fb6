"""Every command says to the HTTP API exactly what RabbitMQ's API expects to hear.

One table: command line, scripted answers, and the requests that must result. A command without a
row fails `test_every_command_has_a_row`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from leveret.cli.app import program
from tests.cli.conftest import Turns

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
USER = {"name": "u", "password_hash": "HASH", "hashing_algorithm": "ALG", "tags": ["management"]}
BINDING = {"routing_key": "k", "arguments": {}, "properties_key": "k"}
TRACE = {"message": {"id": 1}, "events": [{"time_ms": 1, "event": "published"}]}


@dataclass(frozen=True)
class Row:
    line: str
    requests: list[Any]
    answers: dict[str, Any] = field(default_factory=dict)


def asks(line: str, body: Any = None, **query: str) -> tuple[str, Any, dict[str, str]]:
    return line, body, query


GET, PUT, POST, DELETE = "GET /api/", "PUT /api/", "POST /api/", "DELETE /api/"

ROWS = [
    # server
    Row("status", [asks(GET + "overview"), asks(GET + "nodes")]),
    Row("ping", [asks(GET + "whoami")]),
    Row("version", []),
    Row("version --server", [asks(GET + "overview")]),
    Row("environment", [asks(GET + "settings")], {GET + "settings": []}),
    Row("cluster_status", [asks(GET + "cluster-name"), asks(GET + "nodes")]),
    Row("set_cluster_name n", [asks(PUT + "cluster-name", {"name": "n"})]),
    Row("list_feature_flags", [asks(GET + "feature-flags")], {GET + "feature-flags": []}),
    Row("health", [asks(GET + "health/checks/alarms")], {GET + "health/checks/alarms": {}}),
    Row(
        "health port-listener/5672",
        [asks(GET + "health/checks/port-listener/5672")],
        {GET + "health/checks/port-listener/5672": {}},
    ),
    Row("stop --no-wait", [asks(POST + "shutdown", {})]),
    Row(
        "reset --yes",
        [asks(GET + "settings"), asks(DELETE + "reset", everything="true")],
        {GET + "settings": []},
    ),
    # lists
    Row(
        "list_queues", [asks(GET + "queues/%2F", columns="messages,name")], {GET + "queues/%2F": []}
    ),
    Row(
        "list_queues -p a/b publish_rate vhost",
        [asks(GET + "queues/a%2Fb", columns="message_stats.publish_details.rate,vhost")],
        {GET + "queues/a%2Fb": []},
    ),
    Row(
        "list_exchanges",
        [asks(GET + "exchanges/%2F", columns="name,type")],
        {GET + "exchanges/%2F": []},
    ),
    Row(
        "list_bindings source_name source_kind",
        [asks(GET + "bindings/%2F", columns="source")],
        {GET + "bindings/%2F": []},
    ),
    Row("list_consumers", [asks(GET + "consumers/%2F")], {GET + "consumers/%2F": []}),
    Row(
        "list_connections name",
        [asks(GET + "connections", columns="name")],
        {GET + "connections": []},
    ),
    Row(
        "list_channels connection -p v",
        [asks(GET + "vhosts/v/channels", columns="connection_details.name")],
        {GET + "vhosts/v/channels": []},
    ),
    Row("list_vhosts", [asks(GET + "vhosts", columns="name")], {GET + "vhosts": []}),
    # queues, exchanges, bindings
    Row(
        "declare_queue q --type quorum -a x-max-length=5 -a x-dead-letter-exchange=d",
        [
            asks(
                PUT + "queues/%2F/q",
                {
                    "durable": True,
                    "auto_delete": False,
                    "arguments": {
                        "x-max-length": 5,
                        "x-dead-letter-exchange": "d",
                        "x-queue-type": "quorum",
                    },
                },
            )
        ],
    ),
    Row(
        "delete_queue q --if-empty --if-unused",
        [asks(DELETE + "queues/%2F/q", **{"if-empty": "true", "if-unused": "true"})],
    ),
    Row("delete_queue ..", [asks(DELETE + "queues/%2F/%2E%2E")]),
    Row("purge_queue q", [asks(DELETE + "queues/%2F/q/contents")]),
    Row(
        "declare_exchange e --type topic --transient --auto-delete --internal",
        [
            asks(
                PUT + "exchanges/%2F/e",
                {
                    "type": "topic",
                    "durable": False,
                    "auto_delete": True,
                    "internal": True,
                    "arguments": {},
                },
            )
        ],
    ),
    Row(
        "delete_exchange e --if-unused",
        [asks(DELETE + "exchanges/%2F/e", **{"if-unused": "true"})],
    ),
    Row(
        "bind e q -k k -a x-match=any",
        [
            asks(
                POST + "bindings/%2F/e/e/q/q",
                {"routing_key": "k", "arguments": {"x-match": "any"}},
            )
        ],
    ),
    Row(
        "unbind e f -k k --to-exchange",
        [asks(GET + "bindings/%2F/e/e/e/f"), asks(DELETE + "bindings/%2F/e/e/e/f/k")],
        {GET + "bindings/%2F/e/e/e/f": [BINDING | {"routing_key": "other"}, BINDING]},
    ),
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
    # users, vhosts, permissions, limits
    Row("list_users", [asks(GET + "users", columns="name,tags")], {GET + "users": []}),
    Row(
        "add_user u pw --tags monitoring",
        [asks(GET + "users/u"), asks(PUT + "users/u", {"password": "pw", "tags": "monitoring"})],
    ),
    Row("delete_user u", [asks(DELETE + "users/u")]),
    Row(
        "change_password u new",
        [asks(GET + "users/u"), asks(PUT + "users/u", {"password": "new", "tags": "management"})],
        {GET + "users/u": USER},
    ),
    Row(
        "clear_password u",
        [asks(GET + "users/u"), asks(PUT + "users/u", {"password_hash": "", "tags": "management"})],
        {GET + "users/u": USER},
    ),
    Row("authenticate_user guest guest", [asks(GET + "whoami")], {GET + "whoami": {}}),
    Row(
        "set_user_tags u administrator monitoring",
        [
            asks(GET + "users/u"),
            asks(
                PUT + "users/u",
                {
                    "tags": "administrator,monitoring",
                    "password_hash": "HASH",
                    "hashing_algorithm": "ALG",
                },
            ),
        ],
        {GET + "users/u": USER},
    ),
    Row(
        "add_vhost v --description d",
        [asks(GET + "vhosts/v"), asks(PUT + "vhosts/v", {"description": "d"})],
    ),
    Row("delete_vhost v", [asks(DELETE + "vhosts/v")]),
    Row(
        "list_permissions",
        [asks(GET + "vhosts/%2F/permissions", columns="configure,read,user,write")],
        {GET + "vhosts/%2F/permissions": []},
    ),
    Row(
        "list_user_permissions u",
        [asks(GET + "users/u/permissions")],
        {GET + "users/u/permissions": []},
    ),
    Row(
        "set_permissions u c w r",
        [asks(PUT + "permissions/%2F/u", {"configure": "c", "write": "w", "read": "r"})],
    ),
    Row("clear_permissions u", [asks(DELETE + "permissions/%2F/u")]),
    Row(
        "list_topic_permissions",
        [asks(GET + "vhosts/%2F/topic-permissions", columns="exchange,read,user,write")],
        {GET + "vhosts/%2F/topic-permissions": []},
    ),
    Row(
        "set_topic_permissions u e w r",
        [asks(PUT + "topic-permissions/%2F/u", {"exchange": "e", "write": "w", "read": "r"})],
    ),
    Row("clear_topic_permissions u", [asks(DELETE + "topic-permissions/%2F/u")]),
    Row("list_vhost_limits", [asks(GET + "vhost-limits")], {GET + "vhost-limits": []}),
    Row("list_vhost_limits -p v", [asks(GET + "vhost-limits/v")], {GET + "vhost-limits/v": []}),
    Row(
        """set_vhost_limits {"max-queues":3}""",
        [asks(PUT + "vhost-limits/%2F/max-queues", {"value": 3})],
    ),
    Row(
        "clear_vhost_limits",
        [asks(GET + "vhost-limits/%2F"), asks(DELETE + "vhost-limits/%2F/max-queues")],
        {GET + "vhost-limits/%2F": [{"vhost": "/", "value": {"max-queues": 3}}]},
    ),
    Row("list_user_limits", [asks(GET + "user-limits")], {GET + "user-limits": []}),
    Row(
        """set_user_limits u {"max-channels":3}""",
        [asks(PUT + "user-limits/u/max-channels", {"value": 3})],
    ),
    # policies and parameters
    Row(
        "list_policies",
        [
            asks(
                GET + "policies/%2F",
                columns="apply-to,definition,name,pattern,priority,vhost",
            )
        ],
        {GET + "policies/%2F": []},
    ),
    Row(
        """set_policy p ^q {"max-length":9} --priority 2 --apply-to queues""",
        [
            asks(
                PUT + "policies/%2F/p",
                {
                    "pattern": "^q",
                    "definition": {"max-length": 9},
                    "priority": 2,
                    "apply-to": "queues",
                },
            )
        ],
    ),
    Row("clear_policy p", [asks(DELETE + "policies/%2F/p")]),
    Row(
        "list_operator_policies",
        [
            asks(
                GET + "operator-policies/%2F",
                columns="apply-to,definition,name,pattern,priority,vhost",
            )
        ],
        {GET + "operator-policies/%2F": []},
    ),
    Row(
        """set_operator_policy p ^q {"max-length":9}""",
        [
            asks(
                PUT + "operator-policies/%2F/p",
                {
                    "pattern": "^q",
                    "definition": {"max-length": 9},
                    "priority": 0,
                    "apply-to": "queues",
                },
            )
        ],
    ),
    Row("clear_operator_policy p", [asks(DELETE + "operator-policies/%2F/p")]),
    Row("list_parameters", [asks(GET + "parameters")], {GET + "parameters": []}),
    Row(
        """set_parameter shovel s {"a":1}""",
        [
            asks(
                PUT + "parameters/shovel/%2F/s",
                {"component": "shovel", "vhost": "/", "name": "s", "value": {"a": 1}},
            )
        ],
    ),
    Row("clear_parameter shovel s", [asks(DELETE + "parameters/shovel/%2F/s")]),
    # connections, definitions, tracing
    Row("close_connection c why", [asks(DELETE + "connections/c")]),
    Row(
        "close_all_connections why --limit 2",
        [
            asks(GET + "vhosts/%2F/connections", columns="name"),
            asks(DELETE + "connections/a%20-%3E%20b"),
            asks(DELETE + "connections/c"),
        ],
        {GET + "vhosts/%2F/connections": [{"name": "a -> b"}, {"name": "c"}, {"name": "d"}]},
    ),
    Row("export_definitions -", [asks(GET + "definitions")], {GET + "definitions": {}}),
    Row("export_definitions - -p v", [asks(GET + "definitions/v")], {GET + "definitions/v": {}}),
    Row("import_definitions {file}", [asks(POST + "definitions", {"queues": [{"name": "q"}]})]),
    Row(
        "trace_on",
        [asks(GET + "vhosts/%2F"), asks(PUT + "vhosts/%2F", {"tracing": True})],
        {GET + "vhosts/%2F": {}},
    ),
    Row(
        "trace_off",
        [asks(GET + "vhosts/%2F"), asks(PUT + "vhosts/%2F", {"tracing": False})],
        {GET + "vhosts/%2F": {}},
    ),
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
COMMON = {
    GET + "overview": {"product_version": "1", "listeners": []},
    GET + "nodes": [{"name": "n", "uptime": 1000, "mem_used": 5}],
    GET + "whoami": {},
    GET + "cluster-name": {"name": "c"},
}


@pytest.mark.parametrize("row", ROWS, ids=[row.line for row in ROWS])
def test_command_sends_these_requests(row, server, cli, tmp_path):
    definitions = tmp_path / "definitions.json"
    definitions.write_text('{"queues": [{"name": "q"}]}')
    server.answers = COMMON | row.answers
    words = [str(definitions) if word == "{file}" else word for word in row.line.split(" ")]

    ended = cli(*words)

    assert (ended.code, [asked.line for asked in server.asked]) == (
        0,
        [request[0] for request in row.requests],
    ), ended.err
    assert [(a.line, a.body, a.query) for a in server.asked if a.body or a.query] == [
        request for request in row.requests if request[1] or request[2]
    ]


# Commands that speak no HTTP (serve, the Spark jobs) or read standard input have tests elsewhere.
ELSEWHERE = {"serve", "export", "report", "log produce"}


def every_command() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, command in program().commands.items():
        nested = getattr(command, "commands", {})
        found |= {f"{name} {inner}": item for inner, item in nested.items()} or {name: command}
    return found


def test_every_command_has_a_row():
    shown = {" ".join(row.line.split()[: 2 if row.line.startswith("log ") else 1]) for row in ROWS}
    assert set(every_command()) - ELSEWHERE == shown


def test_closing_a_connection_tells_the_reason(server, cli):
    cli("close_connection", "c", "because of rain")
    assert server.asked[0].headers["x-reason"] == "because of rain"
