"""Users and their permissions, as they are stored. Logins are in `authentication.py`.

When a method that changes something returns, the change is in the store's current batch and
`on_change` has been called. Runs on the event loop.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from leveret.broker.access.passwords import SHA256, check_hash, hash_password
from leveret.broker.access.patterns import check_pattern, expand, pattern
from leveret.broker.access.permissions import (
    REQUIREMENTS,
    TOPIC_PERMISSIONS,
    Action,
    Permission,
    Requirement,
)
from leveret.exchange import Exchange
from leveret.exchange.plugin_kinds import DELAYED_TYPE
from leveret.model.definitions import (
    PermissionDefinition,
    TopicPermissionDefinition,
    UserDefinition,
)
from leveret.model.errors import AccessRefused, PreconditionFailed
from leveret.model.store import Store

__all__ = [
    "SHA256", "Action", "Permission", "User", "Users", "check_hash", "check_pattern",
    "hash_password", "pattern",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class User:
    name: str
    password_hash: str
    hashing: str = SHA256
    tags: tuple[str, ...] = ()
    limits: Mapping[str, int] = field(default_factory=dict, compare=False)
    password_id: int = field(default=0, compare=False)
    """Changes with every new password, but not when the same password is only rehashed."""

    @property
    def can_administer(self) -> bool:
        return "administrator" in self.tags and bool(self.password_hash)


class Users:
    """`revision` increases with every change, so that callers can drop cached answers."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.by_name: dict[str, User] = {}
        self.permissions: dict[tuple[str, str], PermissionDefinition] = {}
        self.topic_permissions: dict[tuple[str, str, str], TopicPermissionDefinition] = {}
        self.revision = 0
        self._password_ids = itertools.count(1)
        self.on_change: Callable[[str, Mapping[str, Any]], None] = lambda event, facts: None

    # Permissions -------------------------------------------------------------------------------

    def can_access_vhost(self, user: str, vhost: str) -> bool:
        return (user, vhost) in self.permissions

    def has_permission(self, user: str, vhost: str, permission: Permission, name: str) -> bool:
        definition = self.permissions.get((user, vhost))
        if definition is None:
            return False
        allowed: str = getattr(definition, permission.value)
        return bool(allowed) and pattern(allowed).search(name) is not None

    def authorize(self, user: str, vhost: str, action: Action, **names: str) -> None:
        """Refuse unless the user has all permissions the action requires on these objects."""
        for requirement in REQUIREMENTS[action]:
            if requirement.of in names:
                self._require(user, vhost, requirement, names[requirement.of])

    def is_authorized(self, user: str, vhost: str, action: Action, **names: str) -> bool:
        """Whether `authorize` would succeed."""
        try:
            self.authorize(user, vhost, action, **names)
        except AccessRefused:
            return False
        return True

    def _require(self, user: str, vhost: str, requirement: Requirement, name: str) -> None:
        kind, permission = requirement.kind, requirement.permission
        if permission is not None:
            self.require_permission(user, vhost, permission, kind, name)
        elif not any(self.has_permission(user, vhost, each, name) for each in Permission):
            raise AccessRefused(
                f"access to {kind} '{name}' in vhost '{vhost}' refused for user '{user}'"
            )

    def authorize_topic(
        self, user: str, vhost: str, action: Action, exchange: Exchange, keys: Iterable[str]
    ) -> None:
        """Refuse routing keys of a topic exchange that the user may not publish or bind with."""
        permission = self.topic_permissions.get((user, vhost, exchange.name))
        if permission is None or not _routes_by_topic(exchange):
            return
        text: str = getattr(permission, TOPIC_PERMISSIONS[action].value)
        allowed = pattern(expand(text, username=user, vhost=vhost)) if text else None
        for key in keys:
            if allowed is None or allowed.search(key) is None:
                raise AccessRefused(
                    f"access to topic '{key}' in exchange '{exchange.name}' in vhost '{vhost}' "
                    f"refused for user '{user}'"
                )

    def require_permission(
        self, user: str, vhost: str, permission: Permission, kind: str, name: str
    ) -> None:
        """Refuse unless the user has this permission on the named exchange or queue."""
        if not self.has_permission(user, vhost, permission, name or "amq.default"):
            shown = "exchange 'amq.default'" if not name else f"{kind} '{name}'"
            raise AccessRefused(
                f"{permission} access to {shown} in vhost '{vhost}' refused for user '{user}'"
            )

    # Changes -----------------------------------------------------------------------------------

    def require_administrator(self, remaining: Iterable[User]) -> None:
        """Refuse a change after which none of the remaining users could administer the broker."""
        current = [user.name for user in self.by_name.values() if user.can_administer]
        if current and not any(user.can_administer for user in remaining):
            raise PreconditionFailed(
                f"'{current[0]}' is the last administrator with a password;"
                " create another administrator first"
            )

    def put_user(
        self, name: str, password_hash: str, tags: tuple[str, ...], hashing: str = SHA256
    ) -> User:
        """Create or change a user; its limits stay."""
        before = self.by_name.get(name)
        is_same = before is not None and before.password_hash == password_hash
        password_id = before.password_id if before and is_same else next(self._password_ids)
        limits = before.limits if before else {}
        user = self._save(User(name, password_hash, hashing, tags, limits, password_id))
        if before is None or not is_same:
            self.on_change(f"user.{'password.changed' if before else 'created'}", {"name": name})
        if tags != (before.tags if before else ()):
            self.on_change("user.tags.set", {"name": name, "tags": list(tags)})
        return user

    def rehash(self, name: str, password_hash: str, hashing: str) -> None:
        """Store another hash of the same password."""
        self._save(replace(self.by_name[name], password_hash=password_hash, hashing=hashing))

    def set_limits(self, name: str, limits: Mapping[str, int]) -> None:
        self._save(replace(self.by_name[name], limits=dict(limits)))
        event = "user.limits.set" if limits else "user.limits.cleared"
        self.on_change(event, {"username": name, "name": "limits", **limits})

    def _save(self, user: User) -> User:
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
        for topic_key in [key for key in self.topic_permissions if key[0] == name]:
            self.clear_topic_permission(*topic_key)
        self.revision += 1
        self._store.delete(UserDefinition(name, user.password_hash, user.hashing))
        self.on_change("user.deleted", {"name": name})

    def set_permission(self, permission: PermissionDefinition) -> None:
        for text in (permission.configure, permission.write, permission.read):
            check_pattern(text)
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
        for text in (permission.write, permission.read):
            check_pattern(text)
            check_pattern(expand(text, username=permission.user, vhost=permission.vhost))
        key = (permission.user, permission.vhost, permission.exchange)
        self.topic_permissions[key] = permission
        self.revision += 1
        self._store.save(permission)
        self.on_change("topic.permission.created", asdict(permission))

    def clear_topic_permission(self, user: str, vhost: str, exchange: str) -> None:
        permission = self.topic_permissions.pop((user, vhost, exchange), None)
        if permission is not None:
            self.revision += 1
            self._store.delete(permission)
            facts = {"user": user, "vhost": vhost, "exchange": exchange}
            self.on_change("topic.permission.deleted", facts)

    def recover(
        self, definition: UserDefinition | PermissionDefinition | TopicPermissionDefinition
    ) -> None:
        if isinstance(definition, UserDefinition):
            tags = tuple(tag for tag in definition.tags.split(",") if tag)
            limits = json.loads(definition.options).get("limits", {})
            self.by_name[definition.name] = User(
                definition.name,
                definition.password_hash,
                definition.hashing,
                tags,
                limits,
                next(self._password_ids),
            )
        elif isinstance(definition, PermissionDefinition):
            self.permissions[definition.user, definition.vhost] = definition
        else:
            key = (definition.user, definition.vhost, definition.exchange)
            self.topic_permissions[key] = definition


def _routes_by_topic(exchange: Exchange) -> bool:
    """Whether this is a topic exchange, or a delayed exchange of type topic."""
    return "topic" in (exchange.spec.kind, exchange.spec.arguments.get(DELAYED_TYPE))
