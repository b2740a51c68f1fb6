"""Unmodified tools for RabbitMQ against Leveret.

rabbitmqadmin (the Python one of Debian's package), amqpstorm's management client, pyrabbit2,
flower's broker tab; and the call sequences of KEDA and Terraform in their exact forms.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote, urlsplit

import pika
import pytest

# rabbitmqadmin -----------------------------------------------------------------------------------


def rabbitmqadmin_file() -> Path:
    """The path of Debian's rabbitmq-server package."""
    found = [Path("/usr/bin/rabbitmqadmin")]
    found += Path("/usr/lib/rabbitmq/lib").glob("*/plugins/*/priv/www/cli/rabbitmqadmin")
    for path in found:
        if path.is_file():
            return path
    raise FileNotFoundError("rabbitmqadmin is missing: `tools/system-part rabbitmq` installs it")


@pytest.fixture(scope="module")
def program() -> Path:
    return rabbitmqadmin_file()


@pytest.fixture
def admin(program, leveret, vhost):
    """`admin("list", "queues")`: what it printed; JSON where that was asked for."""
    host, port = urlsplit(leveret.http_url).hostname, urlsplit(leveret.http_url).port

    def run(*words, where=vhost, code=0):
        options = ["-H", host, "-P", str(port), "-f", "raw_json"]
        options += ["-V", where] if where else []
        command = [sys.executable, "-W", "ignore", str(program), *options, *words]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert ended.returncode == code, ended.stdout + ended.stderr
        return json.loads(ended.stdout) if words[0] in ("list", "show", "get") else ended.stdout

    return run


def test_rabbitmqadmin_declares_lists_and_deletes_topology(admin, api, vhost):
    admin("declare", "queue", "name=q", "durable=true", 'arguments={"x-max-length":5}')
    admin("declare", "queue", "name=plain", "durable=false", "auto_delete=true")
    admin("declare", "exchange", "name=x", "type=topic")
    admin("declare", "binding", "source=x", "destination=q", "routing_key=a.#")
    queues = {row["name"]: row for row in admin("list", "queues")}
    assert queues["q"]["arguments"] == {"x-max-length": 5} and queues["q"]["durable"] is True
    assert (queues["plain"]["durable"], queues["plain"]["auto_delete"]) == (False, True)
    assert admin("list", "exchanges", "name", "type")[-1] == {"name": "x", "type": "topic"}
    bindings = admin("list", "bindings", "source", "destination", "routing_key")
    assert {"source": "x", "destination": "q", "routing_key": "a.#"} in bindings
    admin("delete", "binding", "source=x", "destination_type=queue", "destination=q",
          "properties_key=a.%23")  # fmt: skip
    assert api.get("exchanges", vhost, "x", "bindings", "source") == []
    admin("delete", "exchange", "name=x")
    admin("delete", "queue", "name=q")
    assert [row["name"] for row in admin("list", "queues", "name")] == ["plain"]
    admin("delete", "queue", "name=q", code=1)


def test_rabbitmqadmin_publishes_gets_and_purges(admin):
    admin("declare", "queue", "name=q")
    said = admin("publish", "routing_key=q", "payload=hello", 'properties={"delivery_mode":2}')
    assert said == "Message published\n"
    assert "NOT routed" in admin("publish", "routing_key=nowhere", "payload=x")
    got = admin("get", "queue=q", "ackmode=ack_requeue_true", "count=5")
    assert (got[0]["payload"], got[0]["properties"]) == ("hello", {"delivery_mode": 2})
    assert admin("list", "queues", "name", "messages") == [{"name": "q", "messages": 1}]
    admin("purge", "queue", "name=q")
    assert admin("get", "queue=q") == []


def test_rabbitmqadmin_manages_accounts(admin, api, vhost):
    admin("declare", "vhost", "name=by-admin", "tracing=true")
    admin("declare", "user", "name=ann", "password=pw", "tags=monitoring,management")
    admin("declare", "permission", "vhost=by-admin", "user=ann", "configure=.*", "write=.*",
          "read=.*")  # fmt: skip
    assert api.get("users", "ann")["tags"] == ["monitoring", "management"]
    assert {"user": "ann", "vhost": "by-admin", "configure": ".*", "write": ".*",
            "read": ".*"} in admin("list", "permissions", where=None)  # fmt: skip
    admin("delete", "permission", "vhost=by-admin", "user=ann")
    admin("delete", "user", "name=ann")
    admin("delete", "vhost", "name=by-admin")
    assert [row["name"] for row in admin("list", "users", "name")] == ["guest"]


def test_rabbitmqadmin_sets_policies_parameters_and_limits(admin, api, vhost):
    admin("declare", "policy", "name=p", "pattern=^q", 'definition={"max-length":7}',
          "apply-to=queues", "priority=3")  # fmt: skip
    admin("declare", "operator_policy", "name=op", "pattern=^q", 'definition={"expires":900}')
    admin("declare", "parameter", "component=shovel", "name=s", 'value={"src-uri":"amqp://"}')
    admin("declare", "vhost_limit", f"vhost={vhost}", "name=max-queues", "value=9")
    policy = admin("list", "policies")[0]
    assert (policy["priority"], policy["apply-to"]) == (3, "queues")
    assert admin("list", "operator_policies")[0]["name"] == "op"
    assert {"shovel", "vhost-limits"} <= {row["component"] for row in admin("list", "parameters")}
    assert api.get("vhost-limits", vhost) == [{"vhost": vhost, "value": {"max-queues": 9}}]
    admin("delete", "policy", "name=p")
    admin("delete", "operator_policy", "name=op")
    admin("delete", "parameter", "component=shovel", "name=s")
    admin("delete", "vhost_limit", f"vhost={vhost}", "name=max-queues")
    assert (api.get("policies", vhost), api.get("parameters", "shovel")) == ([], [])


def test_rabbitmqadmin_shows_overview_nodes_and_connections(admin, connect, vhost):
    connection = connect(vhost)
    connection.channel()
    assert admin("show", "overview")[0]["cluster_name"]
    assert admin("list", "nodes")[0]["running"] is True
    rows = admin("list", "connections", where=None)
    mine = [row["name"] for row in rows if row["vhost"] == vhost]
    assert len(mine) == 1 and admin("list", "channels", where=None)
    admin("close", "connection", f"name={mine[0]}")
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker):
        for _ in range(100):
            connection.process_data_events(0.1)


def test_rabbitmqadmin_exports_and_imports(admin, api, vhost, tmp_path):
    file = tmp_path / "definitions.json"
    admin("declare", "queue", "name=q", "durable=true")
    admin("export", str(file))
    assert [row["name"] for row in json.loads(file.read_text())["queues"]] == ["q"]
    admin("delete", "queue", "name=q")
    admin("import", str(file))
    assert api.get("queues", vhost, "q")["durable"] is True
    admin("export", str(file), where=None)
    assert {"users", "vhosts"} <= json.loads(file.read_text()).keys()
    admin("import", str(file), where=None)


# amqpstorm ---------------------------------------------------------------------------------------


@pytest.fixture
def storm(leveret):
    from amqpstorm.management.api import ManagementApi

    with ManagementApi(leveret.http_url, "guest", "guest") as api:
        yield api


def test_amqpstorm_manages_topology_and_messages(storm, vhost):
    storm.queue.declare("q", vhost, durable=True, arguments={"x-max-length": 5})
    storm.exchange.declare("x", "fanout", vhost)
    storm.queue.bind("q", "x", "k", vhost)
    assert storm.queue.get("q", vhost)["arguments"] == {"x-max-length": 5}
    assert storm.exchange.get("x", vhost)["type"] == "fanout"
    assert len(storm.queue.bindings("q", vhost)) == 2
    assert storm.exchange.bindings("x", vhost)[0]["destination"] == "q"
    assert storm.basic.publish("hi", "", "x", vhost) == {"routed": True}
    messages = storm.basic.get("q", vhost, requeue=False)
    assert [message.body for message in messages] == ["hi"]
    assert [row["name"] for row in storm.queue.list(vhost, name="q", use_regex=True)] == ["q"]
    assert "x" in [row["name"] for row in storm.exchange.list(vhost)]
    storm.queue.purge("q", vhost)
    storm.queue.unbind("q", "x", "k", vhost)
    storm.queue.delete("q", vhost)
    storm.exchange.delete("x", vhost)
    assert storm.queue.list(vhost) == []


def test_amqpstorm_gets_the_errors_of_rabbitmq(storm, vhost):
    from amqpstorm.management.exception import ApiError

    with pytest.raises(ApiError) as caught:
        storm.queue.get("missing", vhost)
    assert caught.value.error_code == 404
    storm.queue.declare("q", vhost)
    with pytest.raises(ApiError) as caught:
        storm.queue.declare("q", vhost, durable=True, arguments={"x-max-length": 1})
    assert caught.value.error_code == 400


def test_amqpstorm_manages_accounts(storm):
    storm.virtual_host.create("storm")
    storm.user.create("sven", "pw", tags="management")
    storm.user.set_permission("sven", "storm")
    assert storm.user.get_permission("sven", "storm")["configure"] == ".*"
    assert storm.user.get_permissions("sven")[0]["vhost"] == "storm"
    assert len(storm.virtual_host.get_permissions("storm")) == 2
    assert storm.user.get("sven")["name"] == "sven"
    storm.user.delete_permission("sven", "storm")
    storm.user.delete(["sven"])
    storm.virtual_host.delete("storm")
    assert "storm" not in [row["name"] for row in storm.virtual_host.list()]


def test_amqpstorm_reads_the_broker(storm, connect, vhost):
    connection = connect(vhost)
    connection.channel()
    assert storm.aliveness_test("/") == storm.healthchecks.get() == {"status": "ok"}
    node = storm.nodes()[0]["name"]
    assert storm.node(node)["name"] == node
    assert storm.healthchecks.get(node) == {"status": "ok"}
    assert storm.cluster_name()["name"] == storm.overview()["cluster_name"]
    assert storm.whoami()["name"] == "guest"
    mine = next(row for row in storm.connection.list() if row["vhost"] == vhost)
    assert storm.connection.get(mine["name"])["user"] == "guest"
    channel = next(row for row in storm.channel.list() if row["vhost"] == vhost)
    assert storm.channel.get(channel["name"])["number"] == 1
    storm.connection.close(mine["name"], reason="enough")
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="enough"):
        for _ in range(100):
            connection.process_data_events(0.1)


# pyrabbit2 ---------------------------------------------------------------------------------------


@pytest.fixture
def rabbit(leveret):
    from pyrabbit2.api import Client  # type: ignore[import-untyped]

    return Client(urlsplit(leveret.http_url).netloc, "guest", "guest", timeout=60)


def test_pyrabbit2_readme_examples(rabbit, vhost):
    assert rabbit.is_alive() is True
    rabbit.create_vhost("pyr")
    assert "pyr" in rabbit.get_vhost_names()
    rabbit.create_exchange(vhost, "x", "direct")
    rabbit.create_queue(vhost, "q", durable=True)
    rabbit.create_binding(vhost, "x", "q", "k")
    assert rabbit.publish(vhost, "x", "k", "hello") is True
    assert rabbit.get_queue_depth(vhost, "q") == 1
    got = rabbit.get_messages(vhost, "q", count=1)
    assert (got[0]["payload"], rabbit.get_messages(vhost, "q")) == ("hello", [])
    rabbit.purge_queue(vhost, "q")
    assert len(rabbit.get_queue_bindings(vhost, "q")) == 2
    rabbit.delete_binding(vhost, "x", "q", "k")
    rabbit.delete_queue(vhost, "q")
    rabbit.delete_exchange(vhost, "x")
    rabbit.delete_vhost("pyr")


def test_pyrabbit2_manages_accounts_and_policies(rabbit, vhost):
    rabbit.create_user("pat", "pw", tags="management")
    rabbit.set_vhost_permissions(vhost, "pat", ".*", ".*", ".*")
    assert rabbit.get_permission(vhost, "pat")["user"] == "pat"
    assert rabbit.get_user_permissions("pat")[0]["vhost"] == vhost
    rabbit.delete_permission(vhost, "pat")
    body = {"pattern": "^q", "definition": {"max-length": 3}, "priority": 0, "apply-to": "all"}
    rabbit.create_policy(vhost, "p", **body)
    assert rabbit.get_policy(vhost, "p")["definition"] == {"max-length": 3}
    assert [row["name"] for row in rabbit.get_all_policies()] == ["p"]
    rabbit.delete_policy(vhost, "p")
    rabbit.delete_user("pat")
    assert rabbit.get_definitions()["users"][0]["name"] == "guest"
    assert rabbit.get_overview()["object_totals"]["queues"] >= 0
    assert rabbit.get_nodes() and rabbit.get_whoami()["name"] == "guest"
    assert rabbit.get_cluster_name()["name"]


# flower ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["own", "/"])
def test_flower_broker_tab_finds_its_queues(leveret, api, vhost, where):
    from flower.utils.broker import Broker  # type: ignore[import-untyped]

    name = vhost if where == "own" else "/"
    api.put("queues", name, "celery", body={"durable": True})
    api.put("queues", name, "other", body={"durable": True})
    http = urlsplit(leveret.http_url)
    amqp = f"amqp://guest:guest@{http.hostname}:5672/{name}"
    tab = Broker(amqp, http_api=f"http://guest:guest@{http.netloc}/api/")
    rows = asyncio.run(tab.queues(["celery"]))
    assert [row["name"] for row in rows] == ["celery"]
    # The columns of the page.
    shown = ("messages", "messages_unacknowledged", "messages_ready", "consumers", "idle_since")
    assert [rows[0].get(field, 0) for field in shown[:4]] == [0, 0, 0, 0]
    api.delete("queues", name, "celery")
    api.delete("queues", name, "other")


# KEDA --------------------------------------------------------------------------------------------


def test_keda_reads_a_queue(api, vhost, channel):
    channel.queue_declare("jobs")
    channel.basic_publish("", "jobs", b"1")
    channel.basic_publish("", "jobs", b"2")
    channel.basic_get("jobs")
    answer = api.http.get(f"/api/queues/{quote(vhost, safe='')}/jobs")
    row = answer.json()
    assert (row["messages"], row["messages_ready"], row["messages_unacknowledged"]) == (2, 1, 1)
    stats = row["message_stats"]
    assert isinstance(stats["publish_details"]["rate"], float)
    assert isinstance(stats["deliver_get_details"]["rate"], float)
    assert answer.headers["content-type"].startswith("application/json")


@pytest.mark.parametrize("page_size", [100, 1])
def test_keda_reads_queues_by_pattern(api, vhost, channel, page_size):
    for name in ("evt-1", "evt-2", "other"):
        channel.queue_declare(name)
    query = f"page=1&use_regex=true&pagination=false&name=%5Eevt.%2A%24&page_size={page_size}"
    page = api.http.get(f"/api/queues/{quote(vhost, safe='')}?{query}").json()
    assert page["page_count"] == (1 if page_size == 100 else 2)
    assert [row["name"] for row in page["items"]] == ["evt-1", "evt-2"][:page_size]
    assert (page["filtered_count"], page["total_count"]) == (2, 3)


def test_keda_logs_in_from_the_url(leveret, api, vhost, channel):
    channel.queue_declare("jobs")
    url = urlsplit(leveret.http_url)
    where = f"http://guest:guest@{url.netloc}/api/queues/{quote(vhost, safe='')}/jobs"
    import httpx

    assert httpx.get(where, timeout=60).json()["name"] == "jobs"


# Terraform ---------------------------------------------------------------------------------------


def test_terraform_applies_reads_back_and_destroys(api):
    """The provider's calls in order: create, read, update, delete, read (404)."""
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    assert api.get("overview")["rabbitmq_version"]
    assert api.put("vhosts", "tf", body={"description": "", "tags": [], "tracing": False}) == 201
    assert api.get("vhosts", "tf")["name"] == "tf"
    user = {"name": "tf-user", "password": "pw", "tags": "management,policymaker"}
    assert api.put("users", "tf-user", body=user) == 201
    assert api.get("users", "tf-user")["tags"] == ["management", "policymaker"]
    assert api.put("permissions", "tf", "tf-user", body=everything) == 201
    assert api.get("permissions", "tf", "tf-user")["read"] == ".*"
    topic = {"exchange": "amq.topic", "write": ".*", "read": ".*"}
    assert api.put("topic-permissions", "tf", "tf-user", body=topic) == 201
    assert api.get("topic-permissions", "tf", "tf-user")[0]["exchange"] == "amq.topic"

    exchange = {"vhost": "tf", "type": "fanout", "durable": True, "auto_delete": False,
                "arguments": {}}  # fmt: skip
    assert api.put("exchanges", "tf", "x", body=exchange) == 201
    queue = {"type": "", "vhost": "tf", "durable": True, "auto_delete": False,
             "arguments": {"x-queue-type": "quorum"}}  # fmt: skip
    assert api.put("queues", "tf", "q", body=queue) == 201
    assert api.get("queues", "tf", "q")["arguments"] == {"x-queue-type": "quorum"}
    bind = {"source": "x", "vhost": "tf", "destination": "q", "destination_type": "queue",
            "routing_key": "#", "arguments": {}}  # fmt: skip
    answer = api.call("POST", "bindings", "tf", "e", "x", "q", "q", body=bind)
    assert answer.status_code == 201
    key = answer.headers["location"].rpartition("/")[2]
    found = api.get("bindings", "tf", "e", "x", "q", "q")
    assert [quote(row["properties_key"], safe="") for row in found] == [key] == ["%2523"]

    policy = {"vhost": "tf", "pattern": ".*", "apply-to": "all", "priority": 0,
              "definition": {"max-length": 10}}  # fmt: skip
    assert api.put("policies", "tf", "p", body=policy) == 201
    assert api.put("policies", "tf", "p", body=policy | {"priority": 1}) == 204
    assert api.get("policies", "tf", "p")["priority"] == 1
    assert api.put("operator-policies", "tf", "op", body=policy) == 201
    for limit in ("max-connections", "max-queues"):
        assert api.put("vhost-limits", "tf", limit, body={"value": 100}) == 204
    assert api.get("vhost-limits", "tf")[0]["value"] == {"max-connections": 100,
                                                        "max-queues": 100}  # fmt: skip
    upstream = {"component": "federation-upstream", "vhost": "tf", "name": "up",
                "value": {"uri": "amqp://server", "prefetch-count": 1000}}  # fmt: skip
    assert api.put("parameters", "federation-upstream", "tf", "up", body=upstream) == 201
    assert api.get("parameters", "federation-upstream", "tf", "up")["value"]["prefetch-count"]

    for parts in (
        ("parameters", "federation-upstream", "tf", "up"),
        ("vhost-limits", "tf", "max-queues"),
        ("operator-policies", "tf", "op"),
        ("policies", "tf", "p"),
        ("queues", "tf", "q"),
        ("exchanges", "tf", "x"),
        ("topic-permissions", "tf", "tf-user"),
        ("permissions", "tf", "tf-user"),
        ("users", "tf-user"),
        ("vhosts", "tf"),
    ):
        assert api.delete(*parts) == 204, parts
    assert api.refused("GET", "vhosts", "tf") == (404, "Not Found")
    assert api.refused("GET", "users", "tf-user")[0] == 404
