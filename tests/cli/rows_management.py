"""Commands about the server, queues and exchanges, users, policies and connections."""

from __future__ import annotations

from tests.cli.rows import DELETE, GET, POST, PUT, Row, expect

USER = {"name": "u", "password_hash": "HASH", "hashing_algorithm": "ALG", "tags": ["management"]}
BINDING = {"routing_key": "k", "arguments": {}, "properties_key": "k"}

ROWS = [
    # server
    Row("status", [expect(GET + "overview"), expect(GET + "nodes")]),
    Row("ping", [expect(GET + "whoami")]),
    Row("version", []),
    Row("version --server", [expect(GET + "overview")]),
    Row("environment", [expect(GET + "settings")], {GET + "settings": []}),
    Row("cluster_status", [expect(GET + "cluster-name"), expect(GET + "nodes")]),
    Row("set_cluster_name n", [expect(PUT + "cluster-name", {"name": "n"})]),
    Row(
        "set_vm_memory_high_watermark 0.5",
        [expect(PUT + "memory-high-watermark", {"relative": 0.5})],
    ),
    Row(
        "set_vm_memory_high_watermark absolute 512MiB",
        [expect(PUT + "memory-high-watermark", {"absolute": "512MiB"})],
    ),
    Row("list_feature_flags", [expect(GET + "feature-flags")], {GET + "feature-flags": []}),
    Row("health", [expect(GET + "health/checks/alarms")], {GET + "health/checks/alarms": {}}),
    Row(
        "health port-listener/5672",
        [expect(GET + "health/checks/port-listener/5672")],
        {GET + "health/checks/port-listener/5672": {}},
    ),
    Row("stop --no-wait", [expect(POST + "shutdown", {})]),
    Row(
        "reset --yes",
        [expect(GET + "settings"), expect(DELETE + "reset", everything="true")],
        {GET + "settings": []},
    ),
    # lists
    Row(
        "list_queues",
        [expect(GET + "queues/%2F", columns="messages,name")],
        {GET + "queues/%2F": []},
    ),
    Row(
        "list_queues -p a/b publish_rate vhost",
        [expect(GET + "queues/a%2Fb", columns="message_stats.publish_details.rate,vhost")],
        {GET + "queues/a%2Fb": []},
    ),
    Row(
        "list_exchanges",
        [expect(GET + "exchanges/%2F", columns="name,type")],
        {GET + "exchanges/%2F": []},
    ),
    Row(
        "list_bindings source_name source_kind",
        [expect(GET + "bindings/%2F", columns="source")],
        {GET + "bindings/%2F": []},
    ),
    Row("list_consumers", [expect(GET + "consumers/%2F")], {GET + "consumers/%2F": []}),
    Row(
        "list_connections name",
        [expect(GET + "connections", columns="name")],
        {GET + "connections": []},
    ),
    Row(
        "list_channels connection -p v",
        [expect(GET + "vhosts/v/channels", columns="connection_details.name")],
        {GET + "vhosts/v/channels": []},
    ),
    Row("list_vhosts", [expect(GET + "vhosts", columns="name")], {GET + "vhosts": []}),
    # queues, exchanges, bindings
    Row(
        "declare_queue q --type quorum -a x-max-length=5 -a x-dead-letter-exchange=d",
        [
            expect(
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
        [expect(DELETE + "queues/%2F/q", **{"if-empty": "true", "if-unused": "true"})],
    ),
    Row("delete_queue ..", [expect(DELETE + "queues/%2F/%2E%2E")]),
    Row("purge_queue q", [expect(DELETE + "queues/%2F/q/contents")]),
    Row(
        "declare_exchange e --type topic --transient --auto-delete --internal",
        [
            expect(
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
        [expect(DELETE + "exchanges/%2F/e", **{"if-unused": "true"})],
    ),
    Row(
        "bind e q -k k -a x-match=any",
        [
            expect(
                POST + "bindings/%2F/e/e/q/q",
                {"routing_key": "k", "arguments": {"x-match": "any"}},
            )
        ],
    ),
    Row(
        "unbind e f -k k --to-exchange",
        [expect(GET + "bindings/%2F/e/e/e/f"), expect(DELETE + "bindings/%2F/e/e/e/f/k")],
        {GET + "bindings/%2F/e/e/e/f": [BINDING | {"routing_key": "other"}, BINDING]},
    ),
    # users, vhosts, permissions, limits
    Row("list_users", [expect(GET + "users", columns="name,tags")], {GET + "users": []}),
    Row(
        "add_user u pw --tags monitoring",
        [
            expect(GET + "users/u"),
            expect(PUT + "users/u", {"password": "pw", "tags": "monitoring"}),
        ],
    ),
    Row("delete_user u", [expect(DELETE + "users/u")]),
    Row(
        "change_password u new",
        [
            expect(GET + "users/u"),
            expect(PUT + "users/u", {"password": "new", "tags": "management"}),
        ],
        {GET + "users/u": USER},
    ),
    Row(
        "clear_password u",
        [
            expect(GET + "users/u"),
            expect(PUT + "users/u", {"password_hash": "", "tags": "management"}),
        ],
        {GET + "users/u": USER},
    ),
    Row("authenticate_user guest guest", [expect(GET + "whoami")], {GET + "whoami": {}}),
    Row(
        "set_user_tags u administrator monitoring",
        [
            expect(GET + "users/u"),
            expect(
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
        [expect(GET + "vhosts/v"), expect(PUT + "vhosts/v", {"description": "d"})],
    ),
    Row("delete_vhost v", [expect(DELETE + "vhosts/v")]),
    Row(
        "list_permissions",
        [expect(GET + "vhosts/%2F/permissions", columns="configure,read,user,write")],
        {GET + "vhosts/%2F/permissions": []},
    ),
    Row(
        "list_user_permissions u",
        [expect(GET + "users/u/permissions")],
        {GET + "users/u/permissions": []},
    ),
    Row(
        "set_permissions u c w r",
        [expect(PUT + "permissions/%2F/u", {"configure": "c", "write": "w", "read": "r"})],
    ),
    Row("clear_permissions u", [expect(DELETE + "permissions/%2F/u")]),
    Row(
        "list_topic_permissions",
        [expect(GET + "vhosts/%2F/topic-permissions", columns="exchange,read,user,write")],
        {GET + "vhosts/%2F/topic-permissions": []},
    ),
    Row(
        "set_topic_permissions u e w r",
        [expect(PUT + "topic-permissions/%2F/u", {"exchange": "e", "write": "w", "read": "r"})],
    ),
    Row("clear_topic_permissions u", [expect(DELETE + "topic-permissions/%2F/u")]),
    Row("list_vhost_limits", [expect(GET + "vhost-limits")], {GET + "vhost-limits": []}),
    Row("list_vhost_limits -p v", [expect(GET + "vhost-limits/v")], {GET + "vhost-limits/v": []}),
    Row(
        """set_vhost_limits {"max-queues":3}""",
        [expect(PUT + "vhost-limits/%2F/max-queues", {"value": 3})],
    ),
    Row(
        "clear_vhost_limits",
        [expect(GET + "vhost-limits/%2F"), expect(DELETE + "vhost-limits/%2F/max-queues")],
        {GET + "vhost-limits/%2F": [{"vhost": "/", "value": {"max-queues": 3}}]},
    ),
    Row("list_user_limits", [expect(GET + "user-limits")], {GET + "user-limits": []}),
    Row(
        """set_user_limits u {"max-channels":3}""",
        [expect(PUT + "user-limits/u/max-channels", {"value": 3})],
    ),
    # policies and parameters
    Row(
        "list_policies",
        [
            expect(
                GET + "policies/%2F",
                columns="apply-to,definition,name,pattern,priority,vhost",
            )
        ],
        {GET + "policies/%2F": []},
    ),
    Row(
        """set_policy p ^q {"max-length":9} --priority 2 --apply-to queues""",
        [
            expect(
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
    Row("clear_policy p", [expect(DELETE + "policies/%2F/p")]),
    Row(
        "list_operator_policies",
        [
            expect(
                GET + "operator-policies/%2F",
                columns="apply-to,definition,name,pattern,priority,vhost",
            )
        ],
        {GET + "operator-policies/%2F": []},
    ),
    Row(
        """set_operator_policy p ^q {"max-length":9}""",
        [
            expect(
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
    Row("clear_operator_policy p", [expect(DELETE + "operator-policies/%2F/p")]),
    Row("list_parameters", [expect(GET + "parameters")], {GET + "parameters": []}),
    Row(
        """set_parameter shovel s {"a":1}""",
        [
            expect(
                PUT + "parameters/shovel/%2F/s",
                {"component": "shovel", "vhost": "/", "name": "s", "value": {"a": 1}},
            )
        ],
    ),
    Row("clear_parameter shovel s", [expect(DELETE + "parameters/shovel/%2F/s")]),
    # connections, definitions, tracing
    Row("close_connection c why", [expect(DELETE + "connections/c")]),
    Row(
        "close_all_connections why --limit 2",
        [
            expect(GET + "vhosts/%2F/connections", columns="name"),
            expect(DELETE + "connections/a%20-%3E%20b"),
            expect(DELETE + "connections/c"),
        ],
        {GET + "vhosts/%2F/connections": [{"name": "a -> b"}, {"name": "c"}, {"name": "d"}]},
    ),
    Row("export_definitions -", [expect(GET + "definitions")], {GET + "definitions": {}}),
    Row("export_definitions - -p v", [expect(GET + "definitions/v")], {GET + "definitions/v": {}}),
    Row(
        "import_definitions {file}",
        [expect(POST + "definitions", {"queues": [{"name": "q"}]}, warnings="true")],
    ),
    Row(
        "trace_on",
        [expect(GET + "vhosts/%2F"), expect(PUT + "vhosts/%2F", {"tracing": True})],
        {GET + "vhosts/%2F": {}},
    ),
    Row(
        "trace_off",
        [expect(GET + "vhosts/%2F"), expect(PUT + "vhosts/%2F", {"tracing": False})],
        {GET + "vhosts/%2F": {}},
    ),
]
