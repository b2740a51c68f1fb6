"""The instruments of R-19: a stall counts as long as it was, and calls that block are seen."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.torture.security.health import MAY_BLOCK, may_not_block
from tests.torture.security.probe import PERIOD, all_late

ROOT = Path(__file__).parents[2]
PROGRAM = """
import asyncio, os, signal, sys
from pathlib import Path
import argon2.low_level as argon2
from tests.torture.security.blocking import Watch

async def main():
    Watch(Path(sys.argv[1]))
    fd = os.open(sys.argv[0] or os.devnull, os.O_RDWR | os.O_CREAT)
    os.pwrite(fd, b"x", 0)
    os.pread(fd, 1, 0)
    os.fsync(fd)
    os.fdatasync(fd)
    hashed = argon2.hash_secret(b"p", b"saltsalt", 1, 8, 1, 16, argon2.Type.ID)
    argon2.verify_secret(hashed, b"p", argon2.Type.ID)
    await asyncio.to_thread(os.fsync, fd)
    os.kill(os.getpid(), signal.SIGUSR1)

asyncio.run(main())
"""
SEEN = ("os.open", "os.pwrite", "os.pread", "os.fsync", "os.fdatasync", "hash_secret",
        "verify_secret")  # fmt: skip


def test_a_stall_counts_for_every_tick_it_has_kept_from_coming():
    lags = all_late(0.2)
    assert len(lags) == 41
    assert lags[0] == 0.2
    assert lags == sorted(lags, reverse=True)
    assert all(lag > -PERIOD / 1000 for lag in lags)
    assert all_late(PERIOD / 2) == [PERIOD / 2]


def test_calls_of_the_loop_are_seen_and_those_of_threads_are_not(tmp_path):
    program, said = tmp_path / "program.py", tmp_path / "said"
    program.write_text(PROGRAM)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, program, said], check=True, env=env, cwd=tmp_path, timeout=60)
    lines = said.read_text().splitlines()
    for name in SEEN:
        (line,) = [line for line in lines if f"{name} " in line]
        assert line.startswith("1 "), line
        assert may_not_block(line)
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL


@pytest.mark.parametrize("call", MAY_BLOCK)
def test_a_call_may_block_only_where_it_was_said(call):
    assert not may_not_block(f"3 {call}")
    assert may_not_block(f"3 {call}_else")
    assert may_not_block(f"3 os.fsync in {call.partition(' in ')[2]}")


def test_only_locks_that_are_never_held_for_long_are_waited_for():
    place = "in leveret/broker/log_keeper.py:_remove"
    assert not may_not_block(f"1 threading.Lock.acquire of concurrent/futures/thread.py {place}")
    assert may_not_block(f"1 threading.Lock.acquire of queues/log/view.py {place}")
