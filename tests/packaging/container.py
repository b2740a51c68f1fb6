"""What a user of the container sees; each answer on a line of its own.

    python -m tests.packaging.container RUN.SH    RUN.SH has the line of the page

Inside of contain.sh: the network, the processes and the storage are nobody else's.
"""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pika

SECONDS = 120
SITE = "http://127.0.0.1:15672"


def say(name: str, value: object) -> None:
    print(f"{name}: {value}", flush=True)


def podman(*words: str) -> str:
    done = subprocess.run(
        ["podman", *words], stdout=subprocess.PIPE, text=True, check=True, timeout=SECONDS
    )
    return done.stdout.strip()


@contextmanager
def running(line: str) -> Iterator[str]:
    """The id of a container that says it is ready; stopped and removed at the end."""
    shell = subprocess.Popen(["bash", "-euc", line], stdout=subprocess.PIPE, text=True)
    assert shell.stdout is not None
    assert shell.stdout.readline().startswith("leveret ready "), shell.wait(SECONDS)
    container = podman("ps", "--quiet")
    yield container
    podman("stop", container)
    shell.communicate(timeout=SECONDS)
    say("stopped", shell.returncode)
    podman("rm", container)


@contextmanager
def connected() -> Iterator[pika.adapters.blocking_connection.BlockingChannel]:
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", 5672))
    channel = connection.channel()
    channel.confirm_delivery()
    yield channel
    connection.close()


def try_it(line: str) -> None:
    with running(line) as container, connected() as channel:
        channel.queue_declare("kept", durable=True)
        for body in (b"through", b"kept"):
            channel.basic_publish("", "kept", body, pika.BasicProperties(delivery_mode=2))
        say("message", channel.basic_get("kept", auto_ack=True)[2].decode())
        with urllib.request.urlopen(SITE, timeout=SECONDS) as page:
            say("dashboard", "<script" in page.read().decode())
        podman("healthcheck", "run", container)
        say("health", podman("inspect", "--format", "{{.State.Health.Status}}", container))
        say("user", podman("exec", container, "id", "--user", "--name"))
        say("data", podman("exec", container, "stat", "--format", "%U %a", "/data"))


def try_what_is_kept(line: str) -> None:
    with running(line), connected() as channel:
        say("kept", channel.basic_get("kept", auto_ack=True)[2].decode())


def try_a_limit(line: str) -> None:
    """The broker takes the memory limit of its control group for the memory of the machine."""
    limited = line.replace("podman run ", "podman run --memory 512m ", 1)
    with running(limited), urllib.request.urlopen(f"{SITE}/metrics", timeout=SECONDS) as page:
        name = "rabbitmq_resident_memory_limit_bytes "
        lines = page.read().decode().splitlines()
        (limit,) = [one.removeprefix(name) for one in lines if one.startswith(name)]
        say("limited", 0 < float(limit) < 512 << 20)


def main() -> None:
    line = Path(sys.argv[1]).read_text()
    try_it(line)
    try_what_is_kept(line)
    try_a_limit(line)


if __name__ == "__main__":
    main()
