"""Uses the container as its users do, and prints a line for each result.

    python -m tests.packaging.container RUN.SH    RUN.SH has the command of the page

Runs inside contain.sh, with its own network, processes and storage.
"""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pika

TIMEOUT_SECONDS = 120
SITE = "http://127.0.0.1:15672"


def report(name: str, value: object) -> None:
    print(f"{name}: {value}", flush=True)


def podman(*words: str) -> str:
    result = subprocess.run(
        ["podman", *words], stdout=subprocess.PIPE, text=True, check=True, timeout=TIMEOUT_SECONDS
    )
    return result.stdout.strip()


@contextmanager
def running(line: str) -> Iterator[str]:
    """The id of a container whose broker is ready; stopped and removed at the end."""
    shell = subprocess.Popen(["bash", "-euc", line], stdout=subprocess.PIPE, text=True)
    assert shell.stdout is not None
    assert shell.stdout.readline().startswith("leveret ready "), shell.wait(TIMEOUT_SECONDS)
    container = podman("ps", "--quiet")
    yield container
    podman("stop", container)
    shell.communicate(timeout=TIMEOUT_SECONDS)
    report("stopped", shell.returncode)
    podman("rm", container)


@contextmanager
def connected() -> Iterator[pika.adapters.blocking_connection.BlockingChannel]:
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", 5672))
    channel = connection.channel()
    channel.confirm_delivery()
    yield channel
    connection.close()


def try_container(line: str) -> None:
    with running(line) as container, connected() as channel:
        channel.queue_declare("kept", durable=True)
        for body in (b"through", b"kept"):
            channel.basic_publish("", "kept", body, pika.BasicProperties(delivery_mode=2))
        report("message", channel.basic_get("kept", auto_ack=True)[2].decode())
        with urllib.request.urlopen(SITE, timeout=TIMEOUT_SECONDS) as page:
            report("dashboard", "<script" in page.read().decode())
        podman("healthcheck", "run", container)
        report("health", podman("inspect", "--format", "{{.State.Health.Status}}", container))
        report("user", podman("exec", container, "id", "--user", "--name"))
        report("data", podman("exec", container, "stat", "--format", "%U %a", "/data"))


def try_restart(line: str) -> None:
    with running(line), connected() as channel:
        report("kept", channel.basic_get("kept", auto_ack=True)[2].decode())


def try_memory_limit(line: str) -> None:
    """The broker uses the memory limit of its control group as the memory of the machine."""
    limited = line.replace("podman run ", "podman run --memory 512m ", 1)
    with (
        running(limited),
        urllib.request.urlopen(f"{SITE}/metrics", timeout=TIMEOUT_SECONDS) as page,
    ):
        name = "rabbitmq_resident_memory_limit_bytes "
        lines = page.read().decode().splitlines()
        (limit,) = [row.removeprefix(name) for row in lines if row.startswith(name)]
        report("limited", 0 < float(limit) < 512 << 20)


def main() -> None:
    line = Path(sys.argv[1]).read_text()
    try_container(line)
    try_restart(line)
    try_memory_limit(line)


if __name__ == "__main__":
    main()
