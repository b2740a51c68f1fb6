"""uvicorn's protocol with limits on time, size and connections.

- A request must arrive completely within `timeout` seconds of the connection or of its first byte,
  else the connection is closed: slow headers and endless bodies occupy a socket no longer.
- Headers or trailers of more than `MAX_HEAD_BYTES` are refused with 431.
- No more of a body is read than arrived with its headers until the application asks for it, which
  is after authentication.
- Beyond `max_connections`, and beyond the limits on unauthenticated connections, a new connection
  is closed. A connection is unauthenticated until a request on it is authenticated. One user may
  have half of all connections, so that others (and administrators) can still connect.
- A client that does not read its response is disconnected after `timeout` seconds. The time that
  the application takes is not limited here.

uvicorn offers none of these limits as settings, nor a hook before the application: it only accepts
another protocol class, so this is a subclass of the one for httptools.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Any, cast

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from leveret.broker.access.unauthenticated import UnauthenticatedConnection, UnauthenticatedLimits
from leveret.config import Settings
from leveret.http_admin.auth import ABORT, ADMIT_USER, DISCONNECTED, IS_CONNECTED

log = logging.getLogger("leveret.http")

MAX_HEAD_BYTES = 64 * 1024
_HEADERS_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-length: 0\r\nconnection: close\r\n\r\n"
)
_WITHOUT_BODY = (b"GET", b"HEAD", b"OPTIONS")


class LimitedHttpProtocol(HttpToolsProtocol):
    timeout = 30.0
    max_connections = 1_000
    unauthenticated: UnauthenticatedLimits
    connections_by_user: Counter[str]

    @classmethod
    def admit(cls, host: str, connection: UnauthenticatedConnection, connections: int) -> bool:
        """Whether one more connection is accepted while there are `connections`."""
        is_full = connections >= cls.max_connections
        reason = f"http_connection_max {cls.max_connections} is reached" if is_full else None
        return cls.unauthenticated.admit(host, connection, reason)

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._request_deadline: asyncio.TimerHandle | None = None
        self._read_deadline: asyncio.TimerHandle | None = None
        self._is_unauthenticated = False
        self._user = ""
        self._host = ""
        self._unparsed_bytes = 0
        """Received since the parser last completed the headers or a part of the body."""
        self._is_head_too_large = False
        self._is_incomplete = False
        """A request has begun and has not arrived completely."""
        self._has_received = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast(asyncio.Transport, transport))
        self._host = self.client[0] if self.client else ""
        self._is_unauthenticated = self.admit(self._host, self, len(self.connections) - 1)
        if self._is_unauthenticated:
            self._start_request_deadline()
        else:
            self.drop()

    def drop(self) -> None:
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_request_deadline()
        self._cancel_read_deadline()
        self._leave_unauthenticated()
        self._set_user("")
        super().connection_lost(exc)
        # Break reference cycles, so that all of it is freed with the last response.
        self.cycle = self.scope = cast(Any, None)

    def _admit_user(self, user: str) -> bool:
        """Assign the connection to a user; whether the user may have that many."""
        if user != self._user:
            self._leave_unauthenticated()
            self._set_user(user)
        return self.connections_by_user[user] <= max(1, self.max_connections // 2)

    def _leave_unauthenticated(self) -> None:
        if self._is_unauthenticated:
            self._is_unauthenticated = False
            self.unauthenticated.remove(self._host, self)

    def _set_user(self, user: str) -> None:
        """A proxy's connection belongs to the user of its latest request."""
        if user == self._user or (user and self.transport.is_closing()):
            return
        previous, self._user = self._user, user
        if previous:
            self.connections_by_user[previous] -= 1
            if not self.connections_by_user[previous]:
                del self.connections_by_user[previous]
        if user:
            self.connections_by_user[user] += 1

    def _is_connected(self) -> bool:
        return not self.transport.is_closing()

    # Receiving ---------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._unparsed_bytes += len(data)
        self._has_received = True
        super().data_received(data)
        if self._is_incomplete and self._request_deadline is None:
            self._start_request_deadline()
        if self._unparsed_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse_head()

    def _refuse_head(self) -> None:
        self._log_refusal(f"headers of more than {MAX_HEAD_BYTES} bytes")
        self.transport.write(_HEADERS_TOO_LARGE)
        self.transport.close()

    def send_400_response(self, msg: str) -> None:
        if self._is_head_too_large:
            self._refuse_head()
        else:
            self._log_refusal("not an HTTP request")
            super().send_400_response(msg)

    def _log_refusal(self, reason: str) -> None:
        facts = {"event": "refused", "peer": self._host, "why": reason}
        log.warning("HTTP from %s refused: %s", self._host, reason, extra={"facts": facts})

    def on_message_begin(self) -> None:
        self._unparsed_bytes = 0
        self._is_incomplete = True
        super().on_message_begin()
        scope = cast(Scope, self.scope)
        scope.update({ADMIT_USER: self._admit_user, IS_CONNECTED: self._is_connected})
        scope[ABORT] = self.transport.abort

    def on_headers_complete(self) -> None:
        # Headers that arrived with a single read were not counted by `data_received`.
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        self._is_head_too_large = size > MAX_HEAD_BYTES
        if self._is_head_too_large:
            raise ValueError("headers are too large")  # uvicorn calls send_400_response
        self._unparsed_bytes = 0
        super().on_headers_complete()
        if self.parser.get_method() not in _WITHOUT_BODY:
            self.flow.pause_reading()

    def on_body(self, body: bytes) -> None:
        self._unparsed_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unparsed_bytes = 0
        self._is_incomplete = False
        if self._request_deadline is not None:
            self._cancel_request_deadline()
        super().on_message_complete()

    def _start_request_deadline(self) -> None:
        loop = asyncio.get_running_loop()
        self._request_deadline = loop.call_later(self.timeout, self._request_timed_out)

    def _cancel_request_deadline(self) -> None:
        if self._request_deadline is not None:
            self._request_deadline.cancel()
            self._request_deadline = None

    def _request_timed_out(self) -> None:
        """Browsers open connections in advance and send nothing: those are not logged."""
        if self._has_received and not self.transport.is_closing():
            self._log_refusal(f"no complete request within {self.timeout:g} s")
            if self.scope is not None:
                cast(Scope, self.scope)["state"][DISCONNECTED] = True
        self.transport.abort()

    # Sending: a client that does not read keeps the buffer full, or a close from finishing -----

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start_read_deadline()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._cancel_read_deadline()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._start_read_deadline()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._start_read_deadline()

    def _start_read_deadline(self) -> None:
        if self._read_deadline is None:
            loop = asyncio.get_running_loop()
            self._read_deadline = loop.call_later(self.timeout, self.transport.abort)

    def _cancel_read_deadline(self) -> None:
        if self._read_deadline is not None:
            self._read_deadline.cancel()
            self._read_deadline = None


def limited_protocol(
    settings: Settings, unauthenticated: UnauthenticatedLimits
) -> type[LimitedHttpProtocol]:
    """A subclass with these limits: uvicorn takes a class, not an object."""
    limits = {
        "timeout": settings.http_timeout,
        "max_connections": settings.http_connection_max,
        "unauthenticated": unauthenticated,
        "connections_by_user": Counter(),
    }
    return type("LimitedHttpProtocol", (LimitedHttpProtocol,), limits)
