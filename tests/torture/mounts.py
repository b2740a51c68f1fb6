"""Small file systems to fill: a tmpfs, or ext4 on a file. Needs root, as `make test` in CI has."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.torture.process import end_leftovers

MIB = 1024 * 1024


@contextmanager
def small_disk(directory: Path, kind: str, size: int) -> Iterator[Path]:
    """A mounted file system of so many bytes; a tmpfs where there are no loop devices for ext4."""
    place = directory / f"mounted-{kind}"
    place.mkdir(parents=True)
    if kind == "tmpfs" or not _mount_image(directory / "disk.img", size, place):
        problem = _run("mount", "-t", "tmpfs", "-o", f"size={size}", "leveret-torture", str(place))
        if problem:
            raise RuntimeError(f"{problem} (are we root?)")
    try:
        yield place
    finally:
        end_leftovers()
        unmount(place)


def _mount_image(image: Path, size: int, place: Path) -> bool:
    with image.open("wb") as file:
        file.truncate(size)
    make = ("mkfs.ext4", "-q", "-m", "0", "-E", "nodiscard", str(image))
    return not _run(*make) and not _run("mount", "-o", "loop", str(image), str(place))


def unmount(place: Path) -> None:
    problem = _run("umount", "--lazy", str(place))
    if problem:
        raise RuntimeError(problem)


def write_ballast(path: Path, size: int) -> None:
    """Take so much space, for real."""
    with path.open("wb") as file:
        for _ in range(size // MIB):
            file.write(os.urandom(4096) * (MIB // 4096))
        file.flush()
        os.fsync(file.fileno())


def reserve(path: Path, size: int) -> None:
    """Take so much space, without writing it."""
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, size)


def _run(*command: str) -> str:
    """Run it; what went wrong, or nothing."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        return str(error)
    return f"{' '.join(command)}: {done.stderr.strip()}" if done.returncode else ""
