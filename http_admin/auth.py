"""Authentication, sessions of the web UI, and what a user's tags allow.

Tools authenticate with HTTP Basic; the web UI uses a session cookie with a CSRF token. Sessions
live in memory and end after an hour without a request, after eight hours, or on logout. Passwords
are checked, and attempts counted, by the broker (`leveret/broker/access`): AMQP and HTTP share the
limits.
"""

from __future__ import annotations

import base64
import hmac
import logging
import math
import secrets
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Request

from leveret.broker import Broker, User, VirtualHost
from leveret.broker.access.authentication import Refusal, Refused
from leveret.http_admin.errors import ApiError

log = logging.getLogger("leveret.http")

ADMIT_USER = "leveret.admit_user"
"""Key of a request's scope: a function that assigns the connection to a user, and returns whether
the user may have one more."""
IS_CONNECTED = "leveret.is_connected"
"""Key of a request's scope: a function that returns whether the client is still connected."""
ABORT = "leveret.abort"
"""Key of a request's scope: a function that closes the connection in the middle of a response."""
DISCONNECTED = "disconnected"
"""Key of a request's state: the broker closed the connection, and logged why."""
IS_LOGGED = "is_logged"
"""Key of a request's state: the refusal was logged already."""
AUDIT_TARGET = "audit_target"
"""Key of a request's state: names of changed objects, for the audit log, if the path has none."""
COOKIE = "leveret_session"
CSRF_HEADER = "x-csrf-token"
IDLE_SECONDS = 3_600.0
ABSOLUTE_SECONDS = 8 * 3_600.0
MAX_SESSIONS, MAX_SESSIONS_PER_USER = 10_000, 100
MANAGEMENT_TAGS = frozenset({"administrator", "monitoring", "policymaker", "management"})
SEES_EVERYTHING = frozenset({"administrator", "monitoring"})
_SAFE = ("GET", "HEAD", "OPTIONS")
_LOOPBACK_ONLY = "User can only log in via localhost"
_NO_MANAGEMENT_TAG = "user has no management tag"


# Sessions ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class WebSession:
    user: str
    csrf: str
    created: float
    seen: float
    password_id: int
    """The user's at login: a new password ends the session."""


class SessionStore:
    """Sessions of the web UI, by cookie."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._sessions: dict[str, WebSession] = {}

    def create(self, user: User) -> tuple[str, WebSession]:
        """A new session of an authenticated user: its token and itself."""
        now = self.broker.clock.monotonic()
        self._make_room(user.name)
        token = secrets.token_urlsafe(32)
        session = WebSession(user.name, secrets.token_urlsafe(32), now, now, user.password_id)
        self._sessions[token] = session
        return token, session

    def maybe_get(self, token: str) -> WebSession | None:
        """The session, which counts as used now; None if there is none or it has expired."""
        session = self._sessions.get(token)
        if session is None:
            return None
        now = self.broker.clock.monotonic()
        if now - session.seen > IDLE_SECONDS or now - session.created > ABSOLUTE_SECONDS:
            del self._sessions[token]
            return None
        session.seen = now
        return session

    def delete(self, token: str) -> None:
        self._sessions.pop(token, None)

    def clear(self) -> None:
        self._sessions.clear()

    def _make_room(self, user: str) -> None:
        """Delete the least recently used session: of this user if it has the maximum."""
        own = [token for token, session in self._sessions.items() if session.user == user]
        if len(own) >= MAX_SESSIONS_PER_USER or len(self._sessions) >= MAX_SESSIONS:
            candidates = own if len(own) >= MAX_SESSIONS_PER_USER else self._sessions
            del self._sessions[min(candidates, key=lambda token: self._sessions[token].seen)]


async def get_broker(request: Request) -> Broker:
    broker: Broker = request.app.state.broker
    return broker


def get_sessions(request: Request) -> SessionStore:
    sessions: SessionStore = request.app.state.sessions
    return sessions


# Authentication ----------------------------------------------------------------------------------


async def authenticate(request: Request) -> User:
    """The user of this request; 401 without valid credentials, 403 without a management tag.

    A dependency of routes. `SecurityMiddleware` has called it already for requests that change
    something, before it read their bodies.
    """
    known: User | None = getattr(request.state, "user", None)
    if known is not None:
        return known
    header = request.headers.get("authorization", "")
    if not header:
        return _admit(request, _session_user(request))
    try:
        name, password = _basic_credentials(header)
        user = await check_password(request, name, password)
    except ApiError as error:
        headers = {**(error.headers or {}), **(_challenge(request) or {})}
        raise ApiError(error.status, error.reason, headers) from None
    return _admit(request, user)


def reauthenticate(request: Request, user: User) -> User:
    """The same user as it is now; 401 if its password or session has changed meanwhile."""
    if not request.headers.get("authorization", ""):
        return _admit(request, _session_user(request))
    broker: Broker = request.app.state.broker
    current = broker.users.by_name.get(user.name)
    if current is None or current.password_id != user.password_id:
        raise ApiError(401, "Login failed", _challenge(request))
    return _admit(request, current)


def require_unchanged(request: Request, user: User) -> None:
    """After a wait: refuse the request if what it was authorized by has changed meanwhile: the
    credentials, the user's tags, or the access to the vhost of its path."""
    if reauthenticate(request, user).tags != user.tags:
        raise ApiError(403, "the user's tags have changed since the request was received")
    vhost = request.path_params.get("vhost")
    if vhost is not None:
        vhost_for(request.app.state.broker, user, vhost)


def _admit(request: Request, user: User) -> User:
    request.state.user = user
    if MANAGEMENT_TAGS.isdisjoint(user.tags):
        raise ApiError(403, _NO_MANAGEMENT_TAG)
    admit_user = request.scope.get(ADMIT_USER)
    if admit_user is not None and not admit_user(user.name):
        raise ApiError(429, "too many connections of this user", {"Connection": "close"})
    return user


async def check_password(request: Request, name: str, password: str) -> User:
    """The user, if the password is right; refusals are logged here."""
    request.state.is_logged = True
    host = request.client.host if request.client else ""
    is_connected = request.scope.get(IS_CONNECTED, lambda: True)
    broker: Broker = request.app.state.broker
    result = await broker.authenticator.check(name, password, host, is_connected)
    if not isinstance(result, Refused):
        request.state.is_logged = False
        return result
    reason = result.why.value
    facts = {"event": "login refused", "user": name, "peer": host, "why": reason}
    log.warning("HTTP from %s: login of %r refused: %s", host, name, reason, extra={"facts": facts})
    if result.retry_seconds > 0:
        wait = str(math.ceil(result.retry_seconds))
        raise ApiError(429, f"{reason}, wait {wait} s", {"Retry-After": wait})
    is_loopback_only = result.why is Refusal.LOOPBACK_ONLY
    raise ApiError(401, _LOOPBACK_ONLY if is_loopback_only else "Login failed")


def _session_user(request: Request) -> User:
    """The user of the session cookie; changes also need the session's CSRF token."""
    sessions = get_sessions(request)
    broker = sessions.broker
    session = sessions.maybe_get(request.cookies.get(COOKIE, ""))
    user = broker.users.by_name.get(session.user) if session else None
    if session is None or user is None or user.password_id != session.password_id:
        raise ApiError(401, "not signed in", _challenge(request))
    if not _has_management_tag(user):  # 401, so that the page asks for another user
        raise ApiError(401, "not signed in", _challenge(request))
    host = request.client.host if request.client else ""
    if isinstance(broker.authenticator.accept(user.name, host), Refused):
        raise ApiError(401, _LOOPBACK_ONLY)  # the cookie was taken to another machine
    if request.method not in _SAFE:
        given = request.headers.get(CSRF_HEADER, "")
        if not hmac.compare_digest(given.encode(), session.csrf.encode()):
            raise ApiError(403, f"missing or wrong {CSRF_HEADER} header")
    request.state.session = session
    return user


def _challenge(request: Request) -> dict[str, str] | None:
    """Ask tools for credentials, but not scripts of a page: a browser would open a dialog."""
    if request.headers.get("sec-fetch-mode", "navigate") != "navigate":
        return None
    broker: Broker = request.app.state.broker
    return {"WWW-Authenticate": f'Basic realm="{broker.settings.http_realm}"'}


def _basic_credentials(header: str) -> tuple[str, str]:
    scheme, _, encoded = header.partition(" ")
    try:
        if scheme.lower() != "basic":
            raise ValueError
        name, colon, password = base64.b64decode(encoded, validate=True).decode().partition(":")
        if not colon:
            raise ValueError
    except ValueError:
        raise ApiError(401, "malformed authorization header") from None
    return name, password


# Authorization -----------------------------------------------------------------------------------


def require_management_tag(user: User) -> None:
    if MANAGEMENT_TAGS.isdisjoint(user.tags):
        raise ApiError(403, _NO_MANAGEMENT_TAG)


def _has_management_tag(user: User) -> bool:
    return not MANAGEMENT_TAGS.isdisjoint(user.tags)


def can_manage(broker: Broker, name: str) -> bool:
    """Whether the user still exists and still has a management tag."""
    user = broker.users.by_name.get(name)
    return user is not None and _has_management_tag(user)


CurrentUser = Annotated[User, Depends(authenticate)]
AppBroker = Annotated[Broker, Depends(get_broker)]


def require_tag(*tags: str) -> Any:
    """A dependency: the user must have one of these tags or be an administrator."""

    async def check(user: CurrentUser) -> User:
        if not set(user.tags) & {"administrator", *tags}:
            raise ApiError(403, f"this needs the tag {' or '.join(tags or ('administrator',))}")
        return user

    return Depends(check)


def sees_everything(user: User) -> bool:
    return not SEES_EVERYTHING.isdisjoint(user.tags)


def visible_vhosts(broker: Broker, user: User) -> list[VirtualHost]:
    """Vhosts whose objects this user may list."""
    if not SEES_EVERYTHING.isdisjoint(user.tags):
        return list(broker.vhosts.values())
    can_access = broker.users.can_access_vhost
    return [vhost for vhost in broker.vhosts.values() if can_access(user.name, vhost.name)]


def vhost_for(broker: Broker, user: User, name: str) -> VirtualHost:
    """The vhost, if it exists and this user may access it."""
    vhost = broker.vhosts.get(name)
    if vhost is None:
        raise ApiError(404, "Not Found")
    if not sees_everything(user) and not broker.users.can_access_vhost(user.name, name):
        raise ApiError(403, f"access to vhost '{name}' refused for user '{user.name}'")
    return vhost


async def _vhost_of_path(vhost: str, broker: AppBroker, user: CurrentUser) -> VirtualHost:
    return vhost_for(broker, user, vhost)


PathVhost = Annotated[VirtualHost, Depends(_vhost_of_path)]
"""The vhost named by the path, checked before the body is validated."""
