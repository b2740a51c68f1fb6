"""Celery with native delayed delivery, a worker process and quorum queues."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from celery.backends.rpc import RPCBackend

from tests.integration import celery_delayed
from tests.support.brokers import ROOT

TIMEOUT_SECONDS = 60
WORKER = (
    sys.executable, "-m", "celery", "-A", "tests.integration.celery_delayed", "worker",
    "--pool=threads", "--concurrency=2", "--loglevel=WARNING",
)  # fmt: skip


@pytest.fixture(scope="module")
def app(broker):
    queue = f"delayed-{os.getpid()}"
    app = celery_delayed.build(broker.url, "rpc://", queue)
    environment = {
        "CELERY_TEST_BROKER": broker.url,
        "CELERY_TEST_BACKEND": "rpc://",
        "CELERY_TEST_QUEUE": queue,
        "PYTHONWARNINGS": "default",
    }
    worker = subprocess.Popen(WORKER, cwd=ROOT, env={**os.environ, **environment})
    try:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not app.control.ping(timeout=0.5):
            assert worker.poll() is None, f"the worker ended with {worker.returncode}"
            assert time.monotonic() < deadline, "the worker does not answer"
        yield app
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait(TIMEOUT_SECONDS)
        if isinstance(app.backend, RPCBackend):
            app.backend.result_consumer.stop()
        app.close()


def test_exchanges_and_queues_of_all_levels_are_declared(app):
    with app.connection_for_read() as connection:
        channel = connection.default_channel
        for level in range(28):
            channel.exchange_declare(f"celery_delayed_{level}", "topic", passive=True)
            channel.queue_declare(f"celery_delayed_{level}", passive=True)


@pytest.mark.parametrize("countdown", [1, 3])
def test_task_runs_after_its_countdown(app, countdown):
    sent = time.time()
    result = app.arrived.apply_async(countdown=countdown)
    assert result.get(timeout=TIMEOUT_SECONDS) - sent > countdown - 1  # Celery counts whole seconds


def test_later_task_does_not_delay_an_earlier_one(app):
    late = app.arrived.apply_async(countdown=6)
    soon = app.arrived.apply_async(countdown=1)
    assert soon.get(timeout=TIMEOUT_SECONDS) < late.get(timeout=TIMEOUT_SECONDS)


def test_delayed_task_waits_in_the_broker(app):
    app.arrived.apply_async(countdown=40)
    with app.connection_for_read() as connection:
        channel = connection.default_channel
        level = channel.queue_declare("celery_delayed_5", passive=True)
        assert level.message_count == 1
        assert channel.queue_purge("celery_delayed_5") == 1
