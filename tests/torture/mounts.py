"""Small file systems to fill: a tmpfs, or ext4 in a file. Needs root."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.torture.process import kill_leftover_brokers

MIB = 1024 * 1024


@contextmanager
def small_disk(directory: Path, kind: str, size: int, inodes: int | None = None) -> Iterator[Path]:
    """A mounted file system of this size; a tmpfs if there are no loop devices for ext4.

    With `inodes`, always a tmpfs for that many files.
    """
    mountpoint = directory / f"mounted-{kind}"
    mountpoint.mkdir(parents=True)
    options = f"size={size}" + (f",nr_inodes={inodes}" if inodes else "")
    if kind == "tmpfs" or not _mount_image(directory / "disk.img", size, mountpoint):
        problem = _run("mount", "-t", "tmpfs", "-o", options, "leveret-torture", str(mountpoint))
        if problem:
            raise RuntimeError(f"{problem} (are we root?)")
    try:
        yield mountpoint
    finally:
        kill_leftover_brokers()
        unmount(mountpoint)


def _mount_image(image: Path, size: int, mountpoint: Path) -> bool:
    with image.open("wb") as file:
        file.truncate(size)
    make = ("mkfs.ext4", "-q", "-m", "0", "-E", "nodiscard", str(image))
    return not _run(*make) and not _run("mount", "-o", "loop", str(image), str(mountpoint))


def unmount(mountpoint: Path) -> None:
    problem = _run("umount", "--lazy", str(mountpoint))
    if problem:
        raise RuntimeError(problem)


def write_ballast(path: Path, size: int) -> None:
    """Use this much space by writing it."""
    with path.open("wb") as file:
        for _ in range(size // MIB):
            file.write(os.urandom(4096) * (MIB // 4096))
        file.flush()
        os.fsync(file.fileno())


def reserve(path: Path, size: int) -> None:
    """Use this much space without writing it."""
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, size)


def _run(*command: str) -> str:
    """Run a command; return its error, or an empty string."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        return str(error)
    return f"{' '.join(command)}: {done.stderr.strip()}" if done.returncode else ""
