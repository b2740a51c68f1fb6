"""The broker as a whole, as the documentation shows it: overview, node, what it can do."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from http_admin.shapes import Details, MessageStats, QueueTotals, Shape


class ObjectTotals(BaseModel):
    connections: int
    channels: int
    queues: int
    exchanges: int
    consumers: int


class ChurnRates(Shape):
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


class ListenerRow(Shape):
    node: str
    protocol: str
    ip_address: str
    port: int
    socket_opts: list[Any]


class Offered(Shape):
    """An exchange type, or a way to log in."""

    name: str
    description: str
    enabled: bool


class RetentionPolicies(BaseModel):
    """Seconds that samples are kept for; RabbitMQ's names."""

    whole: list[int] = Field(alias="global")
    basic: list[int]
    detailed: list[int]


class OverviewRow(Shape):
    cluster_name: str
    cluster_tags: dict[str, str]
    node: str
    node_tags: dict[str, str]
    product_name: str
    product_version: str
    rabbitmq_version: str
    management_version: str
    erlang_version: str
    erlang_full_version: str
    default_queue_type: str
    release_series_support_status: str
    disable_stats: bool
    enable_queue_totals: bool
    is_op_policy_updating_enabled: bool
    rates_mode: str
    sample_retention_policies: RetentionPolicies
    statistics_db_event_queue: int
    exchange_types: list[Offered]
    message_stats: MessageStats
    churn_rates: ChurnRates
    queue_totals: QueueTotals
    object_totals: ObjectTotals
    listeners: list[ListenerRow]
    contexts: list[Any]


class Alarm(BaseModel):
    name: str
    reason: str


class Application(BaseModel):
    name: str
    description: str
    version: str


class NodeRow(ChurnRates):
    name: str
    type: str
    running: bool
    being_drained: bool
    os_pid: str
    uptime: int = Field(description="Milliseconds.")
    run_queue: int
    processors: int
    mem_used: int
    mem_limit: int
    mem_alarm: bool
    mem_calculation_strategy: str
    disk_free: int
    disk_free_limit: int
    disk_free_alarm: bool
    fd_used: int
    fd_total: int
    sockets_used: int
    sockets_total: int
    proc_used: int
    proc_total: int
    alarms: list[Alarm]
    partitions: list[str]
    rates_mode: str
    exchange_types: list[Offered]
    auth_mechanisms: list[Offered]
    applications: list[Application]
    contexts: list[Any]
    enabled_plugins: list[str]
    log_files: list[str]
    config_files: list[str]
    db_dir: str
    net_ticktime: int
    cluster_links: list[Any]


class MemoryTotals(BaseModel):
    rss: int
    allocated: int
    erlang: int


class MemoryParts(BaseModel):
    queue_procs: int = Field(description="Octets in messages held in memory.")
    other_proc: int
    strategy: str
    total: MemoryTotals


class NodeMemory(BaseModel):
    memory: MemoryParts


class Extension(BaseModel):
    javascript: str


class FeatureFlag(BaseModel):
    name: str
    desc: str
    doc_url: str
    state: str
    stability: str
    provided_by: str


class DeprecatedFeature(BaseModel):
    name: str
    desc: str
    deprecation_phase: str
    doc_url: str
    provided_by: str
