"""Export and import of definitions: whole broker, one vhost, repeated, invalid."""

from __future__ import annotations

import json
import struct
from urllib.parse import quote

import orjson
import pytest
from pamqp.commands import Queue

from leveret.launch import ThreadedBroker, in_process_settings
from tests.http.manage.client import Api
from tests.http.manage.sample import FROM_RABBITMQ, of_vhost
from tests.support import wire
from tests.support.rawclient import RawClient


def test_rabbitmq_file_round_trip(api, moved):
    assert api.post("definitions", body=FROM_RABBITMQ) == 204
    out = api.get("definitions")
    assert of_vhost(out) == of_vhost(FROM_RABBITMQ)
    assert FROM_RABBITMQ["users"][0] in out["users"]
    assert out["global_parameters"] == []
    assert {"rabbit_version", "rabbitmq_version", "product_name", "product_version"} <= out.keys()
    assert api.get("queues", moved, "orders.eu")["policy"] == "history-short"
    assert api.get("operator-policies", moved)[0]["name"] == "p2"


def test_import_is_idempotent(api, moved):
    api.post("definitions", body=FROM_RABBITMQ)
    once = api.get("definitions")
    api.post("definitions", body=FROM_RABBITMQ)
    api.call("PUT", "definitions", body=once)
    assert api.get("definitions") == once


def test_existing_queues_are_unchanged(api, vhost):
    api.put("queues", vhost, "q", body={"durable": True})
    other = {"name": "q", "durable": False, "auto_delete": True, "arguments": {"x-max-length": 1}}
    api.post("definitions", vhost, body={"queues": [other]})
    row = api.get("queues", vhost, "q")
    assert (row["durable"], row["auto_delete"], row["arguments"]) == (True, False, {})


def test_vhost_is_imported_into_another(api, moved, vhost):
    api.post("definitions", body=FROM_RABBITMQ)
    part = api.get("definitions", moved)
    assert not {"users", "vhosts", "permissions"} & part.keys()
    assert all("vhost" not in row for row in part["queues"] + part["exchanges"] + part["bindings"])
    assert api.post("definitions", vhost, body=part) == 204
    again = api.get("definitions", vhost)
    assert (again["queues"], again["bindings"]) == (part["queues"], part["bindings"])
    assert [row["name"] for row in api.get("policies", vhost)] == ["history-short"]


def test_form_with_a_file_is_imported(api, vhost):
    arguments = {"x-of": "\N{RABBIT}"}  # written as two escaped surrogates
    queue = {"name": "from-form", "durable": True, "arguments": arguments}
    content = json.dumps({"queues": [queue]}).encode()
    where = f"/api/definitions/{vhost.replace('/', '%2F')}"
    answer = api.http.post(where, files={"file": ("defs.json", content, "application/json")})
    assert answer.status_code == 204, answer.text
    assert api.get("queues", vhost, "from-form")["arguments"] == arguments
    answer = api.http.post(where, files={"other": ("defs.json", content)})
    assert answer.status_code == 400 and "no field named file" in answer.text


def test_export_as_a_download(api):
    answer = api.call("GET", "definitions", download='a"\r\nb.json')
    assert answer.headers["content-disposition"] == 'attachment; filename="a___b.json"'


def test_exclusive_queues_and_predeclared_exchanges_are_not_exported(api, vhost, channel):
    channel.queue_declare("private", exclusive=True)
    channel.queue_bind("private", "amq.direct", "k")
    part = api.get("definitions", vhost)
    assert (part["queues"], part["exchanges"], part["bindings"]) == ([], [], [])


def test_partitioned_log_round_trip(api, vhost):
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


JSON = {"content-type": "application/json"}
ROW = {"name": "q", "durable": True, "auto_delete": False, "arguments": {}}
LOG = ROW | {"arguments": {"x-queue-type": "stream"}}
BINDING = {"source": "amq.direct", "destination": "q", "destination_type": "queue"}
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
        ({"parameters": [{"component": "x-deduplication queue q", "name": "k", "value": 5}]},
         "parameters[0]: component 'x-deduplication queue q' is reserved for the broker"),
        ({"parameters": [{"component": "x-clock", "name": "moves", "value": {}}]},
         "parameters[0]: component 'x-clock' is reserved for the broker"),
        ({"bindings": [{"source": "no", "destination": "q", "destination_type": "queue"}]},
         "no queue 'q'"),
        ({"queues": [ROW], "bindings": [{"source": "no", "destination": "q"}]}, "exchange 'no'"),
        ({"bindings": [{"source": "x", "destination": "q", "destination_type": "odd"}]},
         "unknown destination_type"),
        ({"queues": [ROW | {"name": "a\0b"}]}, "must not contain a NUL"),
        ({"queues": [ROW | {"arguments": {"x-max-length": -1}}]}, "queues[0]: invalid arg"),
        ({"queues": [LOG | {"durable": False}]}, "invalid property 'non-durable'"),
        ({"queues": [LOG | {"arguments": {"x-queue-type": "stream", "x-partitions": 1001}}]},
         "queues[0]: invalid arg 'x-partitions'"),
        ({"queues": [LOG | {"name": "n" * 254,
                            "arguments": {"x-queue-type": "stream", "x-partitions": 2}}]},
         "name of a partition is longer"),
        ({"exchanges": [ROW | {"type": "x-delayed-message"}]}, "exchanges[0]: invalid argument"),
        ({"exchanges": [ROW | {"type": "topic", "arguments": {"alternate-exchange": 5}}]},
         "exchanges[0]: invalid type for arg 'alternate-exchange'"),
        ({"exchanges": [ROW | {"name": "a\0b", "type": "direct"}]}, "must not contain a NUL"),
        ({"queues": [ROW], "bindings": [BINDING | {"routing_key": "k" * 256}]}, "is longer than"),
        ({"queues": [ROW], "bindings": [BINDING | {"source": "amq.headers",
                                                   "arguments": {"x-match": "odd"}}]}, "x-match"),
        ({"queues": [ROW], "bindings": [BINDING | {"source": "amq.odd"}]}, "exchange 'amq.odd'"),
    ],
)  # fmt: skip
def test_invalid_file_changes_nothing(api, vhost, wrong, reason):
    good = {"name": "good", "durable": True, "auto_delete": False, "arguments": {}}
    body = wrong
    if isinstance(wrong, dict) and isinstance(wrong.get("queues", []), list):
        policy = {"name": "good", "pattern": "", "definition": {"max-length": 1}}
        body = {"policies": [policy]} | wrong | {"queues": [*wrong.get("queues", []), good]}
    status, said = api.refused("POST", "definitions", vhost, body=body)
    assert status == 400 and reason in said
    assert api.get("queues", vhost) == api.get("policies", vhost) == []


def test_exchange_with_a_reserved_name_changes_nothing(api, vhost):
    body = {"exchanges": [ROW | {"name": "amq.mine", "type": "direct"}], "queues": [ROW]}
    status, said = api.refused("POST", "definitions", vhost, body=body)
    assert (status, said) == (403, "exchange name 'amq.mine' contains reserved prefix 'amq.*'")
    assert api.get("queues", vhost) == []


def test_server_named_queue_is_imported(api, vhost):
    binding = BINDING | {"destination": "amq.gen-abc"}
    body = {"queues": [ROW | {"name": "amq.gen-abc"}], "bindings": [binding]}
    for _ in range(2):
        assert api.post("definitions", vhost, body=body) == 204
    assert [row["name"] for row in api.get("queues", vhost)] == ["amq.gen-abc"]


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
def test_invalid_file_of_a_whole_broker_changes_nothing(api, wrong, reason):
    before = api.get("definitions")
    status, said = api.refused("POST", "definitions", body=wrong | {"vhosts": [{"name": "made"}]})
    assert status == 400 and reason in said
    assert api.get("definitions") == before


def test_invalid_json_is_refused(api):
    answer = api.http.post("/api/definitions", content=b"{]")
    assert answer.status_code == 400 and "JSON" in answer.json()["reason"]


def test_only_administrators_import(api, sign_in):
    api.put("users", "m", body={"password": "pw", "tags": "monitoring,policymaker"})
    assert sign_in("m", "pw").refused("POST", "definitions", body={})[0] == 403
    assert sign_in("m", "pw").refused("GET", "definitions")[0] == 403
    api.delete("users", "m")


def test_old_rabbitmq_formats_are_accepted(api):
    """3.6 wrote tags as one string; a plain password and missing lists are accepted as well."""
    users = [{"name": "old", "password": "pw", "tags": "administrator"}]
    api.post("definitions", body={"users": users})
    assert api.get("users", "old")["tags"] == ["administrator"]
    api.delete("users", "old")


def test_users_with_argon2id_hashes_are_in_the_leveret_section(api, vhost):
    rights = {"configure": "", "write": "", "read": ".*"}
    topic = {"exchange": "amq.topic", "write": "a", "read": "b"}
    api.put("users", "ann", body={"password": "pw", "tags": "monitoring"})
    api.put("permissions", vhost, "ann", body=rights)
    api.put("topic-permissions", vhost, "ann", body=topic)
    api.put("user-limits", "ann", "max-channels", body={"value": 5})
    out = api.get("definitions")
    own = out["leveret"]
    assert [row["name"] for row in out["users"]] == ["guest"]
    assert {row["user"] for row in out["permissions"] + out["topic_permissions"]} == {"guest"}
    assert [row["name"] for row in own["users"]] == ["ann"]
    assert own["permissions"] == [{"user": "ann", "vhost": vhost, **rights}]
    assert own["topic_permissions"] == [{"user": "ann", "vhost": vhost, **topic}]

    api.delete("users", "ann")
    assert api.post("definitions", vhost, body=out) == 204  # a single vhost has no users
    assert api.refused("GET", "users", "ann")[0] == 404
    assert api.post("definitions", body=out) == 204
    assert api.get("definitions") == out
    api.delete("users", "ann")


@pytest.mark.parametrize("loses", [{"tags": ""}, {"tags": "administrator", "password_hash": ""}])
def test_import_cannot_remove_the_last_administrator(api, loses):
    mine = api.get("users", "guest")
    body = {"users": [mine | loses]}
    status, reason = api.refused("POST", "definitions", body=body)
    assert status == 400 and "'guest' is the last administrator" in reason
    other = {"name": "boss", "password": "pw", "tags": "administrator"}
    assert api.post("definitions", body={"users": [mine | loses, other]}) == 204
    boss = Api(str(api.http.base_url), "boss", "pw")
    boss.put("users", "guest", body=mine)  # the same hash, for the other tests
    boss.http.close()
    api.delete("users", "boss")


def test_users_in_the_leveret_section_are_checked(api):
    own = {"users": [{"name": "u", "password_hash": "%", "tags": ""}]}
    status, reason = api.refused("POST", "definitions", body={"leveret": own})
    assert status == 400 and reason.startswith("leveret.users[0]: ")
    own = {"permissions": [{"user": "no", "vhost": "/", "configure": "", "write": "", "read": ""}]}
    assert "no user 'no'" in api.refused("POST", "definitions", body={"leveret": own})[1]


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


# The section leveret -----------------------------------------------------------------------------


def test_leveret_extensions_are_in_the_leveret_section(api, vhost):
    body = {"pattern": "^q", "definition": {"history": "off", "max-length": 7}}
    api.put("policies", vhost, "p", body=body)
    api.put("operator-policies", vhost, "o", body=body | {"definition": {"history": "full"}})
    api.put("queues", vhost, "q", body={"arguments": {"x-delivery-limit": 3, "x-expires": 9999}})
    part = api.get("definitions", vhost)
    assert [row["definition"] for row in part["policies"]] == [{"max-length": 7}]
    assert part["parameters"] == []
    assert part["queues"][0]["arguments"] == {"x-expires": 9999}
    more = {"vhost": vhost, "pattern": "^q", "apply-to": "all", "priority": 0}
    assert part["leveret"] == {
        "policies": [
            more | {"name": "p", "definition": {"history": "off"}},
            more | {"name": "o", "definition": {"history": "full"}, "operator": True},
        ],
        "queues": [{"name": "q", "arguments": {"x-delivery-limit": 3}}],
    }

    api.delete("policies", vhost, "p")
    api.delete("operator-policies", vhost, "o")
    api.delete("queues", vhost, "q")
    assert api.post("definitions", vhost, body=part) == 204
    assert api.get("definitions", vhost) == part
    assert api.get("policies", vhost, "p")["definition"] == body["definition"]
    assert api.get("parameters", "operator_policy")[0]["value"]["definition"] == {"history": "full"}


def test_leveret_section_is_added_to_edited_objects(api, vhost):
    """Manual changes in the main part of a file are kept."""
    own = {
        "policies": [{"name": "p", "pattern": "^old", "definition": {"history": "off"}}],
        "queues": [{"name": "gone", "arguments": {"x-delivery-limit": 1}}],
    }
    policy = {"name": "p", "pattern": "^new", "definition": {"max-length": 1}}
    api.post("definitions", vhost, body={"policies": [policy], "leveret": own})
    row = api.get("policies", vhost, "p")
    assert (row["pattern"], row["definition"]) == ("^new", {"max-length": 1, "history": "off"})
    assert api.get("queues", vhost) == []


@pytest.mark.parametrize(
    ("own", "reason"),
    [
        ([], None),
        (5, "'leveret' must be an object"),
        ({"policies": 5}, "'leveret.policies' must be an array"),
        ({"policies": [{"name": "p"}]}, "leveret.policies[0]: 'pattern' is missing"),
        ({"policies": [{"name": "p", "pattern": "", "definition": {"odd": 1}}]}, "'odd' is not"),
        ({"queues": [{"arguments": {}}]}, "leveret.queues[0]: 'name' is missing"),
        ({"queues": [{"name": "q", "arguments": {"x-queue-type": "odd"}}]}, "unknown type 'odd'"),
    ],
)
def test_invalid_leveret_section_is_refused(api, vhost, own, reason):
    body = {"queues": [ROW], "leveret": own}
    if reason is None:
        assert api.post("definitions", vhost, body=body) == 204
        return
    status, said = api.refused("POST", "definitions", vhost, body=body)
    assert status == 400 and reason in said
    assert api.get("queues", vhost) == []


@pytest.mark.parametrize("number", ["1e400", "-1e400", str(2**70), str(-(2**70))])
@pytest.mark.parametrize(
    "where",
    [
        ("parameters", "shovel", "{vhost}", "p", '{"value": [{"deep": %s}]}'),
        ("global-parameters", "p", '{"value": %s}'),
        ("queues", "{vhost}", "q", '{"arguments": {"foo": %s}}'),
        (
            "policies",
            "{vhost}",
            "p",
            '{"pattern": "", "definition": {"ha-mode": "exactly", "ha-params": [%s]}}',
        ),
    ],
    ids=lambda where: where[0],
)
def test_numbers_beyond_json_or_64_bits_are_refused(api, vhost, where, number):
    *parts, body = where
    path = "/api/" + "/".join(quote(part.format(vhost=vhost), safe="") for part in parts)
    answer = api.http.put(path, content=body % number, headers=JSON)
    assert answer.status_code == 400, answer.text
    assert "64" in answer.text or "inf is not a valid JSON number" in answer.text


def test_every_export_can_be_imported(api, vhost, hub, leveret):
    """Numbers that JSON cannot express came over AMQP, or were stored by older versions."""
    hub.parameters._values[vhost, "shovel", "big"] = {"value": 2**70}
    hub.parameters._values[vhost, "shovel", "endless"] = [float("inf")]
    with RawClient(*leveret.amqp_address) as client:
        channel = client.handshake(vhost=vhost).channel()
        for name in ("nan", "inf"):
            arguments = wire.table(("f", wire.typed("d", struct.pack(">d", float(name)))))
            client.send_bytes(wire.queue_declare(1, name, flags=2, arguments=arguments))
            channel.expect(Queue.DeclareOk)
    answer = api.http.get("/api/definitions")
    assert b"NaN" not in answer.content and b"Infinity" not in answer.content
    assert api.http.post("/api/definitions", content=answer.content, headers=JSON).is_success
    queues = {one["name"]: one["arguments"] for one in api.get("definitions", vhost)["queues"]}
    assert queues == {"nan": {"f": None}, "inf": {"f": None}}
    rows = orjson.loads(answer.content)["parameters"]
    assert {row["name"]: row["value"] for row in rows} == {
        "big": {"value": 2.0**70},
        "endless": [None],
    }


def test_parameter_without_a_vhost_is_refused(api):
    row = {"vhost": "", "component": "shovel", "name": "p", "value": 1}
    status, reason = api.refused("POST", "definitions", body={"parameters": [row]})
    assert (status, reason) == (400, "parameters[0]: 'vhost' is empty")
    assert api.get("global-parameters") == []
