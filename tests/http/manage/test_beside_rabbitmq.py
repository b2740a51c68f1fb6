"""Definitions move between Leveret and a real RabbitMQ, in both directions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.http.manage.client import Api
from tests.http.manage.sample import FROM_RABBITMQ, of_vhost
from tests.plugin.test_plugin import check_portable_tests
from tests.support.rabbitmq import running_rabbitmq


@pytest.fixture(scope="module")
def started() -> Iterator[str]:
    with running_rabbitmq() as url:
        yield url


@pytest.fixture
def rabbitmq(started: str) -> Iterator[Api]:
    """A RabbitMQ without the vhost `moved`."""
    api = Api(started)
    yield api
    api.call("DELETE", "vhosts", "moved")
    api.call("DELETE", "users", "porter")
    api.http.close()


def test_plugin_runs_tests_against_rabbitmq(started, rabbitmq, tmp_path):
    listeners = rabbitmq.get("overview")["listeners"]
    (port,) = [row["port"] for row in listeners if row["protocol"] == "amqp"]
    check_portable_tests(tmp_path, f"amqp://guest:guest@127.0.0.1:{port}/", started)


def test_definitions_move_to_rabbitmq_and_back(api, moved, rabbitmq):
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


def test_rabbitmq_imports_an_export_with_leveret_definitions(api, moved, rabbitmq):
    api.put("vhosts", moved, body={"description": "d", "default_queue_type": "quorum"})
    api.put("users", "porter", body={"password": "pw", "tags": "monitoring"})
    api.put("user-limits", "porter", "max-channels", body={"value": 5})
    for name, arguments in {
        "retries": {"x-delivery-limit": 3, "x-dead-letter-strategy": "at-least-once"},
        "once": {"x-message-deduplication": True, "x-cache-size": 10},
        "ranked": {"x-queue-type": "quorum", "x-max-priority": 5, "x-overflow": "drop-head"},
        "strict": {"x-queue-type": "quorum", "x-overflow": "reject-publish-dlx"},
    }.items():
        api.put("queues", moved, name, body={"durable": True, "arguments": arguments})
    log = {"partitions": 2, "max_age": "7D", "cleanup_policy": "compact"}
    api.put("logs", moved, "events", body=log)
    both = {"pattern": "^r", "definition": {"history": "off", "max-length": 7}}
    api.put("policies", moved, "both", body=both)
    api.put("policies", moved, "alone", body={"pattern": "^s", "definition": {"history": "off"}})
    api.put("operator-policies", moved, "both", body=both)
    api.put("permissions", moved, "porter", body={"configure": "", "write": "", "read": ".*"})
    whole = api.get("definitions")
    assert [row["name"] for row in whole["leveret"]["users"]] == ["porter"]

    assert rabbitmq.call("POST", "definitions", body=whole).text == ""
    assert "porter" not in {row["name"] for row in rabbitmq.get("users")}
    assert {row["name"] for row in rabbitmq.get("queues", moved)} == {
        "retries", "once", "ranked", "strict", "events", "events-0", "events-1"
    }  # fmt: skip
    [policy] = rabbitmq.get("policies", moved)
    assert (policy["name"], policy["definition"]) == ("both", {"max-length": 7})
    part = api.get("definitions", moved)
    assert rabbitmq.call("POST", "definitions", moved, body=part).text == ""

    api.delete("vhosts", moved)
    assert api.post("definitions", body=whole) == 204
    assert api.get("definitions") == whole
    assert api.get("policies", moved, "alone")["definition"] == {"history": "off"}
    assert api.get("queues", moved, "retries")["arguments"]["x-delivery-limit"] == 3
