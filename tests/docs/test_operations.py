"""The files of docs/operations.md work: unit file, container file, dashboard; so do backups.

Also: the site builds, and figures and limits in the documentation are those of the code.
"""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
import sys
import urllib.request

import pika
import pytest

import leveret
from leveret.amqp_server.connection import CLOSE_GRACE_SECONDS, DISCONNECT_SECONDS
from leveret.amqp_server.flow_control import MAX_UNSENT_BYTES
from leveret.amqp_server.server import STOP_SECONDS
from leveret.broker.publishing.delayed import LATE_MS
from leveret.broker.runtime.resource_monitor import BACKLOG_HIGH, BACKLOG_LOW
from leveret.config import load_settings
from leveret.model.tables import MAX_DEPTH
from leveret.testing import LeveretBroker
from tests.docs.blocks import ROOT
from tools import coverage_figure, readme_figures

DEPLOY = ROOT / "docs" / "deploy"
FLAGS = {"--config", "--data-dir", "--host", "--amqp-port", "--http-port", "--memory", "--set"}


def test_unit_file_uses_existing_commands_and_flags():
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment]
    unit.read(DEPLOY / "leveret.service")
    words = shlex.split(unit["Service"]["ExecStart"])
    assert words[1] == "serve"
    assert {word for word in words if word.startswith("--")} <= FLAGS
    state = unit["Service"]["StateDirectory"]
    assert f"/var/lib/{state}" in words


def test_settings_file_is_accepted():
    settings = load_settings(toml_path=DEPLOY / "leveret.toml")
    assert settings.host == "127.0.0.1"  # an open, unencrypted port is the reader's decision


def test_container_file_uses_existing_commands_flags_and_tools():
    text = (DEPLOY / "Containerfile").read_text()
    (command,) = re.findall(r"^CMD (\[.*\])$", text, re.MULTILINE)
    words = json.loads(command)
    assert words[:2] == ["leveret", "serve"]
    assert {word for word in words if word.startswith("--")} <= FLAGS
    for tool in re.findall(r"python (tools/\S+)", text):
        assert (ROOT / tool).exists()


def test_dashboard_queries_existing_metrics():
    panels = json.loads((DEPLOY / "grafana-leveret.json").read_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    queried = set(re.findall(r"\b(?:rabbitmq|leveret)_\w+", " ".join(queries)))
    documented = set(re.findall(r"`((?:rabbitmq|leveret)_\w+)`", page))
    with LeveretBroker(http_enabled=True) as broker:
        text = urllib.request.urlopen(f"{broker.http_url}/metrics").read().decode()
    known = set(re.findall(r"^(\w+)", text, re.MULTILINE))
    assert len(queried) > 15
    assert queried | documented <= known


def test_copied_data_of_a_stopped_broker_is_a_backup(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    with LeveretBroker(data_dir=first) as broker:
        connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("q", durable=True)
        channel.basic_publish("", "q", b"x", pika.BasicProperties(delivery_mode=2))
        log = {"x-queue-type": "stream"}
        channel.queue_declare("l", durable=True, arguments=log)
        channel.basic_publish("", "l", b"y")
        connection.close()
    shutil.copytree(first, second)
    with LeveretBroker(data_dir=second) as broker:
        connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        channel = connection.channel()
        assert channel.basic_get("q", auto_ack=True)[2] == b"x"
        channel.basic_qos(prefetch_count=1)
        start = {"x-stream-offset": "first"}
        _, _, body = next(channel.consume("l", arguments=start))
        assert body == b"y"
        connection.close()


def test_site_builds_without_warnings(tmp_path):
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert f"Leveret {leveret.__version__}" in page
    assert '<span class="kn">import</span>' in page  # highlighted
    assert ".codehilite .kn" in (tmp_path / "assets" / "highlight.css").read_text()


class TestFigures:
    """README.md has the same figures as docs/performance.md."""

    def test_readme_has_the_figures_of_the_performance_page(self):
        page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
        readme = (ROOT / "README.md").read_text(encoding="utf-8")
        match = readme_figures.FIGURES.search(readme)
        assert match is not None
        assert match[0] == readme_figures.figures(page), "make readme"

    def test_missing_row_is_reported(self):
        with pytest.raises(SystemExit, match="no row 'transient, auto-ack"):
            readme_figures.figures("| workload | a | b | c |\n")


def test_coverage_is_reported_in_one_sentence():
    totals = {"covered_lines": 9, "num_statements": 10, "covered_branches": 3, "num_branches": 4}
    assert coverage_figure.sentence(totals, "2026-11-16") == (
        "On 2026-11-16 the tests covered 90.0 % of 10 statements and\n75.0 % of 4 branches.\n"
    )
    assert coverage_figure.SENTENCE.search((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))


def test_behaviour_page_names_the_limits_of_the_code():
    page = (ROOT / "docs" / "behaviour.md").read_text(encoding="utf-8")
    for text in (
        f"when {BACKLOG_HIGH >> 20} MiB wait for the disk",
        f"until {BACKLOG_LOW >> 20} MiB are left",
        f"when {MAX_UNSENT_BYTES >> 20} MiB waits for it",
        f"| {MAX_DEPTH} levels |",
        f"within {LATE_MS} ms after it is due",
        f"| {CLOSE_GRACE_SECONDS:g} s; {STOP_SECONDS:g} s while the broker stops |",
        f"| {DISCONNECT_SECONDS:g} s, at most one heartbeat interval |",
    ):
        assert text in page, text
    defaults = load_settings()
    assert f"`max_message_size`, {defaults.max_message_size >> 20} MiB" in page
    assert f"`frame_max`, {defaults.frame_max >> 10} KiB" in page
    assert f"`channel_max`, {defaults.channel_max} |" in page
    assert f"`handshake_timeout`, {defaults.handshake_timeout:g} s" in page
