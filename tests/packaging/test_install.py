"""The sdist builds the wheel, and the wheel runs with only its declared requirements.

The wheel is built from the sdist without node on the PATH: the sdist contains the built web UI.
"""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import tarfile
import urllib.request
import zipfile
from contextlib import contextmanager

import pika
import pytest

from tests.packaging.environment import CleanEnvironment, closure
from tests.support.brokers import ROOT

TIMEOUT_SECONDS = 480
pytestmark = pytest.mark.timeout(600)
DEPLOY = ROOT / "docs" / "deploy"


@pytest.fixture(scope="module")
def clean(wheel, tmp_path_factory):
    return CleanEnvironment(tmp_path_factory.mktemp("clean"), wheel)


@contextmanager
def served(clean, *words, **environment):
    """The addresses of a broker started by a `leveret serve` command, on free ports."""
    process = subprocess.Popen(
        [*words, "--amqp-port", "0", "--http-port", "0"],
        cwd=clean.folder,
        env={"PATH": f"{clean.bin}:/usr/bin:/bin", **environment},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        ready = process.stdout.readline().split()
        assert ready[:2] == ["leveret", "ready"]
        yield dict(word.split("=") for word in ready[2:4])
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=TIMEOUT_SECONDS)
    assert process.returncode == 0


@pytest.fixture(scope="module")
def server(clean, tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    with served(clean, clean.bin / "leveret", "serve", "--data-dir", folder) as addresses:
        yield addresses


def test_sdist_contains_exactly_the_files_of_the_build(sdist):
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames()}
    assert {"pyproject.toml", "hatch_build.py", "tools/build_ui.py", "LICENSE"} <= names
    assert {"http_admin/ui/dist/index.html", "http_admin/ui/dist/.built-from"} <= names
    assert not [name for name in names if "node_modules" in name or name.startswith(".ci")]


def test_wheel_contains_only_the_package(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.split("/")[0] for name in names if ".dist-info" not in name}
    assert tops == {"leveret", "pyspark_leveret.py"}
    assert "leveret/http_admin/ui/dist/index.html" in names
    assert "leveret/queues/storage/schema.sql" in names
    assert not [name for name in names if name.startswith("leveret/http_admin/ui/src")]
    assert not [name for name in names if "autoload" in name]
    assert len(names) == len(set(names))


def test_broker_does_not_need_spark(clean, wheel):
    assert "pyspark" not in closure(wheel)
    assert clean.run("python", "-c", "import pyspark").returncode == 1
    export = clean.run("leveret", "export", "--data-dir", ".", "--to", "out")
    assert export.returncode != 0
    assert "pip install 'leveret[spark]'" in export.stderr


def test_message_is_published_and_received(server):
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


def test_dashboard_is_served(server):
    with urllib.request.urlopen(f"http://{server['http']}/", timeout=TIMEOUT_SECONDS) as page:
        text = page.read().decode()
    (script,) = [part.split('"')[0] for part in text.split('src="')[1:] if ".js" in part]
    with urllib.request.urlopen(f"http://{server['http']}/{script.lstrip('./')}") as asset:
        assert len(asset.read()) > 10_000


def test_command_line_connects_to_the_broker(clean, server):
    listed = clean.run("leveret", "list_vhosts", "--url", f"http://{server['http']}")
    assert listed.returncode == 0, listed.stderr
    assert listed.stdout.split() == ["name", "/"]


def test_command_of_the_unit_file_starts_the_broker(clean, tmp_path):
    """With the settings file of docs/deploy."""
    unit = (DEPLOY / "leveret.service").read_text()
    (command,) = re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)
    places = {
        "/opt/leveret/bin/leveret": clean.bin / "leveret",
        "/etc/leveret/leveret.toml": DEPLOY / "leveret.toml",
        "/var/lib/leveret": tmp_path / "data",
    }
    words = shlex.split(command)
    assert set(places) < set(words)
    command = [places.get(word, word) for word in words]
    with served(clean, *command, LEVERET_DEFAULT_PASSWORD="a long one") as addresses:
        listed = clean.run(
            *("leveret", "list_users", "--url", f"http://127.0.0.1:{http_port(addresses)}"),
            *("--user", "admin", "--password", "a long one"),
        )
    assert listed.returncode == 0 and "admin" in listed.stdout, listed.stderr


def test_commands_of_the_container_start_the_broker_and_check_its_health(clean, tmp_path):
    """Runs CMD and HEALTHCHECK of the container file without a container."""
    text = (DEPLOY / "Containerfile").read_text()
    (health,) = re.findall(r"^HEALTHCHECK CMD (\[.*\])$", text, re.MULTILINE)
    (command,) = re.findall(r"^CMD (\[.*\])$", text, re.MULTILINE)
    words = [{"/data": str(tmp_path)}.get(word, word) for word in json.loads(command)]
    with served(clean, clean.bin / words[0], *words[1:]) as addresses:
        check = [word.replace("15672", http_port(addresses)) for word in json.loads(health)]
        healthy = clean.run(*check)
    assert healthy.returncode == 0, healthy.stderr
    assert clean.run(*check).returncode != 0


def http_port(addresses):
    return addresses["http"].rpartition(":")[2]


def test_wheel_registers_the_pytest_plugin(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("entry_points.txt")]
        text = archive.read(name).decode()
    assert "[pytest11]\nleveret = leveret.pytest_plugin" in text


def test_readme_on_a_package_index_has_whole_addresses(wheel):
    """There, no files are beside it."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
        text = archive.read(name).decode()
    targets = re.findall(r"\]\(([^)]+)\)", text)
    assert len(targets) > 20
    assert not [target for target in targets if not target.startswith(("https://", "#"))]
    images = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text)
    assert images and all("raw" in image for image in images)
    assert "Project-URL: Issues, https://" in text
