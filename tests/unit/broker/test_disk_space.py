"""The disk alarm: what counts as free, what uses the volume, how to free it."""

import os
from pathlib import Path
from types import SimpleNamespace

from leveret.broker.runtime.alarms import Alarms
from leveret.broker.runtime.disk_space import DiskUsage, available_bytes, history_reserve
from leveret.config import Settings, default_history_bytes

MIB, GIB = 1 << 20, 1 << 30


def test_history_is_trimmed_before_publishers_are_blocked():
    for limit in (0, 50 * MIB, 256 * MIB, 100 * GIB):
        assert history_reserve(limit) > limit


def test_free_pages_count_up_to_half_of_the_limit():
    assert available_bytes(free=10, free_pages=20, disk_free_limit=100) == 30
    assert available_bytes(free=10, free_pages=200, disk_free_limit=100) == 60
    assert available_bytes(free=10, free_pages=200, disk_free_limit=0) == 10


def usage(**uses: int) -> DiskUsage:
    names = ("messages", "history", "free_pages", "wal", "logs", "other")
    return DiskUsage(total=GIB, free=MIB, **{name: uses.get(name, 0) for name in names})


def test_every_use_is_named_with_its_size():
    text = str(usage(messages=MIB, history=2 * MIB, free_pages=3 * MIB, wal=4 * MIB, logs=5 * MIB))
    assert text == (
        "of 1.0 GiB, messages in queues use 1.0 MiB, history 2.0 MiB, logs 5.0 MiB, the "
        "write-ahead log 4.0 MiB, free pages of the database 3.0 MiB, other files 0 B and free "
        "1.0 MiB"
    )


def test_remedies_are_for_the_largest_uses():
    remedies = usage(logs=500 * MIB, messages=300 * MIB, other=MIB, wal=MIB).remedies()
    assert [text.split()[0] for text in remedies] == ["limit", "consume"]
    assert usage(wal=40 * MIB).remedies() == []
    assert usage(wal=400 * MIB).remedies() == ["end long reads of the history"]


def test_clients_get_the_reason_and_operators_the_details_too(caplog):
    alarms = Alarms()
    alarms.set("disk", "low on disk", details="delete files")
    assert alarms.reason == "low on disk"
    assert alarms.raised == {"disk": "low on disk; delete files"}
    assert "alarm 'disk' is raised (publishers are blocked): low on disk; delete files" in (
        caplog.text
    )
    alarms.set("disk", "")
    assert "alarm 'disk' is cleared" in caplog.text


def volume(monkeypatch, size: int) -> None:
    status = SimpleNamespace(f_frsize=4096, f_blocks=size // 4096)
    monkeypatch.setattr(os, "statvfs", lambda path: status)


def test_default_size_of_history_fits_the_volume(monkeypatch, tmp_path):
    missing = tmp_path / "not" / "there"
    volume(monkeypatch, 600 * MIB)
    assert default_history_bytes(missing, 256 * MIB) == 172 * MIB
    assert Settings(data_dir=missing).history_max_bytes == 172 * MIB
    assert Settings(data_dir=missing, disk_free_limit=0).history_max_bytes == 300 * MIB
    assert Settings(data_dir=missing, history_max_bytes=GIB).history_max_bytes == GIB
    volume(monkeypatch, 100 * MIB)
    assert Settings(data_dir=Path("data")).history_max_bytes == 0
    volume(monkeypatch, 100 * GIB)
    assert Settings(data_dir=missing).history_max_bytes == GIB
