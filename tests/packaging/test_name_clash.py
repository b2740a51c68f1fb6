"""Leveret works in a project whose modules have the names of folders of this repository.

`python -m` puts the current directory first on sys.path, so a module `queues` of the project would
shadow any top-level package of that name.
"""

from __future__ import annotations

import json
import signal
import subprocess
import textwrap
from pathlib import Path

import pika
import pyarrow.parquet
import pytest

from tests.packaging.environment import CleanEnvironment

FOLDERS = ("amqp_server", "bindings", "exchange", "http_admin", "queues", "spark_sink")
TIMEOUT_SECONDS = 900
TEST_FILE = """
import amqp_server, bindings, exchange, http_admin, queues, spark_sink
import pika
import leveret, leveret.queues, leveret.exchange, leveret.bindings, leveret.spark_sink


def test_publish(leveret_url):
    for module in (amqp_server, bindings, exchange, http_admin, queues, spark_sink):
        assert module.OWNER == "project"
    with pika.BlockingConnection(pika.URLParameters(leveret_url)) as connection:
        channel = connection.channel()
        channel.queue_declare("orders")
        channel.basic_publish("", "orders", b"first")
        assert channel.basic_get("orders", auto_ack=True)[2] == b"first"
"""
pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory):
    return CleanEnvironment(
        tmp_path_factory.mktemp("clash"), wheel, "spark", also=("pika", "pytest")
    )


@pytest.fixture(scope="module")
def project(environment) -> Path:
    """A project with modules and packages of all six names."""
    folder: Path = environment.folder / "project"
    folder.mkdir()
    for name in FOLDERS[:3]:
        (folder / f"{name}.py").write_text('OWNER = "project"\n')
    for name in FOLDERS[3:]:
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text('OWNER = "project"\n')
    (folder / "test_project.py").write_text(textwrap.dedent(TEST_FILE))
    return folder


def test_site_packages_has_leveret_and_the_spark_module_only(environment):
    installed = {path.name for path in environment.packages.iterdir() if not path.is_symlink()}
    own = {name for name in installed if not name.endswith((".dist-info", ".pth"))}
    assert own - {"__pycache__"} == {"leveret", "pyspark_leveret.py"}


def test_pytest_fixture_works(environment, project):
    result = environment.run("python", "-m", "pytest", "-q", cwd=project)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "1 passed" in result.stdout


def test_modules_of_the_project_are_imported_by_their_names(environment, project):
    for name in FOLDERS:
        program = f"import {name}; assert {name}.OWNER == 'project'"
        assert environment.run("python", "-c", program, cwd=project).returncode == 0


def test_serve_and_export(environment, project):
    data = project / "data"
    broker = subprocess.Popen(
        [
            *(environment.bin / "python", "-m", "leveret", "serve"),
            *("--data-dir", data, "--amqp-port", "0", "--http-port", "0"),
        ],
        cwd=project,
        env={"PATH": "/usr/bin:/bin", "HOME": str(environment.folder)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert broker.stdout is not None
        words = broker.stdout.readline().split()
        host, _, port = dict(word.split("=") for word in words[2:4])["amqp"].rpartition(":")
        publish(host, int(port), 3)
    finally:
        broker.send_signal(signal.SIGTERM)
        broker.communicate(timeout=TIMEOUT_SECONDS)
    assert broker.returncode == 0
    export = environment.run(
        *("python", "-m", "leveret", "export", "--data-dir", str(data), "--to", "out"),
        cwd=project,
    )
    assert export.returncode == 0, export.stderr
    manifest = json.loads((project / "out" / "manifest.json").read_text(encoding="utf-8"))
    assert manifest
    table = pyarrow.parquet.read_table(project / "out" / "messages")
    assert sorted(table.column("body").to_pylist()) == [b"0", b"1", b"2"]


def publish(host: str, port: int, count: int) -> None:
    with pika.BlockingConnection(pika.ConnectionParameters(host, port)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("orders", durable=True)
        for number in range(count):
            properties = pika.BasicProperties(delivery_mode=2)
            channel.basic_publish("", "orders", str(number).encode(), properties)
