"""Every command sends exactly the requests that RabbitMQ's API expects.

One table (`rows_management.py`, `rows_messages.py`): command line, scripted answers, and the
requests that must result. A command without a row fails `test_every_command_has_a_row`.
"""

from __future__ import annotations

from typing import Any

import pytest

from leveret.cli.app import program
from tests.cli import rows_management, rows_messages
from tests.cli.rows import GET

ROWS = [*rows_management.ROWS, *rows_messages.ROWS]
COMMON = {
    GET + "overview": {"product_version": "1", "listeners": []},
    GET + "nodes": [{"name": "n", "uptime": 1000, "mem_used": 5}],
    GET + "whoami": {},
    GET + "cluster-name": {"name": "c"},
}


@pytest.mark.parametrize("row", ROWS, ids=[row.line for row in ROWS])
def test_command_sends_these_requests(row, server, cli, tmp_path):
    definitions = tmp_path / "definitions.json"
    definitions.write_text('{"queues": [{"name": "q"}]}')
    server.answers = COMMON | row.answers
    words = [str(definitions) if word == "{file}" else word for word in row.line.split(" ")]

    ended = cli(*words)

    assert (ended.code, server.lines()) == (
        0,
        [request[0] for request in row.requests],
    ), ended.err
    assert [(a.line, a.body, a.query) for a in server.requests if a.body or a.query] == [
        request for request in row.requests if request[1] or request[2]
    ]


# Commands without HTTP (serve, salvage, move, Spark jobs) or with standard input have other tests.
ELSEWHERE = {"serve", "export", "report", "log produce", "move", "salvage"}


def every_command() -> dict[str, Any]:
    commands: dict[str, Any] = {}
    for name, command in program().commands.items():
        nested = getattr(command, "commands", {})
        commands |= {f"{name} {inner}": item for inner, item in nested.items()} or {name: command}
    return commands


def test_every_command_has_a_row():
    shown = {" ".join(row.line.split()[: 2 if row.line.startswith("log ") else 1]) for row in ROWS}
    assert set(every_command()) - ELSEWHERE == shown


def test_close_connection_sends_the_reason(server, cli):
    cli("close_connection", "c", "because of rain")
    assert server.requests[0].headers["x-reason"] == "because of rain"
