"""The pytest plugin as it is loaded into other projects."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.brokers import ROOT, running_leveret

OWN = """
import sys

HEAVY = {"asyncio", "leveret.launch", "leveret.testing", "pamqp", "uvloop"}
LOADED = HEAVY & set(sys.modules)


def test_broker_is_not_loaded_before_a_fixture_is_used():
    assert LOADED <= {"asyncio"}, LOADED


def test_fixture_loads_the_broker(leveret_url):
    assert "leveret.launch" in sys.modules
    assert leveret_url.startswith("amqp://guest:guest@127.0.0.1:")
"""


def run(folder, *options):
    (folder / "pytest.ini").write_text("[pytest]\n")  # otherwise a file further up would apply
    own = ["-q", "-p", "no:cacheprovider", "-p", "no:asyncio", "-W", "error", "--strict-markers"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *own, *options],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return done.returncode, done.stdout


def test_plugin_is_lazy(tmp_path):
    (tmp_path / "test_own.py").write_text(OWN)
    code, output = run(tmp_path)
    assert code == 0, output
    assert "2 passed" in output


def test_plugin_can_be_disabled(tmp_path):
    (tmp_path / "test_own.py").write_text("def test_it(leveret_url): ...\n")
    code, output = run(tmp_path, "-p", "no:leveret")
    assert code == 1
    assert "fixture 'leveret_url' not found" in output


@pytest.mark.leveret(max_message_size=10)
class TestSettings:
    @pytest.fixture
    def leveret_settings(self):
        return {"max_message_size": 5, "product": "Fixture"}

    def test_marker_overrides_the_fixture(self, leveret_broker):
        settings = leveret_broker.running.settings
        assert (settings.max_message_size, settings.product) == (10, "Fixture")


PORTABLE = """
import contextlib
import time

import pika
import pytest


@pytest.fixture
def channel(leveret_url):
    connection = pika.BlockingConnection(pika.URLParameters(leveret_url))
    yield connection.channel()
    with contextlib.suppress(pika.exceptions.AMQPError):  # dropped
        connection.close()


def test_depth_and_messages(channel, leveret_broker):
    channel.queue_declare("orders")
    channel.basic_publish("", "orders", b"4711", pika.BasicProperties(headers={"a": 1}))
    leveret_broker.wait_depth("orders", 1)
    (message,) = leveret_broker.messages("orders")
    assert (message.body, message.headers) == (b"4711", {"a": 1})


def test_every_test_has_its_own_queues(channel, leveret_broker):
    channel.queue_declare("orders")
    assert leveret_broker.messages("orders") == []
    while not (dropped := leveret_broker.drop_connections()):
        time.sleep(0.1)  # RabbitMQ lists a connection a little later
    assert dropped == 1


def test_acked(channel, leveret_broker):
    channel.queue_declare("orders")
    channel.basic_publish("", "orders", b"4711")
    leveret_broker.wait_depth("orders", 1)
    channel.basic_ack(channel.basic_get("orders")[0].delivery_tag)
    leveret_broker.wait_acked("orders", 1)


def test_clock(leveret_clock):
    leveret_clock.advance(1)


def test_fault(leveret_broker):
    leveret_broker.nack_next()
"""


def check_portable_tests(folder, url, http_url):
    (folder / "test_own.py").write_text(PORTABLE)
    code, output = run(folder, "--leveret-url", url, "--leveret-http-url", http_url, "-rs")
    assert (code, "3 passed, 2 skipped" in output) == (0, True), output
    assert "'nack_next' needs the in-process broker: run without --leveret-url" in output


def test_same_tests_run_against_another_broker(tmp_path):
    """tests/http/manage/test_beside_rabbitmq.py runs them against RabbitMQ."""
    with running_leveret() as target:
        check_portable_tests(tmp_path, target.url, f"http://{target.host}:{target.http_port}")


def test_portable_tests_run_in_process(tmp_path):
    (tmp_path / "test_own.py").write_text(PORTABLE)
    code, output = run(tmp_path)
    assert (code, "5 passed" in output) == (0, True), output


def test_wrong_url_of_another_broker(tmp_path):
    (tmp_path / "test_own.py").write_text("def test_it(leveret_url): ...\n")
    code, output = run(tmp_path, "--leveret-url", "localhost")
    assert (code, "is not of the form amqp://user:password@host" in output) == (1, True), output
