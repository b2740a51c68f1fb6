"""A closed connection is freed without the garbage collector."""

from __future__ import annotations

import weakref
from typing import Any

import pytest

from tests.http.conftest import Served
from tests.support.polling import wait_until


def _connections(broker: Served) -> set[Any]:
    started = broker.threaded.running
    assert started is not None and started._http_start is not None
    found: set[Any] = started._http_start.result()._server.server_state.connections
    return found


@pytest.mark.usefixtures("no_garbage_collection")
@pytest.mark.parametrize("path", ["/api/overview", "/api/nothing", "/"])
def test_connection_is_freed_when_it_closes(broker: Served, path: str) -> None:
    with broker.client() as api:
        api.get(path)
        left = broker.on_loop(lambda _: [weakref.ref(one) for one in _connections(broker)])
    assert left
    wait_until(lambda: broker.on_loop(lambda _: all(one() is None for one in left)))
