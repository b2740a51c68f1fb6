"""uvicorn's protocol, with an end to its patience.

A request must have arrived whole within `seconds` of the connection or of its first octet: headers
that trickle in, and bodies that never end, cost a socket for that long and no longer. A head or a
trailer of more than `LARGEST_HEAD` octets is refused. Of a body no more is taken than came with the
head until somebody asks for it: first it is found out who sends it. Beyond `most` connections, and
beyond the limits on strangers, one is cut off; a connection is a stranger's until a request on it
has come from somebody we know. Nobody has more than half of them: others, and who would put an end
to it, get in. Who does not read the answer is cut off as well. How long an answer takes to be made
is not timed here.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Any, cast

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from http_admin.auth import CUT_OFF, IS_HERE, LET_IN
from leveret.broker.access.strangers import Stranger, Strangers
from leveret.config import Settings

log = logging.getLogger("leveret.http")

LARGEST_HEAD = 64 * 1024
_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-length: 0\r\nconnection: close\r\n\r\n"
)
_WITHOUT_BODY = (b"GET", b"HEAD", b"OPTIONS")


class PatientProtocol(HttpToolsProtocol):
    seconds = 30.0
    most = 1_000
    strangers: Strangers
    by_user: Counter[str]

    @classmethod
    def admit(cls, host: str, stranger: Stranger, connections: int) -> bool:
        """May one more connect, beside so many?"""
        is_full = connections >= cls.most
        no_room = f"http_connection_max {cls.most} is reached" if is_full else None
        return cls.strangers.admit(host, stranger, no_room)

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._deadline: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._is_stranger = False
        self._user = ""
        self._host = ""
        self._gathered = 0
        self._head = 0
        self._has_spoken = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast(asyncio.Transport, transport))
        self._host = self.client[0] if self.client else ""
        self._is_stranger = self.admit(self._host, self, len(self.connections) - 1)
        if self._is_stranger:
            self._wait()
        else:
            self.drop()

    def drop(self) -> None:
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait_no_longer()
        self._is_read()
        self._is_no_stranger()
        self._belongs_to("")
        super().connection_lost(exc)
        # No circle: all of it is freed when the last answer has been made, not when somebody looks.
        self.cycle = self.scope = cast(Any, None)

    def _let_in(self, user: str) -> bool:
        """May this user have it, beside all others they have?"""
        self._is_no_stranger()
        self._belongs_to(user)
        return self.by_user[user] <= max(1, self.most // 2)

    def _is_no_stranger(self) -> None:
        if self._is_stranger:
            self._is_stranger = False
            self.strangers.go(self._host, self)

    def _belongs_to(self, user: str) -> None:
        """Of a proxy, whoever has asked last."""
        if user == self._user or (user and self.transport.is_closing()):
            return
        before, self._user = self._user, user
        if before:
            self.by_user[before] -= 1
            if not self.by_user[before]:
                del self.by_user[before]
        if user:
            self.by_user[user] += 1

    def _is_here(self) -> bool:
        return not self.transport.is_closing()

    # What has come -----------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._gathered += len(data)
        self._has_spoken = True
        super().data_received(data)
        if self._gathered > LARGEST_HEAD and not self.transport.is_closing():
            self._refuse_head()

    def _refuse_head(self) -> None:
        self._tell(f"a head of more than {LARGEST_HEAD} octets")
        self.transport.write(_TOO_LARGE)
        self.transport.close()

    def send_400_response(self, msg: str) -> None:
        if self._head > LARGEST_HEAD:
            self._refuse_head()
        else:
            self._tell("not a request")
            super().send_400_response(msg)

    def _tell(self, why: str) -> None:
        facts = {"event": "refused", "peer": self._host, "why": why}
        log.warning("HTTP from %s refused: %s", self._host, why, extra={"facts": facts})

    def on_message_begin(self) -> None:
        self._gathered = self._head = 0
        self._wait()
        super().on_message_begin()
        cast(Scope, self.scope).update({LET_IN: self._let_in, IS_HERE: self._is_here})

    def on_url(self, url: bytes) -> None:
        self._head += len(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head += len(name) + len(value)
        if self._head > LARGEST_HEAD:  # of one read: the parser gives up, and asks for a 400
            raise ValueError("too large")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._gathered = 0
        super().on_headers_complete()
        if self.parser.get_method() not in _WITHOUT_BODY:
            self.flow.pause_reading()

    def on_body(self, body: bytes) -> None:
        self._gathered = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._gathered = 0
        self._wait_no_longer()
        super().on_message_complete()

    # Time --------------------------------------------------------------------------------------

    def _wait(self) -> None:
        if self._deadline is None:
            loop = asyncio.get_running_loop()
            self._deadline = loop.call_later(self.seconds, self._cut_off)

    def _cut_off(self) -> None:
        """Browsers open connections that they may need, and say nothing: no line about those."""
        if self._has_spoken and not self.transport.is_closing():
            self._tell(f"no whole request in {self.seconds:g} s")
            if self.scope is not None:
                cast(Scope, self.scope)["state"][CUT_OFF] = True
        self.transport.abort()

    # Answers that nobody reads: a buffer that stays full, a close that cannot be finished.

    def pause_writing(self) -> None:
        super().pause_writing()
        self._must_be_read()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._is_read()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._must_be_read()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._must_be_read()

    def _must_be_read(self) -> None:
        if self._unread is None:
            loop = asyncio.get_running_loop()
            self._unread = loop.call_later(self.seconds, self.transport.abort)

    def _is_read(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _wait_no_longer(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def patient(settings: Settings, strangers: Strangers) -> type[PatientProtocol]:
    """The protocol with these limits, as uvicorn wants it: a class."""
    limits = {
        "seconds": settings.http_timeout,
        "most": settings.http_connection_max,
        "strangers": strangers,
        "by_user": Counter(),
    }
    return type("PatientProtocol", (PatientProtocol,), limits)
