"""Users with limited permissions, created with the management API of the broker under test."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
from base64 import b64encode
from collections.abc import Iterator
from urllib.parse import quote

from tests.support.brokers import Target, running_leveret

PASSWORD = "secret"
NOTHING = "^$"
_numbers = itertools.count(1)


class Managed:
    """A broker on which a test may create users; they are deleted afterwards."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._users: list[str] = []

    def user(self, **permissions: str) -> str:
        """A user with all permissions except those given: `user(read="^$")` may read nothing."""
        name = f"limited-{os.getpid()}-{next(_numbers)}"
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        self._request("PUT", f"/api/users/{name}", {"password": PASSWORD, "tags": ""})
        self._users.append(name)
        vhost = quote(self.target.vhost, safe="")
        self._request("PUT", f"/api/permissions/{vhost}/{name}", {**everything, **permissions})
        return name

    def remove_users(self) -> None:
        for name in self._users:
            self._request("DELETE", f"/api/users/{name}")

    def _request(self, method: str, path: str, body: object = None) -> None:
        target = self.target
        login = b64encode(f"{target.user}:{target.password}".encode()).decode()
        headers = {"Authorization": f"Basic {login}", "Content-Type": "application/json"}
        api = http.client.HTTPConnection(target.host, target.http_port, timeout=120)
        try:
            api.request(method, path, json.dumps(body), headers)
            assert api.getresponse().status in (201, 204), (method, path)
        finally:
            api.close()


@contextlib.contextmanager
def managing(broker: Target) -> Iterator[Managed]:
    """The broker itself, or a separate Leveret, because the shared one has no HTTP server."""
    with contextlib.ExitStack() as stack:
        target = broker if broker.is_rabbitmq else stack.enter_context(running_leveret())
        managed = Managed(target)
        try:
            yield managed
        finally:
            managed.remove_users()
