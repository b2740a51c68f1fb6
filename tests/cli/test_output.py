"""Output formats, on a terminal and in a pipe."""

from __future__ import annotations

import csv
import io
import json

import pytest

from leveret.cli.output import Formatter, Output, cell

QUEUES = [
    {"name": "a", "messages": 3, "arguments": {"x-max-length": 1}, "durable": True},
    {"name": 'b\t"\n,', "messages": 0, "arguments": {}, "durable": False},
]


@pytest.fixture
def queues(server):
    server.answers["GET /api/queues/%2F"] = QUEUES
    return server


def test_piped_table_is_tab_separated_like_rabbitmqctls(queues, cli):
    ended = cli("list_queues", "name", "messages", "durable", "arguments")
    assert ended.out == (
        "name\tmessages\tdurable\targuments\n"
        'a\t3\ttrue\t{"x-max-length":1}\n'
        'b\\t"\\n,\t0\tfalse\t{}\n'
    )
    assert ended.err == "Listing queues for vhost / ...\n"


def test_json_keeps_types_and_omits_remarks(queues, cli):
    ended = cli("list_queues", "name", "messages", "arguments", "--formatter", "json")
    assert json.loads(ended.out) == [
        {key: queue[key] for key in ("name", "messages", "arguments")} for queue in QUEUES
    ]
    assert ended.err == ""


def test_csv_reads_back(queues, cli):
    ended = cli("list_queues", "name", "messages", "--formatter", "csv")
    rows = list(csv.reader(io.StringIO(ended.out)))
    assert rows == [["name", "messages"], ["a", "3"], ['b\t"\n,', "0"]]


def test_silent_prints_only_rows(queues, cli):
    ended = cli("list_queues", "-s")
    assert (ended.out, ended.err) == ('a\t3\nb\\t"\\n,\t0\n', "")


def test_no_table_headers(queues, cli):
    ended = cli("list_queues", "name", "--no-table-headers", "--formatter", "csv")
    assert ended.out.splitlines()[0] == "a"


def test_drawn_table_does_not_truncate_names(server, cli):
    name = "q" * 500
    server.answers["GET /api/queues/%2F"] = [{"name": name, "messages": 1}]
    ended = cli("list_queues", "--formatter", "pretty_table", "-q")
    assert name in ended.out
    assert "│" in ended.out


class Screen(io.StringIO):
    """Standard output that is a terminal of 80 columns."""

    def isatty(self):
        return True

    @property
    def cells(self):
        """The cells of the table, with wrapped lines joined."""
        lines = [line.split("│")[1:-1] for line in self.getvalue().splitlines() if "│" in line]
        return ["".join(part.strip() for part in column) for column in zip(*lines, strict=True)]


@pytest.fixture
def at_terminal(cli, monkeypatch):
    """Run a command whose output goes to a terminal, and return the terminal."""
    for name, value in (("COLUMNS", "80"), ("LINES", "25"), ("NO_COLOR", "1")):
        monkeypatch.setenv(name, value)

    def call(*argv):
        screen = Screen()
        monkeypatch.setattr("sys.stdout", screen)
        assert cli(*argv).code == 0
        return screen

    return call


BODY = "".join(f"{number:04}" for number in range(200))


def test_message_on_a_terminal_is_not_truncated(server, at_terminal):
    message = {"payload": BODY, "payload_bytes": 800, "routing_key": "q", "message_count": 0}
    message |= {"exchange": "", "payload_encoding": "string", "redelivered": False}
    found = [message | {"properties": {"message_id": "m" * 90}}, message | {"payload": "2nd"}]
    server.answers["POST /api/queues/%2F/q/get"] = found
    lines = at_terminal("get", "q", "--ack", "-c", "2").getvalue().splitlines()
    assert f"payload           {BODY}" in lines
    assert f'properties        {{"message_id":"{"m" * 90}"}}' in lines
    assert lines.count("") == 1 and "payload           2nd" in lines


def test_trace_on_a_terminal_is_not_truncated(server, at_terminal):
    name = "127.0.0.1:45678 -> 127.0.0.1:5672"
    event = {"time_ms": 1_000, "event": "published", "queue": BODY, "consumer": "ctag1.0123456789"}
    event |= {"user": "someone", "connection": name, "detail": {"why": BODY}}
    server.answers["GET /api/trace"] = {"message": {"id": 9}, "events": [event]}
    lines = at_terminal("trace", "m").getvalue().splitlines()
    for part in (f"queue       {BODY}", f"connection  {name}", f'detail      {{"why":"{BODY}"}}'):
        assert part in lines


def test_long_name_on_a_terminal_is_wrapped(server, at_terminal):
    rows = [{"name": BODY, "messages": 123456}, {"name": "short", "messages": 1}]
    server.answers["GET /api/queues/%2F"] = rows
    screen = at_terminal("list_queues")
    assert len(screen.getvalue().splitlines()[0]) == 80
    assert screen.cells == [f"{BODY}short", "1234561"]


def test_drawn_table_escapes_markup_in_names(server, cli):
    server.answers["GET /api/queues/%2F"] = [{"name": "[red]x[/red]\x1b[2J", "messages": 1}]
    ended = cli("list_queues", "--formatter", "pretty_table", "-q")
    assert "[red]x[/red]\\x1b[2J" in ended.out


def test_columns_are_renamed_from_the_api(server, cli):
    server.answers["GET /api/consumers/%2F"] = [
        {
            "queue": {"name": "q", "vhost": "/"},
            "channel_details": {"name": "ch", "user": "u"},
            "consumer_tag": "t",
            "ack_required": True,
            "prefetch_count": 5,
            "active": True,
            "arguments": {},
        }
    ]
    ended = cli("list_consumers", "-s")
    assert ended.out == "q\tch\tt\ttrue\t5\ttrue\t{}\n"


def test_bindings_have_the_constant_source_kind(server, cli):
    server.answers["GET /api/bindings/%2F"] = [
        {
            "source": "e",
            "destination": "q",
            "destination_type": "queue",
            "routing_key": "k",
            "arguments": {},
        }
    ]
    assert cli("list_bindings", "-s").out == "e\texchange\tq\tqueue\tk\t{}\n"


def test_dotted_column_selects_any_field(server, cli):
    server.answers["GET /api/queues/%2F"] = [{"a": {"b": {"c": 7}}}]
    assert cli("list_queues", "a.b.c", "a.x.y", "-s").out == "7\t\n"


def test_shared_options_before_the_command(server, cli):
    server.answers["GET /api/queues/v"] = []
    assert cli("-q", "--vhost=v", "list_queues").err == ""
    assert server.lines() == ["GET /api/queues/v"]


def test_shared_options_before_a_log_command(server, cli):
    server.answers["GET /api/logs/v"] = []
    assert cli("-p", "v", "--formatter", "json", "log", "list").out == "[]\n"


def test_hyphens_for_underscores(queues, cli):
    assert cli("list-queues", "-s").out.startswith("a\t3\n")


def test_vhost_user_and_password_from_the_environment(server, cli, monkeypatch):
    server.password = "pw"
    monkeypatch.setenv("LEVERET_VHOST", "v")
    monkeypatch.setenv("LEVERET_PASSWORD", "pw")
    server.answers["GET /api/queues/v"] = []
    assert cli("list_queues").code == 0


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, ""), (True, "true"), (["a", "b"], "[a, b]"), ([], "[]"), ([1], "[1]"), (1.5, "1.5")],
)
def test_cell(value, text):
    assert cell(value) == text


def test_status_shows_alarms_and_sizes(server, cli):
    server.answers["GET /api/overview"] = {
        "product_name": "Leveret",
        "form": "compiled",
        "object_totals": {"queues": 4},
        "listeners": [{"protocol": "amqp", "ip_address": "::", "port": 5672}],
    }
    node = {"uptime": 90_061_000, "mem_alarm": True, "mem_used": 3 * 1024**2, "disk_free": 100}
    server.answers["GET /api/nodes"] = [node]
    rows = dict(line.split("\t") for line in cli("status", "-s").out.splitlines())
    assert rows["product"] == "Leveret"
    assert rows["form"] == "compiled"
    assert rows["queues"] == "4"
    assert rows["alarms"] == "[memory]"
    assert rows["uptime"] == "1d 1h 1m 1s"
    assert (rows["memory used"], rows["disk free"]) == ("3.0 MiB", "100 B")
    assert rows["listeners"] == "[amqp :::5672]"
    assert "publish rate" not in rows


def test_trace_is_a_timeline_with_durations(server, cli):
    events = [
        {"time_ms": 1_500, "event": "delivered", "queue": "q", "consumer": "t"},
        {"time_ms": 1_000, "event": "published", "user": "guest"},
        {"time_ms": 1_750, "event": "acked", "queue": "q"},
    ]
    server.answers["GET /api/trace"] = {"message": {"id": 9, "routing_key": "k"}, "events": events}
    ended = cli("trace", "m")
    rows = [line.split("\t") for line in ended.out.splitlines()[1:]]
    assert [row[1:4] for row in rows] == [
        ["+0.000 s", "published", ""],
        ["+0.500 s", "delivered", "q"],
        ["+0.250 s", "acked", "q"],
    ]
    assert ended.err == "Message id=9 routing_key=k\n"


@pytest.mark.parametrize("given", ["abc", "-1", "9" * 30])
def test_trace_with_an_invalid_internal_id(server, cli, given):
    ended = cli("trace", "--internal", "--", given)
    assert ended.code == 2
    assert ended.err == (
        f"leveret: an internal id is a whole number, not '{given}'; without --internal, "
        "MESSAGE is searched as a message_id.\n"
    )


def test_trace_of_an_unknown_message(server, cli):
    ended = cli("trace", "m")
    assert ended.code == 66
    assert ended.err == "leveret: there is no message with message_id 'm' in the history.\n"


def test_remarks_are_omitted_in_quiet_and_machine_readable_output(capsys):
    for formatter, is_quiet in ((Formatter.JSON, False), (Formatter.TABLE, True)):
        Output(formatter, is_quiet).remark("hello")
    assert capsys.readouterr() == ("", "")
    Output().remark("hello")
    assert capsys.readouterr() == ("", "hello\n")


def test_invalid_unicode_in_names_is_escaped(server, cli):
    server.answers["GET /api/queues/%2F"] = [{"name": "a\ud800", "messages": 1}]
    assert json.loads(cli("list_queues", "name", "--formatter", "json").out)[0]["name"] == "a\ud800"
    assert cli("list_queues", "name", "-s").out == "a\\ud800\n"


def test_reset_asks_for_confirmation(server, cli, monkeypatch):
    asked = []

    def confirm(question, **_):
        asked.append(question)
        return False

    server.answers["GET /api/settings"] = []
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.confirm", confirm)
    ended = cli("reset")
    assert (ended.code, ended.err) == (1, "leveret: nothing was reset.\n")
    assert asked == [f"Everything on {server.url} will be deleted. Continue?"]
    assert server.lines() == ["GET /api/settings"]


def test_failed_health_check(server, cli):
    answer = (503, {"status": "failed", "reason": "memory alarm"})
    server.answers["GET /api/health/checks/alarms"] = answer
    ended = cli("health")
    assert ended.code == 1
    assert ended.err == ("leveret: health check 'alarms': the server failed (503): memory alarm\n")
