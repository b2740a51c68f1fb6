"""Users, their tags, passwords and limits."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from http_admin.auth import TARGET, CurrentUser, Hub, require_tag, require_unchanged
from http_admin.durable import until_durable
from http_admin.errors import bad_request, not_found
from http_admin.fields import LimitBody, Tags
from http_admin.listing import List, listed
from http_admin.noting import in_a_row
from http_admin.shapes import listing
from http_admin.views import Row
from leveret.broker import Broker, User
from leveret.broker.access.passwords import ARGON2ID, LONGEST, check_hash
from leveret.broker.definitions import user_row
from leveret.broker.parameters import KNOWN_USER_LIMITS, check_limits

router = APIRouter(prefix="/api", tags=["users"], dependencies=[require_tag()])
LONGEST_NAME = 255


class UserBody(BaseModel):
    tags: Tags | None = Field(default=None, description="A list, or a string with commas.")
    password: str | None = None
    password_hash: str | None = Field(
        default=None,
        description="Argon2id, or base64 of salt and digest; empty: nobody can log in.",
    )
    hashing_algorithm: str | None = None


class UserRow(BaseModel):
    name: str
    password_hash: str
    hashing_algorithm: str
    tags: list[str]
    limits: dict[str, int]


class UserNames(BaseModel):
    users: list[str]


def _user(hub: Broker, name: str) -> User:
    found = hub.users.by_name.get(name)
    if found is None:
        raise not_found()
    return found


def _without(hub: Broker, names: set[str]) -> list[User]:
    return [one for one in hub.users.by_name.values() if one.name not in names]


@router.get("/users", response_model=listing(UserRow))
async def list_users(hub: Hub, ask: List) -> Any:
    """Every user."""
    return await listed(hub.users.by_name.values(), ask, user_row, lambda one: one.name)


@router.get("/users/without-permissions", response_model=list[UserRow])
def users_without_permissions(hub: Hub) -> list[Row]:
    """Users that may enter no virtual host."""
    allowed = {user for user, _ in hub.users.permissions}
    return [user_row(one) for one in hub.users.by_name.values() if one.name not in allowed]


@router.post("/users/bulk-delete", status_code=204)
async def delete_users(hub: Hub, request: Request, body: UserNames) -> None:
    """Delete several users; unknown names are passed over."""
    known = [name for name in dict.fromkeys(body.users) if name in hub.users.by_name]
    setattr(request.state, TARGET, list(in_a_row(known)))
    hub.users.require_administrator(_without(hub, set(known)))
    for name in known:
        hub.delete_user(name)
    await until_durable(hub)


@router.get("/users/{name:seg}", response_model=UserRow)
def get_user(name: str, hub: Hub) -> Row:
    """One user."""
    return user_row(_user(hub, name))


@router.put("/users/{name:seg}", status_code=201)
async def put_user(
    name: str,
    hub: Hub,
    user: CurrentUser,
    request: Request,
    response: Response,
    body: UserBody,
) -> None:
    """Make or change a user: tags, and a password or its hash.

    Without either the user is kept without a password: nobody can log in with it. The last
    administrator keeps tag and password: nobody could give them back.
    """
    if body.tags is None:
        raise bad_request("tags_not_present")
    if not name or len(name.encode()) > LONGEST_NAME:
        raise bad_request(f"a user's name has 1 to {LONGEST_NAME} octets")
    hashed, hashing = await _credentials(hub, body, user.name)
    await require_unchanged(request, user)
    tags = checked_tags(body.tags)
    hub.users.require_administrator([*_without(hub, {name}), User(name, hashed, hashing, tags)])
    existed = name in hub.users.by_name
    hub.users.put_user(name, hashed, tags, hashing)
    await until_durable(hub)
    response.status_code = 204 if existed else 201


def checked_tags(tags: list[str]) -> tuple[str, ...]:
    for tag in tags:
        if "," in tag:
            raise bad_request(f"a tag must not contain a comma: {tag!r}")
    return tuple(dict.fromkeys(tags))


async def _credentials(hub: Broker, body: UserBody, by: str) -> tuple[str, str]:
    if body.password is not None and body.password_hash is not None:
        raise bad_request("both_password_and_password_hash_are_provided")
    if body.password is not None:
        if not body.password:
            raise bad_request("the password must not be empty")
        if len(body.password) > LONGEST:
            raise bad_request(f"a password has at most {LONGEST} characters")
        return await hub.access.logins.hash(body.password, by), ARGON2ID
    hashed = body.password_hash or ""
    return hashed, check_hash(hashed, body.hashing_algorithm)


@router.delete("/users/{name:seg}", status_code=204)
async def delete_user(name: str, hub: Hub) -> None:
    """Delete a user; their connections are closed. The last administrator stays."""
    _user(hub, name)
    hub.users.require_administrator(_without(hub, {name}))
    hub.delete_user(name)
    await until_durable(hub)


# Limits ------------------------------------------------------------------------------------------


class UserLimits(BaseModel):
    user: str
    value: dict[str, int] = Field(description="max-connections and max-channels; -1 is no limit.")


def _limits(users: list[User]) -> list[Row]:
    return [{"user": one.name, "value": dict(one.limits)} for one in users if one.limits]


@router.get("/user-limits", response_model=list[UserLimits])
def list_user_limits(hub: Hub) -> list[Row]:
    """Limits of every user that has any."""
    return _limits(list(hub.users.by_name.values()))


@router.get("/user-limits/{name:seg}", response_model=list[UserLimits])
def get_user_limits(name: str, hub: Hub) -> list[Row]:
    """Limits of one user."""
    return _limits([_user(hub, name)])


@router.put("/user-limits/{name:seg}/{limit:seg}", status_code=204)
async def put_user_limit(name: str, limit: str, hub: Hub, body: LimitBody) -> None:
    """Limit a user's connections (max-connections) or channels (max-channels).

    The limit of channels is kept and shown; it is not enforced.
    """
    user = _user(hub, name)
    check_limits({limit: body.value}, KNOWN_USER_LIMITS)
    hub.users.set_limits(name, {**user.limits, limit: body.value})
    await until_durable(hub)


@router.delete("/user-limits/{name:seg}/{limit:seg}", status_code=204)
async def delete_user_limit(name: str, limit: str, hub: Hub) -> None:
    """Lift a limit."""
    user = _user(hub, name)
    hub.users.set_limits(name, {key: most for key, most in user.limits.items() if key != limit})
    await until_durable(hub)
