"""Clients in other languages, unchanged, against a real broker.

Each program performs the same operations and prints `ok STEP` after each; operations without a
method in the client are missing from its list here. The Node client is part of every run, because
`make setup` installs amqplib for the web UI; the others need compilers and interpreters that
`make clients` installs with apt-get. `--broker URL` runs all of them against another broker.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.support.brokers import Target
from tools.build_ui import maybe_packaged_node, maybe_system_node

HERE = Path(__file__).parent
JARS = "/usr/share/java/amqp-client.jar:/usr/share/java/slf4j-api.jar"
GO = {"GOPATH": "/usr/share/gocode", "GO111MODULE": "off"}
SECONDS = 90

STEPS = (
    "declare", "confirms", "consume", "requeue", "return", "get", "dead-letter", "transaction",
    "reply-to", "cancelled", "refused", "heartbeat", "close",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Client:
    """How to build, if necessary, and run a program; `{out}` is the folder for build results."""

    run: tuple[str, ...]
    build: tuple[str, ...] = ()
    lacks: frozenset[str] = frozenset()
    only: tuple[str, ...] = STEPS

    @property
    def steps(self) -> set[str]:
        return set(self.only) - self.lacks


CLIENTS = {
    "node": Client(("node", "node/client.mjs"), lacks=frozenset({"transaction"})),
    "go": Client(("{out}/client",), build=("go", "build", "-o", "{out}/client", "go/client.go")),
    "ruby": Client(("ruby", "ruby/client.rb")),
    "java": Client(
        ("java", "-cp", f"{{out}}:{JARS}", "Client"),
        build=("javac", "-d", "{out}", "-cp", JARS, "java/Client.java"),
    ),
    "php": Client(("php", "php/client.php")),
    "php-ext": Client(
        ("php", "php-ext/client.php"), lacks=frozenset({"reply-to", "cancelled", "heartbeat"})
    ),
    "c": Client(
        ("{out}/client",),
        build=("gcc", "-Wall", "-Werror", "-o", "{out}/client", "c/client.c", "-lrabbitmq"),
        lacks=frozenset({"reply-to", "cancelled"}),
    ),
    "amqp-tools": Client(
        ("sh", "amqp-tools/client.sh"), only=("declare", "get", "consume", "refused")
    ),
}


def execute(command: tuple[str, ...], out: Path, *arguments: str) -> str:
    words = [word.format(out=out) for word in command]
    environment = {**os.environ, **GO, "GOCACHE": str(out / "cache")}
    ended = subprocess.run(
        [*words, *arguments],
        cwd=HERE,
        env=environment,
        timeout=SECONDS,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, f"{words[0]}: {ended.stdout}{ended.stderr}"
    return ended.stdout


def run_client(client: Client, broker: Target, tmp_path: Path, prefix: str) -> None:
    if client.build:
        execute(client.build, tmp_path)
    output = execute(client.run, tmp_path, broker.url, f"{prefix}-{os.getpid()}")
    done = {line.removeprefix("ok ") for line in output.splitlines() if line.startswith("ok ")}
    assert done == client.steps


def test_node_client(broker: Target, tmp_path: Path) -> None:
    node = maybe_system_node() or maybe_packaged_node()
    assert node is not None, "`make setup` installs node"
    client = replace(CLIENTS["node"], run=(str(node.folder / "node"), "node/client.mjs"))
    run_client(client, broker, tmp_path, "node")


@pytest.mark.clients
@pytest.mark.parametrize("name", [name for name in CLIENTS if name != "node"])
def test_client_in_another_language(broker: Target, tmp_path: Path, name: str) -> None:
    tool = CLIENTS[name].build or CLIENTS[name].run
    assert shutil.which(tool[0]), f"{tool[0]} is missing: `make clients` installs it"
    run_client(CLIENTS[name], broker, tmp_path, name)
