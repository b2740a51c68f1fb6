"""Users, their tags, passwords and limits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from leveret.broker import Broker, User
from leveret.broker.access.passwords import MAX_PASSWORD_LENGTH, check_hash
from leveret.broker.definitions.export import user_row
from leveret.broker.policies.parameters import KNOWN_USER_LIMITS, check_limits
from leveret.http_admin.auth import (
    AUDIT_TARGET,
    AppBroker,
    CurrentUser,
    require_tag,
    require_unchanged,
)
from leveret.http_admin.commit import until_committed
from leveret.http_admin.errors import bad_request, not_found
from leveret.http_admin.json_response import FastJsonResponse
from leveret.http_admin.listing import ListParams, list_rows
from leveret.http_admin.middleware.audit_text import comma_separated
from leveret.http_admin.responses import CREATED, ERROR_RESPONSES, NO_CONTENT
from leveret.http_admin.schemas.access import UserLimits, UserRow
from leveret.http_admin.schemas.common import listing
from leveret.http_admin.schemas.fields import LimitBody, Tags

router = APIRouter(
    prefix="/api", tags=["users"], dependencies=[require_tag()], responses=ERROR_RESPONSES
)
MAX_NAME_BYTES = 255


class UserBody(BaseModel):
    tags: Tags | None = Field(default=None, description="A list, or a string with commas.")
    password: str | None = None
    password_hash: str | None = Field(
        default=None,
        description="Argon2id, or base64 of salt and digest; empty: the user cannot log in.",
    )
    hashing_algorithm: str | None = None


class UserNames(BaseModel):
    users: list[str]


def _find(broker: Broker, name: str) -> User:
    user = broker.users.by_name.get(name)
    if user is None:
        raise not_found()
    return user


def _except(broker: Broker, names: set[str]) -> list[User]:
    return [user for user in broker.users.by_name.values() if user.name not in names]


@router.get("/users", response_model=listing(UserRow))
async def list_users(broker: AppBroker, query: ListParams) -> FastJsonResponse:
    """All users."""
    return await list_rows(broker.users.by_name.values(), query, user_row, lambda user: user.name)


@router.get("/users/without-permissions", response_model=list[UserRow])
async def users_without_permissions(broker: AppBroker) -> list[dict[str, Any]]:
    """Users that may access no virtual host."""
    allowed = {user for user, _ in broker.users.permissions}
    return [user_row(user) for user in _except(broker, allowed)]


@router.post("/users/bulk-delete", **NO_CONTENT)
async def delete_users(broker: AppBroker, request: Request, body: UserNames) -> None:
    """Delete several users; unknown names are ignored."""
    names = [name for name in dict.fromkeys(body.users) if name in broker.users.by_name]
    setattr(request.state, AUDIT_TARGET, list(comma_separated(names)))
    broker.users.require_administrator(_except(broker, set(names)))
    for name in names:
        broker.delete_user(name)
    await until_committed(broker)


@router.get("/users/{name:seg}", response_model=UserRow)
async def get_user(name: str, broker: AppBroker) -> dict[str, Any]:
    """One user."""
    return user_row(_find(broker, name))


@router.put("/users/{name:seg}", **CREATED)
async def put_user(
    name: str,
    broker: AppBroker,
    user: CurrentUser,
    request: Request,
    response: Response,
    body: UserBody,
) -> None:
    """Create or change a user: its tags, and its password or the hash of one.

    A user without either cannot log in. The last administrator keeps its tag and its password,
    since no other user could restore them.
    """
    if body.tags is None:
        raise bad_request("tags_not_present")
    if not name or len(name.encode()) > MAX_NAME_BYTES:
        raise bad_request(f"a user name must have 1 to {MAX_NAME_BYTES} bytes")
    password_hash, algorithm = await _password_hash(broker, body, user.name)
    require_unchanged(request, user)  # hashing takes a while
    tags = checked_tags(body.tags)
    changed = User(name, password_hash, algorithm, tags)
    broker.users.require_administrator([*_except(broker, {name}), changed])
    existed = name in broker.users.by_name
    broker.users.put_user(name, password_hash, tags, algorithm)
    await until_committed(broker)
    response.status_code = 204 if existed else 201


def checked_tags(tags: list[str]) -> tuple[str, ...]:
    for tag in tags:
        if "," in tag:
            raise bad_request(f"a tag must not contain a comma: {tag!r}")
    return tuple(dict.fromkeys(tags))


async def _password_hash(broker: Broker, body: UserBody, requested_by: str) -> tuple[str, str]:
    """The hash of the given password, or the given hash, and its algorithm."""
    if body.password is not None and body.password_hash is not None:
        raise bad_request("both_password_and_password_hash_are_provided")
    if body.password is not None:
        if not body.password:
            raise bad_request("the password must not be empty")
        if len(body.password) > MAX_PASSWORD_LENGTH:
            raise bad_request(f"a password has at most {MAX_PASSWORD_LENGTH} characters")
        return await broker.authenticator.hash_new_password(body.password, requested_by)
    given = body.password_hash or ""
    return given, check_hash(given, body.hashing_algorithm)


@router.delete("/users/{name:seg}", **NO_CONTENT)
async def delete_user(name: str, broker: AppBroker) -> None:
    """Delete a user and close its connections. The last administrator cannot be deleted."""
    _find(broker, name)
    broker.users.require_administrator(_except(broker, {name}))
    broker.delete_user(name)
    await until_committed(broker)


# Limits ------------------------------------------------------------------------------------------


def _limit_rows(users: Iterable[User]) -> list[UserLimits]:
    return [{"user": user.name, "value": dict(user.limits)} for user in users if user.limits]


@router.get("/user-limits")
async def list_user_limits(broker: AppBroker) -> list[UserLimits]:
    """Limits of all users that have any."""
    return _limit_rows(broker.users.by_name.values())


@router.get("/user-limits/{name:seg}")
async def get_user_limits(name: str, broker: AppBroker) -> list[UserLimits]:
    """Limits of one user."""
    return _limit_rows([_find(broker, name)])


@router.put("/user-limits/{name:seg}/{limit:seg}", **NO_CONTENT)
async def put_user_limit(name: str, limit: str, broker: AppBroker, body: LimitBody) -> None:
    """Limit a user's connections (max-connections) or channels (max-channels).

    The limit of channels is stored and shown, but not enforced.
    """
    user = _find(broker, name)
    check_limits({limit: body.value}, KNOWN_USER_LIMITS)
    broker.users.set_limits(name, {**user.limits, limit: body.value})
    await until_committed(broker)


@router.delete("/user-limits/{name:seg}/{limit:seg}", **NO_CONTENT)
async def delete_user_limit(name: str, limit: str, broker: AppBroker) -> None:
    """Remove a limit."""
    user = _find(broker, name)
    remaining = {key: value for key, value in user.limits.items() if key != limit}
    broker.users.set_limits(name, remaining)
    await until_committed(broker)
