"""The unit file as systemd sees it, and, on request (`make deploy-check`), as it runs it."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from tests.docs.blocks import blocks_of
from tests.packaging.copies import HERE, SECONDS, on_a_copy
from tests.support.brokers import ROOT, running_leveret

DEPLOY = ROOT / "docs" / "deploy"
PROGRAM = "/opt/leveret/bin/leveret"
EXPOSED_AT_MOST = 20  # of 100; what systemd calls OK


def analyzed(*words: str) -> str:
    done = subprocess.run(
        ["systemd-analyze", *words], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The same, with a program that is there on every machine."""
    text = (DEPLOY / "leveret.service").read_text()
    assert text.count(PROGRAM) == 1
    unit = tmp_path / "leveret.service"
    unit.write_text(text.replace(PROGRAM, "/bin/true"))
    return unit


def test_systemd_understands_every_line(unit: Path) -> None:
    assert unit.name not in analyzed("verify", str(unit))


def test_a_mistake_would_be_found(unit: Path) -> None:
    unit.write_text(unit.read_text().replace("PrivateTmp", "PrivatTmp"))
    assert "PrivatTmp" in analyzed("verify", str(unit))


def test_it_may_do_little(unit: Path) -> None:
    told = analyzed("security", "--offline=true", f"--threshold={EXPOSED_AT_MOST}", str(unit))
    (level,) = re.findall(r"Overall exposure level for leveret.service: ([\d.]+)", told)
    assert 0 < float(level) * 10 <= EXPOSED_AT_MOST


@pytest.mark.parametrize("name", ["{folder}/notify", "@leveret-test-{pid}"])
def test_a_supervisor_is_told(tmp_path: Path, name: str) -> None:
    """The protocol of sd_notify, by a file and by an abstract name."""
    address = name.format(folder=tmp_path, pid=os.getpid())
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.bind(address.replace("@", "\0", 1))
        supervisor.settimeout(60)
        with running_leveret("--memory", environment={"NOTIFY_SOCKET": address}):
            assert supervisor.recv(100) == b"READY=1"
        assert supervisor.recv(100) == b"STOPPING=1"


@pytest.mark.parametrize("address", ["/nowhere/notify", "nonsense", ""])
def test_a_supervisor_that_does_not_listen_is_no_harm(address: str) -> None:
    with running_leveret("--memory", environment={"NOTIFY_SOCKET": address}) as target:
        target.connect().close()


@pytest.mark.deploy
@pytest.mark.timeout(2 * SECONDS)
def test_it_runs_below_systemd(tmp_path: Path) -> None:
    """A real systemd boots on a copy of this machine; as root, with a network for pip.

    What docs/operations.md says is run there, before the boot as far as no systemd is needed.
    """
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    (block,) = [one for one in blocks_of(page, "operations.md") if "systemctl" in one.text]
    lines = [line for line in block.text.splitlines() if not line.startswith("journalctl")]
    is_late = [line.startswith("systemctl") for line in lines]
    for name, wanted in (("install.sh", False), ("start.sh", True)):
        chosen = [line for line, late in zip(lines, is_late, strict=True) if late is wanted]
        (tmp_path / name).write_text("\n".join(chosen) + "\n")
    shutil.copy(HERE / "probe.sh", tmp_path)
    booted = on_a_copy("boot.sh", tmp_path, spaces=("--cgroup",))
    probed = tmp_path / "probe.out"
    assert probed.exists(), booted.stdout + booted.stderr
    text = probed.read_text()
    told = dict(line.split(": ", 1) for line in text.splitlines()[:20] if ": " in line)
    expected = {
        "started": "active",
        "user": "admin\t[administrator]",
        "capabilities": "0" * 16,
        "directory": "700",
        "restarted": "kept 1",
        "killed": "kept 1",
        "stopped": "success",
    }
    assert {name: told.get(name) for name in expected} == expected, text
