"""Runs the first commands of README and docs, on request (`make deploy-check`)."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import all_blocks, blocks_of
from tests.docs.session import lines_of
from tests.packaging.copies import TIMEOUT_SECONDS, run_on_copy
from tests.support.brokers import ROOT

STOPPED = f"interrupted: {-signal.SIGINT}"  # make ends with SIGINT, after the broker


def test_first_commands_are_found() -> None:
    assert run_line() == "make run"
    assert len(pip_lines()) >= 3


def run_line() -> str:
    blocks = blocks_of((ROOT / "README.md").read_text(encoding="utf-8"), "README.md")
    return lines_of(blocks[0].text)[0]


def pip_lines() -> list[str]:
    """The `pip install` lines of all pages, without duplicates."""
    lines = [
        line for block in all_blocks() if block.language == "sh" for line in lines_of(block.text)
    ]
    return list(dict.fromkeys(line for line in lines if line.startswith("pip install ")))


def program() -> str:
    blocks = blocks_of((ROOT / "README.md").read_text(encoding="utf-8"), "README.md")
    return next(block.text for block in blocks if block.language == "python")


@pytest.mark.deploy
@pytest.mark.timeout(2 * TIMEOUT_SECONDS)
def test_first_commands_work(tmp_path: Path) -> None:
    """Runs `make run` in a new checkout, every `pip install` and the first program; needs root."""
    (tmp_path / "run.sh").write_text(run_line())
    (tmp_path / "pip.sh").write_text("\n".join([". .venv/bin/activate", *pip_lines(), "pip check"]))
    (tmp_path / "program.py").write_text(program())
    result = run_on_copy("first-steps.sh", tmp_path, sys.executable)
    assert result.returncode == 0, result.stdout + result.stderr
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    reports = (tmp_path / "probe.out").read_text().splitlines()
    (ready,) = [line.removeprefix("ready: ") for line in reports if line.startswith("ready: ")]
    assert f"`{ready}`" in readme
    assert reports == [
        "dashboard: True",
        STOPPED,
        "program: b'run'",
        "dashboard: True",
        f"ready: {ready}",
        "message: run",
        "page: True",
        STOPPED,
    ]
