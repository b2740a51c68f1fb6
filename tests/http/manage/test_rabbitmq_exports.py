"""Import of what RabbitMQ 3.8 to 4.3 exports: everything arrives, or a warning names it."""

from __future__ import annotations

import copy

import pytest

from tests.http.manage.rabbitmq_exports import HASHES, PASSWORD, V38, V43, V313

NO_EFFECT = "is kept, but has no effect in Leveret"
NOT_EXPORTED = "because RabbitMQ does not export exclusive queues and internal exchanges"


@pytest.fixture
def imported(api):
    """Import a document; return its warnings. Its vhosts and users are deleted after the test."""
    documents = []

    def post(document):
        documents.append(document)
        answer = api.call("POST", "definitions", body=document, warnings="true")
        assert answer.status_code == 200, answer.text
        return answer.json()["warnings"]

    yield post
    for document in documents:
        for kind in ("vhosts", "users"):
            for row in document.get(kind, []):
                api.call("DELETE", "vhosts" if kind == "vhosts" else "users", row["name"])


def test_export_of_3_8(api, imported):
    warnings = imported(V38)
    assert api.get("users", "ada")["tags"] == ["administrator", "monitoring"]
    shop = api.get("vhosts", "shop")
    assert (shop["description"], shop["tags"]) == ("The shop", ["eu", "live"])
    [limits] = api.get("vhost-limits", "shop")
    assert limits["value"] == {"max-connections": 7, "max-queues": 50}
    [cap] = api.get("operator-policies", "shop")
    assert (cap["definition"], cap["priority"]) == ({"expires": 60000, "max-length": 4}, 3)
    kinds = {row["name"]: row["type"] for row in api.get("queues", "shop")}
    assert kinds == {"orders": "classic", "safe": "quorum", "feed": "stream"}
    assert api.get("parameters", "shovel", "shop")[0]["value"]["dest-properties"] == {
        "app": {"id": 1}
    }
    assert {row["name"] for row in api.get("policies", "shop")} == {"ha", "part"}
    assert api.get("queues", "shop", "orders")["policy"] == "ha"
    assert len(api.get("users", "ada", "topic-permissions")) == 1
    globals_ = {row["name"]: row["value"] for row in api.get("global-parameters")}
    assert globals_["mqtt_default_vhosts"] == {"O=client,CN=guest": "/"}
    assert warnings == [
        f"parameter 'shovel/old' in vhost 'shop' {NO_EFFECT}",
        f"global parameter 'mqtt_default_vhosts' {NO_EFFECT}",
        f"policy 'ha' in vhost 'shop': 'ha-mode' {NO_EFFECT}",
        f"policy 'ha' in vhost 'shop': 'ha-params' {NO_EFFECT}",
        "policy 'lone' in vhost 'shop': 'x-plugin-key' is not known and was ignored; nothing is "
        "left, so the policy was not imported",
        "policy 'part' in vhost 'shop': 'x-plugin-key' is not known and was ignored",
        "queue 'orders' in vhost 'shop': argument 'x-max-age' does not exist for its type and was "
        "ignored",
        "queue 'orders' in vhost 'shop': argument 'x-odd' was not text; it is now the text "
        "'Not UTF-8, base64 is: /wA='",
        "binding from 'in' to queue 'amq.gen-private' in vhost 'shop' was left out: the file has "
        f"no queue 'amq.gen-private', {NOT_EXPORTED}",
        "binding from 'hidden' to queue 'orders' in vhost 'shop' was left out: the file has no "
        f"exchange 'hidden', {NOT_EXPORTED}",
    ]


def test_export_of_3_13(api, imported):
    warnings = imported(V313)
    assert api.get("vhosts", "shop")["default_queue_type"] == "classic"  # undefined in the file
    assert api.get("vhosts", "safe")["default_queue_type"] == "quorum"
    [limits] = api.get("vhost-limits", "shop")
    assert limits["value"] == {"max-connections": 7}
    [cap] = api.get("operator-policies", "shop")
    assert cap["definition"] == {"overflow": "reject-publish", "queue-version": 2}
    assert warnings == [f"parameter 'federation-upstream-set/set' in vhost 'shop' {NO_EFFECT}"]


def test_export_of_4_3(api, imported):
    warnings = imported(V43)
    assert warnings == [
        "exchanges[0]: field 'policy' is not known and was ignored",
        "queues[0]: field 'leader' is not known and was ignored",
        "section 'messages' is not known and was ignored",
        "vhost 'shop': metadata 'color' was ignored",
        f"operator policy 'cap' in vhost 'shop': 'delayed-retry-min' {NO_EFFECT}",
        f"global parameter 'cluster_tags' {NO_EFFECT}",
        f"policy 'slow' in vhost 'shop': 'consumer-disconnected-timeout' {NO_EFFECT}",
    ]
    assert api.get("exchanges", "shop", "near")["type"] == "x-local-random"
    assert api.get("vhosts", "shop")["protected_from_deletion"] is True
    api.delete("vhosts", "shop", "deletion", "protection")


@pytest.mark.parametrize("hashing", HASHES)
def test_passwords_of_all_algorithms(sign_in, imported, hashing):
    user = {"name": "ada", "password_hash": HASHES[hashing], "hashing_algorithm": hashing}
    assert imported({"users": [user | {"tags": ["management"], "limits": {}}]}) == []
    assert sign_in("ada", PASSWORD).get("whoami")["name"] == "ada"


def test_file_of_another_origin_is_checked_strictly(api):
    """The same things are mistakes in a file that was written by hand."""
    document = copy.deepcopy(V38)
    del document["rabbit_version"], document["rabbitmq_version"]
    status, reason = api.refused("POST", "definitions", body=document)
    assert status == 400 and reason == "parameters[0][0]: 'definition' is not a dict"
    assert "shop" not in {row["name"] for row in api.get("vhosts")}


def test_sections_that_one_vhost_cannot_have_are_named(api, vhost):
    answer = api.call("POST", "definitions", vhost, body={"users": V38["users"]}, warnings="true")
    assert answer.json()["warnings"] == [
        "section 'users' was ignored: it does not belong to one vhost"
    ]


def test_without_the_option_there_is_no_content(api, vhost):
    answer = api.call("POST", "definitions", vhost, body={"odd": 1})
    assert (answer.status_code, answer.content) == (204, b"")


def test_unknown_fields_are_counted(api, vhost):
    rows = [{"name": f"q{number}", "durable": True, "odd": 1} for number in range(3)]
    answer = api.call("POST", "definitions", vhost, body={"queues": rows}, warnings="true")
    assert answer.json()["warnings"] == [
        "queues[0] and 2 more: field 'odd' is not known and was ignored"
    ]
