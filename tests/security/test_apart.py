"""What connections keep is made in the C library's heap, and only where that is safe."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

MADE_AMONG_A_CROWD = """
import ctypes, gc, sys
from contextlib import nullcontext
from leveret.broker.apart import find_place_apart

def resident():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096

apart = find_place_apart() if sys.argv[1] == "apart" else nullcontext()
crowd, lasting, before = [], [], resident()
for number in range(1_000):
    with apart:
        crowd.append([{"number": number + one} for one in range(100)])
    lasting.append({"lasting": number})
held = resident() - before
del crowd
gc.collect()
ctypes.CDLL(None).malloc_trim(0)
print((resident() - before) / held)
"""

GROWN_AND_FREED_ANYWHERE = """
import random
from contextlib import nullcontext
from leveret.broker.apart import find_place_apart

apart, rng, kept = find_place_apart(), random.Random(20261116), []
assert not isinstance(apart, nullcontext)
for step in range(30_000):
    with rng.choice((apart, nullcontext())):
        match rng.randrange(6):
            case 0: kept.append([step] * rng.randrange(80))
            case 1: kept.append({one: str(one) for one in range(rng.randrange(40))})
            case 2: kept.append(bytearray(rng.randrange(700)))
            case 3 if kept: kept[rng.randrange(len(kept))].__init__()
            case 4 if kept: kept.pop(rng.randrange(len(kept)))
            case 5 if kept:
                one = rng.choice(kept)
                one.update({step: "x"}) if isinstance(one, dict) else one.extend(b"more" * 20)
print(len(kept))
"""

IS_POSSIBLE = """
import os, sys
from contextlib import nullcontext
os.environ.pop("PYTHONMALLOC", None)  # what is in use counts, not what was asked for
if "tracemalloc" in sys.argv:
    import tracemalloc
    tracemalloc.start()
from leveret.broker.apart import find_place_apart
with find_place_apart() as _, open("/proc/self/stat", encoding="ascii") as file:
    made = [file.readline() for _ in range(1000)]
del made
print(not isinstance(find_place_apart(), nullcontext))
"""


def run(program: str, *words: str, options: tuple[str, ...] = (), **env: str) -> str:
    command = [sys.executable, *options, "-c", program, *words]
    usual = {name: value for name, value in os.environ.items() if name != "PYTHONMALLOC"}
    ran = subprocess.run(command, env=usual | env, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


def test_what_lasts_does_not_keep_the_memory_of_a_crowd_that_was_made_apart() -> None:
    assert float(run(MADE_AMONG_A_CROWD, "apart")) < 0.2
    assert float(run(MADE_AMONG_A_CROWD, "among all")) > 0.5  # or all this is for nothing


def test_objects_grow_and_go_wherever_they_were_made() -> None:
    assert int(run(GROWN_AND_FREED_ANYWHERE)) > 0


@pytest.mark.parametrize(
    ("options", "env", "words", "possible"),
    [
        ((), {}, (), True),
        ((), {"PYTHONMALLOC": "pymalloc"}, (), True),
        ((), {"PYTHONMALLOC": "malloc"}, (), False),
        ((), {"PYTHONMALLOC": "pymalloc_debug"}, (), False),
        *([((), {"PYTHONMALLOC": "mimalloc"}, (), False)] if sys.version_info >= (3, 13) else []),
        (("-E",), {"PYTHONMALLOC": "malloc"}, (), True),
        (("-X", "dev"), {}, (), False),
        ((), {}, ("tracemalloc",), False),
    ],
)
def test_other_allocators_are_left_alone(
    options: tuple[str, ...], env: dict[str, str], words: tuple[str, ...], possible: bool
) -> None:
    assert run(IS_POSSIBLE, *words, options=options, **env) == str(possible)
