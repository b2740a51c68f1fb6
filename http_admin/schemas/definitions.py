"""An exported definitions document."""

from __future__ import annotations

from typing import Any, NotRequired

from typing_extensions import TypedDict

from leveret.http_admin.schemas.fields import JsonTable


class DefinedUser(TypedDict):
    name: str
    password_hash: str
    hashing_algorithm: str | None
    tags: list[str]
    limits: dict[str, int]


class VhostMetadata(TypedDict, total=False):
    description: str | None
    tags: list[str] | None
    default_queue_type: str | None


class DefinedVhost(VhostMetadata):
    name: str
    protected_from_deletion: NotRequired[bool]
    tracing: NotRequired[bool]
    metadata: NotRequired[VhostMetadata]


class DefinedPermission(TypedDict):
    user: str
    vhost: str
    configure: str
    write: str
    read: str


class DefinedTopicPermission(TypedDict):
    user: str
    vhost: str
    exchange: str
    write: str
    read: str


class DefinedGlobalParameter(TypedDict):
    name: str
    value: Any


class DefinedParameter(DefinedGlobalParameter):
    vhost: str
    component: str


ApplyTo = TypedDict("ApplyTo", {"apply-to": str})


class DefinedPolicy(ApplyTo):
    vhost: str
    name: str
    pattern: str
    definition: JsonTable
    priority: int


class LeveretPolicy(DefinedPolicy):
    operator: NotRequired[bool]


class LeveretQueue(TypedDict):
    name: str
    vhost: NotRequired[str]
    arguments: JsonTable


class DefinedQueue(LeveretQueue):
    durable: bool
    auto_delete: bool


class DefinedExchange(DefinedQueue):
    type: str
    internal: bool


class DefinedBinding(TypedDict):
    source: str
    vhost: NotRequired[str]
    destination: str
    destination_type: str
    routing_key: str
    arguments: JsonTable


class LeveretDefinitions(TypedDict, total=False):
    """Definitions that RabbitMQ would refuse; a Leveret that imports the document adds them.

    Users are listed here if their password hash is Argon2id, which RabbitMQ cannot check.
    """

    users: list[DefinedUser]
    permissions: list[DefinedPermission]
    topic_permissions: list[DefinedTopicPermission]
    policies: list[LeveretPolicy]
    queues: list[LeveretQueue]


class VhostDefinitions(TypedDict):
    """The definitions of one vhost. Its rows name no vhost, so another one can import them."""

    rabbit_version: str
    rabbitmq_version: str
    product_name: str
    product_version: str
    rabbitmq_definition_format: str
    original_cluster_name: str
    original_vhost_name: NotRequired[str]
    parameters: list[DefinedParameter]
    policies: list[DefinedPolicy]
    queues: list[DefinedQueue]
    exchanges: list[DefinedExchange]
    bindings: list[DefinedBinding]
    leveret: NotRequired[LeveretDefinitions]


class Definitions(VhostDefinitions):
    users: list[DefinedUser]
    vhosts: list[DefinedVhost]
    permissions: list[DefinedPermission]
    topic_permissions: list[DefinedTopicPermission]
    global_parameters: list[DefinedGlobalParameter]


class ImportReport(TypedDict):
    """What an import ignored, or kept although it has no effect; one sentence for each."""

    warnings: list[str]
