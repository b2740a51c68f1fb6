"""publish, get and consume: standard input, binary bodies, waiting, stopping."""

from __future__ import annotations

import json
import os

import pytest

from tests.cli.conftest import AnswerSequence

PUBLISH = "POST /api/exchanges/%2F/amq.default/publish"
GET = "POST /api/queues/%2F/q/get"


@pytest.fixture
def routed(server):
    server.answers[PUBLISH] = {"routed": True}
    return server


def payloads(server):
    return [(body["payload"], body["payload_encoding"]) for body in server.bodies(PUBLISH)]


def test_body_from_standard_input(routed, cli, stdin):
    stdin(b"two\nlines\n")
    assert cli("publish", "-k", "q").err == "1 message published.\n"
    assert payloads(routed) == [("two\nlines\n", "string")]


def test_publish_lines(routed, cli, stdin):
    stdin(b"a\r\nb\n\nlast")
    assert cli("publish", "-k", "q", "--lines").err == "4 messages published.\n"
    assert [text for text, _ in payloads(routed)] == ["a", "b", "", "last"]


def test_binary_body_is_sent_as_base64(routed, cli, tmp_path):
    file = tmp_path / "body"
    file.write_bytes(b"\xff\x00")
    cli("publish", "-k", "q", "--file", str(file))
    assert payloads(routed) == [("/wA=", "base64")]


def test_empty_body_is_not_standard_input(routed, cli):
    cli("publish", "-k", "q", "")
    assert payloads(routed) == [("", "string")]


def test_copies(routed, cli):
    assert cli("publish", "-k", "q", "x", "--count", "3").err == "3 messages published.\n"
    assert len(payloads(routed)) == 3


def test_unrouted_is_accepted_on_request(server, cli):
    server.answers[PUBLISH] = {"routed": False}
    ended = cli("publish", "-k", "q", "x", "--no-mandatory")
    assert (ended.code, ended.err) == (0, "1 message published.\n")


def test_unrouted_fails_with_one_message(server, cli):
    server.answers[PUBLISH] = AnswerSequence([{"routed": True}, {"routed": False}])
    ended = cli("publish", "-k", "q", "x", "-c", "2")
    assert (ended.code, ended.err) == (1, "leveret: 1 of 2 messages not routed to any queue.\n")


def test_missing_file(server, cli):
    ended = cli("publish", "-k", "q", "--file", "/nonexistent")
    assert ended.code == 66
    assert ended.err == "leveret: cannot read /nonexistent: No such file or directory.\n"


def test_get_prints_rabbitmqadmins_columns(server, cli):
    server.answers[GET] = [
        {
            "payload": "hi",
            "payload_bytes": 2,
            "payload_encoding": "string",
            "redelivered": False,
            "exchange": "",
            "routing_key": "q",
            "message_count": 4,
            "properties": {"delivery_mode": 2},
        }
    ]
    assert cli("get", "q", "-s").out == 'q\t\t4\thi\t2\tstring\tfalse\t{"delivery_mode":2}\n'
    assert server.requests[0].body["ackmode"] == "ack_requeue_true"


def test_get_from_an_empty_queue(server, cli):
    server.answers[GET] = []
    ended = cli("get", "q")
    assert (ended.code, ended.out, ended.err) == (0, "", "Queue 'q' is empty.\n")
    assert cli("get", "q", "--formatter", "json").out == "[]\n"


def test_get_waits_without_long_poll(server, cli, monkeypatch):
    monkeypatch.setattr("leveret.cli.messages._EMPTY_PAUSE", 0.01)
    server.answers[GET] = AnswerSequence([[], [], [{"payload": "late"}]])
    assert "late" in cli("get", "q", "--wait", "30").out
    assert len(server.requests) == 3
    assert all(body["wait"] > 0 for body in server.bodies(GET))


def test_consume_prints_raw_bodies(server, cli):
    items = [{"payload": "text"}, {"payload": "w7w=", "payload_encoding": "base64"}]
    server.answers[GET] = AnswerSequence([items, []])
    ended = cli("consume", "q", "--idle", "0", "-q")
    assert (ended.code, ended.out) == (0, "text\nü\n")


def test_consume_as_json_lines(server, cli):
    server.answers[GET] = AnswerSequence([[{"payload": "a"}, {"payload": "b"}]])
    out = cli("consume", "q", "--count", "2", "--formatter", "json").out
    assert [json.loads(line)["payload"] for line in out.splitlines()] == ["a", "b"]


def test_consume_as_csv(server, cli):
    server.answers[GET] = AnswerSequence(
        [[{"payload": "a,b", "exchange": "e", "routing_key": "k"}]]
    )
    out = cli("consume", "q", "--count", "1", "--formatter", "csv").out
    assert out == 'exchange,routing_key,payload\ne,k,"a,b"\n'


def test_route_shows_bindings_and_queues(server, cli):
    step = {"source": "e", "destination": "q", "destination_type": "queue", "routing_key": "#"}
    server.answers["POST /api/route/%2F"] = {"queues": [{"name": "q"}], "path": [step]}
    ended = cli("route", "-x", "e", "-k", "a", "--no-table-headers")
    assert (ended.out, ended.err) == ("e\tq\tqueue\t#\t\n", "Routed to: q.\n")


def test_password_from_a_pipe(server, cli, stdin):
    stdin(b"s3cret\n")
    cli("add_user", "u")
    assert server.bodies("PUT /api/users/u") == [{"password": "s3cret", "tags": ""}]


def test_definitions_round_trip(server, cli, tmp_path):
    definitions = {"vhosts": [{"name": "ü"}], "queues": []}
    server.answers["GET /api/definitions"] = definitions
    file = str(tmp_path / "d.json")
    assert cli("export_definitions", file).err == f"Definitions exported to {file}: 1 vhosts.\n"
    cli("import_definitions", file)
    assert server.bodies("POST /api/definitions") == [definitions]


def test_export_does_not_overwrite_a_file(server, cli, stdin, tmp_path):
    server.answers["GET /api/definitions"] = {}
    file = tmp_path / "d.json"
    file.write_text("precious")
    stdin(b"y\n")
    ended = cli("export_definitions", str(file))
    assert (ended.code, file.read_text(), server.requests) == (1, "precious", [])
    assert ended.err == (
        f"leveret: {file} exists and was not overwritten; --force overwrites it.\n"
    )
    assert cli("export_definitions", str(file), "--force").code == 0
    assert file.read_text() == "{}\n"


@pytest.mark.parametrize(
    ("typed", "code", "content"), [(b"n\n", 1, "precious"), (b"y\n", 0, "{}\n")]
)
def test_export_asks_at_a_terminal(server, cli, monkeypatch, tmp_path, typed, code, content):
    server.answers["GET /api/definitions"] = {}
    file = tmp_path / "d.json"
    file.write_text("precious")
    keyboard, screen = os.openpty()
    os.write(keyboard, typed)
    with os.fdopen(screen) as terminal:
        monkeypatch.setattr("sys.stdin", terminal)
        ended = cli("export_definitions", str(file))
    os.close(keyboard)
    assert (ended.code, file.read_text()) == (code, content)
    assert f"{file} exists. Overwrite it? [y/N]:" in ended.err


def test_warnings_of_an_import_are_shown(server, cli, tmp_path):
    server.answers["POST /api/definitions"] = {"warnings": ["section 'odd' was ignored"]}
    (tmp_path / "d.json").write_text('{"odd": 1}')
    ended = cli("import_definitions", str(tmp_path / "d.json"))
    assert (ended.code, server.requests[0].query) == (0, {"warnings": "true"})
    assert ended.err.startswith("leveret: section 'odd' was ignored.\n")


def test_export_names_users_that_rabbitmq_will_ignore(server, cli, tmp_path):
    own = {"users": [{"name": "ann"}, {"name": "ben"}], "queues": [{}]}
    server.answers["GET /api/definitions"] = {"users": [{"name": "old"}], "leveret": own}
    file = str(tmp_path / "d.json")
    counted, told = cli("export_definitions", file).err.splitlines()
    assert counted == f"Definitions exported to {file}: 3 users."
    assert told.startswith("RabbitMQ will ignore the users ann, ben: ")


def test_definitions_that_are_not_json(server, cli, tmp_path):
    file = tmp_path / "d.json"
    file.write_bytes(b"\xff{")
    ended = cli("import_definitions", str(file))
    assert (ended.code, server.requests) == (2, [])
    assert 'd.json must be a JSON object such as {"queues": []}' in ended.err


@pytest.mark.parametrize("words", [("publish", "-k", "q"), ("publish", "-k", "q", "--lines")])
def test_typed_input_is_announced(server, cli, monkeypatch, words):
    keyboard, screen = os.openpty()
    os.write(keyboard, b"hello\n\x04")
    server.answers["POST /api/exchanges/%2F/amq.default/publish"] = {"routed": True}
    with os.fdopen(screen) as typed:
        monkeypatch.setattr("sys.stdin", typed)
        ended = cli(*words)
    os.close(keyboard)
    assert ended.err.startswith("Reading from the terminal; end with Ctrl-D.\n"), ended
    (body,) = server.bodies("POST /api/exchanges/%2F/amq.default/publish")
    assert body["payload"].strip() == "hello"


def test_import_of_empty_standard_input_is_refused(server, cli, stdin):
    stdin(b"")
    ended = cli("import_definitions")
    assert (ended.code, server.requests) == (2, [])
    assert ended.err.startswith(
        'leveret: standard input must be a JSON object such as {"queues": []}'
    )
