"""The commands against a real Leveret, one scenario for each group of commands.

The server is a separate process. Most commands run in this process, like the other tests of the
command line, because starting an interpreter for each would take most of the time; the last test
starts them as programs, and stops the server with one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pika
import pytest
import trustme

from leveret.cli.errors import ExitCode
from leveret.testing import LeveretBroker
from tests.cli.conftest import Ended
from tests.support.brokers import Target, running_leveret


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    with running_leveret() as target:
        yield target


@pytest.fixture
def leveret(target, cli, monkeypatch):
    """`leveret("list_queues")` returns what it printed; `code` is the expected exit code."""
    for name in ("LEVERET_USER", "LEVERET_PASSWORD", "LEVERET_VHOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LEVERET_URL", f"http://127.0.0.1:{target.http_port}")

    def run(*words: str, code: int = 0) -> str:
        ended: Ended = cli(*words)
        assert ended.code == code, f"{words}: {ended.out}{ended.err}"
        return ended.out if code == 0 else ended.err

    return run


@pytest.fixture
def rows(leveret):
    """The rows of a listing."""

    def read(*words: str) -> list[Any]:
        items: list[Any] = json.loads(leveret(*words, "--formatter", "json"))
        return items

    return read


def test_server_commands(leveret, rows):
    assert "Leveret" in leveret("status")
    leveret("ping")
    assert leveret("version", "--server").strip()
    settings = {row["key"]: row["value"] for row in rows("environment")}
    assert settings["memory"] == "true" and settings["default_password"] == "hidden"
    leveret("cluster_status")
    leveret("set_cluster_name", "hutch")
    assert "hutch" in leveret("cluster_status")
    assert rows("list_feature_flags")
    leveret("health")
    leveret("health", "virtual-hosts")
    leveret("health", "port-listener/1", code=1)


def test_port_of_another_protocol_is_reported(leveret, target):
    amqp, http = (f"127.0.0.1:{port}" for port in (target.port, target.http_port))
    said = leveret("ping", "--url", f"http://{amqp}", code=ExitCode.UNAVAILABLE)
    assert "; is this its HTTP port (by default 15672), and does it use http, not https?" in said
    said = leveret("ping", "--url", f"https://{http}", code=ExitCode.UNAVAILABLE)
    expected = f"leveret: https://{http} does not use TLS; use http instead of https in the URL.\n"
    assert said == expected


def test_untrusted_certificate_is_explained(cli, tmp_path):
    authority = trustme.CA()
    made = authority.issue_cert("localhost")
    made.private_key_and_cert_chain_pem.write_to_path(tmp_path / "own.pem")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    (tmp_path / "none.pem").write_text("nothing")
    own = f"{tmp_path}/own.pem"
    with LeveretBroker(http_enabled=True, tls_cert=own, tls_key=own) as broker:
        assert broker.running is not None and broker.running.https_address is not None
        port = broker.running.https_address[1]

        def ping(host: str, *words: str) -> Ended:
            ended: Ended = cli("ping", "--url", f"https://{host}:{port}", *words)
            return ended

        assert ping("localhost", "--ca-file", f"{tmp_path}/ca.pem").code == 0
        unknown = ping("localhost")
        assert unknown.code == ExitCode.UNAVAILABLE
        assert unknown.err.endswith("; --ca-file adds the authority that signed it.\n")
        other = ping("127.0.0.1", "--ca-file", f"{tmp_path}/ca.pem")
        assert other.code == ExitCode.UNAVAILABLE
        assert "mismatch" in other.err and "--ca-file" not in other.err
        nothing = ping("localhost", "--ca-file", f"{tmp_path}/none.pem")
        said = f"leveret: {tmp_path}/none.pem cannot be used: it contains no PEM certificate.\n"
        assert (nothing.code, nothing.err) == (ExitCode.USAGE, said)


def test_get_and_consume_refer_logs_to_log_consume(leveret):
    leveret("log", "create", "a-log")
    for command in ("get", "consume"):
        said = leveret(command, "a-log", "-q", code=1)
        expected = "'a-log' is a log; use `leveret log consume a-log --from-beginning`."
        assert said == f"leveret: {expected}\n"
    leveret("log", "delete", "a-log")


def test_errors_name_the_mistake(leveret, cli):
    leveret("declare_queue", "here")
    for words, code, said in (
        (("bind", "amq.topic", "gone"), 66, "there is no queue 'gone' in vhost '/'."),
        (("bind", "gone", "here"), 66, "there is no exchange 'gone' in vhost '/'."),
        (("bind", "amq.topic", "gone", "--to-exchange"), 66, "no exchange 'gone' in vhost"),
        (("bind", "", "here"), 2, "a name must not be empty"),
        (("set_permissions", "gone", "", "", ""), 66, "there is no user 'gone'.\n"),
        (("publish", "-P", "messageid=1", "x"), 2, "unknown property 'messageid'; properties"),
        (("set_policy", "p", ".*", "max-length=3"), 2, 'such as {"max-length": 1000}'),
        (("set_policy", "p", ".*", '{"max-lenght": 3}'), 1, "did you mean 'max-length'?"),
        (("set_policy", "p", ".*", '{"colour": 3}'), 1, "not a recognised policy setting\n"),
        (("set_user_limits", "guest", "[]"), 2, 'such as {"max-channels": 100}'),
    ):
        assert said in leveret(*words, code=code)
    leveret("delete_queue", "here")


@pytest.mark.parametrize(
    "line",
    [
        "publish -k x hi",
        "get q",
        "browse q",
        "purge_queue q",
        "delete_exchange e",
        "bind e q",
        "unbind e q",
        "set_permissions guest a b c",
        "set_permissions gone a b c",
        "set_topic_permissions guest amq.topic a b",
        "clear_permissions guest",
        "clear_policy p",
        "log describe l",
        "log consume l --group g",
    ],
)
def test_missing_vhost_is_reported_instead_of_the_object(leveret, line):
    said = leveret(*line.split(), "-q", "-p", "gone", code=ExitCode.NOT_FOUND)
    assert said == "leveret: there is no vhost 'gone'.\n"


def test_last_administrator_cannot_be_removed(leveret, cli):
    for words in (("set_user_tags", "guest", "admin"), ("clear_password", "guest")):
        assert "create another administrator first" in leveret(*words, code=1)
    assert "create another administrator first" in leveret("delete_user", "guest", code=1)
    leveret("add_user", "boss", "pw", "--tags", "administrator")
    assert "The tag 'admin' grants nothing" in cli("set_user_tags", "guest", "admin").err
    leveret("set_user_tags", "guest", "administrator", "--user", "boss", "--password", "pw")
    leveret("delete_user", "boss")


def test_topology_commands(leveret, rows):
    leveret("declare_queue", "q", "-a", "x-max-length=5")
    leveret("declare_exchange", "x", "--type", "topic")
    leveret("bind", "x", "q", "-k", "a.#")
    assert {"name": "q", "messages": 0} in rows("list_queues", "name", "messages")
    assert {"name": "x", "type": "topic"} in rows("list_exchanges")
    bound = rows("list_bindings", "source_name", "destination_name", "routing_key")
    assert {"source_name": "x", "destination_name": "q", "routing_key": "a.#"} in bound
    assert "q" in leveret("route", "-x", "x", "-k", "a.b.c")
    leveret("unbind", "x", "q", "-k", "a.#")
    leveret("delete_exchange", "x", "--if-unused")
    leveret("publish", "hold", "-k", "q")
    leveret("delete_queue", "q", "--if-empty", code=1)
    leveret("purge_queue", "q")
    leveret("delete_queue", "q", "--if-empty")
    assert "no queue" in leveret("purge_queue", "q", code=ExitCode.NOT_FOUND).lower()


def test_message_commands(leveret, rows):
    leveret("declare_queue", "letters")
    leveret("publish", "one", "-k", "letters", "-H", "n=1", "-P", "message_id=7")
    leveret("publish", "two", "-k", "letters")
    seen = rows("browse", "letters", "--count", "5")
    assert [row["payload"] for row in seen] == ["one", "two"]
    assert seen[0]["properties"]["headers"] == {"n": 1}
    assert [row["payload"] for row in rows("get", "letters", "--count", "1", "--ack")] == ["one"]
    assert "two" in leveret("consume", "letters", "--count", "1")
    assert rows("list_queues", "messages") == [{"messages": 0}]
    leveret("delete_queue", "letters")


def test_scheduled_message_commands(leveret, rows):
    leveret("declare_queue", "alarms")
    leveret(
        "declare_exchange", "later", "--type", "x-delayed-message", "-a", "x-delayed-type=fanout"
    )
    leveret("bind", "later", "alarms")
    leveret("publish", "in an hour", "-x", "later", "-H", "x-delay=3600000")
    leveret("publish", "in a minute", "-x", "later", "-H", "x-delay=60000")
    waiting = rows("list_scheduled", "later")
    assert [row["payload"] for row in waiting] == ["in a minute", "in an hour"]
    assert "in a minute" in leveret("list_scheduled", "later", "--count", "1")
    first = str(waiting[0]["id"])
    leveret("cancel_scheduled", "later", first)
    said = leveret("cancel_scheduled", "later", first, code=ExitCode.NOT_FOUND)
    assert f"no scheduled message {first} at exchange 'later'" in said
    assert [row["payload"] for row in rows("list_scheduled", "later")] == ["in an hour"]
    assert "not x-delayed-message" in leveret("list_scheduled", "amq.topic", code=1)
    leveret("delete_exchange", "later")
    leveret("delete_queue", "alarms")


def test_account_commands(leveret, rows):
    leveret("add_vhost", "v", "--description", "for tests")
    leveret("add_user", "ann", "pw", "--tags", "monitoring")
    leveret("set_permissions", "ann", "^a", "^b", ".*", "-p", "v")
    assert {"user": "ann", "configure": "^a", "write": "^b", "read": ".*"} in rows(
        "list_permissions", "-p", "v")  # fmt: skip
    assert rows("list_user_permissions", "ann")[0]["vhost"] == "v"
    leveret("change_password", "ann", "new")
    leveret("authenticate_user", "ann", "new")
    leveret("authenticate_user", "ann", "pw", code=ExitCode.NO_PERMISSION)
    leveret("set_user_tags", "ann", "management", "policymaker")
    tags = {row["user"]: row["tags"] for row in rows("list_users")}
    assert tags == {"guest": ["administrator"], "ann": ["management", "policymaker"]}
    leveret("authenticate_user", "ann", "new")
    leveret("set_topic_permissions", "ann", "amq.topic", "^w", "^r", "-p", "v")
    assert rows("list_topic_permissions", "-p", "v")[0]["exchange"] == "amq.topic"
    leveret("clear_topic_permissions", "ann", "-p", "v")
    leveret("set_vhost_limits", '{"max-queues": 3}', "-p", "v")
    leveret("set_user_limits", "ann", '{"max-connections": 3}')
    assert rows("list_vhost_limits", "-p", "v") and rows("list_user_limits")
    leveret("clear_vhost_limits", "-p", "v")
    leveret("clear_permissions", "ann", "-p", "v")
    leveret("clear_password", "ann")
    leveret("authenticate_user", "ann", "new", code=ExitCode.NO_PERMISSION)
    leveret("delete_user", "ann")
    leveret("delete_vhost", "v")
    assert [row["name"] for row in rows("list_vhosts")] == ["/"]


def test_policy_and_parameter_commands(leveret, rows):
    leveret("set_policy", "p", "^q", '{"max-length": 9}', "--priority", "2")
    assert rows("list_policies")[0]["name"] == "p"
    leveret("set_operator_policy", "op", "^q", '{"max-length": 4}')
    assert rows("list_operator_policies")[0]["name"] == "op"
    leveret("declare_queue", "q1")
    assert rows("list_queues", "name", "policy") == [{"name": "q1", "policy": "p"}]
    leveret("delete_queue", "q1")
    leveret("set_policy", "bad", "(", '{"max-length": 9}', code=1)
    leveret("set_parameter", "shovel", "s", '{"a": 1}')
    assert {row["name"] for row in rows("list_parameters")} == {"s", "op"}
    leveret("clear_parameter", "shovel", "s")
    leveret("clear_operator_policy", "op")
    leveret("clear_policy", "p")
    assert rows("list_policies") == rows("list_parameters") == []


def test_definitions_are_exported_and_imported(leveret, rows, tmp_path):
    file = tmp_path / "definitions.json"
    leveret("declare_queue", "kept")
    leveret("export_definitions", str(file))
    leveret("delete_queue", "kept")
    leveret("import_definitions", str(file))
    assert rows("list_queues", "name") == [{"name": "kept"}]
    leveret("delete_queue", "kept")


def test_connection_commands(leveret, rows, target):
    connection = pika.BlockingConnection(pika.URLParameters(target.url))
    channel = connection.channel()
    channel.queue_declare("q", exclusive=True)
    channel.basic_consume("q", lambda *_: None)
    assert [row["user"] for row in rows("list_connections", "user")] == ["guest"]
    assert rows("list_channels", "number", "consumer_count") == [{"number": 1, "consumer_count": 1}]
    assert len(rows("list_consumers")) == 1
    leveret("close_all_connections", "because of rain")
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="because of rain"):
        for _ in range(100):
            connection.process_data_events(0.1)


def test_log_commands(leveret, rows, stdin):
    leveret("log", "create", "events", "--partitions", "2", "--max-age", "7D")
    stdin(b"k1:a\nk2:b\nk1:c\n")
    leveret("log", "produce", "events", "--key-separator", ":")
    assert [row["name"] for row in rows("log", "list")] == ["events"]
    assert "events-1" in leveret("log", "describe", "events")
    whole = leveret("log", "consume", "events", "--from-beginning", "--count", "3")
    assert sorted(whole.split()) == ["a", "b", "c"]
    group = leveret("log", "consume", "events", "--group", "g", "--count", "3")
    assert sorted(group.split()) == ["a", "b", "c"]
    assert "g" in leveret("log", "groups", "events")
    (shown,) = rows("log", "groups", "events")
    assert ([part["lag"] for part in shown["partitions"]], shown["members"]) == ([0, 0], [])
    leveret("log", "reset", "events", "--group", "g", "--to", "first", "--dry-run")
    leveret("log", "reset", "events", "--group", "g", "--to", "first")
    again = leveret("log", "consume", "events", "--group", "g", "--count", "3")
    assert sorted(again.split()) == ["a", "b", "c"]
    assert len(rows("list_stream_consumer_groups")) == 2
    leveret("list_stream_tracking", "events-0")
    leveret("reset_offset", "--stream", "events-0", "--reference", "g")
    leveret("log", "delete", "events")
    leveret("add_super_stream", "s", "--partitions", "3")
    leveret("delete_super_stream", "s")
    assert rows("list_queues") == []


def test_programs_return_exit_codes_and_stop_the_server():
    def program(*words: str, code: int = 0, url: str) -> str:
        ended = subprocess.run(
            [sys.executable, "-m", "leveret", *words],
            env={**os.environ, "LEVERET_URL": url},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert ended.returncode == code, ended.stdout + ended.stderr
        return ended.stdout if code == 0 else ended.stderr

    with running_leveret() as target:
        url = f"http://127.0.0.1:{target.http_port}"
        program("declare_queue", "q", url=url)
        program("publish", "hello", "-k", "q", url=url)
        assert "hello" in program("get", "q", url=url)
        assert "no queue 'x'" in program("purge_queue", "x", code=ExitCode.NOT_FOUND, url=url)
        program("ping", "--password", "wrong", code=ExitCode.NO_PERMISSION, url=url)
        program("stop", url=url)
        assert "no server answers" in program("ping", code=ExitCode.UNAVAILABLE, url=url)
