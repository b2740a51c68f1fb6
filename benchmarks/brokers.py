"""The brokers as processes: started on free loopback ports, each in its own directory.

Leveret and RabbitMQ run with their default settings and all cores. RabbitMQ runs as the current
user, with its own node name, cookie, port mapper and no configuration file, so it shares nothing
with a RabbitMQ that is already running on the machine. NATS and Redis are told to sync each write
before they acknowledge it, as the other two do. Each broker has its own session, so an interrupt at
the terminal reaches only the benchmark, which then stops the brokers by process id and removes
their directories.
"""

import compileall
import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path

import psutil

from benchmarks.connection import Address
from leveret.testing.ports import free_port

HOST = "127.0.0.1"
RABBITMQ_SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
NATS_SERVER = Path(os.environ.get("NATS_SERVER", "/usr/sbin/nats-server"))
REDIS_SERVER = Path(os.environ.get("REDIS_SERVER", "/usr/bin/redis-server"))
NATS_CAN_SYNC_SINCE = (2, 10)
"""The first version of NATS with `sync_interval: always`."""

ROOT = Path(__file__).resolve().parents[1]
_START_TIMEOUT = 180.0
_STOP_TIMEOUT = 20.0
_POLL_SECONDS = 0.002


class StartError(Exception):
    """A broker did not start or has exited."""


class Kind(StrEnum):
    LEVERET = "leveret"
    RABBITMQ = "rabbitmq"
    NATS = "nats"
    REDIS = "redis"

    @property
    def label(self) -> str:
        return _LABELS[self]


_LABELS = {
    Kind.LEVERET: "Leveret",
    Kind.RABBITMQ: "RabbitMQ",
    Kind.NATS: "NATS",
    Kind.REDIS: "Redis",
}
_GREETINGS = {
    Kind.LEVERET: b"AMQP\0\0\x09\x01",
    Kind.RABBITMQ: b"AMQP\0\0\x09\x01",
    Kind.NATS: b"",  # the server speaks first
    Kind.REDIS: b"PING\r\n",
}


@dataclass(frozen=True, slots=True)
class Checkout:
    """Leveret's source code, and an interpreter that has its dependencies."""

    root: Path
    python: Path

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(self.root)}


CURRENT = Checkout(ROOT, Path(sys.executable))


@dataclass(slots=True)
class RunningBroker:
    """A started broker. `seconds` is the time from exec to the first answer to a client."""

    kind: Kind
    address: Address
    process: subprocess.Popen[bytes]
    directory: Path
    helpers: Sequence[subprocess.Popen[bytes]] = ()
    seconds: float = 0.0
    checkout: Checkout = CURRENT

    def another(
        self,
        settings: Mapping[str, str] | None = None,
        data: Path | None = None,
        module: str = "leveret",
    ) -> "RunningBroker":
        """Start another broker of the same kind and the same code; see `start`."""
        return start(self.kind, settings, data, module, self.checkout)

    def resident(self) -> int:
        """Resident memory of the broker and its child processes, in bytes."""
        return sum(process.memory_info().rss for process in self._tree())

    def cpu_seconds(self) -> float:
        times = [process.cpu_times() for process in self._tree()]
        return float(sum(time.user + time.system for time in times))

    def log_tail(self) -> str:
        log = self.directory / "output.log"
        text = log.read_text(errors="replace") if log.exists() else ""
        return "\n".join(text.splitlines()[-15:])

    def stop(self) -> None:
        """Stop the broker and its helpers by process id, and remove its directory."""
        children = [] if self.process.poll() is not None else self._tree()[1:]
        for process in (self.process, *self.helpers):
            _stop(process)
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _tree(self) -> list[psutil.Process]:
        if self.process.poll() is not None:
            raise StartError(
                f"{self.kind} exited with code {self.process.returncode}\n{self.log_tail()}"
            )
        parent = psutil.Process(self.process.pid)
        return [parent, *parent.children(recursive=True)]


def start(
    kind: Kind,
    settings: Mapping[str, str] | None = None,
    data: Path | None = None,
    module: str = "leveret",
    checkout: Checkout = CURRENT,
) -> RunningBroker:
    """Start a broker and wait until it answers a client.

    For Leveret, `settings` are additional environment variables, `data` is a directory that is
    kept when the broker stops (by default a new one, which is removed), `module` is run with the
    arguments of `leveret serve`, and `checkout` is the code to run.
    """
    match kind:
        case Kind.LEVERET:
            return _start_leveret(settings or {}, data, module, checkout)
        case Kind.RABBITMQ:
            return _start_rabbitmq()
        case Kind.NATS:
            return _start_nats()
        case Kind.REDIS:
            return _start_redis()


@cache
def _compile(root: Path) -> None:
    """Compile to bytecode in advance, as installing a package does."""
    for package in ("leveret", "amqp_server", "queues", "exchange", "bindings", "http_admin"):
        compileall.compile_dir(root / package, quiet=2, rx=re.compile("node_modules"))


def _start_leveret(
    settings: Mapping[str, str], data: Path | None, module: str, checkout: Checkout
) -> RunningBroker:
    _compile(checkout.root)
    directory = Path(tempfile.mkdtemp(prefix="leveret-bench-"))
    port = free_port()
    command = [str(checkout.python), "-m", module, "serve", "--host", HOST]
    command += ["--data-dir", str(data or directory / "data")]
    command += ["--amqp-port", str(port)]
    environment = {**checkout.environment, "LEVERET_HTTP_PORT": "0", **settings}
    address = Address(HOST, port)
    return _launch(Kind.LEVERET, command, environment, directory, address, checkout=checkout)


def _start_rabbitmq() -> RunningBroker:
    if not RABBITMQ_SERVER.exists():
        raise StartError(f"{RABBITMQ_SERVER} is missing: install rabbitmq-server")
    directory = Path(tempfile.mkdtemp(prefix="rabbitmq-bench-"))
    port, epmd_port = free_port(), free_port()
    environment = _rabbitmq_environment(directory, port, epmd_port)
    epmd = subprocess.Popen(
        ["epmd", "-port", str(epmd_port), "-address", HOST],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,
    )
    command = [str(RABBITMQ_SERVER)]
    address = Address(HOST, port)
    return _launch(Kind.RABBITMQ, command, environment, directory, address, [epmd])


def _start_nats() -> RunningBroker:
    """JetStream with file storage; each message is synced, if the version can."""
    sync = "sync_interval: always" if nats_version() >= NATS_CAN_SYNC_SINCE else ""
    directory = Path(tempfile.mkdtemp(prefix="nats-bench-"))
    port = free_port()
    file = directory / "nats.conf"
    file.write_text(
        f"listen: {HOST}:{port}\n"
        f"server_name: bench{port}\n"
        f'jetstream {{\n  store_dir: "{directory / "data"}"\n  {sync}\n}}\n'
    )
    command = [str(NATS_SERVER), "--config", str(file)]
    return _launch(Kind.NATS, command, dict(os.environ), directory, Address(HOST, port))


def nats_version() -> tuple[int, ...]:
    """The version of the installed NATS."""
    if not NATS_SERVER.exists():
        raise StartError(f"{NATS_SERVER} is missing: install nats-server")
    command = [str(NATS_SERVER), "--version"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"(\d+)\.(\d+)\.(\d+)", text)
    if not found:
        raise StartError(f"{NATS_SERVER} --version prints no version: {text.strip()}")
    return tuple(map(int, found.groups()))


def _start_redis() -> RunningBroker:
    """Redis without a configuration file; each write is synced before its reply.

    Its snapshots are off: the append-only file already has everything.
    """
    if not REDIS_SERVER.exists():
        raise StartError(f"{REDIS_SERVER} is missing: install redis-server")
    directory = Path(tempfile.mkdtemp(prefix="redis-bench-"))
    port = free_port()
    command = [str(REDIS_SERVER), "--bind", HOST, "--port", str(port), "--dir", str(directory)]
    command += ["--appendonly", "yes", "--appendfsync", "always", "--save", ""]
    return _launch(Kind.REDIS, command, dict(os.environ), directory, Address(HOST, port))


def _rabbitmq_environment(directory: Path, port: int, epmd_port: int) -> dict[str, str]:
    (directory / "enabled_plugins").write_text("[].\n")
    (directory / "environment").write_text("")
    (directory / "rabbitmq.conf").write_text("")
    settings = {
        "HOME": str(directory),
        "RABBITMQ_NODENAME": f"bench{port}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": HOST,
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(free_port()),
        "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq"),
        "RABBITMQ_CONF_ENV_FILE": str(directory / "environment"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "enabled_plugins"),
        "RABBITMQ_MNESIA_BASE": str(directory / "mnesia"),
        "RABBITMQ_LOG_BASE": str(directory / "log"),
        "ERL_EPMD_PORT": str(epmd_port),
        "ERL_EPMD_ADDRESS": HOST,
        # With this the start script execs the broker instead of supervising it.
        "RUNNING_UNDER_SYSTEMD": "true",
    }
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("RABBITMQ_")}
    return {**inherited, **settings}


def _launch(
    kind: Kind,
    command: list[str],
    environment: dict[str, str],
    directory: Path,
    address: Address,
    helpers: Sequence[subprocess.Popen[bytes]] = (),
    checkout: Checkout = CURRENT,
) -> RunningBroker:
    with (directory / "output.log").open("wb") as log:
        began = time.monotonic()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            cwd=checkout.root,
            start_new_session=True,
        )
    running = RunningBroker(kind, address, process, directory, helpers, checkout=checkout)
    try:
        _wait_accepting(running)
    except BaseException:
        running.stop()
        raise
    running.seconds = time.monotonic() - began
    return running


def _wait_accepting(running: RunningBroker) -> None:
    def accepts() -> bool:
        try:
            with socket.create_connection((HOST, running.address.port), timeout=5) as sock:
                sock.sendall(_GREETINGS[running.kind])
                return bool(sock.recv(1))
        except OSError:
            return False

    if not wait_until(lambda: running.process.poll() is not None or accepts(), _START_TIMEOUT):
        raise StartError(f"{running.kind} did not accept a connection\n{running.log_tail()}")
    if running.process.poll() is not None:
        code = running.process.returncode
        raise StartError(f"{running.kind} exited with code {code}\n{running.log_tail()}")


def wait_until(condition: Callable[[], bool], within: float, poll: float = _POLL_SECONDS) -> bool:
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(poll)
    return True


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(_STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
