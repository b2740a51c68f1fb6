"""Follows README and docs as a new user would, and prints a line for each result.

    python -m tests.packaging.first_steps install    needs a network for pip and npm
    python -m tests.packaging.first_steps serve      on the ports of the page

Runs inside first-steps.sh: the checkout is in /opt/clone, the commands of the pages in /opt/shared.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pika

CLONE = Path("/opt/clone")
SHARED = Path("/opt/shared")
TIMEOUT_SECONDS = 300
OWN_VARIABLES = ("ARGS", "MAKE", "MFLAGS", "PYTEST", "PYTHON", "VIRTUAL_ENV")
ENVIRONMENT = {
    name: value for name, value in os.environ.items() if not name.startswith(OWN_VARIABLES)
}


def report(name: str, value: object) -> None:
    print(f"{name}: {value}", flush=True)


@contextmanager
def started(line: str) -> Iterator[str]:
    """The ready line of a broker in another terminal, which is stopped with Ctrl-C."""
    process = subprocess.Popen(
        ["env", "--default-signal=INT", "bash", "-euc", line],
        cwd=CLONE,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    output = []
    for text in process.stdout:
        output.append(text.strip())
        if text.startswith("leveret ready "):
            break
    assert output and output[-1].startswith("leveret ready "), output
    report("dashboard", "Starting without the web UI" not in " ".join(output))
    yield output[-1]
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=TIMEOUT_SECONDS)
    report("interrupted", process.returncode)


def install() -> None:
    with started(f'{run_line()} ARGS="--amqp-port 0 --http-port 0"'):
        pass
    shell = ["bash", "-eux", str(SHARED / "pip.sh")]
    subprocess.run(shell, cwd=CLONE, env=ENVIRONMENT, check=True, stdout=sys.stderr)
    python = [str(CLONE / ".venv/bin/python"), "-W", "error", str(SHARED / "program.py")]
    result = subprocess.run(
        python, cwd=SHARED, env=ENVIRONMENT, check=True, stdout=subprocess.PIPE, text=True
    )
    report("program", result.stdout.strip())


def serve() -> None:
    with started(run_line()) as ready:
        report("ready", ready)
        connection = pika.BlockingConnection(pika.URLParameters("amqp://guest:guest@127.0.0.1/"))
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("hares", durable=True)
        channel.basic_publish("", "hares", b"run", pika.BasicProperties(delivery_mode=2))
        report("message", channel.basic_get("hares", auto_ack=True)[2].decode())
        connection.close()
        with urllib.request.urlopen("http://127.0.0.1:15672", timeout=TIMEOUT_SECONDS) as page:
            report("page", "<script" in page.read().decode())


def run_line() -> str:
    return (SHARED / "run.sh").read_text()


if __name__ == "__main__":
    {"install": install, "serve": serve}[sys.argv[1]]()
