"""Making the files of a new log.

Runs in the writer's thread, in the batch that makes the log known, so the loop never waits for it.
Nothing here is synced: an empty log whose files are lost or torn is made anew when it is opened,
and the first record syncs all of them. Only the entries in the parent directory must be on disk
before the log is known (`FoundingSink`), so that what stood in the way is not taken for the log.
"""

import logging
import os
import shutil
from pathlib import Path

from queues.log.mark import NO_SNAPSHOT, Mark, encode_mark, write_log_id
from queues.log.segment import index_path, log_path

log = logging.getLogger("leveret.log")


def found_log(directory: Path, log_id: int) -> tuple[int, int, int]:
    """A new directory with the files of an empty log: the segment, its index and the mark, open.

    After an error there is nothing of it.
    """
    try:
        directory.mkdir(parents=True)
    except FileExistsError:
        set_aside(directory)
        directory.mkdir()
    try:
        write_log_id(directory, log_id)
        mark = os.open(directory / "committed", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        try:
            os.pwrite(mark, encode_mark(Mark(0, 0, 0, 0, NO_SNAPSHOT)), 0)
            return *open_segment(directory, 0, os.O_RDWR | os.O_CREAT | os.O_TRUNC), mark
        except OSError:
            os.close(mark)
            raise
    except OSError:
        shutil.rmtree(directory, ignore_errors=True)
        raise


def open_segment(directory: Path, base: int, flags: int) -> tuple[int, int]:
    """A segment to write to, and its index."""
    flags |= os.O_CLOEXEC
    segment = os.open(log_path(directory, base), flags, 0o644)
    try:
        path = index_path(directory, base)
        return segment, os.open(path, flags | os.O_APPEND | os.O_CREAT, 0o644)
    except OSError:
        os.close(segment)
        raise


def set_aside(directory: Path) -> None:
    """A new log never takes up what stands where it is to be."""
    number = 1
    while (aside := directory.with_name(f"{directory.name}.found-{number}")).exists():
        number += 1
    directory.rename(aside)
    log.warning("%s was there before its log: moved to %s", directory, aside.name)
