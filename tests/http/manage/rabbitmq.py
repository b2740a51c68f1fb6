"""A real RabbitMQ with its management API: the one RABBITMQ_HTTP names, or one of our own.

`make setup` installs it; ours runs on free ports, with its own name server and data.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx

from benchmarks import brokers
from benchmarks.connection import Address


@contextlib.contextmanager
def running_rabbitmq() -> Iterator[str]:
    """The URL of its HTTP API; guest/guest may do everything there."""
    url = os.environ.get("RABBITMQ_HTTP")
    if url:
        yield url
        return
    with started_rabbitmq(brokers.free_port(), brokers.free_port()) as url:
        yield url


@contextlib.contextmanager
def started_rabbitmq(port: int, http_port: int) -> Iterator[str]:
    """One of our own on these ports; the URL of its HTTP API."""
    running = _start(port, http_port)
    try:
        url = f"http://{brokers.HOST}:{http_port}"
        assert brokers.wait_until(lambda: _answers(url), within=180), running.log_tail()
        yield url
    finally:
        running.stop()


def _start(port: int, http_port: int) -> brokers.Running:
    directory = Path(tempfile.mkdtemp(prefix="rabbitmq-test-"))
    mapper_port = brokers.free_port()
    environment = brokers._rabbitmq_environment(directory, port, mapper_port)
    (directory / "enabled_plugins").write_text("[rabbitmq_management].\n")
    (directory / "rabbitmq.conf").write_text(
        f"management.tcp.ip = {brokers.HOST}\nmanagement.tcp.port = {http_port}\n"
    )
    mapper = subprocess.Popen(
        ["epmd", "-port", str(mapper_port), "-address", brokers.HOST],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,
    )
    command, address = [str(brokers.RABBITMQ_SERVER)], Address(brokers.HOST, port)
    return brokers._launch(
        brokers.Kind.RABBITMQ, command, environment, directory, address, [mapper]
    )


def _answers(url: str) -> bool:
    try:
        answer = httpx.get(f"{url}/api/overview", auth=("guest", "guest"), timeout=5)
    except httpx.TransportError:
        return False
    return answer.status_code == 200
