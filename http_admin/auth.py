"""Who is asking, and what their tags let them see.

Two ways in: HTTP basic, for tools; a session cookie with a CSRF token, for the web UI. Sessions
live in memory, end after an hour of silence or eight hours, and are gone when signed out.
Passwords are checked, and tries counted, by the hub (`leveret/broker/access`): AMQP and HTTP share
their limits.
"""

from __future__ import annotations

import base64
import hmac
import logging
import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Request

from http_admin.errors import ApiError
from leveret.broker import Broker, User, VirtualHost
from leveret.broker.access.logins import Refusal, Refused

log = logging.getLogger("leveret.http")

LET_IN = "leveret.let_in"
"""Where a request's scope has the call that tells its connection who its sender is, and learns
whether they may have one more."""
IS_HERE = "leveret.is_here"
"""Where a request's scope has the call that tells whether its sender still is."""
CUT_OFF = "cut_off"
"""Where a request's state has that it was cut off, and that this was told."""
TARGET = "target"
"""Where a request's state has what is changed, for the audit log, if its path does not say."""
COOKIE = "leveret_session"
CSRF_HEADER = "x-csrf-token"
IDLE_SECONDS = 3_600.0
ABSOLUTE_SECONDS = 8 * 3_600.0
MOST_SESSIONS, MOST_OF_ONE_USER = 10_000, 100
MANAGEMENT_TAGS = frozenset({"administrator", "monitoring", "policymaker", "management"})
_SAFE = ("GET", "HEAD", "OPTIONS")
_NOT_FROM_HERE = "User can only log in via localhost"


@dataclass(slots=True)
class WebSession:
    user: str
    csrf: str
    created: float
    seen: float
    password_id: int
    """Of the user when signing in: another password ends the session."""


class Doorkeeper:
    """Knows the sessions."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._sessions: dict[str, WebSession] = {}

    def sign_in(self, user: User) -> tuple[str, WebSession]:
        """A new session for somebody whose password was right."""
        now = self.broker.clock.monotonic()
        self._forget_old(user.name)
        token = secrets.token_urlsafe(32)
        session = WebSession(user.name, secrets.token_urlsafe(32), now, now, user.password_id)
        self._sessions[token] = session
        return token, session

    def sign_out(self, token: str) -> None:
        self._sessions.pop(token, None)

    def sign_out_all(self) -> None:
        self._sessions.clear()

    async def check(
        self, name: str, password: str, host: str, is_here: Callable[[], bool] = lambda: True
    ) -> User:
        """The user, unless the password is wrong or was wrong too often lately."""
        answer = await self.broker.access.logins.check(name, password, host, is_here)
        if not isinstance(answer, Refused):
            return answer
        why = answer.why.value
        facts = {"event": "login refused", "user": name, "peer": host, "why": why}
        log.warning(
            "HTTP from %s: login of %r refused: %s", host, name, why, extra={"facts": facts}
        )
        if answer.retry_seconds > 0:
            wait = str(math.ceil(answer.retry_seconds))
            raise ApiError(429, f"{why}, wait {wait} s", {"Retry-After": wait})
        if answer.why is Refusal.NOT_FROM_HERE:
            raise ApiError(401, _NOT_FROM_HERE)
        raise ApiError(401, "Login failed")

    def session(self, token: str) -> WebSession | None:
        found = self._sessions.get(token)
        if found is None:
            return None
        now = self.broker.clock.monotonic()
        if now - found.seen > IDLE_SECONDS or now - found.created > ABSOLUTE_SECONDS:
            del self._sessions[token]
            return None
        found.seen = now
        return found

    def _forget_old(self, user: str) -> None:
        """Who signs in again and again ends sessions of their own, and nobody else's."""
        own = [token for token, one in self._sessions.items() if one.user == user]
        if len(own) >= MOST_OF_ONE_USER or len(self._sessions) >= MOST_SESSIONS:
            among = own if len(own) >= MOST_OF_ONE_USER else self._sessions
            del self._sessions[min(among, key=lambda token: self._sessions[token].seen)]


async def get_broker(request: Request) -> Broker:
    broker: Broker = request.app.state.broker
    return broker


def get_doorkeeper(request: Request) -> Doorkeeper:
    doorkeeper: Doorkeeper = request.app.state.doorkeeper
    return doorkeeper


async def current_user(request: Request) -> User:
    """Whoever asks: 401 when nobody we know, 403 without a tag.

    A password is checked once for each request. Asked again, for a body may have come meanwhile,
    it is looked whether they still are who they were.
    """
    request.state.vhost = request.path_params.get("vhost", "")  # known when it has been routed
    known: User | None = getattr(request.state, "user", None)
    user = await _whoever_asks(request) if known is None else _still(request, known)
    request.state.user = user
    require_management_tag(user)
    if (let_in := request.scope.get(LET_IN)) is not None and not let_in(user.name):
        raise ApiError(429, "too many connections of this user", {"Connection": "close"})
    return user


async def require_unchanged(request: Request, user: User) -> None:
    """After a wait: what was found out about their tags before must still hold."""
    if (await current_user(request)).tags != user.tags:
        raise ApiError(403, "the user has other tags since")


def _still(request: Request, user: User) -> User:
    if not request.headers.get("authorization", ""):
        return _from_cookie(request, get_doorkeeper(request))
    now = get_doorkeeper(request).broker.users.by_name.get(user.name)
    if now is None or now.password_id != user.password_id:
        raise ApiError(401, "Login failed", _challenge(request))
    return now


async def _whoever_asks(request: Request) -> User:
    header = request.headers.get("authorization", "")
    if not header:
        return _from_cookie(request, get_doorkeeper(request))
    try:
        name, password = _basic(header)
        return await checked(request, name, password)
    except ApiError as error:
        headers = {**(error.headers or {}), **(_challenge(request) or {})}
        raise ApiError(error.status, error.reason, headers) from None


async def checked(request: Request, name: str, password: str) -> User:
    """As the doorkeeper says, who logs a refusal: nobody else needs to."""
    request.state.is_told = True
    is_here = request.scope.get(IS_HERE, lambda: True)
    user = await get_doorkeeper(request).check(name, password, client_host(request), is_here)
    request.state.is_told = False
    return user


def require_management_tag(user: User) -> None:
    if not _has_management_tag(user):
        raise ApiError(403, "user has no management tag")


def _has_management_tag(user: User) -> bool:
    return not MANAGEMENT_TAGS.isdisjoint(user.tags)


def may_manage(broker: Broker, name: str) -> bool:
    """Still, for who has long been let in."""
    user = broker.users.by_name.get(name)
    return user is not None and _has_management_tag(user)


def _from_cookie(request: Request, doorkeeper: Doorkeeper) -> User:
    session = doorkeeper.session(request.cookies.get(COOKIE, ""))
    user = doorkeeper.broker.users.by_name.get(session.user) if session else None
    if session is None or user is None or user.password_id != session.password_id:
        raise ApiError(401, "not signed in", _challenge(request))
    if not _has_management_tag(user):  # it had one: the page is to ask who is there now
        raise ApiError(401, "not signed in", _challenge(request))
    if isinstance(doorkeeper.broker.access.logins.accept(user.name, client_host(request)), Refused):
        raise ApiError(401, _NOT_FROM_HERE)  # signed in from here, and carried elsewhere
    if request.method not in _SAFE:
        given = request.headers.get(CSRF_HEADER, "")
        if not hmac.compare_digest(given.encode(), session.csrf.encode()):
            raise ApiError(403, f"missing or wrong {CSRF_HEADER} header")
    request.state.session = session
    return user


def _challenge(request: Request) -> dict[str, str] | None:
    """Tools are asked for credentials; a page's own requests must not open a browser dialog."""
    if request.headers.get("sec-fetch-mode", "navigate") != "navigate":
        return None
    return {"WWW-Authenticate": 'Basic realm="Leveret"'}


def _basic(header: str) -> tuple[str, str]:
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


def client_host(request: Request) -> str:
    return request.client.host if request.client else ""


CurrentUser = Annotated[User, Depends(current_user)]
Hub = Annotated[Broker, Depends(get_broker)]


def require_tag(*tags: str) -> Any:
    """A dependency: the user must have one of these tags; administrators may do everything."""

    async def check(user: CurrentUser) -> User:
        if not set(user.tags) & {"administrator", *tags}:
            raise ApiError(403, f"this needs the tag {' or '.join(tags or ('administrator',))}")
        return user

    return Depends(check)


def sees_everything(user: User) -> bool:
    return bool(set(user.tags) & {"administrator", "monitoring"})


def visible_vhosts(broker: Broker, user: User) -> list[VirtualHost]:
    """Vhosts whose objects this user may list."""
    if sees_everything(user):
        return list(broker.vhosts.values())
    return [v for v in broker.vhosts.values() if broker.users.may_enter(user.name, v.name)]


def vhost_for(broker: Broker, user: User, name: str) -> VirtualHost:
    """The vhost, if it exists and this user may look into it."""
    vhost = broker.vhosts.get(name)
    if vhost is None:
        raise ApiError(404, "Not Found")
    if not sees_everything(user) and not broker.users.may_enter(user.name, name):
        raise ApiError(403, f"access to vhost '{name}' refused for user '{user.name}'")
    return vhost


async def _vhost_of_path(vhost: str, hub: Hub, user: CurrentUser) -> VirtualHost:
    return vhost_for(hub, user, vhost)


InVhost = Annotated[VirtualHost, Depends(_vhost_of_path)]
"""The same as a dependency: found out before what a body holds is looked at."""
