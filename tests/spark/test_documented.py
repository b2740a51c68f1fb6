"""Runs the commands and programs about Spark in README.md and docs/spark.md.

Only directories and hosts are replaced. All of them use the shared session.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from contextlib import contextmanager

import httpx
import pika
import pytest

from leveret.cli import run
from leveret.spark_sink.java import ensure_java
from leveret.testing import LeveretBroker
from tests.docs.blocks import RunMode, all_blocks
from tests.docs.session import lines_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
PASSWORD = "…"  # as in the page
HERE = "tests/spark/test_documented.py"


def blocks(page: str, test: str):
    texts = [
        block.text
        for block in all_blocks()
        if block.page == page
        and block.mode is RunMode.ELSEWHERE
        and block.detail == f"{HERE}::{test}"
    ]
    assert texts
    return texts


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    """A broker with two orders, one of them acked, a log, and the user from the page."""
    data_dir = tmp_path_factory.mktemp("documented") / "data"
    with LeveretBroker(data_dir=data_dir, http_enabled=True) as broker:
        connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("orders", durable=True)
        channel.queue_declare("clicks", durable=True, arguments={"x-queue-type": "stream"})
        for queue in ("orders", "orders", "clicks"):
            channel.basic_publish("", queue, b"x", pika.BasicProperties(delivery_mode=2))
        method, _, _ = channel.basic_get("orders")
        channel.basic_ack(method.delivery_tag)
        connection.close()
        broker.wait_depth("orders", 1, unacked=0)
        api = f"{broker.http_url}/api"
        user = {"password": PASSWORD, "tags": "monitoring"}
        rights = {"configure": "", "write": "", "read": ".*"}
        for path, body in (("users/spark", user), ("permissions/%2F/spark", rights)):
            httpx.put(f"{api}/{path}", json=body, auth=("guest", "guest")).raise_for_status()
        yield broker, data_dir


@pytest.fixture
def shared(spark, monkeypatch):
    """Let the commands use the shared session instead of starting one."""

    @contextmanager
    def session(*_):
        yield spark

    monkeypatch.setattr("leveret.spark_sink.session.session", session)


@pytest.mark.parametrize("page", ["README.md", "docs/spark.md"])
def test_commands(page, broker, shared, tmp_path, monkeypatch):
    served, data_dir = broker
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LEVERET_PASSWORD", PASSWORD)
    replacements = {
        "./data": str(data_dir),
        "./export": str(tmp_path / "export"),  # the session has another working directory
        "/var/lib/leveret": str(data_dir),
        "/data/history": str(tmp_path / "history"),
        "http://broker:15672": served.http_url,
    }
    lines = [line for text in blocks(page, "test_commands") for line in lines_of(text)]
    for line in lines:
        words = [replacements.get(word, word) for word in shlex.split(line)]
        if "--every" in words:  # run once
            at = words.index("--every")
            del words[at : at + 2]
        if words[0] == "leveret":
            assert run(words[1:]) == 0, line
    assert list(tmp_path.rglob("*.parquet"))


def test_reading_works_without_an_activated_environment(broker, tmp_path):
    """The interpreter of the environment runs the page's program; the PATH leads to another one."""
    _, data_dir = broker
    (text,) = (each for each in blocks("docs/spark.md", "test_reading") if "builder" in each)
    program = tmp_path / "program.py"
    program.write_text(text.replace("/var/lib/leveret", str(data_dir)))
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYSPARK")}
    variables = kept | {"PATH": "/usr/bin:/bin", "SPARK_LOCAL_IP": "127.0.0.1"}
    variables.pop("VIRTUAL_ENV", None)
    variables.pop("PYTHONPATH", None)
    done = subprocess.run(
        [sys.executable, program], env=variables | {"JAVA_HOME": str(ensure_java())},
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "|orders|    1|" in done.stdout, done.stderr


def test_reading(spark, broker, capsys):
    served, data_dir = broker
    names = {"spark": spark}
    for text in blocks("docs/spark.md", "test_reading"):
        text = text.replace("/var/lib/leveret", str(data_dir))
        exec(text.replace("http://broker:15672", served.http_url), names)
    assert "|orders|    1|" in capsys.readouterr().out
    assert names["events"].where("event = 'acked'").count() == 1
