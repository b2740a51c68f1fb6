"""Another broker in place of the in-process one: `pytest --leveret-url amqp://…`.

The same tests run against a RabbitMQ, or against a Leveret that runs elsewhere. Each test gets a
new virtual host, made and deleted over the management API. What only an in-process broker can do
(move the clock, inject faults, restart) raises `NotInProcess`, which the plugin turns into a skip.
"""

from __future__ import annotations

import base64
import secrets
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any
from urllib.parse import quote, unquote, urlsplit, urlunsplit

import httpx

from leveret.testing.broker import POLL_SECONDS, WAIT_SECONDS, Published

HTTP_SECONDS = 60.0
HTTP_POLL_SECONDS = max(POLL_SECONDS, 0.05)
_GET = {"count": 10_000, "ackmode": "ack_requeue_true", "encoding": "base64"}


class NotInProcess(Exception):
    """A test needs something that only the in-process broker can do."""


class RemoteBroker:
    """The methods of `LeveretBroker` that any broker with a management API can provide."""

    def __init__(self, url: str, http_url: str = "") -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("amqp", "amqps") or not parts.hostname:
            raise ValueError(f"--leveret-url {url!r} is not of the form amqp://user:password@host")
        self._parts = parts
        user, password = unquote(parts.username or "guest"), unquote(parts.password or "guest")
        self.http_url = http_url or f"http://{parts.hostname}:15672"
        self._user = user
        self._http = httpx.Client(
            base_url=f"{self.http_url.rstrip('/')}/api/",
            auth=(user, password),
            timeout=HTTP_SECONDS,
        )
        self.vhost = f"test-{secrets.token_hex(8)}"

    @property
    def url(self) -> str:
        """The URL for AMQP clients; it names the virtual host of this test."""
        return urlunsplit(self._parts._replace(path=f"/{quote(self.vhost, safe='')}"))

    @property
    def amqp_address(self) -> tuple[str, int]:
        port = self._parts.port or (5671 if self._parts.scheme == "amqps" else 5672)
        return self._parts.hostname or "", port

    def __enter__(self) -> RemoteBroker:
        self._call("PUT", f"vhosts/{self.vhost}")
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        self._call("PUT", f"permissions/{self.vhost}/{quote(self._user, safe='')}", everything)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._call("DELETE", f"vhosts/{self.vhost}")
        self._http.close()

    def __getattr__(self, name: str) -> Any:
        raise NotInProcess(f"{name!r} needs the in-process broker: run without --leveret-url")

    # Inspecting and waiting --------------------------------------------------------------------

    def wait_depth(
        self,
        queue: str,
        count: int,
        *,
        unacked: int | None = None,
        vhost: str = "/",
        timeout: float = WAIT_SECONDS,
    ) -> None:
        """Wait until exactly `count` messages are ready and, if given, `unacked` are unacked."""

        def missing() -> str:
            row = self._row(queue, vhost)
            ready, waiting = row.get("messages_ready"), row.get("messages_unacknowledged")
            if ready == count and unacked in (None, waiting):
                return ""
            return f"queue {queue!r}: {ready} ready, {waiting} unacked; expected {count} ready"

        self._wait(missing, timeout)

    def wait_acked(
        self, queue: str, count: int = 1, *, vhost: str = "/", timeout: float = WAIT_SECONDS
    ) -> None:
        """Wait until `count` messages of a queue have been acknowledged since it was declared."""

        def missing() -> str:
            acked = self._row(queue, vhost).get("message_stats", {}).get("ack", 0)
            return "" if acked >= count else f"queue {queue!r}: {acked} acked; expected {count}"

        self._wait(missing, timeout)

    def messages(self, queue: str, *, vhost: str = "/") -> list[Published]:
        """Return the ready messages of a queue. A RabbitMQ marks them as redelivered."""
        where = f"queues/{self._name(vhost)}/{quote(queue, safe='')}/get"
        items = self._call("POST", where, _GET).json()
        return [
            Published(
                vhost,
                item["exchange"],
                item["routing_key"],
                dict(item["properties"] or {}),
                base64.b64decode(item["payload"]),
            )
            for item in items
        ]

    def drop_connections(self, name: str | None = None) -> int:
        """Close the connections of all clients, or of those with this `connection_name`."""
        rows = self._call("GET", f"vhosts/{self.vhost}/connections").json()
        names = [
            row["name"]
            for row in rows
            if name in (None, row.get("client_properties", {}).get("connection_name"))
        ]
        for connection in names:
            self._call("DELETE", f"connections/{quote(connection, safe='')}")
        return len(names)

    def _row(self, queue: str, vhost: str) -> dict[str, Any]:
        where = f"queues/{self._name(vhost)}/{quote(queue, safe='')}"
        answer = self._http.get(where)
        return answer.json() if answer.status_code == 200 else {}

    def _name(self, vhost: str) -> str:
        """The default virtual host of a test is the one that was made for it."""
        return self.vhost if vhost == "/" else quote(vhost, safe="")

    def _wait(self, missing: Callable[[], str], timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while problem := missing():
            if time.monotonic() > deadline:
                raise AssertionError(f"{problem} (waited {timeout:g} s)")
            time.sleep(HTTP_POLL_SECONDS)

    def _call(self, method: str, where: str, body: object = None) -> httpx.Response:
        answer = self._http.request(method, where, json=body)
        if answer.is_error:
            raise AssertionError(f"{method} {answer.url}: {answer.status_code} {answer.text[:200]}")
        return answer
