"""The common features of Celery, with a worker process and two result backends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from celery import chain, chord, group
from celery.backends.rpc import RPCBackend

from tests.integration import celery_tasks
from tests.support.brokers import ROOT

TIMEOUT_SECONDS = 60
WORKER = (
    sys.executable,
    "-m",
    "celery",
    "-A",
    "tests.integration.celery_tasks",
    "worker",
    "--pool=threads",
    "--concurrency=2",
    "--loglevel=WARNING",
)


@pytest.fixture(scope="module", params=["rpc", "database"])
def tasks(request, broker, tmp_path_factory):
    """The tasks, and a worker process that runs them; once per result backend."""
    database = tmp_path_factory.mktemp("celery") / "results.db"
    backend = "rpc://" if request.param == "rpc" else f"db+sqlite:///{database}"
    queue = f"celery-{request.param}-{os.getpid()}"
    tasks = celery_tasks.build(broker.url, backend, queue)
    environment = {
        "CELERY_TEST_BROKER": broker.url,
        "CELERY_TEST_BACKEND": backend,
        "CELERY_TEST_QUEUE": queue,
        "PYTHONWARNINGS": "default",
    }
    worker = subprocess.Popen(WORKER, cwd=ROOT, env={**os.environ, **environment})
    try:
        wait_for_worker(tasks.app, worker)
        yield tasks
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait(TIMEOUT_SECONDS)
        with tasks.app.connection_for_write() as connection:
            connection.default_channel.queue_delete(queue)
        close(tasks.app)


def close(app):
    """Close the connections of the caller, which Celery keeps until the process ends."""
    if isinstance(app.backend, RPCBackend):
        app.backend.result_consumer.stop()
    app.close()


def wait_for_worker(app, worker):
    deadline = time.monotonic() + 60
    while not app.control.ping(timeout=0.5):
        assert worker.poll() is None, "the worker ended"
        assert time.monotonic() < deadline, "the worker does not answer"


def test_task_and_result(tasks):
    assert tasks.add.delay(2, 3).get(timeout=TIMEOUT_SECONDS) == 5


def test_failure_reaches_the_caller(tasks):
    with pytest.raises(ValueError, match="as intended"):
        tasks.fail.delay("as intended").get(timeout=TIMEOUT_SECONDS)


def test_retry(tasks):
    assert tasks.third_time_lucky.delay().get(timeout=TIMEOUT_SECONDS) == 2


def test_countdown(tasks):
    sent = time.time()
    started = tasks.now.apply_async(countdown=0.6).get(timeout=TIMEOUT_SECONDS)
    assert started - sent > 0.5


def test_countdown_tasks_do_not_block_the_others(tasks):
    # More delayed tasks than the prefetch: the worker must raise it on its running consumer.
    delayed = [tasks.now.apply_async(countdown=3600) for _ in range(4)]
    tasks.now.delay().get(timeout=TIMEOUT_SECONDS)
    assert not any(result.ready() for result in delayed)


def test_group(tasks):
    results = group(tasks.add.s(number, number) for number in range(10))()
    assert results.get(timeout=TIMEOUT_SECONDS) == [2 * number for number in range(10)]


def test_chain(tasks):
    assert (
        chain(tasks.add.s(1, 2), tasks.add.s(10), tasks.add.s(100))().get(timeout=TIMEOUT_SECONDS)
        == 113
    )


def test_chord(tasks):
    if tasks.app.conf.result_backend.startswith("rpc"):
        # Celery does not support chords with rpc://, which returns results to one caller only.
        with pytest.raises(NotImplementedError):
            chord(tasks.add.s(number, 1) for number in range(5))(tasks.total.s())
        return
    result = chord(tasks.add.s(number, 1) for number in range(5))(tasks.total.s())
    assert result.get(timeout=TIMEOUT_SECONDS) == 15


def test_reject_requeues(tasks):
    assert tasks.rejected_once.delay().get(timeout=TIMEOUT_SECONDS) == "second delivery"


def test_remote_control(tasks):
    (registered,) = (
        tasks.app.control.inspect(timeout=TIMEOUT_SECONDS, limit=1).registered().values()
    )
    assert "third_time_lucky" in registered


def test_purge(tasks):
    with tasks.app.connection_for_write() as connection:
        queue = connection.default_channel.queue_declare(
            tasks.app.conf.task_default_queue, passive=True
        )
    assert queue.message_count == 0
    assert tasks.app.control.purge() == 0
