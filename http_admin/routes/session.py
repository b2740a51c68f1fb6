"""Login, logout, and the current user."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs

import orjson
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field, ValidationError

from leveret.broker import User
from leveret.broker.access.users import hash_password
from leveret.http_admin.auth import (
    COOKIE,
    CurrentUser,
    check_password,
    get_sessions,
    require_management_tag,
)
from leveret.http_admin.errors import bad_request
from leveret.http_admin.responses import ERROR_RESPONSES, NO_CONTENT
from leveret.http_admin.schemas.access import HashedPassword, Identity

router = APIRouter(prefix="/api", tags=["session"], responses=ERROR_RESPONSES)


class Credentials(BaseModel):
    username: str = Field(max_length=1024)
    password: str = Field(max_length=1024)


@router.get("/whoami")
async def whoami(user: CurrentUser, request: Request) -> Identity:
    """The current user, and the CSRF token of a session."""
    session = getattr(request.state, "session", None)
    return _identity(user, session.csrf if session is not None else None)


def _identity(user: User, csrf: str | None) -> Identity:
    row: Identity = {"name": user.name, "tags": list(user.tags), "is_internal_user": True}
    if csrf is not None:
        row["csrf"] = csrf
    return row


@router.post(
    "/login",
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": Credentials.model_json_schema()}},
        }
    },
)
async def login(request: Request, response: Response) -> Identity:
    """Start a session: the response sets a cookie and contains the CSRF token."""
    credentials = _parse_credentials(await request.body())
    user = await check_password(request, credentials.username, credentials.password)
    request.state.user = user
    require_management_tag(user)
    sessions = get_sessions(request)
    sessions.delete(request.cookies.get(COOKIE, ""))
    token, session = sessions.create(user)
    response.set_cookie(
        COOKIE,
        token,
        path="/",
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return _identity(user, session.csrf)


def _parse_credentials(body: bytes) -> Credentials:
    """JSON, or a form as RabbitMQ's own page sends it."""
    try:
        fields: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        fields = {name: values[0] for name, values in parse_qs(body.decode("latin-1")).items()}
    try:
        return Credentials.model_validate(fields)
    except ValidationError:
        raise bad_request("username and password are needed") from None


@router.post("/logout", **NO_CONTENT)
async def logout(user: CurrentUser, request: Request, response: Response) -> None:
    """End the session and delete its cookie."""
    get_sessions(request).delete(request.cookies.get(COOKIE, ""))
    response.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")


@router.get("/auth/hash_password/{password:seg}")
async def hash_a_password(password: str, user: CurrentUser) -> HashedPassword:
    """The hash of a password as definitions contain it."""
    return {"ok": hash_password(password)}
