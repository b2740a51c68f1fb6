"""The unit file is valid and, on request (`make deploy-check`), is run by systemd."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from tests.docs.blocks import blocks_of
from tests.packaging.copies import HERE, TIMEOUT_SECONDS, run_on_copy
from tests.support.brokers import ROOT, running_leveret

DEPLOY = ROOT / "docs" / "deploy"
PROGRAM = "/opt/leveret/bin/leveret"
MAX_EXPOSURE = 20  # of 100; systemd calls this OK


def analyze(*words: str) -> str:
    result = subprocess.run(
        ["systemd-analyze", *words], capture_output=True, text=True, check=False, timeout=120
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout + result.stderr


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit file with a program that exists on every machine."""
    text = (DEPLOY / "leveret.service").read_text()
    assert text.count(PROGRAM) == 1
    unit = tmp_path / "leveret.service"
    unit.write_text(text.replace(PROGRAM, "/bin/true"))
    return unit


def test_systemd_accepts_every_line(unit: Path) -> None:
    assert unit.name not in analyze("verify", str(unit))


def test_mistake_is_reported(unit: Path) -> None:
    unit.write_text(unit.read_text().replace("PrivateTmp", "PrivatTmp"))
    assert "PrivatTmp" in analyze("verify", str(unit))


def test_unit_is_confined(unit: Path) -> None:
    output = analyze("security", "--offline=true", f"--threshold={MAX_EXPOSURE}", str(unit))
    (level,) = re.findall(r"Overall exposure level for leveret.service: ([\d.]+)", output)
    assert 0 < float(level) * 10 <= MAX_EXPOSURE


@pytest.mark.parametrize("name", ["{folder}/notify", "@leveret-test-{pid}"])
def test_supervisor_is_notified(tmp_path: Path, name: str) -> None:
    """Follows the sd_notify protocol, with a socket file and with an abstract name."""
    address = name.format(folder=tmp_path, pid=os.getpid())
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.bind(address.replace("@", "\0", 1))
        supervisor.settimeout(60)
        with running_leveret("--memory", environment={"NOTIFY_SOCKET": address}):
            assert supervisor.recv(100) == b"READY=1"
        assert supervisor.recv(100) == b"STOPPING=1"


@pytest.mark.parametrize("address", ["/nowhere/notify", "nonsense", ""])
def test_unreachable_supervisor_is_ignored(address: str) -> None:
    with running_leveret("--memory", environment={"NOTIFY_SOCKET": address}) as target:
        target.connect().close()


@pytest.mark.deploy
@pytest.mark.timeout(2 * TIMEOUT_SECONDS)
def test_broker_runs_under_systemd(tmp_path: Path) -> None:
    """Boots systemd on a copy of this machine; needs root, and a network for pip.

    The commands of docs/operations.md are run there; all but `systemctl` before the boot.
    """
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    (block,) = [block for block in blocks_of(page, "operations.md") if "systemctl" in block.text]
    lines = [line for line in block.text.splitlines() if not line.startswith("journalctl")]
    for name, needs_systemd in (("install.sh", False), ("start.sh", True)):
        script = [line for line in lines if line.startswith("systemctl") is needs_systemd]
        (tmp_path / name).write_text("\n".join(script) + "\n")
    shutil.copy(HERE / "probe.sh", tmp_path)
    boot = run_on_copy("boot.sh", tmp_path, namespaces=("--cgroup",))
    probe = tmp_path / "probe.out"
    assert probe.exists(), boot.stdout + boot.stderr
    text = probe.read_text()
    reports = dict(line.split(": ", 1) for line in text.splitlines()[:20] if ": " in line)
    expected = {
        "started": "active",
        "user": "admin\t[administrator]",
        "capabilities": "0" * 16,
        "directory": "700",
        "restarted": "kept 1",
        "killed": "kept 1",
        "stopped": "success",
    }
    assert {name: reports.get(name) for name in expected} == expected, text
