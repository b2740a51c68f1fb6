"""The instruments of R-19: a stall counts for its whole length, and blocking calls are reported."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.torture.security.lag_probe import PERIOD, lags_of_stall
from tests.torture.security.loop_lag import MAY_BLOCK, is_blocking_call

ROOT = Path(__file__).parents[2]
PROGRAM = """
import asyncio, os, signal, sys
from pathlib import Path
import argon2.low_level as argon2
from tests.torture.security.blocking_calls import BlockingCallWatch

async def main():
    BlockingCallWatch(Path(sys.argv[1]))
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
REPORTED_CALLS = ("os.open", "os.pwrite", "os.pread", "os.fsync", "os.fdatasync", "hash_secret",
        "verify_secret")  # fmt: skip


def test_stall_counts_for_every_tick_it_delays():
    lags = lags_of_stall(0.2)
    assert len(lags) == 41
    assert lags[0] == 0.2
    assert lags == sorted(lags, reverse=True)
    assert all(lag > -PERIOD / 1000 for lag in lags)
    assert lags_of_stall(PERIOD / 2) == [PERIOD / 2]


def test_calls_on_the_loop_are_reported_and_calls_on_threads_are_not(tmp_path):
    program, report = tmp_path / "program.py", tmp_path / "report"
    program.write_text(PROGRAM)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, program, report], check=True, env=env, cwd=tmp_path, timeout=60)
    lines = report.read_text().splitlines()
    for name in REPORTED_CALLS:
        (line,) = [line for line in lines if f"{name} " in line]
        assert line.startswith("1 "), line
        assert is_blocking_call(line)
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL


@pytest.mark.parametrize("call", MAY_BLOCK)
def test_blocking_call_is_allowed_only_in_its_listed_function(call):
    assert not is_blocking_call(f"3 {call}")
    assert is_blocking_call(f"3 {call}_else")
    assert is_blocking_call(f"3 os.fsync in {call.partition(' in ')[2]}")


def test_only_locks_of_concurrent_futures_are_allowed():
    caller = "in leveret/broker/logs/manager.py:_remove"
    assert not is_blocking_call(
        f"1 threading.Lock.acquire of concurrent/futures/thread.py {caller}"
    )
    assert is_blocking_call(f"1 threading.Lock.acquire of queues/log/files/view.py {caller}")
