"""What holds for all tests: how they share out over processes, and fast property tests.

`make test` runs pytest-xdist with `--dist loadgroup`. Tests of one file stay in one process, so
that a module's broker is started once. All tests marked `spark` are one group, and so are those
marked `browser`: a Spark session or a Chromium is started once, and never twice at a time. These
two groups are handed out first, because they take longest.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

# A loaded machine is slow, which is no fault of the code: pytest-timeout guards against hangs.
settings.register_profile(
    "leveret", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("leveret")

SINGLE_PROCESS = ("spark", "browser")


def group_of(item: pytest.Item) -> str:
    for name in SINGLE_PROCESS:
        if item.get_closest_marker(name) is not None:
            return name
    return item.nodeid.split("::")[0]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(group_of(item)))
    items.sort(key=lambda item: group_of(item) not in SINGLE_PROCESS)
