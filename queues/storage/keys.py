"""The columns that name a definition. The schema's primary keys are these; a test compares them.

They stand apart so that the memory store, and a start without a disk, need no SQLAlchemy.
"""

from __future__ import annotations

from typing import Final

from leveret.model.store import (
    BindingDefinition,
    ExchangeDefinition,
    GroupOffset,
    Origin,
    ParameterDefinition,
    PermissionDefinition,
    PolicyDefinition,
    QueueDefinition,
    TopicPermissionDefinition,
    UserDefinition,
    VhostDefinition,
)

KEY_COLUMNS: Final[dict[type[object], tuple[str, ...]]] = {
    VhostDefinition: ("name",),
    UserDefinition: ("name",),
    PermissionDefinition: ("user", "vhost"),
    TopicPermissionDefinition: ("user", "vhost", "exchange"),
    ExchangeDefinition: ("vhost", "name"),
    QueueDefinition: ("id",),
    BindingDefinition: (
        "vhost", "source", "destination", "destination_kind", "routing_key", "arguments",
    ),
    PolicyDefinition: ("vhost", "name", "operator"),
    ParameterDefinition: ("vhost", "component", "name"),
    GroupOffset: ("queue_id", "group_name"),
    Origin: ("id",),
}  # fmt: skip
