"""Parser for a definitions file: returns valid definitions, or rejects the file with the place.

Accepts what RabbitMQ has written since version 3.6, for a whole broker or a single vhost;
`from_rabbitmq.py` knows what its versions write differently. Policy keys and queue arguments in the
section `leveret` are added to their policy or queue; its users are treated like all others.

Files may be long, so parsing is a generator of steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from leveret.bindings import Destination, DestinationKind
from leveret.broker.access.patterns import expand
from leveret.broker.access.users import User, check_hash, check_pattern, hash_password
from leveret.broker.definitions.export import OPERATOR_POLICY
from leveret.broker.definitions.extension import ACCOUNT_SECTIONS, SECTION
from leveret.broker.definitions.from_rabbitmq import (
    adapt,
    is_from_rabbitmq,
    unknown_fields,
    with_vhost_limits,
)
from leveret.broker.names import check_length, check_name
from leveret.broker.policies.parameters import (
    GLOBAL,
    KNOWN_USER_LIMITS,
    KNOWN_VHOST_LIMITS,
    VHOST_LIMITS,
    Key,
    check_limits,
    check_value,
    require_user_component,
)
from leveret.broker.policies.policies import Policy
from leveret.broker.runtime.slices import Steps
from leveret.exchange import Exchange, ExchangeSpec
from leveret.model.definitions import PermissionDefinition, TopicPermissionDefinition
from leveret.model.errors import BrokerError, PreconditionFailed
from leveret.model.tables import require_encodable
from leveret.queues.log.spec import parse_log_spec
from leveret.queues.options import check_arguments
from leveret.queues.spec import QueueSpec, check_default_kind, check_kind

T = TypeVar("T")
_NOT_IMPORTED = ("internal_cluster_id",)  # identifies the broker that wrote the file


@dataclass(frozen=True, slots=True)
class NewBinding:
    source: str
    destination: Destination
    routing_key: str
    arguments: Mapping[str, Any]


@dataclass(slots=True)
class ParsedDefinitions:
    """The content of a definitions file that is valid in itself."""

    users: list[User] = field(default_factory=list)
    vhosts: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    permissions: list[PermissionDefinition] = field(default_factory=list)
    topic_permissions: list[TopicPermissionDefinition] = field(default_factory=list)
    parameters: list[tuple[Key, Any]] = field(default_factory=list)
    policies: list[Policy] = field(default_factory=list)
    queues: list[tuple[str, QueueSpec]] = field(default_factory=list)
    exchanges: list[tuple[str, ExchangeSpec]] = field(default_factory=list)
    bindings: list[tuple[str, NewBinding]] = field(default_factory=list)
    is_from_rabbitmq: bool = False
    warnings: list[str] = field(default_factory=list)
    """What is ignored, or imported without effect; one sentence for each."""

    def __len__(self) -> int:
        """The number of definitions."""
        accounts = len(self.users) + len(self.permissions) + len(self.topic_permissions)
        rules = len(self.vhosts) + len(self.parameters) + len(self.policies)
        return accounts + rules + len(self.queues) + len(self.exchanges) + len(self.bindings)


class _Row:
    """One entry of a section; rejects fields that are missing or of the wrong type by name."""

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
            raise PreconditionFailed(f"{self.where}: '{name}' must have 1 to 255 bytes")
        return text

    @property
    def vhost(self) -> str:
        return self._vhost if self._vhost is not None else self.get("vhost", str)

    @property
    def arguments(self) -> dict[str, Any]:
        if self.value("arguments") in (None, []):
            return {}
        arguments: dict[str, Any] = self.get("arguments", dict)
        try:
            require_encodable(arguments)
        except ValueError as error:
            raise PreconditionFailed(f"{self.where}: 'arguments' {error}") from None
        return arguments


def parse_definitions(document: Any, vhost: str | None = None) -> Steps[ParsedDefinitions]:
    """Parse a JSON document; with `vhost`, a single vhost's objects for that vhost."""
    if not isinstance(document, dict):
        raise PreconditionFailed("definitions must be a JSON object")
    parsed = ParsedDefinitions(warnings=(yield from unknown_fields(document)))
    if is_from_rabbitmq(document):
        document, warnings = yield from adapt(document)
        parsed.is_from_rabbitmq = True
        parsed.warnings += warnings
    document = with_vhost_limits(document)
    for section, add in _VHOST_SECTIONS.items():
        for row in _rows(document, section, vhost):
            _add(row, add, parsed)
            yield
    if vhost is None:
        for section, add in _GLOBAL_SECTIONS.items():
            for row in _rows(document, section, None):
                _add(row, add, parsed)
                yield
    else:
        parsed.warnings += [
            f"section '{section}' was ignored: it does not belong to one vhost"
            for section in _GLOBAL_SECTIONS
            if document.get(section)
        ]
    extension = document.get(SECTION) or {}
    if not isinstance(extension, dict):
        raise PreconditionFailed(f"'{SECTION}' must be an object")
    if extension:
        yield from _add_extension(parsed, extension, vhost)
    return parsed


def _add_extension(
    parsed: ParsedDefinitions, extension: Mapping[str, Any], vhost: str | None
) -> Steps[None]:
    """Add the section `leveret`. A queue that only this section has is ignored."""
    for section in ACCOUNT_SECTIONS if vhost is None else ():
        for row in _rows(extension, section, None, SECTION):
            _add(row, _GLOBAL_SECTIONS[section], parsed)
            yield
    policies = {(each.vhost, each.name, each.operator): each for each in parsed.policies}
    for row in _rows(extension, "policies", vhost, SECTION):
        added = ParsedDefinitions()
        _add(row, _add_leveret_policy, added)
        [extra] = added.policies
        key = (extra.vhost, extra.name, extra.operator)
        policy = policies.get(key, extra)
        policies[key] = replace(policy, definition={**policy.definition, **extra.definition})
    parsed.policies = list(policies.values())
    queues = {(of, spec.name): spec for of, spec in parsed.queues}
    for row in _rows(extension, "queues", vhost, SECTION):
        spec = queues.get((row.vhost, row.name()))
        if spec is not None:
            arguments = {**spec.arguments, **row.arguments}
            merged = QueueSpec(spec.name, spec.durable, False, spec.auto_delete, arguments)
            _check_queue(merged, f"queue '{spec.name}' ({row.where})")
            queues[row.vhost, spec.name] = merged
        yield
    parsed.queues = [(of, spec) for (of, _), spec in queues.items()]


def _rows(
    document: Mapping[str, Any], section: str, vhost: str | None, within: str = ""
) -> Iterator[_Row]:
    rows, where = document.get(section) or [], f"{within}.{section}" if within else section
    if not isinstance(rows, list):
        raise PreconditionFailed(f"'{where}' must be an array")
    for index, values in enumerate(rows):
        yield _Row(where, index, values, vhost)


def _add(
    row: _Row, add: Callable[[ParsedDefinitions, _Row], None], parsed: ParsedDefinitions
) -> None:
    """Add a row; an error names the row."""
    try:
        add(parsed, row)
    except BrokerError as error:
        text = error.explanation
        raise PreconditionFailed(
            text if text.startswith(row.where) else f"{row.where}: {text}"
        ) from error


def _add_user(parsed: ParsedDefinitions, row: _Row) -> None:
    name = row.name()
    if row.value("password") is not None and row.value("password_hash") is None:
        hashed, hashing = hash_password(row.get("password", str)), None
    else:
        hashed, hashing = row.get("password_hash", str, ""), row.value("hashing_algorithm")
    limits = row.get("limits", dict, {})
    check_limits(limits, KNOWN_USER_LIMITS)
    tags = _tags(row.value("tags"))
    parsed.users.append(User(name, hashed, check_hash(hashed, hashing), tags, limits))


def _tags(value: Any) -> tuple[str, ...]:
    tags = value.split(",") if isinstance(value, str) else value or []
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        raise PreconditionFailed("'tags' must be a list of strings, or one string with commas")
    return tuple(dict.fromkeys(tag.strip() for tag in tags if tag.strip()))


_VHOST_OPTIONS: dict[str, type] = {
    "description": str,
    "tags": list,
    "default_queue_type": str,
    "protected_from_deletion": bool,
    "tracing": bool,
}


def _add_vhost(parsed: ParsedDefinitions, row: _Row) -> None:
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
    parsed.vhosts.append((row.name(), options))


def _add_permission(parsed: ParsedDefinitions, row: _Row) -> None:
    patterns = [row.get(name, str) for name in ("configure", "write", "read")]
    for text in patterns:
        check_pattern(text)
    parsed.permissions.append(PermissionDefinition(row.name("user"), row.vhost, *patterns))


def _add_topic_permission(parsed: ParsedDefinitions, row: _Row) -> None:
    patterns = [row.get(name, str) for name in ("write", "read")]
    exchange, user = row.get("exchange", str), row.name("user")
    for text in patterns:
        check_pattern(text)
        check_pattern(expand(text, username=user, vhost=row.vhost))
    parsed.topic_permissions.append(TopicPermissionDefinition(user, row.vhost, exchange, *patterns))


def _add_parameter(parsed: ParsedDefinitions, row: _Row) -> None:
    component, name, value = row.name("component"), row.name(), row.value("value")
    if component == OPERATOR_POLICY:
        policy = _Row(row.where, 0, value, row.vhost)
        parsed.policies.append(_policy(policy, name, operator=True))
        return
    require_user_component(component)
    if row.vhost == GLOBAL:
        raise PreconditionFailed("'vhost' is empty")
    if component == VHOST_LIMITS:
        check_limits(value, KNOWN_VHOST_LIMITS)
    check_value(value)
    parsed.parameters.append(((row.vhost, component, name), value))


def _add_global_parameter(parsed: ParsedDefinitions, row: _Row) -> None:
    if row.name() not in _NOT_IMPORTED:
        check_value(row.value("value"))
        parsed.parameters.append(((GLOBAL, GLOBAL, row.name()), row.value("value")))


def _add_policy(parsed: ParsedDefinitions, row: _Row) -> None:
    parsed.policies.append(_policy(row, row.name(), operator=False))


def _add_leveret_policy(parsed: ParsedDefinitions, row: _Row) -> None:
    parsed.policies.append(_policy(row, row.name(), row.get("operator", bool, False)))


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


def _add_queue(parsed: ParsedDefinitions, row: _Row) -> None:
    spec = QueueSpec(
        row.name(),
        row.get("durable", bool),
        False,
        row.get("auto_delete", bool, False),
        row.arguments,
    )
    _check_queue(spec, f"queue '{spec.name}'")
    parsed.queues.append((row.vhost, spec))


def _check_queue(spec: QueueSpec, where: str) -> None:
    """Apply the checks of queue.declare."""
    check_name("queue", spec.name)
    check_kind(spec, where)
    check_arguments(spec.arguments, where)
    if spec.kind == "stream":
        partitions = parse_log_spec(spec, where).partitions
        check_length("name of a partition", f"{spec.name}-{partitions}")


def _add_exchange(parsed: ParsedDefinitions, row: _Row) -> None:
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
    Exchange(spec)  # raises for an invalid specification
    parsed.exchanges.append((row.vhost, spec))


def _add_binding(parsed: ParsedDefinitions, row: _Row) -> None:
    kind = row.get("destination_type", str, "queue")
    if kind not in ("queue", "exchange"):
        raise PreconditionFailed(f"unknown destination_type '{kind}'")
    source = row.get("source", str)
    if source:
        to = Destination(DestinationKind(kind), row.name("destination"))
        key = row.get("routing_key", str, "")
        check_length("routing key", key)
        parsed.bindings.append((row.vhost, NewBinding(source, to, key, row.arguments)))


_VHOST_SECTIONS = {
    "parameters": _add_parameter,
    "policies": _add_policy,
    "queues": _add_queue,
    "exchanges": _add_exchange,
    "bindings": _add_binding,
}
_GLOBAL_SECTIONS = {
    "users": _add_user,
    "vhosts": _add_vhost,
    "permissions": _add_permission,
    "topic_permissions": _add_topic_permission,
    "global_parameters": _add_global_parameter,
}
