"""Creating the files of a new log.

Runs on the writer thread, in the batch that stores the log's definition, or for a wide log on a
thread of its own before that batch; so the loop never waits for it. Nothing here is synced: if the
files of an empty log are lost or torn, opening it creates them again. The first record syncs its
segment and the directory. Only the entry in the parent directory must be on disk before the
definition, so that an older directory of the same name is never mistaken for the log.
"""

import errno
import logging
import os
import shutil
from pathlib import Path

from leveret.queues.log.files.checkpoint_file import (
    NO_SNAPSHOT,
    Checkpoint,
    encode_checkpoint,
    open_checkpoint,
    write_log_id,
)
from leveret.queues.log.files.segment import index_path, log_path

FULL = (errno.ENOSPC, errno.EDQUOT)
INODES_PER_LOG = 5
"""The directory, `log.id`, `committed`, a segment and its index."""

logger = logging.getLogger("leveret.log")


def create_log_files(directory: Path, log_id: int) -> tuple[int, int, int]:
    """Create the directory and files of an empty log.

    Returns the descriptors of the segment, its index and the checkpoint. After an error nothing is
    left of them.
    """
    try:
        directory.mkdir(parents=True)
    except FileExistsError:
        move_aside(directory)
        directory.mkdir()
    try:
        write_log_id(directory, log_id)
        checkpoint = open_checkpoint(directory)
        try:
            os.pwrite(checkpoint, encode_checkpoint(Checkpoint(0, 0, 0, 0, NO_SNAPSHOT)), 0)
            return *open_segment(directory, 0, os.O_RDWR | os.O_CREAT | os.O_TRUNC), checkpoint
        except OSError:
            os.close(checkpoint)
            raise
    except OSError:
        shutil.rmtree(directory, ignore_errors=True)
        raise


def open_segment(directory: Path, base: int, flags: int) -> tuple[int, int]:
    """Open a segment for writing, and its index."""
    flags |= os.O_CLOEXEC
    segment = os.open(log_path(directory, base), flags, 0o644)
    try:
        path = index_path(directory, base)
        return segment, os.open(path, flags | os.O_APPEND | os.O_CREAT, 0o644)
    except OSError:
        os.close(segment)
        if flags & os.O_TRUNC:  # it is new: an empty segment would end the one before it
            log_path(directory, base).unlink()
        raise


def has_no_inodes(directory: Path) -> bool:
    """Whether the file system has too few inodes (unused files) for another log."""
    status = os.statvfs(next(path for path in directory.parents if path.exists()))
    return status.f_files > 0 and status.f_favail < INODES_PER_LOG


def explained(error: OSError, directory: Path) -> OSError:
    """The error of creating a log in `directory`; a lack of inodes is not a full disk."""
    if error.errno in FULL and has_no_inodes(directory):
        return OSError(error.errno, "no inodes are left on the file system: delete files from it")
    return error


def move_aside(directory: Path) -> None:
    """Rename an existing directory: a new log never reuses one."""
    number = 1
    while (aside := directory.with_name(f"{directory.name}.found-{number}")).exists():
        number += 1
    directory.rename(aside)
    logger.warning("%s existed before its log was created: renamed to %s", directory, aside.name)
