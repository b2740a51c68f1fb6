"""`leveret serve`: flags become settings, mistakes become one sentence, and nothing heavy loads."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import types
from pathlib import Path

import pytest
import trustme

from leveret.config import Settings
from leveret.launch import LaunchError, ThreadedBroker, in_process_settings

ROOT = Path(__file__).parents[2]


class StandIn(types.ModuleType):
    """Takes the place of `leveret.launch` and remembers the settings."""

    def __init__(self, code: int = 0) -> None:
        super().__init__("leveret.launch")
        self.started: list[Settings] = []
        self.code = code

    def serve(self, settings: Settings) -> int:
        self.started.append(settings)
        return self.code


@pytest.fixture
def launched(monkeypatch):
    """The settings the broker would have been started with."""
    for name in [name for name in os.environ if name.startswith("LEVERET_")]:
        monkeypatch.delenv(name)
    launch = StandIn()
    monkeypatch.setitem(sys.modules, "leveret.launch", launch)
    return launch.started


def test_flags_reach_the_broker(launched, cli, tmp_path):
    ended = cli(
        *("serve", "--host", "0.0.0.0", "--amqp-port", "0", "--http-port", "0"),
        *("--data-dir", str(tmp_path), "--set", "queue_window=7", "--set", "log-level=debug"),
    )
    assert ended.code == 0
    (settings,) = launched
    assert (settings.host, settings.amqp_port, settings.http_port) == ("0.0.0.0", 0, 0)
    assert (settings.data_dir, settings.memory) == (tmp_path, False)
    assert (settings.queue_window, settings.log_level) == (7, "debug")


def test_memory(launched, cli):
    cli("serve", "--memory")
    assert launched[0].memory is True


def test_a_flag_is_stronger_than_environment_and_file(launched, cli, tmp_path, monkeypatch):
    file = tmp_path / "leveret.toml"
    file.write_text("amqp_port = 1001\nhttp_port = 1002\nheartbeat = 7\n")
    monkeypatch.setenv("LEVERET_AMQP_PORT", "2001")
    monkeypatch.setenv("LEVERET_HTTP_PORT", "2002")
    cli("serve", "--config", str(file), "--amqp-port", "3001")
    settings = launched[0]
    assert (settings.amqp_port, settings.http_port, settings.heartbeat) == (3001, 2002, 7)


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        (("--amqp-port", "high"), 'amqp_port must be a whole number from 0 to 65535, not "high"'),
        (
            ("--set", "log_level=all"),
            ': log_level must be one of "debug", "info", "warning", "error"',
        ),
        (("--set", "amqp_prot=1"), 'unknown setting "amqp_prot"; did you mean amqp_port'),
        (("--config", "/nonexistent.toml"), "/nonexistent.toml cannot be read"),
    ],
)
def test_wrong_settings_are_one_sentence_and_exit_1(launched, cli, flags, part):
    ended = cli("serve", *flags)
    assert (ended.code, ended.out, launched) == (1, "", [])
    assert part in ended.err
    assert ended.err.count("\n") == 1


@pytest.mark.parametrize("flags", [("--port", "1"), ("--set", "novalue"), ("surplus",)])
def test_wrong_flags_exit_2(launched, cli, flags):
    ended = cli("serve", *flags)
    assert (ended.code, launched) == (2, [])
    assert ended.err.startswith("usage: leveret serve")


@pytest.mark.parametrize(
    ("flags", "meant"),
    [
        (("--amqp-prt", "1"), "; did you mean --amqp-port?\n"),
        (("--memroy",), "; did you mean --memory?\n"),
        (("--frame-max=8192",), "; did you mean --set frame_max=...?\n"),
        (("surplus",), "error: unknown: surplus\n"),
    ],
)
def test_an_unknown_flag_is_told_what_may_have_been_meant(launched, cli, flags, meant):
    ended = cli("serve", *flags)
    assert (ended.code, launched) == (2, [])
    assert ended.err.endswith(meant)


@pytest.mark.parametrize("line", [("serve", "--help"), ("-q", "serve", "--help")])
def test_help_comes_from_the_same_parser_on_both_paths(launched, cli, line):
    ended = cli(*line)
    assert ended.code == 0
    assert "--data-dir DIR" in ended.out


def test_the_exit_code_is_the_brokers(launched, cli, monkeypatch):
    monkeypatch.setitem(sys.modules, "leveret.launch", StandIn(code=1))
    assert cli("serve", "--memory").code == 1


def test_serve_imports_nothing_of_the_client():
    program = (
        "import sys, types\n"
        "launch = types.ModuleType('leveret.launch')\n"
        "launch.serve = lambda settings: 0\n"
        "sys.modules['leveret.launch'] = launch\n"
        "from leveret.cli import run\n"
        "assert run(['serve', '--memory']) == 0\n"
        "print(sorted({'typer', 'rich', 'httpx', 'click'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("which", "protocol", "flag"),
    [
        ("amqp_port", "AMQP", "--amqp-port"),
        ("http_port", "HTTP", "--http-port"),
        ("amqps_port", "AMQP over TLS", "--set amqps_port=PORT"),
        ("https_port", "HTTP over TLS", "--set https_port=PORT"),
    ],
)
@pytest.mark.parametrize("is_there", [False, True])
def test_a_port_that_is_taken_is_told_with_the_way_out(tmp_path, which, protocol, flag, is_there):
    data, keys = tmp_path / "data", {}
    if is_there:
        data.mkdir()
    if "TLS" in protocol:
        keys = {"tls_cert": str(tmp_path / "cert"), "tls_key": str(tmp_path / "key")}
        issued = trustme.CA().issue_cert("localhost")
        issued.cert_chain_pems[0].write_to_path(keys["tls_cert"])
        issued.private_key_pem.write_to_path(keys["tls_key"])
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = in_process_settings(http_enabled=True, data_dir=data, **keys, **{which: port})
        with pytest.raises(LaunchError) as told:
            ThreadedBroker(settings).__enter__()
    assert str(told.value) == (
        f"cannot listen on 127.0.0.1, port {port} ({protocol}): it is taken (by RabbitMQ?); "
        f"{flag} chooses another"
    )
    assert data.exists() is is_there
