"""The broker as a whole: overview, nodes, health, settings."""

from __future__ import annotations

import asyncio

import httpx
import pytest

import leveret
from leveret.broker import Broker
from leveret.broker.access.passwords import hash_password
from leveret.broker.messages import publish
from leveret.http_admin.routes.operations import HIDDEN
from leveret.model import form
from leveret.model.definitions import PermissionDefinition
from leveret.model.message import Address, Message, encode_properties
from leveret.queues.spec import QueueSpec
from tests.http.conftest import Served, serve
from tests.support.polling import wait_until

# rabbitmqadmin v2 needs all of these fields.
DEMANDED = {
    "cluster_name", "node", "erlang_version", "erlang_full_version", "rabbitmq_version",
    "product_name", "product_version", "statistics_db_event_queue", "churn_rates",
    "queue_totals", "object_totals", "message_stats", "listeners",
}  # fmt: skip


def test_overview_of_empty_broker_has_the_fields_of_tools(api: httpx.Client) -> None:
    overview = api.get("/api/overview").json()
    assert overview.keys() >= DEMANDED
    assert overview["statistics_db_event_queue"] == 0
    assert overview["churn_rates"].keys() >= {
        "connection_created", "connection_closed", "queue_declared", "queue_created",
        "queue_deleted", "channel_created", "channel_closed",
    }  # fmt: skip
    assert overview["queue_totals"]["messages"] == 0
    assert "rate" in overview["queue_totals"]["messages_details"]
    assert overview["object_totals"] == {
        "connections": 0, "channels": 0, "queues": 0, "exchanges": 8, "consumers": 0
    }  # fmt: skip
    protocols = {one["protocol"]: one["port"] for one in overview["listeners"]}
    assert protocols["http"] == api.base_url.port
    assert protocols["amqp"] > 0


def test_overview_names_the_form_that_runs(api: httpx.Client) -> None:
    assert api.get("/api/overview").json()["form"] == form.current()


def test_overview_has_samples_if_requested(broker: Served, api: httpx.Client) -> None:
    broker.on_loop(lambda hub: hub.metrics.sample())
    query = {"lengths_age": 60, "lengths_incr": 5, "msg_rates_age": 60, "msg_rates_incr": 5}
    totals = api.get("/api/overview", params=query).json()["queue_totals"]
    sample = totals["messages_ready_details"]["samples"][0]
    assert sample.keys() == {"timestamp", "sample"}


def test_node_row(api: httpx.Client) -> None:
    [node] = api.get("/api/nodes").json()
    assert node == {**api.get(f"/api/nodes/{node['name']}").json(), **_changing(node)}
    assert node["running"] is True
    assert node["mem_used"] > 1_000_000 and node["mem_limit"] > 1_000_000
    assert node["fd_used"] > 3 and node["fd_total"] >= node["fd_used"]
    assert node["disk_free"] > 0 and node["disk_free_alarm"] is False
    assert api.get("/api/nodes/other@nowhere").status_code == 404
    memory = api.get(f"/api/nodes/{node['name']}/memory").json()["memory"]
    assert memory["total"]["rss"] > 1_000_000


def _changing(node: dict[str, object]) -> dict[str, object]:
    changing = ("uptime", "mem_used", "fd_used", "disk_free", "proc_used", "sockets_used")
    return {key: node[key] for key in changing}


def test_small_endpoints(api: httpx.Client) -> None:
    assert api.get("/api/cluster-name").json() == {"name": api.get("/api/overview").json()["node"]}
    assert api.get("/api/version").json() == api.get("/api/overview").json()["rabbitmq_version"]
    assert api.get("/api/extensions").json() == []
    assert api.get("/api/deprecated-features").json() == []
    assert {flag["state"] for flag in api.get("/api/feature-flags").json()} == {"enabled"}
    assert api.get("/api/whoami").json()["tags"] == ["administrator"]


def test_hashed_password_can_log_in(broker: Served, api: httpx.Client) -> None:
    made = api.get("/api/auth/hash_password/s%2Fecret").json()["ok"]
    body = {"password_hash": made, "tags": "management"}
    assert api.put("/api/users/hashed", json=body).status_code in (201, 204)
    with broker.client("hashed", "s/ecret") as client:
        assert client.get("/api/whoami").json()["name"] == "hashed"


@pytest.mark.parametrize(
    "check",
    ["alarms", "local-alarms", "virtual-hosts", "is-in-service", "ready-to-serve-clients",
     "below-node-connection-limit", "node-is-quorum-critical", "node-is-mirror-sync-critical",
     "metadata-store/initialized", "protocol-listener/amqp", "protocol-listener/amqp091",
     "protocol-listener/http", "certificate-expiration/4/weeks"],
)  # fmt: skip
def test_health_check_of_healthy_broker(api: httpx.Client, check: str) -> None:
    answer = api.get(f"/api/health/checks/{check}")
    assert (answer.status_code, answer.json()["status"]) == (200, "ok")


def test_port_listener_check(api: httpx.Client) -> None:
    port = api.base_url.port
    answer = api.get(f"/api/health/checks/port-listener/{port}")
    assert answer.json() == {"status": "ok", "port": port}
    answer = api.get("/api/health/checks/port-listener/1")
    assert answer.status_code == 503
    assert (answer.json()["reason"], answer.json()["missing"]) == ("No active listener", 1)
    answer = api.get("/api/health/checks/protocol-listener/mqtt")
    assert (answer.status_code, answer.json()["missing"]) == (503, "mqtt")


def test_raised_alarm_fails_the_check_and_shows_everywhere(
    broker: Served, api: httpx.Client
) -> None:
    broker.on_loop(lambda hub: hub.alarms.set("store", "the disk is on fire"))
    try:
        answer = api.get("/api/health/checks/alarms")
        assert answer.status_code == 503
        assert "on fire" in answer.json()["reason"]
        shown = [{"name": "store", "reason": "the disk is on fire"}]
        assert api.get("/api/alarms").json() == shown
        assert api.get("/api/nodes").json()[0]["disk_free_alarm"] is True
        assert 'leveret_alarm{alarm="store"} 1.0' in api.get("/metrics").text
    finally:
        broker.on_loop(lambda hub: hub.alarms.set("store", ""))
    assert api.get("/api/health/checks/alarms").status_code == 200


def test_disk_alarm_says_what_uses_the_space(tmp_path) -> None:
    """No volume has as much free space as this limit."""
    with serve(data_dir=tmp_path, disk_free_limit=1 << 49) as threaded:
        _until_alarms(Served(threaded), 1)
        with Served(threaded).client() as api:
            (alarm,) = api.get("/api/alarms").json()
            (node,) = api.get("/api/nodes").json()
            health = api.get("/api/health/checks/alarms").json()
            settings = {row["key"]: row["source"] for row in api.get("/api/settings").json()}
    assert alarm["name"] == "disk"
    assert "other files" in alarm["reason"] and "lower disk_free_limit" in alarm["reason"]
    uses = ("messages", "history", "free_pages", "wal", "logs", "other")
    assert alarm["disk_usage"].keys() == {"total", "free", *uses}
    assert alarm["disk_usage"]["history"] > 0
    assert node["alarms"][0]["reason"] == health["alarms"][0]["reason"] == alarm["reason"]
    assert node["disk_usage"]["total"] == alarm["disk_usage"]["total"]
    assert settings["history_max_bytes"] == "default"


def _make_stuck(hub: Broker) -> None:
    """A stuck dead letter in its own vhost, and users with and without access to it."""
    held = hub.add_vhost("secret")
    full = {"x-max-length": 0, "x-overflow": "reject-publish"}
    held.declare_queue(QueueSpec("grave", arguments=full))
    to = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "grave", "x-max-length": 0}
    held.declare_queue(QueueSpec("src-payroll", arguments=to))
    sender = hub.users.by_name["guest"]
    publish(
        hub, held, sender, Message.build(Address.of("", "src-payroll"), encode_properties({}), b"x")
    )
    for name, vhost in (("outsider", "/"), ("insider", "secret")):
        hub.users.put_user(name, hash_password(name), ("management",))
        hub.users.set_permission(PermissionDefinition(name, vhost, "", "", ""))


def _alarms_now(hub: Broker) -> dict[str, str]:
    hub.resource_monitor.check()
    return hub.alarms.raised


def _until_alarms(broker: Served, count: int) -> None:
    wait_until(lambda: len(broker.on_loop(_alarms_now)) == count)


def test_alarm_names_only_queues_that_the_user_may_see(broker: Served) -> None:
    named = "dead-letter targets are full: queue 'src-payroll' in vhost 'secret'"
    checks = ("health/checks/alarms", "health/checks/local-alarms", "healthchecks/node")
    broker.on_loop(_make_stuck)
    try:
        _until_alarms(broker, 1)
        for user, reason in (
            ("guest", named), ("insider", named), ("outsider", "dead-letter targets are full")
        ):  # fmt: skip
            with broker.client(user) as api:
                (alarm,) = api.get("/api/alarms").json()
                assert alarm == {"name": "dead-letters", "reason": reason}
                for path in checks:
                    answer = api.get(f"/api/{path}")
                    assert (answer.status_code, answer.json()["reason"]) == (503, reason)
                    assert answer.json()["alarms"][0]["reason"] == reason
    finally:
        broker.on_loop(lambda hub: hub.delete_vhost("secret"))
        _until_alarms(broker, 0)


def test_aliveness_test(api: httpx.Client) -> None:
    assert api.get("/api/aliveness-test/%2F").json() == {"status": "ok"}
    assert api.get("/api/aliveness-test/nowhere").status_code == 404


def test_settings_show_values_in_force_but_no_secrets(
    api: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEVERET_HTTP_PORT", "0")
    rows = {row["key"]: row for row in api.get("/api/settings").json()}
    assert rows["default_password"]["value"] == HIDDEN
    assert rows["memory"] == {
        "key": "memory",
        "value": True,
        "shown": "true",
        "source": "configured",
        "description": rows["memory"]["description"],
    }
    assert rows["heartbeat"]["source"] == "default"
    shown = {name: rows[name]["shown"] for name in ("frame_max", "history_max_age", "host")}
    assert shown == {"frame_max": "128KiB", "history_max_age": "7d", "host": "127.0.0.1"}
    assert rows["default_password"]["shown"] == HIDDEN
    assert rows["http_port"]["source"] == "environment"


async def test_shutdown_requests_a_stop() -> None:
    async with leveret.Broker(leveret.in_process_settings(http_enabled=True)) as running:
        await running.http_ready()
        login = ("guest", "guest")
        async with httpx.AsyncClient(
            base_url=running.http_url, auth=login, verify=False, timeout=60
        ) as api:
            assert (await api.post("/api/shutdown")).status_code == 202
        await asyncio.wait_for(running.stop_requested.wait(), 60)


def test_reset_deletes_everything_only_if_requested() -> None:
    with serve() as threaded, Served(threaded).client() as client:
        assert client.put("/api/queues/%2F/q", json={}).status_code == 201
        assert client.put("/api/vhosts/extra").status_code == 201
        body = {"password": "p", "tags": "management"}
        assert client.put("/api/users/someone", json=body).status_code == 201
        assert client.delete("/api/reset").status_code == 204
        assert len(client.get("/api/queues").json()) == 1
        assert client.delete("/api/reset?everything=true").status_code == 204
        assert client.get("/api/queues").json() == []
        assert [one["name"] for one in client.get("/api/vhosts").json()] == ["/"]
        assert [one["name"] for one in client.get("/api/users").json()] == ["guest"]
