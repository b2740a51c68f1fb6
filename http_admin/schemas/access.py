"""Users, permissions, sessions, the audit log."""

from __future__ import annotations

from typing import Annotated, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from leveret.http_admin.schemas.definitions import (
    DefinedPermission as PermissionRow,
)
from leveret.http_admin.schemas.definitions import (
    DefinedTopicPermission as TopicPermissionRow,
)

__all__ = [
    "AuditEntry", "HashedPassword", "Identity", "PermissionRow", "TopicPermissionRow",
    "UserLimits", "UserRow",
]  # fmt: skip


class UserRow(TypedDict):
    name: str
    password_hash: str
    hashing_algorithm: str
    tags: list[str]
    limits: dict[str, int]


class UserLimits(TypedDict):
    user: str
    value: Annotated[
        dict[str, int], Field(description="max-connections and max-channels; -1 means no limit.")
    ]


class Identity(TypedDict):
    name: str
    tags: list[str]
    is_internal_user: bool
    csrf: NotRequired[
        Annotated[str, Field(description="Send it as the header X-CSRF-Token with every change.")]
    ]


class HashedPassword(TypedDict):
    ok: Annotated[str, Field(description="Salt and hash, in base64.")]


class AuditEntry(TypedDict):
    time_ms: int
    user: str
    source: Annotated[
        str, Field(description="Address and port of an AMQP client, address of an HTTP client.")
    ]
    via: Annotated[str, Field(description="AMQP or HTTP.")]
    vhost: str
    action: Annotated[
        str, Field(description="The AMQP method, or method and path of the HTTP request.")
    ]
    target: Annotated[str, Field(description="The name of the changed object.")]
    outcome: Annotated[str, Field(description="done, or the status of a refused request.")]
