"""The outermost checks of every request and the headers of every response.

In this order: the Host header (against DNS rebinding), the origin of changes (against cross-site
request forgery), the user of a change (401 before its body is read), the size of the body (413
before it is parsed); then the application; then the security headers, HSTS among them if the
request came over TLS. Changes are written to the audit log. Exceptions that no handler of the
application caught are logged here and answered with the same error JSON.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import re
import socket
import time
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from leveret.broker import Broker, User
from leveret.broker.access.login_rate_limit import is_loopback
from leveret.config import Settings
from leveret.http_admin.auth import (
    ABORT,
    ADMIT_USER,
    AUDIT_TARGET,
    DISCONNECTED,
    IS_LOGGED,
    authenticate,
    reauthenticate,
)
from leveret.http_admin.errors import REFUSAL_REASON, ApiError, error_response
from leveret.http_admin.middleware.audit_text import (
    MAX_REFUSED_BYTES,
    bounded,
    max_bytes,
    request_line,
    without_password,
)
from leveret.http_admin.middleware.concurrency import RELEASE_SLOT, SMALL_BODY, BodyBudget
from leveret.http_admin.middleware.raw_path import routed_path
from leveret.http_admin.middleware.request_body import (
    announced_size,
    max_body_size,
    max_values,
    read_body,
)

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
MANY_NAMES = 1_000
"""Hashing more names for the audit log would occupy the loop for too long."""
_OPEN = ("/api/login",)
"""Changes that need no authenticated user."""
_MAX_LINES_PER_SECOND = 10
_MAX_REASON = 300
_MESSAGE_TRAFFIC = re.compile(
    "/api/(?:login|logout|route/[^/]+|exchanges/[^/]+/[^/]+/publish|queues/[^/]+/[^/]+/get"
    "|logs/[^/]+/[^/]+/(?:publish|groups/[^/]+/(?:members/[^/]+/)?(?:fetch|commit)))"
)
"""Whole paths of endpoints, since a user or a queue may be called `get`."""


@dataclass(frozen=True, slots=True)
class AllowedHosts:
    """Which Host headers are accepted.

    A client on this machine must use a name of this machine: a page of any site could make the
    browser here send requests under a name of its own (DNS rebinding), and `guest` may log in from
    here. Other clients may use any name, unless the broker listens on loopback only. `names` are
    the host names that a reverse proxy serves this broker under.
    """

    bound: str
    names: frozenset[str] = frozenset()

    @classmethod
    def of(cls, settings: Settings) -> AllowedHosts:
        names = settings.http_hosts.lower().split(",")
        return cls(settings.host, frozenset(name.strip() for name in names if name.strip()))

    def accept(self, header: str | None, peer: str) -> bool:
        if not header:
            return True
        name = host_of(header)
        if name in (self.bound, *self.names) or is_loopback_name(name):
            return True
        if is_loopback_name(self.bound):
            return False
        return not is_loopback(peer) or _is_address(name) or name == socket.gethostname().lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_loopback_name(name: str) -> bool:
    """Loopback addresses and localhost: names that no DNS server elsewhere can resolve."""
    name = name.lower().rstrip(".")
    return name == "localhost" or name.endswith(".localhost") or is_loopback(name)


@lru_cache(maxsize=256)
def host_of(header: str) -> str:
    """`::1` for `[::1]:15672`, `localhost` for `localhost:15672`."""
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""


class _RefusalLog:
    """Logs refused requests, at most `_MAX_LINES_PER_SECOND`; the rest are counted.

    Wrong passwords are logged where they are checked (`auth.check_password`).
    """

    def __init__(self) -> None:
        self._second = self._logged = self._dropped = 0

    def add(self, scope: Scope, status: int) -> None:
        state = scope["state"]
        if state.get(IS_LOGGED) or state.get(DISCONNECTED):
            return
        second = int(time.monotonic())
        if second != self._second:
            self._second, self._logged = second, 0
        if self._logged >= _MAX_LINES_PER_SECOND:
            self._dropped += 1
            return
        self._logged += 1
        user, peer = state.get("user"), _peer(scope)
        name = user.name if user is not None else ""
        request = bounded([request_line(scope)], MAX_REFUSED_BYTES)
        reason = str(state.get(REFUSAL_REASON, ""))[:_MAX_REASON]
        facts = {"event": "refused", "peer": peer, "user": name, "code": status}
        more = f" ({self._dropped} more were not logged)" if self._dropped else ""
        self._dropped = 0
        log.warning(
            "HTTP from %s: %s of user %r refused: %d, %s%s",
            *(peer, request, name, status, reason, more),
            extra={"facts": facts | {"request": request, "why": reason}},
        )


def _peer(scope: Scope) -> str:
    client = scope.get("client")
    return client[0] if client else ""


class SecurityMiddleware:
    def __init__(self, app: ASGIApp, broker: Broker) -> None:
        settings = broker.settings
        self._app = app
        self._broker = broker
        self._hosts = AllowedHosts.of(settings)
        self._refusals = _RefusalLog()
        self._bodies = BodyBudget(max(settings.http_bodies_max, settings.http_max_import))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope.setdefault("state", {})
        path = routed_path(scope)
        routed = {**scope, "path": path}
        response = _SecuredResponse(scope, send)
        try:
            await self._handle(routed, receive, response.send)
        except ApiError as error:
            scope["state"][REFUSAL_REASON] = error.reason
            refusal = error_response(error.status, error.reason, error.headers)
            await refusal(scope, receive, response.send)
        except Exception:
            log.exception("%s %s failed", scope["method"], without_password(scope["path"]))
            if response.is_started:
                await _abort(scope, receive)
            else:
                refusal = error_response(500, "internal error, see the broker's log")
                await refusal(scope, receive, response.send)
        finally:
            if (release_slot := scope["state"].pop(RELEASE_SLOT, None)) is not None:
                release_slot()
        if scope["method"] not in _SAFE and is_change(scope["method"], path):
            await self._audit(routed, response.status)
        if response.status >= 400 and is_refusal(response.status) and ADMIT_USER in scope:
            self._refusals.add(scope, response.status)

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        if len(headers.getlist("host")) > 1:
            raise ApiError(400, "the request has more than one Host header")
        client = scope.get("client")
        if not self._hosts.accept(headers.get("host"), client[0] if client else ""):
            raise ApiError(400, "this broker does not answer to that host name (see http_hosts)")
        if scope["method"] in _SAFE:
            if scope["method"] == "HEAD":  # GET without the body, which `_SecuredResponse` drops
                scope["method"] = "GET"
            await self._app(scope, receive, send)
            return
        if _is_cross_site(headers, self._hosts):
            raise ApiError(403, "changes from another site are refused")
        await self._handle_change(scope, headers, receive, send)

    async def _handle_change(
        self, scope: Scope, headers: Headers, receive: Receive, send: Send
    ) -> None:
        request, path = Request(scope), scope["path"]
        is_api = path.startswith("/api/")
        # The user is authenticated before any of the body is read, and again after it, since the
        # body may have taken long to arrive.
        user: User | None = None
        if is_api and path not in _OPEN:
            user = await authenticate(request)
        limit = max_body_size(path, self._broker, user)
        async with self._bodies.reserve(announced_size(headers, limit)):
            body = await read_body(limit, receive, max_values(path))
            if is_api:
                # Like RabbitMQ, take every body for JSON: `curl -d` calls it a form.
                MutableHeaders(scope=scope)["content-type"] = "application/json"
            replay = _Replay(body, receive)
            if user is None:
                await self._app(scope, replay, send)
                return
            user = reauthenticate(request, user)
            # Events about what is changed name the user.
            actor = self._broker.events.actor
            await actor.run_as(user.name, self._call_app(scope, replay, send))

    async def _call_app(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    async def _audit(self, scope: Scope, status: int) -> None:
        state = scope["state"]
        user, names = state.get("user"), state.get(AUDIT_TARGET, ())
        if len(names) > MANY_NAMES:
            target = await asyncio.to_thread(bounded, names, max_bytes(status))
        else:
            target = bounded(names, max_bytes(status))
        self._broker.audit.record(
            user=user.name if user is not None else "",
            source=_peer(scope),
            via="HTTP",
            vhost=scope.get("path_params", {}).get("vhost", ""),
            action=bounded([request_line(scope)], max_bytes(status)),
            target=target,
            outcome="done" if status < 400 else str(status),
        )


async def _abort(scope: Scope, receive: Receive) -> None:
    """Close the connection: the client must not take what it has for the whole response.

    uvicorn would do so after an exception, and log it a second time.
    """
    scope[ABORT]()
    while (await receive())["type"] != "http.disconnect":
        pass


def _is_cross_site(headers: Headers, hosts: AllowedHosts) -> bool:
    """Browsers send the origin of a request; tools send none and cannot be tricked."""
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return True
    origin, host = headers.get("origin"), headers.get("host")
    if origin is None:
        return False
    try:
        origin_host = urlsplit(origin).netloc
    except ValueError:
        return True
    return origin == "null" or (origin_host != host and host_of(origin_host) not in hosts.names)


def is_refusal(status: int) -> bool:
    """404 is not a refusal: the object does not exist."""
    return 400 <= status < 500 and status != 404


def is_change(method: str, path: str) -> bool:
    """Whether the request changes the broker. Publishing and consuming messages does not."""
    return method not in _SAFE and not (method == "POST" and _MESSAGE_TRAFFIC.fullmatch(path))


class _Replay:
    """Receives the body that was read already, then what follows it (a disconnect)."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> Message:
        if self._body is None:
            return await self._receive()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}


class _SecuredResponse:
    """Adds the headers that every response carries, and drops the body of a HEAD request."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._send = send
        self._is_head = scope["method"] == "HEAD"
        self._is_api = scope["path"].startswith(("/api", "/metrics"))
        self._is_tls = scope.get("scheme") == "https"
        self.is_started = False
        self.status = 0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.is_started = True
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers[name] = value
            if self._is_tls:
                headers["strict-transport-security"] = "max-age=31536000"
            if self._is_api:
                headers["cache-control"] = "no-store"
        elif self._is_head and message["type"] == "http.response.body":
            message = {**message, "body": b""}
        if len(message.get("body", b"")) > SMALL_BODY and not message.get("more_body", False):
            # The request ends when the client has read the rest, so send an empty end behind it.
            await self._send({**message, "more_body": True})
            message = {"type": "http.response.body", "body": b""}
        await self._send(message)
