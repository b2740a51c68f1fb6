"""The process that reads history: its life, and what clients see when it fails."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pika
import psutil
import pytest

from leveret import stored_history
from leveret.queues.storage.directory import WAL_NAME
from leveret.stored_history import StoredHistory
from tests.http.conftest import Served, serve
from tests.support.brokers import Target, running_leveret
from tests.support.polling import wait_until, wait_until_async

EXPORT = "/api/history/export?table=messages"
MESSAGES, BODY = 96, b"x" * (1 << 19)
"""More than sockets buffer, so that an export does not end before its client reads it."""


def _publish(url: str) -> None:
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.queue_declare("large", durable=True)
        channel.confirm_delivery()
        for _ in range(MESSAGES):
            channel.basic_publish("", "large", BODY, pika.BasicProperties(delivery_mode=2))
        channel.queue_purge("large")


@pytest.fixture(scope="module")
def large(stored_broker: Served) -> Served:
    pytest.importorskip("pyarrow")
    _publish(stored_broker.amqp_url)
    return stored_broker


@pytest.fixture
def api(large: Served) -> Iterator[httpx.Client]:
    with large.client() as client:
        yield client


def _history(broker: Served) -> StoredHistory:
    running = broker.threaded.running
    assert running is not None
    return running.history


def _pid(broker: Served) -> int:
    process = _history(broker).process
    assert process is not None
    return process.pid


def _errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def _rows(answer: httpx.Response) -> int:
    pa = pytest.importorskip("pyarrow")
    return int(pa.ipc.open_stream(answer.content).read_all().num_rows)


# In a broker -------------------------------------------------------------------------------------


def test_requests_share_a_process_of_low_priority(large: Served, api: httpx.Client) -> None:
    assert _rows(api.get(EXPORT)) == MESSAGES
    pid = _pid(large)
    assert api.get("/api/history/ranges").is_success
    with api.stream("GET", EXPORT), api.stream("GET", EXPORT):
        assert _pid(large) == pid
    process = psutil.Process(pid)
    assert process.ppid() == os.getpid() != pid
    assert process.nice() > psutil.Process().nice() or process.nice() == 19


def test_export_of_a_killed_process_is_visibly_incomplete(
    large: Served, api: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    with api.stream("GET", EXPORT) as answer:
        parts = answer.iter_raw()
        next(parts)
        pid = _pid(large)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(httpx.RemoteProtocolError):
            list(parts)
    wait_until(lambda: not psutil.pid_exists(pid))
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert record.getMessage() == "GET /api/history/export failed"
    assert "was killed by signal 9" in str(record.exc_info and record.exc_info[1])
    assert _rows(api.get(EXPORT)) == MESSAGES
    assert _pid(large) != pid


def test_idle_process_that_was_killed_is_replaced(
    large: Served, api: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    assert api.get("/api/history/ranges").is_success
    pid = _pid(large)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: _errors(caplog))
    assert _errors(caplog) == ["the process that reads history was killed by signal 9"]
    assert not psutil.pid_exists(pid)
    assert api.get("/api/history/ranges").is_success
    assert len(_errors(caplog)) == 1


def test_disconnected_client_ends_its_export(large: Served, api: httpx.Client) -> None:
    assert api.get("/api/history/ranges").is_success
    process = psutil.Process(_pid(large))
    wait_until(lambda: not process.open_files())
    broker_files = psutil.Process().num_fds()
    with api.stream("GET", EXPORT) as answer:
        next(answer.iter_raw())
        assert process.open_files()
    wait_until(lambda: not process.open_files())
    wait_until(lambda: psutil.Process().num_fds() <= broker_files)
    assert _pid(large) == process.pid


def test_other_failures_are_logged_and_answered_with_500(
    large: Served,
    api: httpx.Client,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken:
        async def ranges(self, *_: Any) -> Any:
            raise RuntimeError("the disk is upside down")

        export = ranges

    monkeypatch.setattr(large.app.state.context, "history", Broken())
    for path in ("/api/history/ranges", EXPORT):
        answer = api.get(path)
        assert answer.status_code == 500
        assert answer.json()["reason"] == "internal error, see the broker's log"
    assert len(_errors(caplog)) == 2


def test_stop_ends_the_process_in_the_middle_of_an_export(tmp_path: Path) -> None:
    with ExitStack() as clients:
        with serve(data_dir=tmp_path) as threaded:
            broker = Served(threaded)
            _publish(broker.amqp_url)
            api = clients.enter_context(broker.client())
            parts = clients.enter_context(api.stream("GET", EXPORT)).iter_raw()
            next(parts)
            pid = _pid(broker)
        assert not psutil.pid_exists(pid)
        with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
            list(parts)


def test_killed_broker_leaves_no_process_behind(tmp_path: Path) -> None:
    with running_leveret("--data-dir", str(tmp_path)) as broker:
        _publish(broker.url)
        with _client_of(broker) as api, api.stream("GET", EXPORT) as answer:
            parts = answer.iter_raw()
            next(parts)
            (process,) = psutil.Process(broker.pid).children()
            os.kill(broker.pid, signal.SIGKILL)
            wait_until(lambda: not process.is_running() or process.status() == "zombie")
            with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
                list(parts)


def _client_of(broker: Target) -> httpx.Client:
    url = f"http://{broker.host}:{broker.http_port}"
    return httpx.Client(base_url=url, auth=("guest", "guest"), timeout=120, verify=False)


# By itself ---------------------------------------------------------------------------------------


@asynccontextmanager
async def _opened() -> AsyncIterator[StoredHistory]:
    """It must leave no process behind, nor a zombie."""
    before = set(psutil.Process().children())
    history = StoredHistory()
    try:
        yield history
    finally:
        await history.close()
    assert set(psutil.Process().children()) <= before


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes a module of this content the pyarrow of new processes."""

    def write(content: str) -> None:
        (tmp_path / "pyarrow.py").write_text(content)
        monkeypatch.syspath_prepend(str(tmp_path))

    return write


async def test_refused_request_is_a_value_error(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    async with _opened() as history:
        with pytest.raises(ValueError, match="Cannot read"):
            await history.ranges(tmp_path, {}, None)
        with pytest.raises(ValueError, match="nothing"):
            await history.export(tmp_path, {"table": "nothing"}, frozenset({"/"}))


async def test_missing_module_is_an_import_error(
    tmp_path: Path, install: Callable[[str], None]
) -> None:
    install("raise ModuleNotFoundError('no arrows left')")
    async with _opened() as history:
        for read in (history.ranges, history.export):
            with pytest.raises(ImportError, match="no arrows left"):
                await read(tmp_path, {}, None)


async def test_other_error_has_the_traceback_of_the_process(
    tmp_path: Path, install: Callable[[str], None]
) -> None:
    install("raise RuntimeError('bent arrow')")
    async with _opened() as history:
        with pytest.raises(RuntimeError, match=r"(?s)Traceback.*pyarrow\.py.*bent arrow"):
            await history.ranges(tmp_path, {}, None)


async def test_output_of_the_process_is_logged(
    tmp_path: Path, install: Callable[[str], None], caplog: pytest.LogCaptureFixture
) -> None:
    install("import sys; print('to stdout', flush=True); sys.stderr.write('to stderr\\n'); 1 / 0")
    async with _opened() as history:
        with pytest.raises(RuntimeError):
            await history.ranges(tmp_path, {}, None)
    prefix = "the process that reads history: "
    assert _errors(caplog) == [prefix + "to stdout", prefix + "to stderr"]


async def test_exit_of_the_process_is_explained(
    tmp_path: Path, install: Callable[[str], None]
) -> None:
    install("import os; os._exit(3)")
    async with _opened() as history:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="ended with exit code 3"):
                await history.ranges(tmp_path, {}, None)


async def test_process_ends_when_it_is_idle(
    tmp_path: Path, install: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    install("raise ImportError")
    async with _opened() as history:
        pids = []
        for seconds in (3600.0, 3600.0, 0.0):
            monkeypatch.setattr(stored_history, "IDLE_SECONDS", seconds)
            with pytest.raises(ImportError):
                await history.ranges(tmp_path, {}, None)
            if (process := history.process) is not None:
                pids.append(process.pid)
        assert len(set(pids)) == 1
        await wait_until_async(lambda: not psutil.pid_exists(pids[0]))
        assert history.process is None
        with pytest.raises(ImportError):
            await history.ranges(tmp_path, {}, None)


async def test_process_that_does_not_end_is_killed(
    tmp_path: Path, install: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_history, "END_SECONDS", 0.1)
    install("raise ImportError")
    async with _opened() as history:
        with pytest.raises(ImportError):
            await history.ranges(tmp_path, {}, None)
        assert history.process is not None
        os.kill(history.process.pid, signal.SIGSTOP)


async def test_client_that_leaves_while_the_process_starts(tmp_path: Path) -> None:
    async with _opened() as history:
        asking = [asyncio.create_task(history.ranges(tmp_path, {}, None)) for _ in range(2)]
        await asyncio.sleep(0)
        asking[0].cancel()
        answers = await asyncio.gather(*asking, return_exceptions=True)
        assert [type(answer) for answer in answers] in (
            [asyncio.CancelledError, ValueError],
            [asyncio.CancelledError, ImportError],
        )
        asking[0] = asyncio.create_task(history.ranges(tmp_path, {}, None))
        await asyncio.sleep(0)
        asking[0].cancel()


async def test_requests_beyond_the_limit_wait(
    large: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_history, "MAX_REQUESTS", 1)
    data_dir = large.hub.settings.data_dir
    async with _opened() as history:
        rows = await history.export(data_dir, {"table": "messages"}, None)
        waiting = asyncio.create_task(history.ranges(data_dir, {}, None))
        await anext(rows)
        assert not waiting.done()
        rows.close()
        assert "messages" in await waiting
    # SQLite deletes it when the last process closes the database, unless it may only read.
    assert (data_dir / WAL_NAME).exists()
