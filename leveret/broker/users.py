"""Users and their rights, as they are stored. Logging in is in `access/logins.py`.

Every change is in the store's batch when the method returns, and `on_change` has been told.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from exchange import Exchange
from exchange.stations import DELAYED_TYPE
from leveret.broker.access.passwords import SHA256, check_hash, hash_password
from leveret.broker.access.patterns import check_pattern, expand, pattern
from leveret.broker.access.rights import NEEDS, TOPIC_NEEDS, Action, Need, Right
from leveret.model.errors import AccessRefused, PreconditionFailed
from leveret.model.store import (
    PermissionDefinition,
    Store,
    TopicPermissionDefinition,
    UserDefinition,
)

__all__ = [
    "SHA256", "Action", "Right", "User", "Users", "check_hash", "check_pattern", "hash_password",
    "pattern",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class User:
    name: str
    password_hash: str
    hashing: str = SHA256
    tags: tuple[str, ...] = ()
    limits: Mapping[str, int] = field(default_factory=dict, compare=False)
    password_id: int = field(default=0, compare=False)
    """Another one with every new password; the same when only its hash is made anew."""

    @property
    def can_administer(self) -> bool:
        return "administrator" in self.tags and bool(self.password_hash)


class Users:
    """`revision` grows with every change, so that cached answers can be dropped."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.by_name: dict[str, User] = {}
        self.permissions: dict[tuple[str, str], PermissionDefinition] = {}
        self.topic_permissions: dict[tuple[str, str, str], TopicPermissionDefinition] = {}
        self.revision = 0
        self._password_ids = itertools.count(1)
        self.on_change: Callable[[str, Mapping[str, Any]], None] = lambda event, facts: None

    # Rights ------------------------------------------------------------------------------------

    def may_enter(self, user: str, vhost: str) -> bool:
        return (user, vhost) in self.permissions

    def may(self, user: str, vhost: str, right: Right, name: str) -> bool:
        permission = self.permissions.get((user, vhost))
        if permission is None:
            return False
        allowed: str = getattr(permission, right.value)
        return bool(allowed) and pattern(allowed).search(name) is not None

    def demand(self, user: str, vhost: str, action: Action, **names: str) -> None:
        """Refuse unless the user has every right the action takes on the things named here."""
        for need in NEEDS[action]:
            if need.of in names:
                self._demand(user, vhost, need, names[need.of])

    def allows(self, user: str, vhost: str, action: Action, **names: str) -> bool:
        """What `demand` would find."""
        try:
            self.demand(user, vhost, action, **names)
        except AccessRefused:
            return False
        return True

    def _demand(self, user: str, vhost: str, need: Need, name: str) -> None:
        if need.right is not None:
            self.require(user, vhost, need.right, need.kind, name)
        elif not any(self.may(user, vhost, right, name) for right in Right):
            raise AccessRefused(
                f"access to {need.kind} '{name}' in vhost '{vhost}' refused for user '{user}'"
            )

    def demand_topic(
        self, user: str, vhost: str, action: Action, exchange: Exchange, keys: Iterable[str]
    ) -> None:
        """Refuse routing keys of a topic exchange that the user may not publish or bind with."""
        permission = self.topic_permissions.get((user, vhost, exchange.name))
        if permission is None or not _routes_by_topic(exchange):
            return
        text: str = getattr(permission, TOPIC_NEEDS[action].value)
        allowed = pattern(expand(text, username=user, vhost=vhost)) if text else None
        for key in keys:
            if allowed is None or allowed.search(key) is None:
                raise AccessRefused(
                    f"access to topic '{key}' in exchange '{exchange.name}' in vhost '{vhost}' "
                    f"refused for user '{user}'"
                )

    def require(self, user: str, vhost: str, right: Right, kind: str, name: str) -> None:
        """Refuse unless the user has this right on the named exchange or queue."""
        if not self.may(user, vhost, right, name or "amq.default"):
            shown = "exchange 'amq.default'" if not name else f"{kind} '{name}'"
            raise AccessRefused(
                f"{right} access to {shown} in vhost '{vhost}' refused for user '{user}'"
            )

    # Changing ----------------------------------------------------------------------------------

    def require_administrator(self, left: Iterable[User]) -> None:
        """Refuse a change that would leave only these users if none of them could undo it."""
        now = [one.name for one in self.by_name.values() if one.can_administer]
        if now and not any(one.can_administer for one in left):
            raise PreconditionFailed(
                f"no administrator with a password would be left without '{now[0]}':"
                " make another one first"
            )

    def put_user(
        self, name: str, password_hash: str, tags: tuple[str, ...], hashing: str = SHA256
    ) -> User:
        """Make or change a user; limits stay as they were."""
        before = self.by_name.get(name)
        same = before is not None and before.password_hash == password_hash
        number = before.password_id if before and same else next(self._password_ids)
        limits = before.limits if before else {}
        user = self._keep(User(name, password_hash, hashing, tags, limits, number))
        if before is None or not same:
            self.on_change(f"user.{'password.changed' if before else 'created'}", {"name": name})
        if tags != (before.tags if before else ()):
            self.on_change("user.tags.set", {"name": name, "tags": list(tags)})
        return user

    def rehash(self, name: str, password_hash: str, hashing: str) -> None:
        """The same password, kept in another way."""
        self._keep(replace(self.by_name[name], password_hash=password_hash, hashing=hashing))

    def set_tags(self, name: str, tags: tuple[str, ...]) -> None:
        self._keep(replace(self.by_name[name], tags=tags))
        self.on_change("user.tags.set", {"name": name, "tags": list(tags)})

    def set_limits(self, name: str, limits: Mapping[str, int]) -> None:
        self._keep(replace(self.by_name[name], limits=dict(limits)))
        event = "user.limits.set" if limits else "user.limits.cleared"
        self.on_change(event, {"username": name, "name": "limits", **limits})

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
        for one in (permission.write, permission.read):
            check_pattern(one)
            check_pattern(expand(one, username=permission.user, vhost=permission.vhost))
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
    """A delayed exchange is of the kind it delays for."""
    return "topic" in (exchange.spec.kind, exchange.spec.arguments.get(DELAYED_TYPE))
