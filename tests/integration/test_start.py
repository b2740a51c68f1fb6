"""A start imports only the libraries that it needs, and can be interrupted by a stop."""

from __future__ import annotations

import socket
from pathlib import Path

import httpx

from tests.support.brokers import running_leveret


def test_http_libraries_are_imported_by_the_first_request(tmp_path: Path) -> None:
    with running_leveret("--data-dir", str(tmp_path)) as broker:
        with broker.connect():
            assert not _has_loaded(broker.pid, "sqlalchemy")
            assert not _has_loaded(broker.pid, "pydantic_core")
        response = httpx.get(f"http://{broker.host}:{broker.http_port}/api/overview", timeout=60)
        assert response.status_code == 401
        assert _has_loaded(broker.pid, "pydantic_core")


def test_stop_does_not_wait_for_the_start_of_the_http_api(tmp_path: Path) -> None:
    with (
        running_leveret("--data-dir", str(tmp_path)) as broker,
        socket.create_connection((broker.host, broker.http_port)),
    ):
        pass  # stops while a client waits; `running_leveret` checks that no error is logged


def _has_loaded(pid: int, library: str) -> bool:
    """Both libraries load shared objects, which are listed in the memory map of the process."""
    return library in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")
