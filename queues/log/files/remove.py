"""Removing the files of a log, and what a crash has left of one.

A directory is renamed before it is removed, so that a log is there as a whole or not at all. A
start removes renamed directories, and those of logs that a crash has prevented from being declared:
they have no records. Any thread, one log at a time.
"""

import logging
import shutil
from collections.abc import Iterable
from pathlib import Path

from leveret.queues.log.files.checkpoint_file import load_checkpoint
from leveret.queues.log.files.partition import Partition
from leveret.queues.log.files.segment import index_path, list_segments, log_path

DELETED_SUFFIX = ".deleted"
_FILES_OF_A_NEW_LOG = frozenset(
    {"log.id", "committed", log_path(Path(), 0).name, index_path(Path(), 0).name}
)

logger = logging.getLogger("leveret.log")


def remove_all(partitions: Iterable[Partition]) -> None:
    """Close logs and remove their directories."""
    for partition in partitions:
        _remove(partition)


def _remove(partition: Partition) -> None:
    partition.close()
    if not partition.has_files:
        return
    renamed = partition.directory.with_name(partition.directory.name + DELETED_SUFFIX)
    try:
        partition.directory.rename(renamed)
        shutil.rmtree(renamed)
    except OSError as error:
        logger.error("cannot remove %s: %s", partition.directory, error)


def is_unused(directory: Path) -> bool:
    """Whether the directory has been made for a log, and no record was ever written to it."""
    if not {path.name for path in directory.iterdir()} <= _FILES_OF_A_NEW_LOG:
        return False
    checkpoint = load_checkpoint(directory)
    has_checkpoint = checkpoint is not None and checkpoint.next_offset > 0
    return not has_checkpoint and not any(size for _, size in list_segments(directory))
