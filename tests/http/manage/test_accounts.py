"""Vhosts, users, permissions and limits over HTTP."""

from __future__ import annotations

import base64
import hashlib
import time
from typing import Any

import pika
import pytest

from leveret.broker.access import authentication
from leveret.launch import ThreadedBroker, in_process_settings
from tests.http.manage.client import Api

EVERYTHING = {"configure": ".*", "write": ".*", "read": ".*"}


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@pytest.fixture
def user(api):
    """A user without permissions, deleted after the test."""
    api.put("users", "u", body={"password": "pw", "tags": "management"})
    yield "u"
    api.call("DELETE", "users", "u")


# Vhosts ------------------------------------------------------------------------------------------


def test_vhost_is_created_changed_and_deleted(api):
    body = {"description": "for tests", "tags": "a, b", "default_queue_type": "quorum"}
    assert api.put("vhosts", "v/1", body=body) == 201
    row = api.get("vhosts", "v/1")
    assert (row["name"], row["description"], row["tags"]) == ("v/1", "for tests", ["a", "b"])
    assert row["metadata"] == {"description": "for tests", "tags": ["a", "b"],
                               "default_queue_type": "quorum"}  # fmt: skip
    assert api.put("vhosts", "v/1", body={"tags": ["c"]}) == 204
    row = api.get("vhosts", "v/1")
    assert (row["description"], row["tags"]) == ("for tests", ["c"])
    assert api.delete("vhosts", "v/1") == 204
    assert api.refused("GET", "vhosts", "v/1")[0] == 404
    assert api.refused("DELETE", "vhosts", "v/1")[0] == 404


def test_creator_of_a_vhost_may_use_it(api, vhost):
    assert api.get("vhosts", vhost, "permissions") == [
        {"user": "guest", "vhost": vhost, **EVERYTHING}
    ]


def test_vhost_counts_its_messages(api, vhost, channel):
    channel.queue_declare("q")
    channel.basic_publish("", "q", b"1")
    channel.basic_publish("", "q", b"2")
    channel.basic_get("q")
    row = api.get("vhosts", vhost)
    assert (row["messages"], row["messages_ready"], row["messages_unacknowledged"]) == (2, 1, 1)
    assert row["message_stats"]["get"] == 1


def test_protected_vhost_cannot_be_deleted(api, vhost):
    assert api.post("vhosts", vhost, "deletion", "protection") == 204
    status, reason = api.refused("DELETE", "vhosts", vhost)
    assert status == 412 and "protected" in reason
    assert api.delete("vhosts", vhost, "deletion", "protection") == 204
    assert api.delete("vhosts", vhost) == 204


def test_deleting_a_vhost_disconnects_its_clients(api, vhost, connect):
    connection = connect(vhost)
    api.delete("vhosts", vhost)
    assert closed_with(connection) == (320, f"CONNECTION_FORCED - vhost '{vhost}' is deleted")


def closed_with(connection) -> tuple[int, str]:
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as caught:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            connection.process_data_events(0.1)
    return caught.value.reply_code, caught.value.reply_text


def test_tracing_is_stored(api, vhost):
    api.put("vhosts", vhost, body={"tracing": True})
    assert api.get("vhosts", vhost)["tracing"] is True


def test_other_users_see_only_their_vhosts(api, vhost, user, sign_in):
    api.put("permissions", vhost, user, body=EVERYTHING)
    theirs = sign_in(user, "pw")
    assert [row["name"] for row in theirs.get("vhosts")] == [vhost]
    assert theirs.refused("GET", "vhosts", "/")[0] == 403
    assert theirs.refused("PUT", "vhosts", "new")[0] == 403


# Users -------------------------------------------------------------------------------------------


def test_user_is_created_changed_and_deleted(api):
    assert api.put("users", "w", body={"password": "pw", "tags": "management, monitoring"}) == 201
    row = api.get("users", "w")
    assert row["tags"] == ["management", "monitoring"] and row["limits"] == {}
    assert row["hashing_algorithm"] == "leveret_password_hashing_argon2id"
    assert base64.b64decode(row["password_hash"]).startswith(b"$argon2id$v=19$m=19456,t=2,p=1$")
    assert api.put("users", "w", body={"password": "pw", "tags": ["policymaker"]}) == 204
    assert api.get("users", "w")["tags"] == ["policymaker"]
    assert api.delete("users", "w") == 204
    assert api.refused("GET", "users", "w")[0] == 404


@pytest.mark.parametrize(
    ("name", "digest"),
    [
        ("rabbit_password_hashing_sha256", hashlib.sha256),
        ("rabbit_password_hashing_sha512", hashlib.sha512),
        ("rabbit_password_hashing_md5", hashlib.md5),
    ],
)
def test_rabbitmq_password_hashes_are_accepted(api, sign_in, name, digest):
    hashed = base64.b64encode(b"salt" + digest(b"salt" + b"secret").digest()).decode()
    body = {"password_hash": hashed, "hashing_algorithm": name, "tags": "management"}
    api.put("users", "hashed", body=body)
    assert sign_in("hashed", "secret").get("whoami")["name"] == "hashed"
    assert sign_in("hashed", "guess").refused("GET", "whoami") == (401, "Login failed")
    api.delete("users", "hashed")


def test_user_without_password_cannot_log_in(api, sign_in):
    api.put("users", "mute", body={"password_hash": "", "tags": "administrator"})
    for password in ("", "mute"):
        assert sign_in("mute", password).refused("GET", "whoami")[0] == 401
    api.delete("users", "mute")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"password": "x"}, "tags_not_present"),
        ({"password_hash": "!!", "tags": ""}, "base64"),
        ({"password": "a", "password_hash": "AAAA", "tags": ""}, "both_password_and_password_hash"),
        ({"password_hash": "", "hashing_algorithm": "rot13", "tags": ""}, "hashing_algorithm"),
        (
            {
                "password_hash": encoded(
                    "$argon2id$v=19$m=9999999,t=2,p=1$" + "a" * 22 + "$" + "b" * 43
                ),
                "tags": "",
            },
            "has cost",
        ),
        ({"password_hash": encoded("$argon2id$v=19$m=1"), "tags": ""}, "must be an Argon2id text"),
        ({"password": "", "tags": ""}, "empty"),
        ({"password": "x", "tags": 5}, "tags"),
        ({"password": "x", "tags": ["a,b"]}, "comma"),
    ],
)
def test_invalid_user_is_refused_with_a_reason(api, body, reason):
    status, said = api.refused("PUT", "users", "bad", body=body)
    assert status == 400 and reason in said
    assert api.refused("GET", "users", "bad")[0] == 404


def test_several_users_are_deleted_at_once(api):
    for name in ("a1", "a2"):
        api.put("users", name, body={"password": "x", "tags": ""})
    without = [row["name"] for row in api.get("users", "without-permissions")]
    assert {"a1", "a2"} <= set(without) and "guest" not in without
    assert api.post("users", "bulk-delete", body={"users": ["a1", "a2", "never"]}) == 204
    assert [row["name"] for row in api.get("users")] == ["guest"]


def test_deleted_users_connections_are_closed(api, vhost, user, connect):
    api.put("permissions", vhost, user, body=EVERYTHING)
    connection = connect(vhost, user, "pw")
    api.delete("users", user)
    assert closed_with(connection) == (320, "CONNECTION_FORCED - user 'u' was deleted")
    assert api.get("vhosts", vhost, "permissions") == [
        {"user": "guest", "vhost": vhost, **EVERYTHING}
    ]


def test_connections_of_one_user_are_listed_and_closed(api, vhost, user, connect, sign_in):
    api.put("permissions", vhost, user, body=EVERYTHING)
    api.put("users", user, body={"password": "pw", "tags": "management"})
    assert api.get("connections", "username", user) == []
    connection, other = connect(vhost, user, "pw"), connect(vhost, "guest", "guest")
    assert [row["user"] for row in api.get("connections", "username", user)] == [user]
    mine = sign_in(user, "pw")
    assert [row["user"] for row in mine.get("connections", "username", user)] == [user]
    assert mine.get("connections", "username", "guest") == []
    assert mine.refused("DELETE", "connections", "username", "guest")[0] == 403
    assert api.delete("connections", "username", user) == 204
    assert closed_with(connection) == (320, "CONNECTION_FORCED - Closed via management plugin")
    other.close()


def test_only_administrators_manage_users(api, user, sign_in):
    for tag in ("management", "policymaker", "monitoring"):
        api.put("users", user, body={"password": "pw", "tags": tag})
        assert sign_in(user, "pw").refused("GET", "users")[0] == 403


def test_users_can_be_listed_by_column(api):
    assert api.get("users", columns="name") == [{"name": "guest"}]


# Permissions -------------------------------------------------------------------------------------


def test_permission_is_set_shown_and_cleared(api, vhost, user):
    body = {"configure": "^c", "write": "^w", "read": ""}
    assert api.put("permissions", vhost, user, body=body) == 201
    assert api.put("permissions", vhost, user, body=body) == 204
    row = {"user": user, "vhost": vhost, **body}
    assert api.get("permissions", vhost, user) == row
    assert row in api.get("permissions") and api.get("users", user, "permissions") == [row]
    assert api.delete("permissions", vhost, user) == 204
    assert api.refused("GET", "permissions", vhost, user)[0] == 404
    assert api.refused("DELETE", "permissions", vhost, user)[0] == 404


def test_permission_takes_effect_for_amqp_at_once(api, vhost, user, connect):
    api.put("permissions", vhost, user, body={"configure": "^mine", "write": "", "read": ""})
    channel = connect(vhost, user, "pw").channel()
    channel.queue_declare("mine-1")
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        channel.queue_declare("yours")
    assert caught.value.reply_code == 403


def test_last_administrator_cannot_be_removed(api):
    told = "'guest' is the last administrator with a password; create another administrator first"
    plain = {"password": "x", "tags": "management"}
    for refused in (
        api.refused("DELETE", "users", "guest"),
        api.refused("PUT", "users", "guest", body=plain),
        api.refused("PUT", "users", "guest", body={"tags": "administrator"}),
        api.refused("POST", "users", "bulk-delete", body={"users": ["x", "guest"]}),
    ):
        assert refused == (400, told)
    api.put("users", "locked", body={"tags": "administrator"})
    assert api.refused("DELETE", "users", "guest") == (400, told)
    api.put("users", "locked", body={"password": "pw", "tags": "administrator"})
    both = {"users": ["locked", "guest"]}
    assert api.refused("POST", "users", "bulk-delete", body=both)[0] == 400
    assert api.delete("users", "locked") == 204
    assert "administrator" in api.get("users", "guest")["tags"]


def test_invalid_permission_is_refused_with_a_reason(api, vhost, user):
    refused = api.refused("PUT", "permissions", vhost, "nobody", body=EVERYTHING)
    assert refused == (400, "vhost_or_user_not_found")
    assert api.refused("PUT", "permissions", "no", user, body=EVERYTHING)[0] == 400
    status, reason = api.refused("PUT", "permissions", vhost, user, body=EVERYTHING | {"read": "("})
    assert status == 400 and "invalid pattern '('" in reason
    partial = {"configure": ".*", "write": ".*"}
    assert api.refused("PUT", "permissions", vhost, user, body=partial)[0] == 400


def test_topic_permission_is_set_shown_and_cleared(api, vhost, user):
    body = {"exchange": "amq.topic", "write": "^a", "read": ".*"}
    assert api.put("topic-permissions", vhost, user, body=body) == 201
    assert api.put("topic-permissions", vhost, user, body=body) == 204
    row = {"user": user, "vhost": vhost, **body}
    assert api.get("topic-permissions", vhost, user) == [row]
    assert api.get("topic-permissions") == api.get("users", user, "topic-permissions") == [row]
    assert api.get("vhosts", vhost, "topic-permissions") == [row]
    api.put("topic-permissions", vhost, user, body=body | {"exchange": "other"})
    assert api.delete("topic-permissions", vhost, user, "other") == 204
    assert api.delete("topic-permissions", vhost, user) == 204
    assert api.refused("GET", "topic-permissions", vhost, user)[0] == 404


# The default type of queues ----------------------------------------------------------------------


def test_default_queue_type_of_a_vhost_applies(api, vhost, channel):
    channel.queue_declare("before", durable=True)
    assert api.put("vhosts", vhost, body={"default_queue_type": "quorum"}) == 204
    channel.queue_declare("before", durable=True)
    channel.queue_declare("over-amqp", durable=True)
    channel.queue_declare("over-amqp", durable=True)
    channel.queue_declare("named", durable=True, arguments={"x-queue-type": "classic"})
    channel.queue_declare("transient")
    channel.queue_declare("mine", durable=True, auto_delete=True)
    api.put("queues", vhost, "over-http", body={"durable": True})
    types = {row["name"]: row["type"] for row in api.get("queues", vhost)}
    assert types == {
        "before": "classic", "over-amqp": "quorum", "named": "classic", "transient": "classic",
        "mine": "classic", "over-http": "quorum",
    }  # fmt: skip
    assert api.get("queues", vhost, "over-http")["arguments"] == {"x-queue-type": "quorum"}
    said = api.refused("PUT", "vhosts", vhost, body={"default_queue_type": "odd"})
    assert said == (400, "unknown default_queue_type 'odd'; known are classic, quorum, stream")


# Limits ------------------------------------------------------------------------------------------


def test_queue_limit_is_enforced(api, vhost, channel):
    assert api.put("vhost-limits", vhost, "max-queues", body={"value": 1}) == 204
    assert api.get("vhost-limits", vhost) == [{"vhost": vhost, "value": {"max-queues": 1}}]
    channel.queue_declare("one")
    channel.queue_declare("one")
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        channel.queue_declare("two")
    assert caught.value.reply_code == 406 and "queue limit in vhost" in caught.value.reply_text
    assert api.delete("vhost-limits", vhost, "max-queues") == 204
    assert api.get("vhost-limits") == []
    api.put("queues", vhost, "two")


def test_connection_limit_is_enforced(api, vhost, connect):
    api.put("vhost-limits", vhost, "max-connections", body={"value": 1})
    connect(vhost)
    wanted = r"\(530\) .*: connection limit \(1\) is reached"
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError, match=wanted):
        connect(vhost)


def test_connection_limit_of_a_user_is_enforced(api, vhost, user, connect):
    api.put("permissions", vhost, user, body=EVERYTHING)
    assert api.put("user-limits", user, "max-connections", body={"value": 0}) == 204
    assert api.get("user-limits", user) == [{"user": user, "value": {"max-connections": 0}}]
    wanted = r"\(530\) .* user connection limit \(0\) is reached"
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError, match=wanted):
        connect(vhost, user, "pw")
    api.put("users", user, body={"password": "pw", "tags": "monitoring"})
    assert api.get("users", user)["limits"] == {"max-connections": 0}
    api.delete("user-limits", user, "max-connections")
    assert connect(vhost, user, "pw").is_open
    assert api.get("user-limits") == []


def test_channel_limit_of_a_user_applies_to_all_connections(api, vhost, user, connect):
    api.put("permissions", vhost, user, body=EVERYTHING)
    assert api.put("user-limits", user, "max-channels", body={"value": 2}) == 204
    first, second = connect(vhost, user, "pw"), connect(vhost, user, "pw")
    first.channel()
    last = second.channel()
    last.close()
    second.channel()
    wanted = (
        f"NOT_ALLOWED - number of channels opened for user '{user}' has reached the maximum "
        r"allowed user limit of \(2\)"
    )
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match=wanted) as caught:
        second.channel()
    assert caught.value.reply_code == 530
    assert first.channel().is_open
    api.delete("user-limits", user, "max-channels")
    assert first.channel().is_open


def test_import_beyond_the_queue_limit_changes_nothing(api, vhost):
    api.put("queues", vhost, "there")
    api.put("vhost-limits", vhost, "max-queues", body={"value": 2})
    queues: list[Any] = [
        {"name": name, "durable": True, "auto_delete": False, "arguments": {}}
        for name in ("there", "one", "two")
    ]
    status, text = api.refused("POST", "definitions", vhost, body={"queues": queues})
    assert status == 400 and "would exceed its limit of 2 queue(s); it has 1 now" in text
    assert [one["name"] for one in api.get("queues", vhost)] == ["there"]
    assert api.call("POST", "definitions", vhost, body={"queues": queues[:2]}).status_code == 204


def test_invalid_limits_are_refused_with_a_reason(api, vhost, user):
    assert "unknown limit" in api.refused(
        "PUT", "vhost-limits", vhost, "max-joy", body={"value": 1})[1]  # fmt: skip
    assert api.refused("PUT", "vhost-limits", vhost, "max-queues", body={"value": "x"})[0] == 400
    assert api.refused("PUT", "user-limits", user, "max-queues", body={"value": 1})[0] == 400
    assert api.refused("PUT", "user-limits", "no", "max-channels", body={"value": 1})[0] == 404
    assert api.refused("PUT", "vhost-limits", "no", "max-queues", body={"value": 1})[0] == 404


def test_accounts_survive_a_restart(tmp_path, monkeypatch):
    # Otherwise guest's password hash would be upgraded a second after its first login.
    monkeypatch.setattr(authentication, "CONVERT_SECONDS", 3600.0)
    settings = in_process_settings(http_enabled=True, data_dir=tmp_path)
    with ThreadedBroker(settings) as running:
        api = Api(running.http_url)
        api.put("vhosts", "v", body={"description": "kept", "tags": "t"})
        api.put("users", "u", body={"password": "pw", "tags": "management"})
        api.put("permissions", "v", "u", body=EVERYTHING)
        api.put("topic-permissions", "v", "u", body={"exchange": "x", "write": "w", "read": "r"})
        api.put("user-limits", "u", "max-channels", body={"value": 7})
        api.put("vhost-limits", "v", "max-queues", body={"value": 0})
        kinds = ("vhosts", "users", "permissions", "topic-permissions", "user-limits",
                 "vhost-limits")  # fmt: skip
        before = {kind: api.get(kind) for kind in kinds}
        api.http.close()
    with ThreadedBroker(settings) as running:
        api = Api(running.http_url)
        assert {kind: api.get(kind) for kind in kinds} == before
        assert api.refused("PUT", "queues", "v", "q", body={})[0] == 400
        api.http.close()
