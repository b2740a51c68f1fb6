"""Installs brokers from Debian's packages if they are missing, without starting their services."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.brokers import NATS_SERVER, RABBITMQ_SERVER, REDIS_SERVER, Kind, StartError

_POLICY = Path("/usr/sbin/policy-rc.d")
_REFUSE_STARTS = "#!/bin/sh\nexit 101\n"
_PACKAGES = {
    Kind.RABBITMQ: (RABBITMQ_SERVER, "rabbitmq-server"),
    Kind.NATS: (NATS_SERVER, "nats-server"),
    Kind.REDIS: (REDIS_SERVER, "redis-server"),
}


def ensure_installed(kind: Kind, report: Callable[[str], None]) -> None:
    """Install the package of a broker with apt-get if its program is missing."""
    if kind not in _PACKAGES:
        return
    program, package = _PACKAGES[kind]
    if program.exists():
        return
    if not shutil.which("apt-get"):
        raise StartError(
            f"{kind.label} is missing and there is no apt-get: install {program}, then try again"
        )
    if os.geteuid() != 0:
        raise StartError(f"{kind.label} is missing: run `sudo apt-get install {package}` first")
    report(f"installing {package} from Debian's packages (it is not started as a service)")
    with _no_service_starts():
        _apt_get("update")
        _apt_get("install", "-y", "--no-install-recommends", package)
    if not program.exists():
        raise StartError(f"{package} is installed, but {program} does not exist")


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
