"""A file of definitions as the documentation shows it."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from http_admin.shapes import Shape


class DefinedUser(Shape):
    name: str
    password_hash: str
    hashing_algorithm: str | None
    tags: list[str]
    limits: dict[str, int]


class VhostMetadata(Shape):
    description: str | None = None
    tags: list[str] | None = None
    default_queue_type: str | None = None


class DefinedVhost(VhostMetadata):
    name: str
    protected_from_deletion: bool | None = None
    tracing: bool | None = None
    metadata: VhostMetadata | None = None


class DefinedPermission(BaseModel):
    user: str
    vhost: str
    configure: str
    write: str
    read: str


class DefinedTopicPermission(BaseModel):
    user: str
    vhost: str
    exchange: str
    write: str
    read: str


class DefinedGlobalParameter(BaseModel):
    name: str
    value: Any


class DefinedParameter(DefinedGlobalParameter):
    vhost: str
    component: str


class DefinedPolicy(BaseModel):
    vhost: str
    name: str
    pattern: str
    apply_to: str = Field(alias="apply-to")
    definition: dict[str, Any]
    priority: int


class OwnPolicy(DefinedPolicy):
    operator: bool | None = None


class OwnQueue(BaseModel):
    name: str
    vhost: str | None = None
    arguments: dict[str, Any]


class DefinedQueue(OwnQueue):
    durable: bool
    auto_delete: bool


class DefinedExchange(DefinedQueue):
    type: str
    internal: bool


class DefinedBinding(BaseModel):
    source: str
    vhost: str | None = None
    destination: str
    destination_type: str
    routing_key: str
    arguments: dict[str, Any]


class Own(BaseModel):
    """What RabbitMQ does not know and would refuse; importing here adds it again.

    Users among it have passwords as Argon2id, which RabbitMQ could not check.
    """

    users: list[DefinedUser] | None = None
    permissions: list[DefinedPermission] | None = None
    topic_permissions: list[DefinedTopicPermission] | None = None
    policies: list[OwnPolicy] | None = None
    queues: list[OwnQueue] | None = None


class VhostDefinitions(Shape):
    """Of one vhost: its rows name none, so that it can be imported into another."""

    rabbit_version: str
    rabbitmq_version: str
    product_name: str
    product_version: str
    rabbitmq_definition_format: str
    original_cluster_name: str
    original_vhost_name: str | None = None
    parameters: list[DefinedParameter]
    policies: list[DefinedPolicy]
    queues: list[DefinedQueue]
    exchanges: list[DefinedExchange]
    bindings: list[DefinedBinding]
    leveret: Own | None = None


class Definitions(VhostDefinitions):
    users: list[DefinedUser]
    vhosts: list[DefinedVhost]
    permissions: list[DefinedPermission]
    topic_permissions: list[DefinedTopicPermission]
    global_parameters: list[DefinedGlobalParameter]
