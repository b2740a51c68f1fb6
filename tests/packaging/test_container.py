"""Builds and runs the container with podman, on request (`make deploy-check`)."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.docs.blocks import blocks_of
from tests.packaging.copies import TIMEOUT_SECONDS, run_on_copy
from tests.support.brokers import ROOT

CGROUP_ROOT = Path("/sys/fs/cgroup")


def commands() -> list[str]:
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    (block,) = [block for block in blocks_of(page, "operations.md") if "podman" in block.text]
    return block.text.splitlines()


def base_image() -> str:
    text = (ROOT / "docs" / "deploy" / "Containerfile").read_text()
    (name,) = set(re.findall(r"^FROM (\S+)", text, re.MULTILINE))
    return str(name)


def control_groups() -> set[Path]:
    """The control groups of podman, in all hierarchies."""
    names = ("libpod_parent", "buildah-*")
    return {
        path for name in names for parent in ("", "*/") for path in CGROUP_ROOT.glob(parent + name)
    }


@contextmanager
def cleaned_up(folder: Path) -> Iterator[None]:
    """Remove the images and control groups that podman leaves behind."""
    before = control_groups()
    try:
        yield
    finally:
        if (folder / "storage").exists():
            shutil.rmtree(folder / "storage")
        for group in control_groups() - before:
            below = [path for path in group.rglob("*") if path.is_dir()]
            for path in [*sorted(below, reverse=True), group]:
                path.rmdir()


def test_container_file_starts_with_its_build_command() -> None:
    text = (ROOT / "docs" / "deploy" / "Containerfile").read_text()
    assert text.splitlines()[0] == f"# {commands()[0]}"


@pytest.mark.deploy
@pytest.mark.timeout(2 * TIMEOUT_SECONDS)
def test_broker_runs_in_a_container(tmp_path: Path) -> None:
    """Runs the two commands of docs/operations.md with podman; needs root and a network.

    The base image is a substitute of the same name, because the real one would need a registry: it
    is Debian with the same version of Python from Debian.
    """
    build, run = commands()
    (tmp_path / "build.sh").write_text(build)
    (tmp_path / "run.sh").write_text(run)
    with cleaned_up(tmp_path):
        result = run_on_copy("contain.sh", tmp_path, sys.executable, base_image())
    output = result.stdout + result.stderr
    assert result.returncode == 0, output
    (version,) = re.findall(r"python:([\d.]+)-slim$", base_image())
    assert (tmp_path / "python").read_text().startswith(f"Python {version}."), "wrong base image"
    assert "Building the web UI." in output
    assert (tmp_path / "probe.out").read_text().splitlines() == [
        "message: through",
        "dashboard: True",
        "health: healthy",
        "user: leveret",
        "data: leveret 700",
        "stopped: 0",
        "kept: kept",
        "stopped: 0",
        "limited: True",
        "stopped: 0",
    ]
