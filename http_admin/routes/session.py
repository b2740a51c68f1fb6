"""Signing in and out, and who one is."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs

import orjson
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field, ValidationError

from http_admin.auth import (
    COOKIE,
    CurrentUser,
    checked,
    get_doorkeeper,
    require_management_tag,
)
from http_admin.errors import bad_request
from http_admin.views import Row
from leveret.broker import User
from leveret.broker.users import hash_password

router = APIRouter(prefix="/api", tags=["session"])


class Credentials(BaseModel):
    username: str = Field(max_length=1024)
    password: str = Field(max_length=1024)


class HashedPassword(BaseModel):
    ok: str = Field(description="Salt and hash, in base64.")


class Identity(BaseModel):
    name: str
    tags: list[str]
    is_internal_user: bool
    csrf: str | None = Field(
        default=None, description="Goes into the header X-CSRF-Token of every change."
    )


@router.get("/whoami", response_model=Identity)
def whoami(user: CurrentUser, request: Request) -> Row:
    """The user who asks, and the CSRF token of a session."""
    session = getattr(request.state, "session", None)
    return _identity(user, session.csrf if session is not None else None)


def _identity(user: User, csrf: str | None) -> Row:
    row: Row = {"name": user.name, "tags": list(user.tags), "is_internal_user": True}
    return row if csrf is None else row | {"csrf": csrf}


@router.post(
    "/login",
    response_model=Identity,
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": Credentials.model_json_schema()}},
        }
    },
)
async def login(request: Request, response: Response) -> Row:
    """Start a session: the answer sets a cookie and carries the CSRF token."""
    given = _credentials(await request.body())
    doorkeeper = get_doorkeeper(request)
    user = request.state.user = await checked(request, given.username, given.password)
    require_management_tag(user)
    doorkeeper.sign_out(request.cookies.get(COOKIE, ""))
    token, session = doorkeeper.sign_in(user)
    response.set_cookie(
        COOKIE,
        token,
        path="/",
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return _identity(user, session.csrf)


def _credentials(body: bytes) -> Credentials:
    """JSON, or a form as RabbitMQ's own page sends it."""
    try:
        found: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        found = {name: values[0] for name, values in parse_qs(body.decode("latin-1")).items()}
    try:
        return Credentials.model_validate(found)
    except ValidationError:
        raise bad_request("username and password are needed") from None


@router.post("/logout", status_code=204)
def logout(user: CurrentUser, request: Request, response: Response) -> None:
    """End the session here and in the browser."""
    get_doorkeeper(request).sign_out(request.cookies.get(COOKIE, ""))
    response.status_code = 204
    response.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")


@router.get("/auth/hash_password/{password:seg}", response_model=HashedPassword)
def hash_a_password(password: str, user: CurrentUser) -> Row:
    """A password as definitions store it."""
    return {"ok": hash_password(password)}
