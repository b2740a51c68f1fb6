"""What a start brings in, and what it leaves until somebody asks for it."""

from __future__ import annotations

import socket
from pathlib import Path

import httpx

from tests.support.brokers import running_leveret


def test_what_is_not_needed_to_be_ready_is_not_imported(tmp_path: Path) -> None:
    with running_leveret("--data-dir", str(tmp_path)) as broker:
        with broker.connect():
            assert not _has_loaded(broker.pid, "sqlalchemy")
            assert not _has_loaded(broker.pid, "pydantic_core")
        answer = httpx.get(f"http://{broker.host}:{broker.http_port}/api/overview", timeout=60)
        assert answer.status_code == 401
        assert _has_loaded(broker.pid, "pydantic_core")


def test_a_stop_does_not_wait_for_the_http_api_to_come(tmp_path: Path) -> None:
    with (
        running_leveret("--data-dir", str(tmp_path)) as broker,
        socket.create_connection((broker.host, broker.http_port)),
    ):
        pass  # stopped at once, while a client waits; its log has to be free of errors


def _has_loaded(pid: int, library: str) -> bool:
    """Both bring shared objects of their own, which a process's map of memory names."""
    return library in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")
