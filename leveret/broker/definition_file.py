"""A file of definitions, read whole and found right in itself or refused with the place.

Takes what RabbitMQ writes: any of its versions since 3.6, whole brokers and single vhosts. What
the section `leveret` has of a policy or a queue is added to it; its users are users like others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from bindings import Destination, DestinationKind
from exchange import Exchange, ExchangeSpec
from leveret.broker.access.patterns import expand
from leveret.broker.definitions import OPERATOR_POLICY
from leveret.broker.names import check_length, check_name
from leveret.broker.own_definitions import ACCOUNTS, SECTION
from leveret.broker.parameters import (
    GLOBAL,
    KNOWN_USER_LIMITS,
    KNOWN_VHOST_LIMITS,
    VHOST_LIMITS,
    Key,
    check_limits,
    check_value,
    require_not_own,
)
from leveret.broker.policies import Policy
from leveret.broker.users import User, check_hash, check_pattern, hash_password
from leveret.model.errors import BrokerError, PreconditionFailed
from leveret.model.store import PermissionDefinition, TopicPermissionDefinition
from leveret.model.tables import check_sayable
from queues import QueueSpec
from queues.options import check_arguments
from queues.spec import check_default_kind, check_kind
from queues.stream.spec import parse_log_spec

T = TypeVar("T")
_FOREIGN = ("internal_cluster_id",)  # identities of the broker that wrote the file


@dataclass(frozen=True, slots=True)
class NewBinding:
    source: str
    destination: Destination
    routing_key: str
    arguments: Mapping[str, Any]


@dataclass(slots=True)
class Import:
    """A file that has been read and found right in itself."""

    users: list[User] = field(default_factory=list)
    vhosts: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    permissions: list[PermissionDefinition] = field(default_factory=list)
    topic_permissions: list[TopicPermissionDefinition] = field(default_factory=list)
    parameters: list[tuple[Key, Any]] = field(default_factory=list)
    policies: list[Policy] = field(default_factory=list)
    queues: list[tuple[str, QueueSpec]] = field(default_factory=list)
    exchanges: list[tuple[str, ExchangeSpec]] = field(default_factory=list)
    bindings: list[tuple[str, NewBinding]] = field(default_factory=list)


class _Row:
    """One entry of a section; refuses what is missing or of the wrong kind by name."""

    def __init__(self, section: str, index: int, values: Any, vhost: str | None) -> None:
        self.where = f"{section}[{index}]"
        if not isinstance(values, dict):
            raise PreconditionFailed(f"{self.where} is not an object")
        self._values = values
        self._vhost = vhost

    def get(self, name: str, kind: type[T], default: T | None = None) -> T:
        value = self._values.get(name, default)
        if isinstance(value, bool) and kind is not bool:
            value = None
        if not isinstance(value, kind):
            what = "is missing" if name not in self._values else f"is not a {kind.__name__}"
            raise PreconditionFailed(f"{self.where}: '{name}' {what}")
        return value

    def value(self, name: str) -> Any:
        return self._values.get(name)

    def name(self, name: str = "name") -> str:
        text = self.get(name, str)
        if not text or len(text.encode()) > 255:
            raise PreconditionFailed(f"{self.where}: '{name}' must have 1 to 255 octets")
        return text

    @property
    def vhost(self) -> str:
        return self._vhost if self._vhost is not None else self.get("vhost", str)

    @property
    def arguments(self) -> dict[str, Any]:
        found = self.value("arguments")
        if found in (None, []):
            return {}
        arguments: dict[str, Any] = self.get("arguments", dict)
        try:
            check_sayable(arguments)
        except ValueError as error:
            raise PreconditionFailed(f"{self.where}: 'arguments' {error}") from None
        return arguments


def read(document: Any, vhost: str | None = None) -> Import:
    """Make an import of a parsed file; with `vhost`, of one vhost's objects into that vhost."""
    if not isinstance(document, dict):
        raise PreconditionFailed("definitions must be a JSON object")
    found = Import()
    for section, take in _VHOST_SECTIONS.items():
        for row in _rows(document, section, vhost):
            _judged(row, take, found)
    if vhost is None:
        for section, take in _GLOBAL_SECTIONS.items():
            for row in _rows(document, section, None):
                _judged(row, take, found)
    own = document.get(SECTION) or {}
    if not isinstance(own, dict):
        raise PreconditionFailed(f"'{SECTION}' must be an object")
    _add_own(found, own, vhost)
    return found


def _add_own(found: Import, own: Mapping[str, Any], vhost: str | None) -> None:
    """Queues the file does not have otherwise are passed over; others stand for themselves."""
    for section in ACCOUNTS if vhost is None else ():
        for row in _rows(own, section, None, SECTION):
            _judged(row, _GLOBAL_SECTIONS[section], found)
    policies = {(one.vhost, one.name, one.operator): one for one in found.policies}
    for row in _rows(own, "policies", vhost, SECTION):
        held = Import()
        _judged(row, _take_own_policy, held)
        [more] = held.policies
        key = (more.vhost, more.name, more.operator)
        known = policies.get(key, more)
        policies[key] = replace(known, definition={**known.definition, **more.definition})
    found.policies = list(policies.values())
    queues = {(of, spec.name): spec for of, spec in found.queues}
    for row in _rows(own, "queues", vhost, SECTION):
        spec = queues.get((row.vhost, row.name()))
        if spec is not None:
            arguments = {**spec.arguments, **row.arguments}
            whole = QueueSpec(spec.name, spec.durable, False, spec.auto_delete, arguments)
            _check_queue(whole, f"queue '{spec.name}' ({row.where})")
            queues[row.vhost, spec.name] = whole
    found.queues = [(of, spec) for (of, _), spec in queues.items()]


def _rows(
    document: Mapping[str, Any], section: str, vhost: str | None, within: str = ""
) -> Iterator[_Row]:
    rows, where = document.get(section) or [], f"{within}.{section}" if within else section
    if not isinstance(rows, list):
        raise PreconditionFailed(f"'{where}' must be an array")
    for index, values in enumerate(rows):
        yield _Row(where, index, values, vhost)


def _judged(row: _Row, take: Callable[[Import, _Row], None], found: Import) -> None:
    try:
        take(found, row)
    except BrokerError as error:
        text = error.explanation
        raise PreconditionFailed(
            text if text.startswith(row.where) else f"{row.where}: {text}"
        ) from error


def _take_user(found: Import, row: _Row) -> None:
    name = row.name()
    if row.value("password") is not None and row.value("password_hash") is None:
        hashed, hashing = hash_password(row.get("password", str)), None
    else:
        hashed, hashing = row.get("password_hash", str, ""), row.value("hashing_algorithm")
    limits = row.get("limits", dict, {})
    check_limits(limits, KNOWN_USER_LIMITS)
    tags = _tags(row.value("tags"))
    found.users.append(User(name, hashed, check_hash(hashed, hashing), tags, limits))


def _tags(value: Any) -> tuple[str, ...]:
    tags = value.split(",") if isinstance(value, str) else value or []
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        raise PreconditionFailed("'tags' must be a list of texts, or one with commas")
    return tuple(dict.fromkeys(tag.strip() for tag in tags if tag.strip()))


_VHOST_OPTIONS: dict[str, type] = {
    "description": str,
    "tags": list,
    "default_queue_type": str,
    "protected_from_deletion": bool,
    "tracing": bool,
}


def _take_vhost(found: Import, row: _Row) -> None:
    metadata = row.get("metadata", dict, {})
    values = {key: row.value(key) or metadata.get(key) for key in _VHOST_OPTIONS}
    options = {key: value for key, value in values.items() if value and value != "undefined"}
    if "tags" in options:
        options["tags"] = list(_tags(options["tags"]))
    if "default_queue_type" in options:
        check_default_kind(options["default_queue_type"])
    for key, value in options.items():
        if not isinstance(value, _VHOST_OPTIONS[key]):
            raise PreconditionFailed(f"'{key}' is not a {_VHOST_OPTIONS[key].__name__}")
    found.vhosts.append((row.name(), options))


def _take_permission(found: Import, row: _Row) -> None:
    patterns = [row.get(name, str) for name in ("configure", "write", "read")]
    for one in patterns:
        check_pattern(one)
    found.permissions.append(PermissionDefinition(row.name("user"), row.vhost, *patterns))


def _take_topic_permission(found: Import, row: _Row) -> None:
    patterns = [row.get(name, str) for name in ("write", "read")]
    exchange, user = row.get("exchange", str), row.name("user")
    for one in patterns:
        check_pattern(one)
        check_pattern(expand(one, username=user, vhost=row.vhost))
    found.topic_permissions.append(TopicPermissionDefinition(user, row.vhost, exchange, *patterns))


def _take_parameter(found: Import, row: _Row) -> None:
    component, name, value = row.name("component"), row.name(), row.value("value")
    if component == OPERATOR_POLICY:
        policy = _Row(row.where, 0, value, row.vhost)
        found.policies.append(_policy(policy, name, operator=True))
        return
    require_not_own(component)
    if row.vhost == GLOBAL:
        raise PreconditionFailed("'vhost' is empty")
    if component == VHOST_LIMITS:
        check_limits(value, KNOWN_VHOST_LIMITS)
    check_value(value)
    found.parameters.append(((row.vhost, component, name), value))


def _take_global_parameter(found: Import, row: _Row) -> None:
    if row.name() not in _FOREIGN:
        check_value(row.value("value"))
        found.parameters.append(((GLOBAL, GLOBAL, row.name()), row.value("value")))


def _take_policy(found: Import, row: _Row) -> None:
    found.policies.append(_policy(row, row.name(), operator=False))


def _take_own_policy(found: Import, row: _Row) -> None:
    found.policies.append(_policy(row, row.name(), row.get("operator", bool, False)))


def _policy(row: _Row, name: str, operator: bool) -> Policy:
    policy = Policy(
        row.vhost,
        name,
        row.get("pattern", str),
        row.get("definition", dict),
        row.get("apply-to", str, "all"),
        row.get("priority", int, 0),
        operator,
    )
    policy.check()
    return policy


def _take_queue(found: Import, row: _Row) -> None:
    spec = QueueSpec(
        row.name(),
        row.get("durable", bool),
        False,
        row.get("auto_delete", bool, False),
        row.arguments,
    )
    _check_queue(spec, f"queue '{spec.name}'")
    found.queues.append((row.vhost, spec))


def _check_queue(spec: QueueSpec, where: str) -> None:
    """As when it is declared."""
    check_name("queue", spec.name)
    check_kind(spec, where)
    check_arguments(spec.arguments, where)
    if spec.kind == "stream":
        partitions = parse_log_spec(spec, where).partitions
        check_length("name of a partition", f"{spec.name}-{partitions}")


def _take_exchange(found: Import, row: _Row) -> None:
    spec = ExchangeSpec(
        row.name(),
        row.get("type", str),
        row.get("durable", bool),
        row.get("auto_delete", bool, False),
        row.get("internal", bool, False),
        row.arguments,
    )
    check_name("exchange", spec.name)
    spec.require_alternate(f"exchange '{spec.name}'")
    Exchange(spec)  # refuses what cannot be one
    found.exchanges.append((row.vhost, spec))


def _take_binding(found: Import, row: _Row) -> None:
    kind = row.get("destination_type", str, "queue")
    if kind not in ("queue", "exchange"):
        raise PreconditionFailed(f"unknown destination_type '{kind}'")
    source = row.get("source", str)
    if source:
        to = Destination(DestinationKind(kind), row.name("destination"))
        key = row.get("routing_key", str, "")
        check_length("routing key", key)
        found.bindings.append((row.vhost, NewBinding(source, to, key, row.arguments)))


_VHOST_SECTIONS = {
    "parameters": _take_parameter,
    "policies": _take_policy,
    "queues": _take_queue,
    "exchanges": _take_exchange,
    "bindings": _take_binding,
}
_GLOBAL_SECTIONS = {
    "users": _take_user,
    "vhosts": _take_vhost,
    "permissions": _take_permission,
    "topic_permissions": _take_topic_permission,
    "global_parameters": _take_global_parameter,
}
