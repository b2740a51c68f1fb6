"""Errors: one sentence on standard error, an exit code, and no output."""

from __future__ import annotations

import socket

import pytest

from leveret.cli.errors import ExitCode
from tests.cli.conftest import AnswerSequence


def refusal(server, cli, status, body):
    server.answers["DELETE /api/queues/%2F/q"] = (status, body)
    ended = cli("delete_queue", "q", "-q")
    assert ended.out == ""
    return ended.code, ended.err


def test_server_down(cli):
    with socket.socket() as taken:  # bound but not listening, so connections are refused
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        ended = cli("ping", "--url", url)
    assert ended.code == ExitCode.UNAVAILABLE
    assert ended.err.startswith(f"leveret: no server answers at {url} (")
    assert ended.err.endswith("; is `leveret serve` running there?\n")
    assert ended.err.count("\n") == 1


def test_wrong_password(server, cli):
    server.password = "secret"
    ended = cli("list_queues", "-q")
    assert ended.code == ExitCode.NO_PERMISSION
    assert ended.err == f"leveret: {server.url} does not accept this password for user 'guest'.\n"


def test_no_such_queue(server, cli):
    server.answers["GET /api/vhosts/%2F"] = {"name": "/"}
    reason = {"error": "Object Not Found", "reason": "Not Found"}
    code, err = refusal(server, cli, 404, reason)
    assert (code, err) == (66, "leveret: there is no queue 'q' in vhost '/'.\n")


def test_object_is_reported_missing_if_vhosts_may_not_be_listed(server, cli):
    server.answers["GET /api/vhosts/%2F"] = (403, {"reason": "Not administrator"})
    code, err = refusal(server, cli, 404, {"reason": "Not Found"})
    assert (code, err) == (66, "leveret: there is no queue 'q' in vhost '/'.\n")


def test_publish_to_missing_exchange_with_rabbitmqs_answer(server, cli):
    server.answers["GET /api/vhosts/%2F"] = {"name": "/"}
    reason = "404 NOT_FOUND - no exchange 'e' in vhost '/'"
    server.answers["POST /api/exchanges/%2F/e/publish"] = (400, {"reason": reason})
    ended = cli("publish", "-x", "e", "body")
    assert (ended.code, ended.err) == (66, "leveret: there is no exchange 'e' in vhost '/'.\n")


@pytest.mark.parametrize(
    ("status", "body", "code", "text"),
    [
        (400, {"reason": "invalid\n\narg"}, 1, "refused: invalid arg"),
        (400, {"reason": {"a": 1}}, 1, 'refused: {"a": 1}'),
        (409, ["no object"], 1, "refused: Conflict"),
        (
            401,
            {"reason": "Not administrator"},
            77,
            "user 'guest' may not do this: Not administrator",
        ),
        (403, {"reason": "vhost"}, 77, "user 'guest' may not do this: vhost"),
        (503, None, 1, "the server failed (503): Service Unavailable"),
        (302, None, 1, "redirects the request (302); is the URL right?"),
    ],
)
def test_refusals(server, cli, status, body, code, text):
    found, err = refusal(server, cli, status, body)
    assert found == code
    assert text in err
    assert err.count("\n") == 1


def test_answer_that_is_not_json(server, cli):
    server.answers["GET /api/queues/%2F"] = b"<html>"
    ended = cli("list_queues", "-q")
    assert ended.code == 1
    assert (
        ended.err == f"leveret: the server at {server.url} is not a RabbitMQ-compatible HTTP API.\n"
    )


def test_slow_server_times_out(cli):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        ended = cli("ping", "--url", url, "--timeout", "0.1")
    assert (ended.code, ended.err) == (75, f"leveret: {url} did not answer within 0.1 s.\n")


@pytest.mark.parametrize(
    "line",
    [
        "list_queues bogus",
        "list_queues --formatter xml",
        "declare_queue q -a novalue",
        "set_policy p ^q {bad",
        "set_policy p ^q [1]",
        "publish body --file x",
        "delete_queue",
        "no_such_command",
        "ping --url not-a-url",
        "ping --timeout 0",
        "log consume l --group g --partition 1",
        "add_super_stream s --partitions 2 --binding-keys a",
    ],
)
def test_usage_errors_exit_2_without_a_request(line, server, cli):
    ended = cli(*line.split())
    assert (ended.code, ended.out, server.requests) == (2, "", [])
    assert ended.err


@pytest.mark.parametrize("command", [("set_user_limits", "ann"), ("set_vhost_limits",)])
@pytest.mark.parametrize("value", ['"x"', "1.5", "null", "true"])
def test_invalid_limit_is_named_and_no_limit_is_set(server, cli, command, value):
    ended = cli(*command, f'{{"max-connections": 5, "max-channels": {value}}}')
    assert (ended.code, server.requests) == (2, [])
    said = f"leveret: the limit 'max-channels' must be a whole number, not {value}.\n"
    assert ended.err == said


def test_empty_name_is_refused(server, cli):
    ended = cli("delete_queue", "")
    assert (ended.code, ended.err) == (2, "leveret: a name must not be empty.\n")


def test_unknown_column_lists_the_columns(server, cli):
    assert "columns are auto_delete" not in cli("list_vhosts", "nope").err
    assert "columns are cluster_state, default_queue_type" in cli("list_vhosts", "nope").err
    assert "unknown column 'nam'; did you mean name? Columns are" in cli("list_vhosts", "nam").err


def test_login_in_the_url_is_used_and_never_shown(server, cli):
    server.password = "secret"
    inside = server.url.replace("//", "//guest:wrong@")
    ended = cli("ping", "--url", inside)
    assert ended.code == 77
    assert "wrong" not in ended.err
    server.answers["GET /api/whoami"] = {}
    assert cli("ping", "--url", server.url.replace("//", "//guest:secret@")).code == 0


def test_add_user_refuses_an_existing_one(server, cli):
    server.answers["GET /api/users/u"] = {"name": "u"}
    ended = cli("add_user", "u", "pw")
    assert (ended.code, ended.err) == (1, "leveret: user 'u' already exists.\n")
    assert server.lines() == ["GET /api/users/u"]


def test_reset_refuses_other_servers(server, cli):
    ended = cli("reset", "--yes")  # RabbitMQ has no /api/settings, but resets statistics
    assert ended.code == 66
    assert server.lines() == ["GET /api/settings"]


def test_unbind_needs_the_same_arguments(server, cli):
    other = {"routing_key": "k", "arguments": {"x-match": "all"}, "properties_key": "k~1"}
    server.answers["GET /api/bindings/%2F/e/e/q/q"] = [other]
    ended = cli("unbind", "e", "q", "-k", "k")
    assert ended.code == 66
    assert server.lines() == ["GET /api/bindings/%2F/e/e/q/q"]


def test_close_all_connections_skips_closed_ones(server, cli):
    server.answers["GET /api/vhosts/%2F/connections"] = [{"name": "a"}, {"name": "b"}]
    server.answers["DELETE /api/connections/a"] = (404, {"reason": "Not Found"})
    ended = cli("close_all_connections")
    assert (ended.code, ended.err) == (0, "1 connection closed.\n")


def test_stop_waits_until_the_server_has_stopped(server, cli):
    server.answers["POST /api/shutdown"] = (202, {})
    server.answers["GET /api/whoami"] = AnswerSequence([{}, server.close])
    ended = cli("stop")
    assert (ended.code, ended.err) == (0, f"{server.url} is stopping.\nStopped.\n")
    assert server.lines() == ["POST /api/shutdown", "GET /api/whoami", "GET /api/whoami"]


def test_stop_times_out(server, cli, monkeypatch):
    gone = (503, {"reason": "stopping"})
    server.answers["GET /api/whoami"] = AnswerSequence([{}, gone, gone, gone])
    monkeypatch.setattr("leveret.cli.server.STOP_DEADLINE", 0.12)
    ended = cli("stop")
    assert ended.code == ExitCode.TIMEOUT
    assert "still answers" in ended.err
    assert server.lines()[:2] == ["POST /api/shutdown", "GET /api/whoami"]


def test_reason_with_non_ascii_text_and_newline(server, cli):
    assert cli("close_connection", "c", "über\nall").code == 0
    sent = server.requests[0].headers["x-reason"]
    assert sent.encode("latin-1").decode() == "über all"


def test_missing_vhost_and_missing_endpoint_differ(server, cli):
    assert cli("list_queues", "-q", "-p", "v").err == "leveret: there is no vhost 'v'.\n"
    assert cli("list_users", "-q").err == f"leveret: {server.url} has no /api/users.\n"
