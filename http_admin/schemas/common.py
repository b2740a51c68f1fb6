"""Parts that rows of several resources share: pages, rates, counters, message properties."""

from __future__ import annotations

from typing import Annotated, Any, Generic, NotRequired, TypeVar

from pydantic import Field
from typing_extensions import TypedDict

from leveret.http_admin.schemas.fields import JsonTable

R = TypeVar("R")


class Page(TypedDict, Generic[R]):
    """A list's response to a query with `page`."""

    items: list[R]
    page: int
    page_count: int
    page_size: int
    item_count: int
    filtered_count: int
    total_count: int


def listing(row: Any) -> Any:
    """The response model of a list: an array, or a page of it."""
    return list[row] | Page[row]


class NamedRow(TypedDict):
    """The first base of rows, so that the name is their first field."""

    name: str


class Sample(TypedDict):
    timestamp: Annotated[int, Field(description="Unix time in milliseconds.")]
    sample: int


class Details(TypedDict):
    """The current rate per second and, if the query asked for them, samples (newest first)."""

    rate: float
    samples: NotRequired[list[Sample]]
    avg: NotRequired[float]
    avg_rate: NotRequired[float]


class MessageStats(TypedDict, total=False):
    """Counters since the start. A counter appears once it is greater than zero."""

    publish: int
    publish_details: Details
    confirm: int
    confirm_details: Details
    deliver: int
    deliver_details: Details
    deliver_no_ack: int
    deliver_no_ack_details: Details
    get: int
    get_details: Details
    get_no_ack: int
    get_no_ack_details: Details
    deliver_get: int
    deliver_get_details: Details
    redeliver: int
    redeliver_details: Details
    ack: int
    ack_details: Details
    return_unroutable: int
    return_unroutable_details: Details
    drop_unroutable: int
    drop_unroutable_details: Details
    get_empty: int
    get_empty_details: Details
    publish_in: int
    publish_in_details: Details
    publish_out: int
    publish_out_details: Details


class QueueTotals(TypedDict):
    messages: int
    messages_details: Details
    messages_ready: int
    messages_ready_details: Details
    messages_unacknowledged: int
    messages_unacknowledged_details: Details


class ByteRates(TypedDict):
    recv_oct_details: Details
    send_oct_details: Details


class ByteCounters(ByteRates):
    recv_oct: Annotated[int, Field(description="Bytes received from clients.")]
    send_oct: Annotated[int, Field(description="Bytes sent to clients.")]


class MessageProperties(TypedDict, total=False):
    """AMQP properties by name. Only properties that were set appear."""

    content_type: str
    content_encoding: str
    headers: JsonTable
    delivery_mode: int
    priority: int
    correlation_id: str
    reply_to: str
    expiration: str
    message_id: str
    timestamp: Annotated[int, Field(description="Unix time in seconds.")]
    type: str
    user_id: str
    app_id: str
    cluster_id: str


class DetailedRates(TypedDict):
    """Rates of a pair such as channel and exchange. Leveret measures none, so lists are empty."""
