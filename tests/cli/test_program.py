"""The program as a process (entry points, pipes, interrupts) and its documentation."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from leveret.cli.columns import (
    BINDINGS,
    CHANNELS,
    CONNECTIONS,
    CONSUMERS,
    EXCHANGES,
    PERMISSIONS,
    QUEUES,
    USERS,
    VHOSTS,
)
from leveret.cli.errors import ExitCode
from leveret.cli.session import SHARED_OPTIONS
from tests.cli.test_requests import every_command

ROOT = Path(__file__).parents[2]
DOCS = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
COMMAND = [sys.executable, "-m", "leveret"]


def test_process_returns_the_exit_code(server):
    done = subprocess.run([*COMMAND, "delete_user", "x y"], cwd=ROOT, capture_output=True)
    assert done.returncode == 0
    server.password = "other"
    done = subprocess.run([*COMMAND, "ping"], cwd=ROOT, capture_output=True)
    assert done.returncode == ExitCode.NO_PERMISSION


def test_closed_pipe_is_no_error(server):
    server.answers["GET /api/queues/%2F"] = [
        {"name": f"q{number}", "messages": 1} for number in range(50_000)
    ]
    with subprocess.Popen(
        [*COMMAND, "list_queues", "-q"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout and process.stderr
        assert process.stdout.readline() == b"name\tmessages\n"
        process.stdout.close()
        assert (process.stderr.read(), process.wait(30)) == (b"", 0)


def test_interrupted_consume_ends_normally(server):
    server.answers["POST /api/queues/%2F/q/get"] = [{"payload": "x"}]
    # A test run in the background ignores SIGINT, and its children would inherit that.
    command = ["env", "--default-signal=INT", *COMMAND, "consume", "q"]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout and process.stderr
        assert process.stdout.readline() == b"x\n"
        os.kill(process.pid, signal.SIGINT)
        process.stdout.read()
        last = process.stderr.read().decode().splitlines()[-1]
        assert re.fullmatch(r"\d+ messages? consumed\.", last)
        assert process.wait(30) == 0


def test_help_lists_serve_with_the_rest(cli):
    ended = cli("--help")
    assert ended.code == 0
    names = set(re.findall(r"^│ ([a-z_]+) ", ended.out, re.MULTILINE))
    tops = {name.split()[0] for name in every_command()}
    assert tops <= names


@pytest.mark.parametrize(
    ("words", "same"),
    [
        ("help", "--help"),
        ("help publish", "publish --help"),
        ("help log consume", "log consume --help"),
        ("log help", "log --help"),
        ("help serve", "serve --help"),
    ],
)
def test_help_as_a_command(words, same, cli):
    asked = cli(*words.split())
    assert asked.code == 0 and asked.out
    assert asked == cli(*same.split())


@pytest.mark.parametrize("name", sorted(set(every_command()) - {"serve"}))
def test_every_command_has_help(name, cli):
    ended = cli(*name.split(), "--help")
    assert ended.code == 0
    assert f"Usage: leveret {name}" in ended.out


def test_every_command_is_documented():
    documented = set(re.findall(r"^\| `([a-z_ ]+?)(?: [^a-z`][^`]*)?` \|", DOCS, re.MULTILINE))
    assert set(every_command()) == documented


@pytest.mark.parametrize("name", sorted(every_command()))
def test_help_and_documentation_agree(name):
    summary = every_command()[name].help.strip().split("\n")[0]
    row = re.search(rf"^\| `{name}(?: [^a-z`][^`]*)?` \| (.*) \|$", DOCS, re.MULTILINE)
    assert row is not None and row[1] == summary


@pytest.mark.parametrize("code", list(ExitCode))
def test_every_exit_code_is_documented(code):
    assert re.search(rf"^\| {code.value} \|", DOCS, re.MULTILINE)


@pytest.mark.parametrize(
    "listing", [QUEUES, EXCHANGES, BINDINGS, CONNECTIONS, CHANNELS, CONSUMERS, VHOSTS]
)
def test_every_column_is_documented(listing):
    missing = [name for name in listing.paths if f"`{name}`" not in DOCS]
    assert missing == []


@pytest.mark.parametrize("line", [("export", "--to", "x"), ("report", ".")])
def test_missing_spark_is_explained(line, cli, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyspark", None)
    ended = cli(*line)
    assert ended.code == 1
    said = "leveret: Spark is not installed; install it with `pip install 'leveret[spark]'`.\n"
    assert ended.err == said


def record_exports(monkeypatch, export, code):
    """Replace the Spark job with a fake that records its options and returns `code`."""
    exports: list[Any] = []

    def run(options):
        exports.append(options)
        return code

    monkeypatch.setattr(export, "run", run)
    return exports


def test_export_passes_its_options_to_the_job(cli, monkeypatch):
    export = pytest.importorskip("leveret.spark_sink.export")
    exports = record_exports(monkeypatch, export, code=7)
    ended = cli(
        *("export", "--url", "http://h:1", "--user", "u", "--password", "p", "--to", "out"),
        *("--table", "messages, logs", "--from", "a", "--until", "b", "--queue", "q"),
        *("--vhost", "v", "--format", "csv", "--master", "spark://m", "--incremental"),
        *("--every", "15m"),
    )
    assert ended.code == 7
    assert exports == [
        export.ExportOptions(
            to="out",
            url="http://h:1",
            user="u",
            password="p",
            tables=("messages", "logs"),
            since="a",
            until="b",
            queue="q",
            vhost="v",
            format="csv",
            master="spark://m",
            incremental=True,
            every="15m",
        )
    ]


def test_export_from_a_directory_ignores_the_url_of_the_environment(cli, monkeypatch):
    export = pytest.importorskip("leveret.spark_sink.export")
    exports = record_exports(monkeypatch, export, code=0)
    monkeypatch.setenv("LEVERET_URL", "http://h:1")
    assert cli("export", "--to", "o", "--data-dir", "d").code == 0
    assert cli("export", "--to", "o").code == 0
    assert [(item.data_dir, item.url) for item in exports] == [
        (Path("d"), None),
        (None, "http://h:1"),
    ]


def test_export_from_two_sources_is_a_usage_error(cli):
    ended = cli("export", "--to", "x", "--data-dir", "d", "--url", "http://h")
    assert (ended.code, ended.err) == (2, "leveret: use either --data-dir or --url, not both.\n")


def test_report_of_a_missing_directory(cli):
    ended = cli("report", "/nonexistent")
    assert (ended.code, ended.err) == (66, "leveret: there is no directory /nonexistent.\n")


def test_every_option_is_documented():
    rows = re.findall(r"^\| `([^`]+)` \|", DOCS, re.MULTILINE)
    missing = [
        (name, option)
        for name, options in own_options()
        for option in options
        if not any(row.startswith(name) and option in row for row in rows)
    ]
    assert missing == []


def own_options():
    for name, command in every_command().items():
        options = [max(item.opts, key=len) for item in command.params if item.opts[0][0] == "-"]
        yield name, [item for item in options if item not in {*SHARED_OPTIONS, "--help"}]


LISTINGS = {
    "list_queues": QUEUES,
    "list_exchanges": EXCHANGES,
    "list_bindings": BINDINGS,
    "list_consumers": CONSUMERS,
    "list_connections": CONNECTIONS,
    "list_channels": CHANNELS,
    "list_vhosts": VHOSTS,
    "list_users": USERS,
    "list_permissions": PERMISSIONS,
}


@pytest.mark.parametrize("command", LISTINGS)
def test_help_of_a_list_command_names_its_columns(cli, command):
    words = set(re.findall(r"[\w-]+", cli(command, "--help").out))
    assert words >= LISTINGS[command].paths.keys()


def test_help_says_how_to_name_another_server(cli):
    text = cli("--help").out
    assert ("--url" in text, "LEVERET_URL" in text) == (True, True)
