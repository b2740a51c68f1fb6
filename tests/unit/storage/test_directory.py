from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from leveret.model.store import DataDirectoryInUse, StoreError
from queues.storage.directory import DataDirectory
from tests.contract.stores import Harness

OPEN_IT = """
import sys
from pathlib import Path
from leveret.model.store import DataDirectoryInUse
from queues.storage.sql_store import SqlStore
store = SqlStore(Path(sys.argv[1]), on_committed=print, on_failed=print)
try:
    store.recover()
except DataDirectoryInUse as error:
    print(error)
    sys.exit(3)
"""


def open_in_another_process(path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", OPEN_IT, str(path)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


async def test_a_second_process_is_refused(tmp_path: Path):
    harness = Harness(tmp_path)
    second = open_in_another_process(tmp_path)
    assert second.returncode == 3, second.stderr
    assert "is in use by another process (pid " in second.stdout
    await harness.close()
    third = open_in_another_process(tmp_path)
    assert third.returncode == 0, third.stderr


async def test_a_second_store_in_the_same_process_is_refused(tmp_path: Path):
    harness = Harness(tmp_path)
    with pytest.raises(DataDirectoryInUse):
        Harness(tmp_path)
    await harness.close()
    again = Harness(tmp_path)
    await again.close()


def test_the_lock_goes_with_its_holder(tmp_path: Path):
    directory = DataDirectory(tmp_path)
    with pytest.raises(DataDirectoryInUse):
        DataDirectory(tmp_path)
    directory.release()
    directory.release()
    DataDirectory(tmp_path).release()


def test_missing_directories_are_made(tmp_path: Path):
    directory = DataDirectory(tmp_path / "a" / "b")
    directory.sync()
    assert directory.free_bytes() > 0
    directory.release()


def test_a_file_in_the_way_is_a_clear_error(tmp_path: Path):
    (tmp_path / "data").write_text("I am a file")
    with pytest.raises(StoreError, match=r"cannot use data directory .*data"):
        Harness(tmp_path / "data")


def test_a_path_that_cannot_be_looked_at_is_a_clear_error(tmp_path: Path):
    """As where a directory above may not be entered, which stops all but root."""
    with pytest.raises(StoreError, match=r"cannot use data directory .*: File name too long"):
        Harness(tmp_path / ("x" * 300))


async def test_a_file_that_is_no_database_is_a_clear_error(tmp_path: Path):
    (tmp_path / "leveret.db").write_bytes(b"something else entirely" * 1000)
    with pytest.raises(StoreError, match="cannot open the data in"):
        Harness(tmp_path)
    (tmp_path / "leveret.db").unlink()
    harness = Harness(tmp_path)
    await harness.close()
