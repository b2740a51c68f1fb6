"""Policies, operator policies and parameters: stored, listed, and in effect."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.broker.policies.policies import Policies, Policy, merge
from leveret.launch import ThreadedBroker, in_process_settings
from leveret.model.history import Keep
from leveret.queues.storage.memory_store import MemoryStore
from tests.http.manage.client import Api
from tests.support.rawclient import RawClient


def policy(pattern="^q", definition=None, **more) -> dict[str, Any]:
    return {"pattern": pattern, "definition": definition or {"max-length": 9}} | more


# Over HTTP ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["policies", "operator-policies"])
def test_policy_is_created_replaced_listed_and_deleted(api, vhost, kind):
    body = policy(priority=2, **{"apply-to": "queues"})
    assert api.put(kind, vhost, "p", body=body) == 201
    row = {"vhost": vhost, "name": "p", **body}
    assert api.get(kind, vhost, "p") == row
    assert api.get(kind, vhost) == api.get(kind) == [row]
    assert api.put(kind, vhost, "p", body=policy(priority="5")) == 204
    row = {"vhost": vhost, "name": "p", **policy(priority=5), "apply-to": "all"}
    assert api.get(kind, vhost, "p") == row
    assert api.delete(kind, vhost, "p") == 204
    assert api.refused("GET", kind, vhost, "p")[0] == 404
    assert api.refused("DELETE", kind, vhost, "p")[0] == 404


@pytest.mark.parametrize(
    ("kind", "body", "reason"),
    [
        ("policies", policy("("), "invalid pattern '('"),
        ("policies", policy(definition={"colour": "red"}), "'colour' is not a recognised policy"),
        ("policies", policy(definition={"max-length": "x"}), "'max-length' must be a whole number"),
        ("policies", policy(definition={"max-length": True}), "'max-length' must be"),
        ("policies", policy(definition={"max-length": -1}), "'max-length' must be"),
        ("policies", policy(definition={"overflow": "spill"}), "one of drop-head"),
        ("policies", policy(definition={"history": "some"}), "one of full, metadata, off"),
        ("policies", policy(definition={"max-age": "7 days"}), "such as 7D"),
        ("policies", policy(**{"apply-to": "everything"}), "apply-to 'everything' unrecognised"),
        ("policies", {"pattern": "q", "definition": {}}, "empty"),
        ("policies", {"definition": {"max-length": 1}}, "pattern"),
        ("policies", {"pattern": "q", "definition": []}, "definition"),
        ("policies", policy(priority="high"), "priority"),
        (
            "operator-policies",
            policy(definition={"dead-letter-exchange": "x"}),
            "'dead-letter-exchange' is not a recognised operator policy setting",
        ),
    ],
)
def test_invalid_policy_is_refused_with_a_reason(api, vhost, kind, body, reason):
    status, said = api.refused("PUT", kind, vhost, "p", body=body)
    assert status == 400 and reason in said
    assert api.get(kind, vhost) == []


def test_queues_and_exchanges_show_their_policy(api, vhost):
    api.put("queues", vhost, "q1")
    api.put("queues", vhost, "other")
    api.put("exchanges", vhost, "qx", body={"type": "fanout"})
    api.put("policies", vhost, "low", body=policy(definition={"max-length": 1}, priority=1))
    api.put("policies", vhost, "high", body=policy(definition={"max-length": 7}, priority=2))
    api.put(
        "operator-policies", vhost, "op", body=policy("q1", {"max-length": 5, "expires": 900_000})
    )
    row = api.get("queues", vhost, "q1")
    assert (row["policy"], row["operator_policy"]) == ("high", "op")
    assert row["effective_policy_definition"] == {"max-length": 5, "expires": 900_000}
    row = api.get("queues", vhost, "other")
    assert (row["policy"], row["effective_policy_definition"]) == (None, {})
    assert api.get("exchanges", vhost, "qx")["policy"] == "high"
    api.delete("policies", vhost, "high")
    assert api.get("queues", vhost, "q1")["policy"] == "low"


def test_policymakers_may_not_set_operator_policies(api, vhost, sign_in):
    api.put("users", "maker", body={"password": "pw", "tags": "policymaker"})
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    api.put("permissions", vhost, "maker", body=everything)
    maker = sign_in("maker", "pw")
    assert maker.put("policies", vhost, "p", body=policy()) == 201
    assert maker.refused("PUT", "operator-policies", vhost, "p", body=policy())[0] == 403
    value = {"value": policy()}
    refused = maker.refused("PUT", "parameters", "operator_policy", vhost, "p", body=value)
    assert refused[0] == 403
    assert maker.refused("PUT", "policies", "/", "p", body=policy())[0] == 403
    api.delete("users", "maker")


# In effect ---------------------------------------------------------------------------------------


def test_history_policy_takes_effect_at_once(api, vhost, hub):
    def keeps(name):
        return hub.vhosts[vhost].queues[name].journal.keep

    api.put("queues", vhost, "q1", body={"durable": True})
    assert keeps("q1") is Keep.FULL
    api.put("policies", vhost, "quiet", body=policy(definition={"history": "off"}))
    api.put("queues", vhost, "q2", body={"durable": True})
    assert (keeps("q1"), keeps("q2")) == (Keep.NOTHING, Keep.NOTHING)
    api.put("policies", vhost, "quiet", body=policy(definition={"history": "metadata"}))
    assert keeps("q1") is Keep.METADATA
    api.delete("policies", vhost, "quiet")
    assert keeps("q1") is Keep.FULL


def test_alternate_exchange_policy_takes_effect_at_once(api, vhost, channel):
    channel.exchange_declare("main", "direct")
    channel.queue_declare("leftover")
    channel.queue_bind("leftover", "amq.fanout")
    ask = {"exchange": "main", "routing_key": "k", "headers": {}}
    assert api.post("route", vhost, body=ask)["queues"] == []
    body = policy("^main$", {"alternate-exchange": "amq.fanout"}, **{"apply-to": "exchanges"})
    api.put("policies", vhost, "ae", body=body)
    assert api.post("route", vhost, body=ask)["queues"] == ["leftover"]
    channel.basic_publish("main", "k", b"caught")
    api.delete("policies", vhost, "ae")
    assert api.post("route", vhost, body=ask)["queues"] == []
    assert channel.basic_get("leftover", auto_ack=True)[2] == b"caught"


def test_alternate_exchange_argument_overrides_the_policy(api, vhost, hub):
    arguments = {"type": "direct", "arguments": {"alternate-exchange": "own"}}
    api.put("exchanges", vhost, "main", body=arguments)
    api.put("policies", vhost, "ae", body=policy("main", {"alternate-exchange": "amq.fanout"}))
    assert hub.vhosts[vhost].exchanges["main"].alternate == "own"


# Which policy applies ----------------------------------------------------------------------------


def effective(*policies, name="q", kind="classic"):
    store = MemoryStore(on_committed=lambda batch: None, on_failed=lambda batch: None)
    store.recover()
    held = Policies(store, lambda vhost: None)
    for one in policies:
        held.put(one)
    return held.effective("/", name, kind)


@pytest.mark.parametrize(
    ("apply_to", "kinds"),
    [
        ("all", {"exchange", "classic", "quorum", "stream"}),
        ("queues", {"classic", "quorum", "stream"}),
        ("exchanges", {"exchange"}),
        ("classic_queues", {"classic"}),
        ("quorum_queues", {"quorum"}),
        ("streams", {"stream"}),
    ],
)
def test_apply_to_selects_object_types(apply_to, kinds):
    one = Policy("/", "p", "", {"max-length": 1}, apply_to)
    found = {kind for kind in ("exchange", "classic", "quorum", "stream")
             if effective(one, kind=kind).policy == "p"}  # fmt: skip
    assert found == kinds


def test_policies_of_other_vhosts_do_not_apply():
    assert effective(Policy("other", "p", "", {"max-length": 1})).policy is None


def test_operator_policy_lowers_limits_and_overrides_other_keys():
    user = {"max-length": 5, "message-ttl": 10, "history": "full", "overflow": "drop-head"}
    merged = merge(user, {"max-length": 9, "message-ttl": 3, "history": "off"})
    assert merged == {"max-length": 5, "message-ttl": 3, "history": "off", "overflow": "drop-head"}


# Parameters --------------------------------------------------------------------------------------


def test_parameter_is_set_shown_and_cleared(api, vhost):
    where = ("parameters", "shovel", vhost, "s")
    assert api.put(*where, body={"value": {"src-uri": "amqp://"}}) == 201
    assert api.put(*where, body={"value": [1]}) == 204
    row = {"value": [1], "vhost": vhost, "component": "shovel", "name": "s"}
    assert api.get(*where) == row
    assert api.get("parameters", "shovel", vhost) == api.get("parameters", "shovel") == [row]
    assert row in api.get("parameters")
    assert api.delete(*where) == 204
    assert api.refused("GET", *where)[0] == 404
    assert api.refused("DELETE", *where)[0] == 404


@pytest.mark.parametrize("component", ["x-clock", "x-deduplication queue q"])
def test_internal_components_cannot_be_changed(api, vhost, component):
    where = ("parameters", component, vhost, "moves")
    for method in ("PUT", "DELETE"):
        status, reason = api.refused(method, *where, body={"value": 5})
        assert (status, reason) == (400, f"component '{component}' is reserved for the broker")
    assert api.refused("GET", *where)[0] == 404
    assert api.get("parameters", component) == []


def test_deduplication_keys_are_not_listed(api, vhost):
    arguments = {"x-message-deduplication": True}
    api.put("queues", vhost, "q", body={"durable": True, "arguments": arguments})
    properties = {"delivery_mode": 2, "headers": {"x-deduplication-header": "k"}}
    message = {"routing_key": "q", "payload": "", "payload_encoding": "string"}
    api.post(
        "exchanges", vhost, "amq.default", "publish", body=message | {"properties": properties}
    )
    assert api.get("parameters") == []
    assert api.get("definitions", vhost)["parameters"] == []


def test_limits_and_operator_policies_are_listed_as_parameters(api, vhost):
    api.put("vhost-limits", vhost, "max-queues", body={"value": 4})
    api.put("operator-policies", vhost, "op", body=policy())
    rows = api.get("parameters")
    assert {"component": "vhost-limits", "vhost": vhost, "name": "limits",
            "value": {"max-queues": 4}} in rows  # fmt: skip
    value = policy(priority=0, **{"apply-to": "all"})
    assert {"component": "operator_policy", "vhost": vhost, "name": "op", "value": value} in rows
    api.put("parameters", "operator_policy", vhost, "op", body={"value": policy(priority=7)})
    assert api.get("operator-policies", vhost, "op")["priority"] == 7
    api.delete("parameters", "operator_policy", vhost, "op")
    assert api.get("operator-policies", vhost) == []
    body = {"value": {"max-queues": "x"}}
    assert api.refused("PUT", "parameters", "vhost-limits", vhost, "limits", body=body)[0] == 400
    wrong = {"value": {"pattern": 5}}
    assert api.refused("PUT", "parameters", "operator_policy", vhost, "p", body=wrong)[0] == 400


def test_global_parameter_is_set_shown_and_cleared(api):
    assert api.put("global-parameters", "g", body={"name": "g", "value": {"a": 1}}) == 201
    assert api.put("global-parameters", "g", body={"value": 2}) == 204
    assert api.get("global-parameters", "g") == {"name": "g", "value": 2}
    assert api.get("global-parameters") == [{"name": "g", "value": 2}]
    assert api.delete("global-parameters", "g") == 204
    assert api.refused("GET", "global-parameters", "g")[0] == 404


def test_cluster_name_can_be_set(api, leveret):
    def announced() -> object:
        with RawClient(*leveret.amqp_address) as client:
            return client.start().server_properties["cluster_name"]

    before = announced()
    assert api.put("cluster-name", body={"name": "forest"}) == 204
    assert api.get("cluster-name") == {"name": "forest"}
    assert api.get("overview")["cluster_name"] == announced() == "forest"
    api.delete("global-parameters", "cluster_name")
    assert announced() == before


def test_policies_and_parameters_survive_a_restart(tmp_path):
    settings = in_process_settings(http_enabled=True, data_dir=tmp_path)
    with ThreadedBroker(settings) as running:
        api = Api(running.http_url)
        api.put("policies", "/", "quiet", body=policy(definition={"history": "off"}, priority=3))
        api.put("operator-policies", "/", "op", body=policy("^q", {"max-length": 2}))
        api.put("parameters", "shovel", "/", "s", body={"value": {"a": [1]}})
        api.put("global-parameters", "g", body={"value": "x"})
        api.put("queues", "/", "q", body={"durable": True})
        kinds = ("policies", "operator-policies", "parameters", "global-parameters")
        before = {kind: api.get(kind) for kind in kinds}
        api.http.close()
    with ThreadedBroker(settings) as running:
        api = Api(running.http_url)
        assert {kind: api.get(kind) for kind in kinds} == before
        row = api.get("queues", "/", "q")
        assert (row["policy"], row["operator_policy"]) == ("quiet", "op")
        assert running.running is not None
        assert running.running.broker.vhosts["/"].queues["q"].keep is Keep.NOTHING
        api.http.close()
