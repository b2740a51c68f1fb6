"""A connection that has gone leaves nothing for the collector to find."""

from __future__ import annotations

import time
import weakref
from typing import Any

import pytest

from tests.http.conftest import Served


def _connections(broker: Served) -> set[Any]:
    started = broker.threaded.running
    assert started is not None and started._http_start is not None
    found: set[Any] = started._http_start.result()._server.server_state.connections
    return found


@pytest.mark.usefixtures("nobody_collects")
@pytest.mark.parametrize("path", ["/api/overview", "/api/nothing", "/"])
def test_a_connection_is_freed_when_it_goes(broker: Served, path: str) -> None:
    with broker.client() as api:
        api.get(path)
        left = broker.on_loop(lambda _: [weakref.ref(one) for one in _connections(broker)])
    assert left
    deadline = time.monotonic() + 60
    while broker.on_loop(lambda _: any(one() is not None for one in left)):
        assert time.monotonic() < deadline
        time.sleep(0.01)
