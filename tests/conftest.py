"""Configuration of all tests: distribution over processes, and fast property tests.

With pytest-xdist (`make test`) the tests of a file run in one process, so that a module's broker is
started once. All of tests/spark runs in one process, and so does all of tests/browser: a Spark
session or Chromium is started once, and never twice at the same time. These two are scheduled
first, because they take longest. Tests are grouped by folder and not by marker, because the
scheduling process knows only the names of tests; a marked test in another folder is therefore
refused. (xdist's own groups have no effect with pytest 9.2: pytest-xdist #1386.)
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# No deadline, because a loaded machine may be slow; pytest-timeout detects hanging tests.
# The same examples in every run, so that a change does not fail because of an older bug.
settings.register_profile(
    "leveret",
    deadline=None,
    derandomize="RANDOM_EXAMPLES" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.load_profile("leveret")

SINGLE_PROCESS = {"spark": "tests/spark/", "browser": "tests/browser/"}


@pytest.fixture
def no_garbage_collection() -> Iterator[None]:
    """Objects are freed by reference counting only; reference cycles stay in memory."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def group_of(nodeid: str) -> str:
    """The tests of a group run in one process: a folder of `SINGLE_PROCESS`, or a file."""
    for group, folder in SINGLE_PROCESS.items():
        if nodeid.startswith(folder):
            return group
    return nodeid.split("::")[0]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for marker, folder in SINGLE_PROCESS.items():
            is_marked = item.get_closest_marker(marker) is not None
            if is_marked and group_of(item.nodeid) != marker:
                raise pytest.UsageError(f"{item.nodeid} is marked {marker}: move it to {folder}")
    items.sort(key=lambda item: group_of(item.nodeid) not in SINGLE_PROCESS)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    return ByGroup(config, log) if config.getvalue("dist") == "load" else None
