"""Users, their passwords and what they may do. Patterns are RE2: linear in their input."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from typing import Any

import re2

from leveret.model.errors import AccessRefused, PreconditionFailed
from leveret.model.store import (
    PermissionDefinition,
    Store,
    TopicPermissionDefinition,
    UserDefinition,
)

SHA256 = "rabbit_password_hashing_sha256"
HASHES: dict[str, Callable[[bytes], hashlib._Hash]] = {
    SHA256: hashlib.sha256,
    "rabbit_password_hashing_sha512": hashlib.sha512,
    "rabbit_password_hashing_md5": hashlib.md5,
}
"""RabbitMQ's, by the names its definitions use; new passwords are hashed with the first."""
_QUIET = re2.Options()
_QUIET.log_errors = False  # whoever gave a bad pattern is told; the broker's log need not be
_LOOPBACK = ("127.", "::1", "localhost", "::ffff:127.")


class Right(StrEnum):
    CONFIGURE = "configure"
    WRITE = "write"
    READ = "read"


@dataclass(frozen=True, slots=True)
class User:
    name: str
    password_hash: str
    hashing: str = SHA256
    tags: tuple[str, ...] = ()
    limits: Mapping[str, int] = field(default_factory=dict, compare=False)


def hash_password(password: str, salt: bytes | None = None, hashing: str = SHA256) -> str:
    """RabbitMQ's own form: base64 of a 4-octet salt and the digest of salt and password."""
    salt = os.urandom(4) if salt is None else salt
    return base64.b64encode(salt + HASHES[hashing](salt + password.encode()).digest()).decode()


def verify_password(user: User, password: str) -> bool:
    try:
        stored = base64.b64decode(user.password_hash, validate=True)
    except ValueError:
        return False
    if len(stored) <= 4 or not password or user.hashing not in HASHES:
        return False
    expected = hash_password(password, stored[:4], user.hashing)
    return hmac.compare_digest(expected, user.password_hash)


def check_hash(hashed: str, hashing: str | None) -> str:
    """Refuse what no password can be checked against; the name of the algorithm."""
    if hashing is not None and hashing not in HASHES:
        raise PreconditionFailed(
            f"unknown hashing_algorithm {hashing!r}; known are {', '.join(HASHES)}"
        )
    try:
        base64.b64decode(hashed, validate=True)
    except ValueError:
        raise PreconditionFailed("password_hash is not base64") from None
    return hashing or SHA256


@lru_cache(maxsize=4096)
def pattern(text: str) -> re2._Regexp:
    return re2.compile(text, _QUIET)


def check_pattern(text: str) -> None:
    try:
        pattern(text)
    except re2.error as error:
        said = error.args[0] if error.args else ""
        why = said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
        raise PreconditionFailed(f"invalid pattern {text!r}: {why}") from error


class Users:
    """`revision` grows with every change, so that cached answers can be dropped."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.by_name: dict[str, User] = {}
        self.permissions: dict[tuple[str, str], PermissionDefinition] = {}
        self.topic_permissions: dict[tuple[str, str, str], TopicPermissionDefinition] = {}
        self.revision = 0
        self.guest_from_anywhere = False
        self.on_change: Callable[[str, Mapping[str, Any]], None] = lambda event, facts: None

    # Logging in --------------------------------------------------------------------------------

    def authenticate(self, name: str, password: str, peer_host: str) -> User | None:
        user = self.by_name.get(name)
        if user is None or not verify_password(user, password):
            return None
        if name == "guest" and not self.guest_from_anywhere and not _is_loopback(peer_host):
            return None
        return user

    # Rights ------------------------------------------------------------------------------------

    def may_enter(self, user: str, vhost: str) -> bool:
        return (user, vhost) in self.permissions

    def may(self, user: str, vhost: str, right: Right, name: str) -> bool:
        permission = self.permissions.get((user, vhost))
        if permission is None:
            return False
        allowed: str = getattr(permission, right.value)
        return bool(allowed) and pattern(allowed).search(name) is not None

    def require(self, user: str, vhost: str, right: Right, kind: str, name: str) -> None:
        """Refuse unless the user has this right on the named exchange or queue."""
        if not self.may(user, vhost, right, name or "amq.default"):
            shown = "exchange 'amq.default'" if not name else f"{kind} '{name}'"
            raise AccessRefused(
                f"{right} access to {shown} in vhost '{vhost}' refused for user '{user}'"
            )

    # Changing ----------------------------------------------------------------------------------

    def put_user(
        self, name: str, password_hash: str, tags: tuple[str, ...], hashing: str = SHA256
    ) -> User:
        """Make or change a user; limits stay as they were."""
        before = self.by_name.get(name)
        self.on_change(_change(before, password_hash), {"name": name})
        return self._keep(User(name, password_hash, hashing, tags, before.limits if before else {}))

    def set_tags(self, name: str, tags: tuple[str, ...]) -> None:
        self._keep(replace(self.by_name[name], tags=tags))

    def set_limits(self, name: str, limits: Mapping[str, int]) -> None:
        self._keep(replace(self.by_name[name], limits=dict(limits)))

    def _keep(self, user: User) -> User:
        self.by_name[user.name] = user
        self.revision += 1
        options = json.dumps({"limits": dict(user.limits)}) if user.limits else "{}"
        self._store.save(
            UserDefinition(
                user.name, user.password_hash, user.hashing, ",".join(user.tags), options
            )
        )
        return user

    def delete_user(self, name: str) -> None:
        user = self.by_name.pop(name)
        for key in [key for key in self.permissions if key[0] == name]:
            self.clear_permission(*key)
        for topic in [key for key in self.topic_permissions if key[0] == name]:
            self.clear_topic_permission(*topic)
        self.revision += 1
        self._store.delete(UserDefinition(name, user.password_hash, user.hashing))
        self.on_change("user.deleted", {"name": name})

    def set_permission(self, permission: PermissionDefinition) -> None:
        for one in (permission.configure, permission.write, permission.read):
            check_pattern(one)
        self.permissions[permission.user, permission.vhost] = permission
        self.revision += 1
        self._store.save(permission)
        self.on_change("permission.created", asdict(permission))

    def clear_permission(self, user: str, vhost: str) -> None:
        permission = self.permissions.pop((user, vhost), None)
        if permission is not None:
            self.revision += 1
            self._store.delete(permission)
            self.on_change("permission.deleted", {"user": user, "vhost": vhost})

    def set_topic_permission(self, permission: TopicPermissionDefinition) -> None:
        check_pattern(permission.write)
        check_pattern(permission.read)
        key = (permission.user, permission.vhost, permission.exchange)
        self.topic_permissions[key] = permission
        self.revision += 1
        self._store.save(permission)

    def clear_topic_permission(self, user: str, vhost: str, exchange: str) -> None:
        permission = self.topic_permissions.pop((user, vhost, exchange), None)
        if permission is not None:
            self.revision += 1
            self._store.delete(permission)

    def recover(
        self, definition: UserDefinition | PermissionDefinition | TopicPermissionDefinition
    ) -> None:
        if isinstance(definition, UserDefinition):
            tags = tuple(tag for tag in definition.tags.split(",") if tag)
            limits = json.loads(definition.options).get("limits", {})
            self.by_name[definition.name] = User(
                definition.name, definition.password_hash, definition.hashing, tags, limits
            )
        elif isinstance(definition, PermissionDefinition):
            self.permissions[definition.user, definition.vhost] = definition
        else:
            key = (definition.user, definition.vhost, definition.exchange)
            self.topic_permissions[key] = definition


def _is_loopback(host: str) -> bool:
    return not host or host.startswith(_LOOPBACK)


def _change(before: User | None, password_hash: str) -> str:
    if before is None:
        return "user.created"
    return "user.tags.set" if before.password_hash == password_hash else "user.password.changed"
