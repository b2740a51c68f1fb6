"""Commands about the server, queues and exchanges, users, policies and connections."""

from __future__ import annotations

from tests.cli.rows import DELETE, GET, POST, PUT, Row, asks

USER = {"name": "u", "password_hash": "HASH", "hashing_algorithm": "ALG", "tags": ["management"]}
BINDING = {"routing_key": "k", "arguments": {}, "properties_key": "k"}

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
]
