"""`leveret serve`: flags become settings, errors are one sentence, imports stay light."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import types
from pathlib import Path

import httpx
import pytest
import trustme

import leveret
from leveret.config import ConfigError, Settings
from leveret.launch import LaunchError, ThreadedBroker, in_process_settings
from leveret.model import form
from tests.support.brokers import running_leveret

ROOT = Path(__file__).parents[2]


class FakeLaunch(types.ModuleType):
    """Replaces `leveret.launch` and records the settings."""

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
    launch = FakeLaunch()
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


def test_flags_override_environment_and_file(launched, cli, tmp_path, monkeypatch):
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
        (("--config", "/nonexistent.toml"), "cannot read /nonexistent.toml"),
    ],
)
def test_wrong_settings_give_one_sentence_and_exit_1(launched, cli, flags, part):
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
    ("flags", "suggestion"),
    [
        (("--amqp-prt", "1"), "; did you mean --amqp-port?\n"),
        (("--memroy",), "; did you mean --memory?\n"),
        (("--frame-max=8192",), "; did you mean --set frame_max=...?\n"),
        (("--daemon",), "error: unknown: --daemon\n"),
        (("surplus",), "error: unknown: surplus\n"),
    ],
)
def test_unknown_flag_gets_a_suggestion(launched, cli, flags, suggestion):
    ended = cli("serve", *flags)
    assert (ended.code, launched) == (2, [])
    assert ended.err.endswith(suggestion)


@pytest.mark.parametrize("line", [("serve", "--help"), ("-q", "serve", "--help")])
def test_help_is_the_same_on_both_paths(launched, cli, line):
    ended = cli(*line)
    assert ended.code == 0
    assert re.search(r"│ --data-dir +DIR +Directory", ended.out)  # as on all other help pages
    assert launched == []


def test_exit_code_is_the_brokers(launched, cli, monkeypatch):
    monkeypatch.setitem(sys.modules, "leveret.launch", FakeLaunch(code=1))
    assert cli("serve", "--memory").code == 1


def test_serve_does_not_import_the_client():
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
@pytest.mark.parametrize("exists", [False, True])
def test_port_in_use_is_reported_with_the_flag_to_change_it(
    tmp_path, which, protocol, flag, exists
):
    data, keys = tmp_path / "data", {}
    if exists:
        data.mkdir()
    if "TLS" in protocol:
        keys = {"tls_cert": str(tmp_path / "cert"), "tls_key": str(tmp_path / "key")}
        issued = trustme.CA().issue_cert("localhost")
        issued.cert_chain_pems[0].write_to_path(keys["tls_cert"])
        issued.private_key_pem.write_to_path(keys["tls_key"])
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = in_process_settings(http_enabled=True, data_dir=data, **keys, **{which: port})
        with pytest.raises(LaunchError) as caught:
            ThreadedBroker(settings).__enter__()
    assert str(caught.value) == (
        f"cannot listen on 127.0.0.1, port {port} ({protocol}): the port is in use (by RabbitMQ?); "
        f"choose another one with {flag}"
    )
    assert data.exists() is exists


def announced(*flags: str, cwd: Path) -> list[str]:
    """What `serve` prints once it is ready."""
    command = [sys.executable, "-m", "leveret", "serve", "--amqp-port", "0", "--http-port", "0"]
    with subprocess.Popen(
        [*command, *flags], cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        first = process.stdout.readline()
        assert first.startswith("leveret ready ")
        process.terminate()
        return [first, *process.stdout.read().splitlines()]


def test_serve_says_where_its_data_and_dashboard_are_and_who_may_log_in(tmp_path):
    first, *rest = announced("--data-dir", "d", "--host", "0.0.0.0", cwd=tmp_path)
    port = first.rpartition(":")[2].strip()
    places = [f"Data directory: {tmp_path / 'd'}", f"Dashboard: http://localhost:{port}/"]
    assert rest == [*places, "First start: user guest, password guest"]
    _, directory, dashboard = announced("--data-dir", "d", cwd=tmp_path)
    assert (directory, dashboard.startswith("Dashboard: http://127.0.0.1:")) == (places[0], True)


def test_serve_does_not_print_a_password_that_was_set(tmp_path):
    flags = ("--memory", "--set", "http_enabled=false", "--set", "default_password=hidden")
    _, *rest = announced(*flags, cwd=tmp_path)
    assert rest == [
        "Data: in memory only; nothing is kept after a stop.",
        "First start: user guest, password as in the setting default_password",
    ]


def test_sighup_without_tls_does_not_end_the_broker():
    with running_leveret() as target:
        os.kill(target.pid, signal.SIGHUP)
        target.connect().drop()


def test_settings_by_name_start_a_broker_with_http():
    with ThreadedBroker(http_enabled=True) as broker:
        assert httpx.get(broker.http_url).status_code == 200


@pytest.mark.parametrize("start", [ThreadedBroker, leveret.Broker])
def test_wrong_settings_by_name_are_refused(start):
    with pytest.raises(ConfigError, match="did you mean http_enabled"):
        start(http_enabeld=True)
    with pytest.raises(TypeError, match="either `settings` or single settings, not both: host"):
        start(in_process_settings(), host="127.0.0.1")


def test_first_line_of_the_log_names_the_form(tmp_path):
    command = [sys.executable, "-m", "leveret", "serve", "--memory"]
    with subprocess.Popen(
        [*command, "--amqp-port", "0", "--http-port", "0"], cwd=tmp_path, text=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as process:  # fmt: skip
        assert process.stderr is not None
        first = process.stderr.readline()
        process.terminate()
    assert (
        f"INFO leveret: leveret {leveret.__version__} starts: {form.current()} on Python " in first
    )
