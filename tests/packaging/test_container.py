"""The container file as podman builds and runs it, on request (`make deploy-check`)."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.docs.blocks import blocks_of
from tests.packaging.copies import SECONDS, on_a_copy
from tests.support.brokers import ROOT

GROUPS = Path("/sys/fs/cgroup")


def commands() -> list[str]:
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    (block,) = [one for one in blocks_of(page, "operations.md") if "podman" in one.text]
    return block.text.splitlines()


def base() -> str:
    text = (ROOT / "docs" / "deploy" / "Containerfile").read_text()
    (name,) = set(re.findall(r"^FROM (\S+)", text, re.MULTILINE))
    return str(name)


def groups() -> set[Path]:
    """Control groups that podman makes, in any of their hierarchies."""
    names = ("libpod_parent", "buildah-*")
    return {path for name in names for up in ("", "*/") for path in GROUPS.glob(up + name)}


@contextmanager
def nothing_left(folder: Path) -> Iterator[None]:
    before = groups()
    try:
        yield
    finally:
        if (folder / "storage").exists():
            shutil.rmtree(folder / "storage")
        for group in groups() - before:
            below = [path for path in group.rglob("*") if path.is_dir()]
            for path in [*sorted(below, reverse=True), group]:
                path.rmdir()


def test_the_container_file_says_how_to_build_it() -> None:
    text = (ROOT / "docs" / "deploy" / "Containerfile").read_text()
    assert text.splitlines()[0] == f"# {commands()[0]}"


@pytest.mark.deploy
@pytest.mark.timeout(2 * SECONDS)
def test_it_runs_in_a_container(tmp_path: Path) -> None:
    """The two lines of docs/operations.md, by a real podman; as root, with a network.

    Only the image that the container file begins with is not the real one, because that would
    need a registry: under its name stands the same version of Python from Debian, on Debian.
    """
    build, run = commands()
    (tmp_path / "build.sh").write_text(build)
    (tmp_path / "run.sh").write_text(run)
    with nothing_left(tmp_path):
        done = on_a_copy("contain.sh", tmp_path, sys.executable, base())
    told = done.stdout + done.stderr
    assert done.returncode == 0, told
    (version,) = re.findall(r"python:([\d.]+)-slim$", base())
    assert (tmp_path / "python").read_text().startswith(f"Python {version}."), "another stand-in"
    assert "Building the web UI." in told
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
