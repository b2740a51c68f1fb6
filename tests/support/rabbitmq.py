"""A real RabbitMQ with its management API: that of RABBITMQ_HTTP, or one started here.

`make setup` installs it; ours runs on free ports, with its own name server and data.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from benchmarks import brokers
from benchmarks.connection import Address
from leveret.testing.ports import free_port

RABBITMQCTL = brokers.RABBITMQ_SERVER.with_name("rabbitmqctl")


@dataclass(frozen=True, slots=True)
class RabbitMQ:
    """A started RabbitMQ; guest/guest has all permissions."""

    port: int
    http_port: int
    environment: Mapping[str, str] = field(repr=False)
    """For `rabbitmqctl`, which then finds this node and no other."""

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@{brokers.HOST}:{self.port}/%2F"

    @property
    def http_url(self) -> str:
        return f"http://{brokers.HOST}:{self.http_port}"

    def ctl(self, *words: str) -> str:
        """Run `rabbitmqctl`; it takes a second to start."""
        command = [str(RABBITMQCTL), "--quiet", *words]
        result = subprocess.run(
            command, env=dict(self.environment), capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, f"{words}: {result.stdout}{result.stderr}"
        return result.stdout


@contextlib.contextmanager
def running_rabbitmq() -> Iterator[str]:
    """The URL of its HTTP API; guest/guest has all permissions."""
    url = os.environ.get("RABBITMQ_HTTP")
    if url:
        yield url
        return
    with started_rabbitmq(free_port(), free_port()) as started:
        yield started.http_url


@contextlib.contextmanager
def started_rabbitmq(port: int, http_port: int) -> Iterator[RabbitMQ]:
    """Start one on these ports."""
    directory = Path(tempfile.mkdtemp(prefix="rabbitmq-test-"))
    mapper_port = free_port()
    environment = brokers._rabbitmq_environment(directory, port, mapper_port)
    started = RabbitMQ(port, http_port, environment)
    running = _start(started, directory, mapper_port)
    try:
        assert brokers.wait_until(lambda: _answers(started.http_url), within=180), (
            running.log_tail()
        )
        yield started
    finally:
        running.stop()


def _start(started: RabbitMQ, directory: Path, mapper_port: int) -> brokers.RunningBroker:
    environment = dict(started.environment)
    (directory / "enabled_plugins").write_text("[rabbitmq_management].\n")
    (directory / "rabbitmq.conf").write_text(
        f"management.tcp.ip = {brokers.HOST}\nmanagement.tcp.port = {started.http_port}\n"
    )
    mapper = subprocess.Popen(
        ["epmd", "-port", str(mapper_port), "-address", brokers.HOST],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,
    )
    command, address = [str(brokers.RABBITMQ_SERVER)], Address(brokers.HOST, started.port)
    return brokers._launch(
        brokers.Kind.RABBITMQ, command, environment, directory, address, [mapper]
    )


def _answers(url: str) -> bool:
    try:
        answer = httpx.get(f"{url}/api/overview", auth=("guest", "guest"), timeout=5)
    except httpx.TransportError:
        return False
    return answer.status_code == 200
