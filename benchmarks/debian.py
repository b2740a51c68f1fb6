"""Installs RabbitMQ from Debian's packages if it is missing, without starting its service."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.brokers import RABBITMQ_SERVER, StartError

_POLICY = Path("/usr/sbin/policy-rc.d")
_REFUSE_STARTS = "#!/bin/sh\nexit 101\n"


def ensure_rabbitmq(report: Callable[[str], None]) -> None:
    """Install rabbitmq-server with apt-get if it is missing."""
    if RABBITMQ_SERVER.exists():
        return
    if not shutil.which("apt-get"):
        raise StartError(
            "RabbitMQ is missing and there is no apt-get: install RabbitMQ, then try again"
        )
    if os.geteuid() != 0:
        raise StartError("RabbitMQ is missing: run `sudo apt-get install rabbitmq-server` first")
    report("installing rabbitmq-server from Debian's packages (it is not started as a service)")
    with _no_service_starts():
        _apt_get("update")
        _apt_get("install", "-y", "--no-install-recommends", "rabbitmq-server")


@contextmanager
def _no_service_starts() -> Iterator[None]:
    """Keep packages from starting their services, by a policy-rc.d that refuses it."""
    if _POLICY.exists():
        yield
        return
    _POLICY.write_text(_REFUSE_STARTS)
    _POLICY.chmod(0o755)
    try:
        yield
    finally:
        _POLICY.unlink()


def _apt_get(*arguments: str) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    finished = subprocess.run(
        ["apt-get", "-q", *arguments], env=environment, capture_output=True, text=True, check=False
    )
    if finished.returncode:
        raise StartError(f"apt-get {arguments[0]} failed:\n{finished.stderr.strip()}")
