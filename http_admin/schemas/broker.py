"""The broker as a whole: overview, nodes, health, settings, alarms."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from leveret.http_admin.schemas.common import Details, MessageStats, NamedRow, QueueTotals


class ObjectTotals(TypedDict):
    connections: int
    channels: int
    queues: int
    exchanges: int
    consumers: int


class ChurnRates(TypedDict):
    connection_created: int
    connection_created_details: Details
    connection_closed: int
    connection_closed_details: Details
    channel_created: int
    channel_created_details: Details
    channel_closed: int
    channel_closed_details: Details
    queue_declared: int
    queue_declared_details: Details
    queue_created: int
    queue_created_details: Details
    queue_deleted: int
    queue_deleted_details: Details


class ListenerRow(TypedDict):
    node: str
    protocol: str
    ip_address: str
    port: int
    socket_opts: list[Any]


class ComponentRow(TypedDict):
    """An exchange type or an authentication mechanism."""

    name: str
    description: str
    enabled: bool


_GlobalRetention = TypedDict("_GlobalRetention", {"global": list[int]})


class RetentionPolicies(_GlobalRetention):
    """For how many seconds samples are kept, under RabbitMQ's names."""

    basic: list[int]
    detailed: list[int]


class OverviewNames(TypedDict):
    management_version: str
    rates_mode: str
    sample_retention_policies: RetentionPolicies
    exchange_types: list[ComponentRow]
    product_name: str
    product_version: str
    form: str
    rabbitmq_version: str
    cluster_name: str
    cluster_tags: dict[str, str]
    node: str
    node_tags: dict[str, str]
    erlang_version: str
    erlang_full_version: str
    default_queue_type: str
    release_series_support_status: str
    disable_stats: bool
    is_op_policy_updating_enabled: bool
    enable_queue_totals: bool
    statistics_db_event_queue: int


class NodeContextRow(TypedDict):
    """An HTTP listener, as RabbitMQ describes those of its web server."""

    description: str
    path: str
    port: Annotated[str, Field(description="A number as text, as in RabbitMQ.")]
    cowboy_opts: str


class ContextRow(NodeContextRow):
    node: str
    ssl_opts: list[Any]


class OverviewRow(OverviewNames):
    message_stats: MessageStats
    queue_totals: QueueTotals
    object_totals: ObjectTotals
    churn_rates: ChurnRates
    listeners: list[ListenerRow]
    contexts: list[ContextRow]


class DiskUsageRow(TypedDict):
    """Bytes of the volume of the data directory, by use."""

    total: int
    free: int
    messages: Annotated[int, Field(description="Messages in queues, and delayed ones.")]
    history: int
    free_pages: Annotated[int, Field(description="Pages of the database that new rows will use.")]
    wal: Annotated[int, Field(description="The write-ahead log of the database.")]
    logs: int
    other: Annotated[int, Field(description="Files that do not belong to this broker.")]


class Alarm(TypedDict):
    name: str
    reason: Annotated[str, Field(description="The cause and, for the disk alarm, the remedies.")]
    disk_usage: NotRequired[
        Annotated[DiskUsageRow, Field(description="What uses the volume; for the disk alarm.")]
    ]


class Application(TypedDict):
    name: str
    description: str
    version: str


class NodeRow(NamedRow, ChurnRates):
    type: str
    running: bool
    being_drained: bool
    os_pid: str
    uptime: Annotated[int, Field(description="Milliseconds.")]
    run_queue: int
    processors: int
    proc_used: int
    proc_total: int
    fd_used: int
    fd_total: int
    sockets_used: int
    sockets_total: int
    mem_used: int
    mem_limit: int
    mem_alarm: bool
    mem_calculation_strategy: str
    disk_free: int
    disk_free_limit: int
    disk_free_alarm: bool
    disk_usage: Annotated[
        DiskUsageRow | None, Field(description="Null if the broker runs in memory.")
    ]
    alarms: list[Alarm]
    partitions: list[str]
    rates_mode: str
    exchange_types: list[ComponentRow]
    auth_mechanisms: list[ComponentRow]
    applications: list[Application]
    contexts: list[NodeContextRow]
    enabled_plugins: list[str]
    log_files: list[str]
    db_dir: str
    config_files: list[str]
    net_ticktime: int
    cluster_links: list[Any]


class MemoryTotals(TypedDict):
    rss: int
    allocated: int
    erlang: int


class MemoryParts(TypedDict):
    queue_procs: Annotated[int, Field(description="Bytes of messages held in memory.")]
    other_proc: int
    strategy: str
    total: MemoryTotals


class NodeMemory(TypedDict):
    memory: MemoryParts


class Extension(TypedDict):
    javascript: str


class FeatureFlag(TypedDict):
    name: str
    desc: str
    doc_url: str
    state: str
    stability: str
    provided_by: str


class DeprecatedFeature(TypedDict):
    name: str
    desc: str
    deprecation_phase: str
    doc_url: str
    provided_by: str


class ClusterName(TypedDict):
    name: str


class RaisedAlarm(TypedDict):
    node: str
    resource: str
    reason: str


class Health(TypedDict):
    status: Literal["ok", "failed"]
    reason: NotRequired[str]
    alarms: NotRequired[list[RaisedAlarm]]
    current: NotRequired[Annotated[int, Field(description="Open connections.")]]
    limit: NotRequired[int | str]
    port: NotRequired[int]
    ports: NotRequired[list[int]]
    protocol: NotRequired[str]
    protocols: NotRequired[list[str]]
    missing: NotRequired[Annotated[int | str, Field(description="The requested port or protocol.")]]


class SettingRow(TypedDict):
    key: str
    value: Any
    shown: Annotated[
        str, Field(description="The value as written in a settings file, such as 128KiB or 7d.")
    ]
    source: Annotated[
        str, Field(description="default, environment, or configured (by a flag or a file).")
    ]
    description: str


class LostDataRow(TypedDict):
    table: Annotated[str, Field(description="The table of the database that has lost it.")]
    vhost: str
    queue: Annotated[str, Field(description="The queue that has lost it, or empty.")]
    text: str


class ShutdownStatus(TypedDict):
    status: str
