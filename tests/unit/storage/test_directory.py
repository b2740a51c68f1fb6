from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from leveret.model.store import DataDirectoryInUse, StoreError
from leveret.queues.storage.directory import DataDirectory
from tests.contract.stores import Harness

Lose = Callable[[Path], None]
OPEN_IT = """
import sys
from collections.abc import Callable
from pathlib import Path
from leveret.model.store import DataDirectoryInUse
from leveret.queues.storage.sql_store import SqlStore
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


async def test_second_process_is_refused(tmp_path: Path):
    harness = Harness(tmp_path)
    second = open_in_another_process(tmp_path)
    assert second.returncode == 3, second.stderr
    assert "is in use by another process (pid " in second.stdout
    await harness.close()
    third = open_in_another_process(tmp_path)
    assert third.returncode == 0, third.stderr


async def test_second_store_in_the_same_process_is_refused(tmp_path: Path):
    harness = Harness(tmp_path)
    with pytest.raises(DataDirectoryInUse):
        Harness(tmp_path)
    await harness.close()
    again = Harness(tmp_path)
    await again.close()


def test_lock_is_released_with_its_holder(tmp_path: Path):
    directory = DataDirectory(tmp_path)
    with pytest.raises(DataDirectoryInUse):
        DataDirectory(tmp_path)
    directory.release()
    directory.release()
    DataDirectory(tmp_path).release()


def test_missing_directories_are_created(tmp_path: Path):
    directory = DataDirectory(tmp_path / "a" / "b")
    directory.sync()
    assert directory.free_bytes() > 0
    directory.release()


def test_file_in_the_way_is_a_clear_error(tmp_path: Path):
    (tmp_path / "data").write_text("I am a file")
    with pytest.raises(StoreError, match=r"cannot use data directory .*data"):
        Harness(tmp_path / "data")


def test_inaccessible_path_is_a_clear_error(tmp_path: Path):
    """Like a parent directory without permission, which would not stop root."""
    with pytest.raises(StoreError, match=r"cannot use data directory .*: File name too long"):
        Harness(tmp_path / ("x" * 300))


async def test_file_that_is_not_a_database_is_a_clear_error(tmp_path: Path):
    (tmp_path / "leveret.db").write_bytes(b"something else entirely" * 1000)
    with pytest.raises(StoreError, match="cannot open the data in"):
        Harness(tmp_path)
    (tmp_path / "leveret.db").unlink()
    harness = Harness(tmp_path)
    await harness.close()


async def make_data(path: Path) -> None:
    harness = Harness(path)
    harness.declare()
    await harness.durable()
    await harness.close()


def lose_database(path: Path) -> None:
    (path / "leveret.db").unlink()


def empty_database(path: Path) -> None:
    (path / "leveret.db").write_bytes(b"")


@pytest.mark.parametrize("lose", [lose_database, empty_database])
async def test_logs_without_their_database_are_an_error(tmp_path: Path, lose: Lose):
    await make_data(tmp_path)
    (tmp_path / "logs" / "7").mkdir(parents=True)
    lose(tmp_path)
    for _ in range(2):
        with pytest.raises(StoreError, match=r"leveret.db.*logs: restore .*`leveret salv.*move"):
            Harness(tmp_path)
    assert not (tmp_path / "leveret.db").exists() or not (tmp_path / "leveret.db").stat().st_size


@pytest.mark.parametrize("lose", [lose_database, empty_database])
async def test_write_ahead_log_without_its_database_is_an_error(tmp_path: Path, lose: Lose):
    await make_data(tmp_path)
    (tmp_path / "leveret.db-wal").write_bytes(b"x" * 5000)
    lose(tmp_path)
    with pytest.raises(StoreError, match=r"leveret.db.*but there is leveret.db-wal: restore"):
        Harness(tmp_path)
    assert (tmp_path / "leveret.db-wal").stat().st_size == 5000


async def test_empty_database_is_an_error_also_without_logs(tmp_path: Path):
    """A new database gets its name when it is complete, so an empty file is never a new one."""
    await make_data(tmp_path)
    empty_database(tmp_path)
    with pytest.raises(StoreError, match=r"leveret.db is empty in .* begin with an empty broker"):
        Harness(tmp_path)


async def test_database_without_tables_is_an_error(tmp_path: Path):
    connection = sqlite3.connect(tmp_path / "leveret.db")
    connection.execute("PRAGMA user_version=1")
    connection.commit()
    connection.close()
    with pytest.raises(StoreError, match="has no tables; restore"):
        Harness(tmp_path)


async def test_database_that_was_not_completed_is_made_again(tmp_path: Path):
    """As after a crash during the first start."""
    (tmp_path / "leveret.db.new").write_bytes(b"half")
    await make_data(tmp_path)
    assert not (tmp_path / "leveret.db.new").exists()


async def test_deleted_lock_file_does_not_admit_a_second_process(tmp_path: Path):
    harness = Harness(tmp_path)
    (tmp_path / "leveret.lock").unlink()
    second = open_in_another_process(tmp_path)
    assert second.returncode == 3, second.stderr
    (tmp_path / "leveret.lock").unlink()
    with pytest.raises(DataDirectoryInUse):
        Harness(tmp_path)
    await harness.close()


async def test_lock_follows_a_renamed_directory(tmp_path: Path):
    harness = Harness(tmp_path / "old")
    (tmp_path / "old").rename(tmp_path / "new")
    with pytest.raises(DataDirectoryInUse):
        Harness(tmp_path / "new")
    await harness.close()
