"""Definitions written by RabbitMQ 3.8 to 4.x, brought into the form that `file.py` parses.

`rabbitmqctl export_definitions` writes Erlang's property lists as lists of pairs: limits of
vhosts, definitions of operator policies and values of global parameters, depending on the version.
It leaves out exclusive queues and internal exchanges, but not their bindings. Policies, arguments
and parameters may belong to plugins. Whatever Leveret cannot use, or keeps without using it,
becomes a warning that names it; nothing is dropped silently.

Only files of RabbitMQ are treated in this way. In any other file, the same things are mistakes and
the import is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from leveret.broker.definitions.export import OPERATOR_POLICY
from leveret.broker.definitions.extension import SECTION
from leveret.broker.policies.keys import OPERATOR_KEYS, POLICY_KEYS, WITHOUT_EFFECT
from leveret.broker.policies.parameters import CLUSTER_NAME, LIMITS_NAME, VHOST_LIMITS
from leveret.broker.runtime.slices import Steps
from leveret.queues.spec import QUEUE_KINDS, REFUSED_ARGUMENTS

Row = dict[str, Any]
Document = dict[str, Any]

FIELDS: dict[str, frozenset[str]] = {
    "users": frozenset(
        {"name", "password_hash", "hashing_algorithm", "password", "tags", "limits"}
    ),
    "vhosts": frozenset(
        {"name", "description", "tags", "default_queue_type", "protected_from_deletion", "tracing"}
        | {"limits", "metadata"}
    ),
    "permissions": frozenset({"user", "vhost", "configure", "write", "read"}),
    "topic_permissions": frozenset({"user", "vhost", "exchange", "write", "read"}),
    "parameters": frozenset({"vhost", "component", "name", "value"}),
    "global_parameters": frozenset({"name", "value"}),
    "policies": frozenset({"vhost", "name", "pattern", "apply-to", "definition", "priority"}),
    "queues": frozenset({"name", "vhost", "type", "durable", "auto_delete", "arguments"}),
    "exchanges": frozenset(
        {"name", "vhost", "type", "durable", "auto_delete", "internal", "arguments"}
    ),
    "bindings": frozenset(
        {"source", "vhost", "destination", "destination_type", "routing_key", "arguments"}
    ),
}
"""The fields of each section that an import uses."""
_HEAD = frozenset(
    {
        "rabbit_version", "rabbitmq_version", "product_name", "product_version",
        "rabbitmq_definition_format", "original_cluster_name", "original_vhost_name",
        "explanation", SECTION,
    }
)  # fmt: skip
_VHOST_METADATA = FIELDS["vhosts"] - {"name", "limits", "metadata"}
_NOT_TEXT = "Not UTF-8, base64 is: "
"""What RabbitMQ writes in front of an argument that is not text."""


def is_from_rabbitmq(document: Document) -> bool:
    """Whether RabbitMQ wrote this file. Leveret writes RabbitMQ's versions too, and its name."""
    versions = document.get("rabbitmq_version") or document.get("rabbit_version")
    return versions is not None and document.get("product_name", "RabbitMQ") == "RabbitMQ"


def unknown_fields(document: Document) -> Steps[list[str]]:
    """Return a warning for each unknown section, and for each unknown field of a section."""
    warnings = [
        f"section '{name}' is not known and was ignored"
        for name in document.keys() - _HEAD - FIELDS.keys()
    ]
    for section, known in FIELDS.items():
        unknown: dict[str, list[int]] = {}
        for index, row in enumerate(_rows(document, section)):
            for name in row.keys() - known:
                unknown.setdefault(name, []).append(index)
            yield
        for name, indices in unknown.items():
            more = f" and {len(indices) - 1} more" if len(indices) > 1 else ""
            where = f"{section}[{indices[0]}]{more}"
            warnings.append(f"{where}: field '{name}' is not known and was ignored")
    return sorted(warnings)


def adapt(document: Document) -> Steps[tuple[Document, list[str]]]:
    """Return the document in the form that Leveret writes, and warnings."""
    adapted, warnings = dict(document), list[str]()
    for section, adapt_row in _ADAPTERS.items():
        if isinstance(document.get(section), list):
            rows = []
            for row in document[section]:
                rows.append(adapt_row(dict(row), warnings) if isinstance(row, dict) else row)
                yield
            adapted[section] = [row for row in rows if row is not None]
    return adapted, warnings


def with_vhost_limits(document: Document) -> Document:
    """Add the limits that stand in a vhost's row only; usually they are parameters as well."""
    parameters = document.get("parameters") or []
    if not isinstance(parameters, list):
        return document
    known = {
        row.get("vhost")
        for row in _rows(document, "parameters")
        if row.get("component") == VHOST_LIMITS
    }
    added = [
        {"vhost": row["name"], "component": VHOST_LIMITS, "name": LIMITS_NAME, "value": limits}
        for row in _rows(document, "vhosts")
        if (limits := row.get("limits")) and row.get("name") and row["name"] not in known
    ]
    return {**document, "parameters": [*parameters, *added]} if added else document


def _rows(document: Document, section: str) -> Iterator[Row]:
    rows = document.get(section)
    if isinstance(rows, list):
        yield from (row for row in rows if isinstance(row, dict))


# Lists of pairs -----------------------------------------------------------------------------------


def _is_pairs(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(i, list) and len(i) == 2 and isinstance(i[0], str) for i in value)
    )


def as_object(value: Any) -> Any:
    """Return a list of pairs as an object, at all levels; anything else unchanged."""
    if _is_pairs(value):
        return {name: as_object(part) for name, part in value}
    if isinstance(value, dict):
        return {name: as_object(part) for name, part in value.items()}
    return [as_object(part) for part in value] if isinstance(value, list) else value


def _make_object(row: Row, name: str) -> None:
    """Replace a list of pairs by an object; Erlang's empty list is an empty object."""
    if isinstance(row.get(name), list):
        row[name] = as_object(row[name]) or {}


# Rows ---------------------------------------------------------------------------------------------


def _user(row: Row, warnings: list[str]) -> Row:
    _make_object(row, "limits")
    return row


def _vhost(row: Row, warnings: list[str]) -> Row:
    _make_object(row, "limits")
    _make_object(row, "metadata")
    metadata = row.get("metadata")
    if isinstance(metadata, dict):
        for name in sorted(metadata.keys() - _VHOST_METADATA):
            warnings.append(f"vhost '{row.get('name')}': metadata '{name}' was ignored")
        row["metadata"] = {**metadata}
        _shorten_kind(row["metadata"], "default_queue_type")
    _shorten_kind(row, "default_queue_type")
    return row


def _parameter(row: Row, warnings: list[str]) -> Row | None:
    row["value"] = as_object(row.get("value"))
    component, where = row.get("component"), _named("parameter", row, "component")
    if component == OPERATOR_POLICY and isinstance(row["value"], dict):
        value = dict(row["value"])
        _make_object(value, "definition")
        name = f"operator policy '{row.get('name')}' in vhost '{row.get('vhost')}'"
        usable = _usable_policy(value, OPERATOR_KEYS, name, warnings)
        return None if usable is None else {**row, "value": usable}
    if component not in (OPERATOR_POLICY, VHOST_LIMITS):
        warnings.append(f"{where} is kept, but has no effect in Leveret")
    return row


def _global_parameter(row: Row, warnings: list[str]) -> Row:
    row["value"] = as_object(row.get("value"))
    name = str(row.get("name"))
    if name != CLUSTER_NAME and not name.startswith("internal_"):
        warnings.append(f"global parameter '{name}' is kept, but has no effect in Leveret")
    return row


def _policy(row: Row, warnings: list[str]) -> Row | None:
    _make_object(row, "definition")
    name = f"policy '{row.get('name')}' in vhost '{row.get('vhost')}'"
    return _usable_policy(row, POLICY_KEYS, name, warnings)


def _usable_policy(policy: Row, known: Any, name: str, warnings: list[str]) -> Row | None:
    """Return a policy without keys of plugins that Leveret does not have; None if none is left."""
    definition = policy.get("definition")
    if not isinstance(definition, dict):
        return policy
    for key in sorted(definition.keys() & WITHOUT_EFFECT):
        warnings.append(f"{name}: '{key}' is kept, but has no effect in Leveret")
    if not (unknown := sorted(definition.keys() - known)):
        return policy
    rest = {key: value for key, value in definition.items() if key in known}
    kept = "" if rest else "; nothing is left, so the policy was not imported"
    for key in unknown:
        warnings.append(f"{name}: '{key}' is not known and was ignored{kept}")
    return {**policy, "definition": rest} if rest else None


def _queue(row: Row, warnings: list[str]) -> Row:
    _make_object(row, "arguments")
    arguments = row.get("arguments")
    if not isinstance(arguments, dict):
        return row
    _shorten_kind(row, "type")
    if row.get("type") not in (None, "classic"):
        arguments = {"x-queue-type": row["type"], **arguments}
    refused = REFUSED_ARGUMENTS.get(str(arguments.get("x-queue-type", "classic")), frozenset())
    name = _named("queue", row)
    for key in sorted(arguments.keys() & refused):
        warnings.append(f"{name}: argument '{key}' does not exist for its type and was ignored")
    _warn_of_bytes(arguments, name, warnings)
    row["arguments"] = {key: part for key, part in arguments.items() if key not in refused}
    return row


def _exchange(row: Row, warnings: list[str]) -> Row:
    _make_object(row, "arguments")
    _warn_of_bytes(row.get("arguments"), _named("exchange", row), warnings)
    return row


def _binding(row: Row, warnings: list[str]) -> Row:
    _make_object(row, "arguments")
    if row.get("arguments"):
        name = f"binding from '{row.get('source')}' to '{row.get('destination')}'"
        _warn_of_bytes(row["arguments"], name, warnings)
    return row


def _warn_of_bytes(arguments: Any, name: str, warnings: list[str]) -> None:
    for key, value in arguments.items() if isinstance(arguments, dict) else ():
        if isinstance(value, str) and value.startswith(_NOT_TEXT):
            warnings.append(f"{name}: argument '{key}' was not text; it is now the text {value!r}")


def _shorten_kind(row: Row, field: str) -> None:
    """Replace the name of RabbitMQ's module, such as rabbit_stream_queue, by the queue type."""
    short = str(row.get(field)).removeprefix("rabbit_").removesuffix("_queue")
    if short in QUEUE_KINDS:
        row[field] = short


def _named(kind: str, row: Row, *more: str) -> str:
    name = "/".join(str(row.get(field)) for field in (*more, "name"))
    return f"{kind} '{name}' in vhost '{row.get('vhost')}'"


_ADAPTERS: dict[str, Callable[[Row, list[str]], Row | None]] = {
    "users": _user,
    "vhosts": _vhost,
    "parameters": _parameter,
    "global_parameters": _global_parameter,
    "policies": _policy,
    "queues": _queue,
    "exchanges": _exchange,
    "bindings": _binding,
}
