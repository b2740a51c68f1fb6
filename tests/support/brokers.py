"""The broker under test: a Leveret that is started for the test, or one named by a URL.

A started Leveret runs in its own process, so the tests apply to the program as a user runs it.
`Target` contains its addresses and its product name; tests use `is_rabbitmq` only through the
`expected` fixture, where the two are meant to differ.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tests.support.rawclient import RawClient

ROOT = Path(__file__).resolve().parents[2]
STOP_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Target:
    """Where a broker listens and how to log in."""

    host: str
    port: int
    user: str = "guest"
    password: str = "guest"
    vhost: str = "/"
    product: str = "Leveret"
    http_port: int = 0
    pid: int = 0
    amqps_port: int = 0

    @property
    def is_rabbitmq(self) -> bool:
        return self.product == "RabbitMQ"

    @property
    def url(self) -> str:
        vhost = "%2F" if self.vhost == "/" else self.vhost
        return f"amqp://{self.user}:{self.password}@{self.host}:{self.port}/{vhost}"

    def socket(self) -> RawClient:
        """A client with a connected socket that has sent nothing yet."""
        return RawClient(self.host, self.port)

    def connect(self, **options: object) -> RawClient:
        """A client with a finished handshake."""
        client = self.socket()
        client.handshake(self.vhost, self.user, self.password, **options)  # type: ignore[arg-type]
        return client


def target_of(url: str) -> Target:
    """The broker at an amqp:// URL, including its product name."""
    parts = urlsplit(url)
    host, port = parts.hostname or "127.0.0.1", parts.port or 5672
    with RawClient(host, port) as probe:
        product = probe.start().server_properties["product"]
    return Target(
        host=host,
        port=port,
        user=unquote(parts.username or "guest"),
        password=unquote(parts.password or "guest"),
        vhost=unquote(parts.path[1:]) or "/",
        product=product,
        http_port=port + 10000,
    )


@contextlib.contextmanager
def running_leveret(
    *arguments: str, environment: Mapping[str, str] | None = None
) -> Iterator[Target]:
    """A `leveret serve` on free ports, in memory unless arguments are given.

    Its log must not contain errors: no input of a client may cause an internal error.
    """
    command = [sys.executable, "-m", "leveret", "serve", "--amqp-port", "0", "--http-port", "0"]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [*command, *(arguments or ("--memory",))],
            stdout=subprocess.PIPE,
            stderr=log,
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
            text=True,
        )
        try:
            yield _wait_ready(process)
        finally:
            _stop(process)
            log.seek(0)
            text = log.read()
            sys.stderr.write(text)
    errors = [line for line in text.splitlines() if " ERROR " in line or "Traceback" in line]
    assert not errors, errors[:5]


def _wait_ready(process: subprocess.Popen[str]) -> Target:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("leveret ready"):
            addresses = dict(word.split("=", 1) for word in line.split()[2:])
            host, _, port = addresses["amqp"].rpartition(":")
            http_port = addresses["http"].rpartition(":")[2]
            return Target(
                host,
                int(port),
                http_port=int(http_port) if http_port.isdecimal() else 0,
                pid=process.pid,
                amqps_port=int(addresses.get("amqps", ":0").rpartition(":")[2]),
            )
    raise AssertionError(f"leveret ended before it was ready, exit code {process.wait()}")


def _stop(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise AssertionError(f"leveret did not stop within {STOP_SECONDS} s") from None
    finally:
        if process.stdout is not None:
            process.stdout.close()
