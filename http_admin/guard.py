"""What every request passes first and every answer last.

In order: the Host header (against DNS rebinding), the origin of changes (against forged requests),
who asks for a change (401 before any of its body is taken), the size of the body (413 before
anything is parsed); then the application; then the security headers (HSTS, too, where TLS is
spoken). Changes are noted in the audit log. Whatever goes wrong
behind it is answered in the one error form, and logged here.
"""

from __future__ import annotations

import ipaddress
import logging
import re
import socket
import time
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from http_admin.auth import CUT_OFF, LET_IN, TARGET, current_user
from http_admin.bodies import SHORT, Bodies, announced, limit_for, read_body, values_for
from http_admin.errors import WHY, ApiError, error_response
from http_admin.noting import LONGEST_REFUSED, asked, bounded, room_for, shown_path
from http_admin.paths import routed_path
from http_admin.turns import leave
from leveret.broker import Broker
from leveret.broker.access.throttle import is_loopback
from leveret.config import Settings

log = logging.getLogger("leveret.http")

CONTENT_SECURITY_POLICY = (
    "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_SAFE = ("GET", "HEAD", "OPTIONS")
_OPEN = ("/api/login",)
"""Changes that nobody needs to be signed in for."""
_LINES_PER_SECOND = 10
_LONGEST_WHY = 300
_TRAFFIC = re.compile(
    "/api/(?:login|logout|route/[^/]+|exchanges/[^/]+/[^/]+/publish|queues/[^/]+/[^/]+/get"
    "|logs/[^/]+/[^/]+/(?:publish|groups/[^/]+/(?:members/[^/]+/)?(?:fetch|commit)))"
)
"""Endpoints by their whole paths: a user or a queue may be called `get`."""


@dataclass(frozen=True, slots=True)
class Hosts:
    """Which Host headers are ours. Who comes from this machine has to name it.

    A page of any site may have the browser on this machine ask for it by a name of its own, and
    here `guest` may log in. From elsewhere any name will do, unless we listen on loopback only.
    `names` are those under which a reverse proxy is asked for this broker.
    """

    bound: str
    names: frozenset[str] = frozenset()

    @classmethod
    def of(cls, settings: Settings) -> Hosts:
        given = settings.http_hosts.lower().split(",")
        return cls(settings.host, frozenset(name.strip() for name in given if name.strip()))

    def accept(self, header: str | None, peer: str) -> bool:
        if not header:
            return True
        name = host_of(header)
        if name in (self.bound, *self.names) or is_own_name(name):
            return True
        if is_own_name(self.bound):
            return False
        return not is_loopback(peer) or _is_address(name) or name == socket.gethostname().lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_own_name(name: str) -> bool:
    """Names that no foreign DNS server can answer for: loopback addresses and localhost."""
    name = name.lower().rstrip(".")
    return name == "localhost" or name.endswith(".localhost") or is_loopback(name)


def host_of(header: str) -> str:
    """`[::1]:15672` is `::1`, `localhost:15672` is `localhost`."""
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""


class _Refusals:
    """A line in the log for each request that was refused; so many a second, the rest by number.

    Wrong passwords are logged by whoever has checked them.
    """

    def __init__(self) -> None:
        self._second = self._told = self._untold = 0

    def tell(self, scope: Scope, status: int) -> None:
        state = scope.get("state", {})
        if state.get("is_told") or state.get(CUT_OFF):
            return
        second = int(time.monotonic())
        if second != self._second:
            self._second, self._told = second, 0
        if self._told >= _LINES_PER_SECOND:
            self._untold += 1
            return
        self._told += 1
        user, peer = state.get("user"), (scope.get("client") or ("",))[0]
        name = user.name if user is not None else ""
        what = bounded([asked(scope)], LONGEST_REFUSED)
        why = str(state.get(WHY, ""))[:_LONGEST_WHY]
        facts = {"event": "refused", "peer": peer, "user": name, "code": status, "request": what}
        more = f" ({self._untold} more were not told)" if self._untold else ""
        self._untold = 0
        log.warning(
            "HTTP from %s: %s of user %r refused: %d, %s%s",
            *(peer, what, name, status, why, more),
            extra={"facts": facts | {"why": why}},
        )


class Guard:
    def __init__(self, app: ASGIApp, broker: Broker) -> None:
        settings = broker.settings
        self._app = app
        self._broker = broker
        self._audit = broker.access.audit
        self._hosts = Hosts.of(settings)
        self._refusals = _Refusals()
        self._bodies = Bodies(max(settings.http_bodies_max, settings.http_max_import))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answer = _Answer(scope, send)
        try:
            await self._pass_on(scope, receive, answer.send)
        except ApiError as error:
            scope.setdefault("state", {})[WHY] = error.reason
            refusal = error_response(error.status, error.reason, error.headers)
            await refusal(scope, receive, answer.send)
        except Exception:
            log.exception("%s %s failed", scope["method"], shown_path(scope["path"]))
            if answer.started:
                raise
            await error_response(500, "internal error, see the broker's log")(
                scope, receive, answer.send
            )
        finally:
            leave(scope)
        if is_change(scope["method"], routed_path(scope)):
            self._note(scope, answer.status)
        if is_refusal(answer.status) and LET_IN in scope:
            self._refusals.tell(scope, answer.status)

    def _note(self, scope: Scope, status: int) -> None:
        state = scope.get("state", {})
        user = state.get("user")
        client = scope.get("client") or ("",)
        self._audit.note(
            user=user.name if user is not None else "",
            source=client[0],
            via="HTTP",
            vhost=state.get("vhost", ""),
            action=bounded([asked(scope)], room_for(status)),
            target=bounded(state.get(TARGET, ()), room_for(status)),
            outcome="done" if status < 400 else str(status),
        )

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        if len(headers.getlist("host")) > 1:
            raise ApiError(400, "a request has one Host header")
        peer = (scope.get("client") or ("",))[0]
        if not self._hosts.accept(headers.get("host"), peer):
            raise ApiError(400, "this broker does not answer to that host name (see http_hosts)")
        if scope["method"] in _SAFE:
            await self._app(_as_get(scope), receive, send)
            return
        if _is_foreign(headers, self._hosts):
            raise ApiError(403, "changes from another site are refused")
        path = routed_path(scope)
        is_api = path.startswith("/api/")
        # Whoever must say who they are does so before a body of theirs is taken.
        user = await current_user(Request(scope)) if is_api and path not in _OPEN else None
        limit = limit_for(path, self._broker, user)
        async with self._bodies.room(announced(headers, limit)):
            body = await read_body(limit, receive, values_for(path))
            if is_api:
                # Like RabbitMQ, take every body for JSON: `curl -d` calls it a form.
                MutableHeaders(scope=scope)["content-type"] = "application/json"
            await self._app(scope, _Replay(body, receive), send)


def _as_get(scope: Scope) -> Scope:
    """HEAD is GET without the body, which `_Answer` drops."""
    return {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope


def _is_foreign(headers: Headers, hosts: Hosts) -> bool:
    """Browsers say where a request comes from; tools say nothing and are not tricked."""
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return True
    origin, host = headers.get("origin"), headers.get("host")
    if origin is None:
        return False
    try:
        where = urlsplit(origin).netloc
    except ValueError:
        return True
    return origin == "null" or (where != host and host_of(where) not in hosts.names)


def is_refusal(status: int) -> bool:
    """Who asks for what does not exist is not refused anything."""
    return 400 <= status < 500 and status != 404


def is_change(method: str, path: str) -> bool:
    """Does this change the broker? Messages come and go without."""
    return method not in _SAFE and not (method == "POST" and _TRAFFIC.fullmatch(path))


class _Replay:
    """The body that has been read, then whatever comes after it (a disconnect)."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> Message:
        if self._body is None:
            return await self._receive()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}


class _Answer:
    """Adds the headers that every answer carries."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._send = send
        self._without_body = scope["method"] == "HEAD"
        self._is_api = scope["path"].startswith(("/api", "/metrics"))
        self._is_secure = scope.get("scheme") == "https"
        self.started = False
        self.status = 0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers[name] = value
            if self._is_secure:
                headers["strict-transport-security"] = "max-age=31536000"
            if self._is_api:
                headers["cache-control"] = "no-store"
        elif self._without_body and message["type"] == "http.response.body":
            message = {**message, "body": b""}
        if len(message.get("body", b"")) > SHORT and not message.get("more_body", False):
            # The end is sent when the rest is read: until then this request is not over.
            await self._send({**message, "more_body": True})
            message = {"type": "http.response.body", "body": b""}
        await self._send(message)
