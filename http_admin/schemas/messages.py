"""Messages: published, taken, browsed, scheduled, and their history."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from leveret.http_admin.schemas.common import MessageProperties
from leveret.http_admin.schemas.exchanges import BindingRow


class Routed(TypedDict):
    routed: Annotated[bool, Field(description="Whether at least one queue got the message.")]


class Payload(TypedDict):
    payload_bytes: Annotated[int, Field(description="The size of the whole body.")]
    payload: str
    payload_encoding: str


class GotMessage(Payload):
    redelivered: bool
    exchange: str
    routing_key: str
    message_count: Annotated[int, Field(description="How many messages are ready behind this one.")]
    properties: MessageProperties


class BrowsedMessage(Payload):
    position: Annotated[
        int, Field(description="Position in the queue from 1, unacknowledged messages first.")
    ]
    id: Annotated[int, Field(description="The broker's id of the message, as in its history.")]
    state: Literal["ready", "unacked"]
    age_ms: int
    redelivered: bool
    exchange: str
    routing_key: str
    properties: MessageProperties


class RouteResult(TypedDict):
    queues: list[str]
    path: Annotated[
        list[BindingRow], Field(description="The bindings the message would follow, in order.")
    ]


class ScheduledMessage(Payload):
    id: int
    due_ms: Annotated[int, Field(description="When it is routed: Unix time in milliseconds.")]
    exchange: str
    routing_key: str
    properties: MessageProperties


# History -----------------------------------------------------------------------------------------


class HistoryRow(TypedDict):
    limit_bytes: int
    mode: Annotated[str, Field(description="full, metadata, off, or memory: nothing is stored.")]
    size_bytes: int
    first_time: Annotated[
        int | None, Field(description="Unix time in milliseconds of the oldest event.")
    ]
    last_time: int | None
    messages: int
    events: int


class TraceEvent(TypedDict):
    time_ms: int
    event: str
    message: Annotated[int, Field(description="The broker's id of the message.")]
    queue: str | None
    consumer: str | None
    connection: str | None
    user: str | None
    redelivered: bool
    detail: str | None


class TracedMessage(TypedDict):
    id: int
    vhost: str
    exchange: str
    routing_key: str
    time_ms: int
    properties: MessageProperties
    payload_bytes: int
    kept: Annotated[str, Field(description="full or metadata.")]
    payload: NotRequired[str]
    payload_encoding: NotRequired[str]


class TraceRow(TypedDict):
    message: TracedMessage
    events: list[TraceEvent]
    parents: Annotated[
        dict[int, int],
        Field(description="By message: the id of the message that it is a copy of."),
    ]


class HistorySplit(TypedDict):
    from_id: int
    to_id: int
    rows: Annotated[int, Field(description="An upper bound.")]
    queue_id: int | None


class HistoryCount(TypedDict):
    rows: int
    bytes: NotRequired[int | None]
    groups: NotRequired[
        Annotated[
            list[dict[str, str | int | None]],
            Field(description="`rows` by queue, by queue and event, or by partition."),
        ]
    ]


class HistoryPartition(TypedDict):
    """A partition of a log: it holds the offsets from `first` to before `next`."""

    queue_id: int
    vhost: str
    log: str
    partition: int
    first: int
    next: int
    start: Annotated[int, Field(description="Retention has deleted what was below this offset.")]


class HistoryTrims(TypedDict):
    """What retention has deleted of a table."""

    number: Annotated[int, Field(description="Of the last deletion.")]
    marks: Annotated[
        list[tuple[int, int]],
        Field(description="Number of a deletion, and the highest id deleted by it and later ones."),
    ]


class HistoryRanges(TypedDict):
    """Ranges of ids: the first id, and the id after the last one."""

    tables: list[str]
    identity: Annotated[str, Field(description="Changes if the data directory is another one.")]
    messages: tuple[int, int]
    events: tuple[int, int]
    logs: Annotated[dict[int, tuple[int, int]], Field(description="By queue id.")]
    partitions: Annotated[list[HistoryPartition], Field(description="The same, with names.")]
    trims: Annotated[dict[str, HistoryTrims], Field(description="By table.")]
    splits: NotRequired[list[HistorySplit] | None]
    count: NotRequired[HistoryCount | None]
