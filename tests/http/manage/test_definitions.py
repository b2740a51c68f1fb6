"""Definitions out and in: whole, per vhost, twice, wrong, and to and from RabbitMQ."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from leveret.launch import ThreadedBroker, in_process_settings
from tests.http.manage.client import Api
from tests.http.manage.rabbitmq import is_installed, running_rabbitmq

# Written by RabbitMQ 3.10.8: several objects of every kind in one vhost.
FROM_RABBITMQ: dict[str, Any] = {
    "rabbit_version": "3.10.8",
    "rabbitmq_version": "3.10.8",
    "product_name": "RabbitMQ",
    "product_version": "3.10.8",
    "users": [
        {
            "name": "porter",
            "password_hash": "6nxr3j0vfqIpCL+t0GyXjf921TMr9aua7Fv9TQ6H+VTcpdQ/",
            "hashing_algorithm": "rabbit_password_hashing_sha256",
            "tags": ["management", "monitoring"],
            "limits": {},
        }
    ],
    "vhosts": [{"name": "moved"}],
    "permissions": [
        {"user": "porter", "vhost": "moved", "configure": ".*", "write": ".*", "read": ".*"}
    ],
    "topic_permissions": [
        {"user": "porter", "vhost": "moved", "exchange": "ex", "write": ".*", "read": "^a"}
    ],
    "parameters": [
        {
            "value": {"max-queues": 50},
            "vhost": "moved",
            "component": "vhost-limits",
            "name": "limits",
        },
        {
            "value": {
                "pattern": "a",
                "definition": {"max-length": 4},
                "priority": 0,
                "apply-to": "all",
            },
            "vhost": "moved",
            "component": "operator_policy",
            "name": "p2",
        },
    ],
    "global_parameters": [{"name": "internal_cluster_id", "value": "rabbitmq-cluster-id-x"}],
    "policies": [
        {
            "vhost": "moved",
            "name": "history-short",
            "pattern": "^orders\\.",
            "apply-to": "queues",
            "definition": {"max-length-bytes": 500000000, "overflow": "reject-publish"},
            "priority": 5,
        }
    ],
    "queues": [
        {
            "name": "orders.eu",
            "vhost": "moved",
            "durable": True,
            "auto_delete": False,
            "arguments": {"x-dead-letter-exchange": "dlx", "x-max-length": 100000},
        },
        {
            "name": "invoices",
            "vhost": "moved",
            "durable": True,
            "auto_delete": False,
            "arguments": {"x-queue-type": "quorum"},
        },
        {
            "name": "idle",
            "vhost": "moved",
            "durable": False,
            "auto_delete": False,
            "arguments": {},
        },
    ],
    "exchanges": [
        {
            "name": "ex",
            "vhost": "moved",
            "type": "topic",
            "durable": True,
            "auto_delete": False,
            "internal": False,
            "arguments": {"alternate-exchange": "amq.fanout"},
        }
    ],
    "bindings": [
        {
            "source": "ex",
            "vhost": "moved",
            "destination": "orders.eu",
            "destination_type": "queue",
            "routing_key": "a.#",
            "arguments": {"x": 1},
        },
        {
            "source": "amq.topic",
            "vhost": "moved",
            "destination": "ex",
            "destination_type": "exchange",
            "routing_key": "#",
            "arguments": {},
        },
    ],
}
KINDS = ("users", "vhosts", "permissions", "topic_permissions", "parameters", "policies",
         "queues", "exchanges", "bindings", "global_parameters")  # fmt: skip


@pytest.fixture
def moved(api):
    """What a test imports is gone after it."""
    yield "moved"
    api.call("DELETE", "vhosts", "moved")
    api.call("DELETE", "users", "porter")


def of_vhost(definitions, vhost="moved"):
    return {
        kind: sorted(
            (row for row in definitions[kind] if row.get("vhost", row.get("name")) == vhost),
            key=lambda row: json.dumps(row, sort_keys=True),
        )
        for kind in KINDS
    }


def test_file_of_rabbitmq_comes_out_as_it_went_in(api, moved):
    assert api.post("definitions", body=FROM_RABBITMQ) == 204
    out = api.get("definitions")
    assert of_vhost(out) == of_vhost(FROM_RABBITMQ)
    assert FROM_RABBITMQ["users"][0] in out["users"]
    assert out["global_parameters"] == []
    assert {"rabbit_version", "rabbitmq_version", "product_name", "product_version"} <= out.keys()
    assert api.get("queues", moved, "orders.eu")["policy"] == "history-short"
    assert api.get("operator-policies", moved)[0]["name"] == "p2"


def test_importing_twice_is_importing_once(api, moved):
    api.post("definitions", body=FROM_RABBITMQ)
    once = api.get("definitions")
    api.post("definitions", body=FROM_RABBITMQ)
    api.call("PUT", "definitions", body=once)
    assert api.get("definitions") == once


def test_existing_queues_stay_as_they_are(api, vhost):
    api.put("queues", vhost, "q", body={"durable": True})
    other = {"name": "q", "durable": False, "auto_delete": True, "arguments": {"x-max-length": 1}}
    api.post("definitions", vhost, body={"queues": [other]})
    row = api.get("queues", vhost, "q")
    assert (row["durable"], row["auto_delete"], row["arguments"]) == (True, False, {})


def test_one_vhost_moves_into_another(api, moved, vhost):
    api.post("definitions", body=FROM_RABBITMQ)
    part = api.get("definitions", moved)
    assert not {"users", "vhosts", "permissions"} & part.keys()
    assert all("vhost" not in row for row in part["queues"] + part["exchanges"] + part["bindings"])
    assert api.post("definitions", vhost, body=part) == 204
    again = api.get("definitions", vhost)
    assert (again["queues"], again["bindings"]) == (part["queues"], part["bindings"])
    assert [row["name"] for row in api.get("policies", vhost)] == ["history-short"]


def test_form_with_a_file_is_imported(api, vhost):
    content = json.dumps({"queues": [{"name": "from-form", "durable": True}]}).encode()
    where = f"/api/definitions/{vhost.replace('/', '%2F')}"
    answer = api.http.post(where, files={"file": ("defs.json", content, "application/json")})
    assert answer.status_code == 204, answer.text
    assert api.get("queues", vhost, "from-form")["durable"] is True
    answer = api.http.post(where, files={"other": ("defs.json", content)})
    assert answer.status_code == 400 and "no field named file" in answer.text


def test_export_can_be_saved_as_a_file(api):
    answer = api.call("GET", "definitions", download='a"\r\nb.json')
    assert answer.headers["content-disposition"] == 'attachment; filename="a___b.json"'


def test_exclusive_queues_and_built_in_exchanges_stay_home(api, vhost, channel):
    channel.queue_declare("private", exclusive=True)
    channel.queue_bind("private", "amq.direct", "k")
    part = api.get("definitions", vhost)
    assert (part["queues"], part["exchanges"], part["bindings"]) == ([], [], [])


def test_partitioned_log_comes_back_as_one(api, vhost):
    body = {"partitions": 2, "max_age": "7D", "cleanup_policy": "compact"}
    api.put("logs", vhost, "events", body=body)
    api.post("logs", vhost, "events", "publish", body={"records": [{"key": "k", "value": "v"}]})
    before, part = api.get("logs", vhost, "events"), api.get("definitions", vhost)
    api.delete("logs", vhost, "events")
    assert api.post("definitions", vhost, body=part) == 204
    after = api.get("logs", vhost, "events")
    for row in (before, after):
        row["partitions"] = [one["queue"] for one in row["partitions"]]
    assert (after["partitions"], after["retention"]) == (before["partitions"], before["retention"])
    assert (after["cleanup_policy"], after["messages"]) == ("compact", 0)
    assert api.get("definitions", vhost) == part
    assert api.post("definitions", vhost, body=part) == 204


ROW = {"name": "q", "durable": True, "auto_delete": False, "arguments": {}}
PATTERNS = {"configure": ".*", "write": ".*", "read": ".*"}


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ([1], "must be a JSON object"),
        ({"queues": 5}, "'queues' must be an array"),
        ({"queues": [5]}, "queues[0] is not an object"),
        ({"queues": [{"durable": True}]}, "queues[0]: 'name' is missing"),
        ({"queues": [ROW | {"durable": "yes"}]}, "queues[0]: 'durable' is not a bool"),
        ({"queues": [ROW | {"name": "n" * 256}]}, "queues[0]: 'name' must have"),
        ({"queues": [ROW | {"arguments": {"x-queue-type": "odd"}}]}, "unknown type 'odd'"),
        ({"exchanges": [ROW | {"type": "odd"}]}, "unknown exchange type 'odd'"),
        ({"policies": [{"name": "p", "pattern": "(", "definition": {"max-length": 1}}]},
         "policies[0]: invalid pattern"),
        ({"policies": [{"name": "p", "pattern": "", "definition": {"odd": 1}}]}, "'odd' is not"),
        ({"policies": [{"name": "p", "pattern": "", "definition": {"max-length": 1},
                        "priority": 1 << 40}]}, "policies[0]: priority"),
        ({"parameters": [{"component": "vhost-limits", "name": "limits", "value": {"odd": 1}}]},
         "unknown limit 'odd'"),
        ({"bindings": [{"source": "no", "destination": "q", "destination_type": "queue"}]},
         "no queue 'q'"),
        ({"queues": [ROW], "bindings": [{"source": "no", "destination": "q"}]}, "exchange 'no'"),
        ({"bindings": [{"source": "x", "destination": "q", "destination_type": "odd"}]},
         "unknown destination_type"),
    ],
)  # fmt: skip
def test_wrong_file_changes_nothing(api, vhost, wrong, reason):
    good = {"name": "good", "durable": True, "auto_delete": False, "arguments": {}}
    body = wrong
    if isinstance(wrong, dict) and isinstance(wrong.get("queues", []), list):
        body = wrong | {"queues": [*wrong.get("queues", []), good]}
    status, said = api.refused("POST", "definitions", vhost, body=body)
    assert status == 400 and reason in said
    assert api.get("queues", vhost) == []


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"queues": [ROW | {"vhost": "nowhere"}]}, "no vhost 'nowhere'"),
        ({"queues": [ROW]}, "queues[0]: 'vhost' is missing"),
        ({"permissions": [{"user": "nobody", "vhost": "/", **PATTERNS}]}, "no user 'nobody'"),
        ({"users": [{"name": "u", "password_hash": "%", "tags": ""}]}, "not base64"),
        ({"users": [{"name": "u", "password_hash": "", "hashing_algorithm": "odd", "tags": ""}]},
         "unknown hashing_algorithm 'odd'"),
        ({"users": [{"name": "u", "password_hash": "", "tags": 5}]}, "'tags' must be"),
    ],
)  # fmt: skip
def test_wrong_file_of_a_whole_broker_changes_nothing(api, wrong, reason):
    before = api.get("definitions")
    status, said = api.refused("POST", "definitions", body=wrong | {"vhosts": [{"name": "made"}]})
    assert status == 400 and reason in said
    assert api.get("definitions") == before


def test_what_is_no_json_is_refused(api):
    answer = api.http.post("/api/definitions", content=b"{]")
    assert answer.status_code == 400 and "JSON" in answer.json()["reason"]


def test_only_administrators_import(api, sign_in):
    api.put("users", "m", body={"password": "pw", "tags": "monitoring,policymaker"})
    assert sign_in("m", "pw").refused("POST", "definitions", body={})[0] == 403
    assert sign_in("m", "pw").refused("GET", "definitions")[0] == 403
    api.delete("users", "m")


def test_old_forms_of_rabbitmq_are_read(api):
    """3.6 wrote tags as one text; a plain password and missing lists are fine, too."""
    users = [{"name": "old", "password": "pw", "tags": "administrator"}]
    api.post("definitions", body={"users": users})
    assert api.get("users", "old")["tags"] == ["administrator"]
    api.delete("users", "old")


def test_imported_definitions_survive_a_restart(tmp_path):
    settings = in_process_settings(http_enabled=True, data_dir=tmp_path)
    with ThreadedBroker(settings) as running:
        api = Api(running.http_url)
        api.post("definitions", body=FROM_RABBITMQ)
        before = of_vhost(api.get("definitions"))
        api.http.close()
    with ThreadedBroker(settings) as running:
        api = Api(running.http_url)
        after = of_vhost(api.get("definitions"))
        api.http.close()
    before["queues"] = [row for row in before["queues"] if row["durable"]]
    assert after == before


# To and from a real RabbitMQ ---------------------------------------------------------------------


@pytest.fixture
def rabbitmq() -> Iterator[Api]:
    """A RabbitMQ that knows nothing of vhost `moved`."""
    with running_rabbitmq() as url:
        api = Api(url)
        yield api
        api.call("DELETE", "vhosts", "moved")
        api.call("DELETE", "users", "porter")
        api.http.close()


@pytest.mark.skipif(not is_installed(), reason="no RabbitMQ is installed")
def test_definitions_move_both_ways_with_rabbitmq(api, moved, rabbitmq):
    assert api.post("definitions", body=FROM_RABBITMQ) == 204
    ours = of_vhost(api.get("definitions"))
    users = [row for row in api.get("definitions")["users"] if row["name"] == "porter"]
    rabbitmq.post("definitions", body=ours | {"users": users})
    rabbitmq.delete("permissions", moved, "guest")  # given to whoever makes a vhost there
    theirs = rabbitmq.get("definitions")
    assert of_vhost(theirs) == ours
    assert users[0] in theirs["users"]

    api.delete("vhosts", moved)
    mine = {kind: rows for kind, rows in of_vhost(theirs).items() if kind != "global_parameters"}
    assert api.post("definitions", body=mine | {"users": users}) == 204
    assert of_vhost(api.get("definitions")) == ours
