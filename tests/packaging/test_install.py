"""What is built is what a stranger needs: the sdist builds the wheel, the wheel runs alone.

The wheel is built from the sdist, without node on the PATH: the sdist brings the built web UI.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tarfile
import urllib.request
import zipfile
from contextlib import contextmanager

import pika
import pytest

from tests.packaging.environment import CleanEnvironment, closure
from tests.support.brokers import ROOT

SECONDS = 120
pytestmark = pytest.mark.timeout(600)
DEPLOY = ROOT / "docs" / "deploy"


def hatch(folder, target, into, **environment):
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(into)],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = into.iterdir()
    return built


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    return hatch(ROOT, "sdist", tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def wheel(sdist, tmp_path_factory):
    source = tmp_path_factory.mktemp("source")
    with tarfile.open(sdist) as archive:
        archive.extractall(source, filter="data")
    (unpacked,) = source.iterdir()
    return hatch(unpacked, "wheel", tmp_path_factory.mktemp("wheel"), PATH="/nowhere")


@pytest.fixture(scope="module")
def clean(wheel, tmp_path_factory):
    return CleanEnvironment(tmp_path_factory.mktemp("clean"), wheel)


@contextmanager
def served(clean, *words, **environment):
    """A command that is `leveret serve`, on free ports: where it says that it listens."""
    process = subprocess.Popen(
        [*words, "--amqp-port", "0", "--http-port", "0"],
        cwd=clean.folder,
        env={"PATH": f"{clean.bin}:/usr/bin:/bin", **environment},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        said = process.stdout.readline().split()
        assert said[:2] == ["leveret", "ready"]
        yield dict(word.split("=") for word in said[2:4])
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=SECONDS)
    assert process.returncode == 0


@pytest.fixture(scope="module")
def server(clean, tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    with served(clean, clean.bin / "leveret", "serve", "--data-dir", folder) as where:
        yield where


def test_the_sdist_has_what_the_build_needs_and_no_more(sdist):
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames()}
    assert {"pyproject.toml", "hatch_build.py", "tools/build_ui.py", "LICENSE"} <= names
    assert {"http_admin/ui/dist/index.html", "http_admin/ui/dist/.built-from"} <= names
    assert not [name for name in names if "node_modules" in name or name.startswith(".ci")]


def test_the_wheel_has_the_program_and_no_more(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.split("/")[0] for name in names if ".dist-info" not in name}
    assert tops == {
        *("amqp_server", "bindings", "exchange", "http_admin", "leveret", "queues", "spark_sink"),
        "pyspark_leveret.py",
    }
    assert "http_admin/ui/dist/index.html" in names
    assert not [name for name in names if name.startswith("http_admin/ui/src")]


def test_the_broker_needs_no_spark(clean, wheel):
    assert "pyspark" not in closure(wheel)
    assert clean.run("python", "-c", "import pyspark").returncode == 1
    told = clean.run("leveret", "export", "--data-dir", ".", "--to", "out")
    assert told.returncode != 0
    assert "pip install 'leveret[spark]'" in told.stderr


def test_a_message_goes_through(server):
    host, _, port = server["amqp"].rpartition(":")
    connection = pika.BlockingConnection(pika.ConnectionParameters(host, int(port)))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("q", durable=True)
    channel.basic_publish("", "q", b"x", pika.BasicProperties(delivery_mode=2))
    method, _, body = channel.basic_get("q")
    channel.basic_ack(method.delivery_tag)
    connection.close()
    assert body == b"x"


def test_the_dashboard_is_there(server):
    with urllib.request.urlopen(f"http://{server['http']}/", timeout=SECONDS) as page:
        text = page.read().decode()
    (script,) = [part.split('"')[0] for part in text.split('src="')[1:] if ".js" in part]
    with urllib.request.urlopen(f"http://{server['http']}/{script.lstrip('./')}") as asset:
        assert len(asset.read()) > 10_000


def test_the_command_speaks_to_it(clean, server):
    listed = clean.run("leveret", "list_vhosts", "--url", f"http://{server['http']}")
    assert listed.returncode == 0, listed.stderr
    assert listed.stdout.split() == ["name", "/"]


def test_the_unit_file_starts_it(clean, tmp_path):
    """What systemd would run, with the settings file that is handed out."""
    unit = (DEPLOY / "leveret.service").read_text()
    (command,) = re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)
    places = {
        "/opt/leveret/bin/leveret": clean.bin / "leveret",
        "/etc/leveret/leveret.toml": DEPLOY / "leveret.toml",
        "/var/lib/leveret": tmp_path / "data",
    }
    words = shlex.split(command)
    assert set(places) < set(words)
    started = [places.get(word, word) for word in words]
    with served(clean, *started, LEVERET_DEFAULT_PASSWORD="a long one") as where:
        listed = clean.run(
            *("leveret", "list_users", "--url", f"http://127.0.0.1:{port_of(where)}"),
            *("--user", "admin", "--password", "a long one"),
        )
    assert listed.returncode == 0 and "admin" in listed.stdout, listed.stderr


def test_the_container_starts_it_and_finds_it_healthy(clean, tmp_path):
    """Its commands, as far as they go without an engine for containers."""
    text = (DEPLOY / "Containerfile").read_text()
    (health,) = re.findall(r"^HEALTHCHECK CMD (\[.*\])$", text, re.MULTILINE)
    (command,) = re.findall(r"^CMD (\[.*\])$", text, re.MULTILINE)
    words = [{"/data": str(tmp_path)}.get(word, word) for word in json.loads(command)]
    with served(clean, clean.bin / words[0], *words[1:]) as where:
        asked = [word.replace("15672", port_of(where)) for word in json.loads(health)]
        healthy = clean.run(*asked)
    assert healthy.returncode == 0, healthy.stderr
    assert clean.run(*asked).returncode != 0


def port_of(where):
    return where["http"].rpartition(":")[2]


def test_pytest_finds_the_plugin(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("entry_points.txt")]
        text = archive.read(name).decode()
    assert "[pytest11]\nleveret = leveret.pytest_plugin" in text
