"""Messages through the HTTP API: publish, get, consume, browse, route, scheduled messages.

`consume` repeats long-poll gets that acknowledge on the server before the answer is sent: messages
that a killed `consume` has not printed are lost, as with `basic.get` and automatic ack.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from enum import StrEnum
from itertools import repeat
from typing import Annotated

import typer

from leveret.cli.api import MAX_WAIT_SECONDS, Json, decoded, encoded, path
from leveret.cli.errors import CliError, ExitCode
from leveret.cli.inputs import announce_typed_input, lines, pairs, read_all
from leveret.cli.output import Formatter, counted, write_csv, write_json
from leveret.cli.session import Session, client_command
from leveret.cli.topology import ExchangeName, QueueName, exchange_named, queue_named

commands = typer.Typer()
command = client_command(commands, panel="Messages")

_BATCH = 100
_EMPTY_PAUSE = 0.5
_MESSAGE_COLUMNS = (
    "routing_key",
    "exchange",
    "message_count",
    "payload",
    "payload_bytes",
    "payload_encoding",
    "redelivered",
    "properties",
)
_BROWSE_COLUMNS = (
    "position",
    "state",
    "age_ms",
    "routing_key",
    "exchange",
    "payload",
    "payload_bytes",
    "redelivered",
    "properties",
)
_CSV_COLUMNS = ("exchange", "routing_key", "payload")
_SCHEDULED_COLUMNS = ("id", "due", "routing_key", "payload", "payload_bytes", "properties")
MAX_SCHEDULED = 500
"""Messages in one answer of the API."""


class AckMode(StrEnum):
    ACK_REQUEUE_TRUE = "ack_requeue_true"
    ACK_REQUEUE_FALSE = "ack_requeue_false"
    REJECT_REQUEUE_TRUE = "reject_requeue_true"
    REJECT_REQUEUE_FALSE = "reject_requeue_false"


Exchange = Annotated[
    str, typer.Option("--exchange", "-x", help="Exchange; empty for the default one.")
]
RoutingKey = Annotated[str, typer.Option("--routing-key", "-k", help="Routing key.")]
Headers = Annotated[
    list[str] | None, typer.Option("--header", "-H", metavar="KEY=VALUE", help="Header to add.")
]
Properties = Annotated[
    list[str] | None,
    typer.Option("--property", "-P", metavar="KEY=VALUE", help="Property such as message_id=7."),
]
Truncate = Annotated[
    int | None, typer.Option("--truncate", min=0, help="Truncate payloads to this many bytes.")
]


def _properties(
    properties: list[str] | None, headers: list[str] | None, *, is_persistent: bool
) -> dict[str, Json]:
    from leveret.model.message import PROPERTY_NAMES

    values: dict[str, Json] = {"delivery_mode": 2 if is_persistent else 1}
    numeric = {"delivery_mode", "priority", "timestamp"}
    for key, value in pairs(properties, "property").items():
        if key not in PROPERTY_NAMES:
            known = f"properties are {', '.join(PROPERTY_NAMES)}"
            raise CliError(f"unknown property {key!r}; {known}.", ExitCode.USAGE)
        values[key] = value if key in numeric or key == "headers" else _as_text(value)
    if headers:
        values["headers"] = {**values.get("headers", {}), **pairs(headers, "header")}
    return values


def _as_text(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _payloads(payload: str | None, file: str | None, count: int, is_lines: bool) -> Iterator[bytes]:
    if is_lines:
        announce_typed_input()
        yield from lines(sys.stdin.fileno())
        return
    if payload is None:
        yield from repeat(read_all(file or "-"), count)
    elif file is not None:
        raise CliError("use either a payload or --file, not both.", ExitCode.USAGE)
    else:
        yield from repeat(os.fsencode(payload), count)


Payload = Annotated[
    str | None, typer.Argument(help="The body; read from standard input if omitted.")
]
Persistent = Annotated[
    bool,
    typer.Option(
        "--persistent/--transient", help="Whether durable queues store the messages on disk."
    ),
]
BodyFile = Annotated[str | None, typer.Option("--file", "-f", help="File with the body.")]
ByLine = Annotated[
    bool, typer.Option("--lines", help="Publish each line of standard input as a message.")
]
Copies = Annotated[int, typer.Option("--count", "-c", min=1, help="Number of copies.")]
Mandatory = Annotated[
    bool,
    typer.Option(
        "--mandatory/--no-mandatory", help="Whether to fail if a message is not routed to a queue."
    ),
]


@command
def publish(
    session: Session,
    payload: Payload = None,
    exchange: Exchange = "",
    routing_key: RoutingKey = "",
    properties: Properties = None,
    headers: Headers = None,
    persistent: Persistent = True,
    file: BodyFile = None,
    by_line: ByLine = False,
    count: Copies = 1,
    mandatory: Mandatory = True,
) -> None:
    """Publish messages: `leveret publish -k tasks 'hello'`."""
    where = path("exchanges", session.vhost, exchange or "amq.default", "publish")
    body = {
        "routing_key": routing_key,
        "properties": _properties(properties, headers, is_persistent=persistent),
    }
    sent = unrouted = 0
    is_typed = (by_line or (payload is None and file in {None, "-"})) and sys.stdin.isatty()
    with session.out.progress(is_typed=is_typed) as progress:
        task = progress.add_task("publishing", total=None if by_line else count)
        for content in _payloads(payload, file, count, by_line):
            text, encoding = encoded(content)
            message = {**body, "payload": text, "payload_encoding": encoding}
            answer = session.api.post(where, message, what=exchange_named(session, exchange))
            sent += 1
            unrouted += not answer.get("routed")
            progress.advance(task)
    _report_published(session, sent, unrouted, is_mandatory=mandatory)


def _report_published(session: Session, sent: int, unrouted: int, *, is_mandatory: bool) -> None:
    messages = counted(sent, "message")
    if unrouted and is_mandatory:
        raise CliError(f"{unrouted} of {messages} not routed to any queue.")
    session.out.remark(f"{messages} published.")


@command
def get(
    session: Session,
    name: QueueName,
    count: Annotated[int, typer.Option("--count", "-c", min=1, help="Maximum number.")] = 1,
    ackmode: Annotated[
        AckMode, typer.Option("--ackmode", help="What to do with the messages.")
    ] = AckMode.ACK_REQUEUE_TRUE,
    ack: Annotated[bool, typer.Option("--ack", help="Remove them: ack_requeue_false.")] = False,
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait for a message.")] = 0.0,
    truncate: Truncate = None,
) -> None:
    """Get messages from a queue and requeue them, or remove them with --ack."""
    mode = AckMode.ACK_REQUEUE_FALSE if ack else ackmode
    deadline = time.monotonic() + wait
    while True:
        left = max(0.0, deadline - time.monotonic())
        items = _get(session, name, count, mode, min(left, MAX_WAIT_SECONDS), truncate)
        if items or time.monotonic() >= deadline:
            break
    if session.out.formatter is Formatter.JSON:
        write_json(items)
    elif items:
        rows = [[item.get(key) for key in _MESSAGE_COLUMNS] for item in items]
        session.out.rows(_MESSAGE_COLUMNS, rows)
    else:
        session.out.remark(f"Queue '{name}' is empty.")


def _get(
    session: Session, name: str, count: int, mode: AckMode, wait: float, truncate: int | None
) -> list[Json]:
    """Run one long-poll get; if it returns nothing, pause before the next one."""
    body: dict[str, Json] = {"count": count, "ackmode": mode.value, "encoding": "auto"}
    body |= {"wait": wait} if wait else {}
    body |= {"truncate": truncate} if truncate is not None else {}
    where = path("queues", session.vhost, name, "get")
    started = time.monotonic()
    try:
        what = queue_named(session, name)
        items: list[Json] = session.api.post(where, body, what=what, wait=wait)
    except CliError as error:
        if "not supported by stream queues" not in str(error):
            raise
        text = f"'{name}' is a log; use `leveret log consume {name} --from-beginning`."
        raise CliError(text, error.code) from None
    if not items:  # RabbitMQ has no long poll and answers at once
        pause = min(wait, _EMPTY_PAUSE) - (time.monotonic() - started)
        time.sleep(max(0.0, pause))
    return items or []


@command
def consume(
    session: Session,
    name: QueueName,
    count: Annotated[
        int | None, typer.Option("--count", "-c", min=1, help="Stop after this many.")
    ] = None,
    idle: Annotated[
        float | None,
        typer.Option("--idle", min=0, help="Stop after this many seconds without a message."),
    ] = None,
) -> None:
    """Consume messages and print each body on a line, until interrupted."""
    session.out.remark(f"Consuming from queue '{name}'; interrupt to stop ...")
    if session.out.formatter is Formatter.CSV and session.out.has_headers:
        write_csv(_CSV_COLUMNS)
    consumed = 0
    try:
        for item in _follow(session, name, count, idle):
            _print_message(session, item)
            consumed += 1
    except KeyboardInterrupt:
        pass
    session.out.remark(f"{counted(consumed, 'message')} consumed.")


def _follow(session: Session, name: str, count: int | None, idle: float | None) -> Iterator[Json]:
    """Yield messages until there were `count`, or none for `idle` seconds."""
    total, last = 0, time.monotonic()
    while count is None or total < count:
        left = MAX_WAIT_SECONDS if idle is None else idle - (time.monotonic() - last)
        limit = _BATCH if count is None else min(_BATCH, count - total)
        wait = max(0.0, min(left, MAX_WAIT_SECONDS))
        items = _get(session, name, limit, AckMode.ACK_REQUEUE_FALSE, wait, None)
        if items:
            yield from items
            total, last = total + len(items), time.monotonic()
        elif idle is not None and time.monotonic() - last >= idle:
            return


def _print_message(session: Session, item: Json) -> None:
    if session.out.formatter is Formatter.JSON:
        sys.stdout.write(json.dumps(item, ensure_ascii=False) + "\n")
    elif session.out.formatter is Formatter.CSV:
        write_csv([item.get(key) for key in _CSV_COLUMNS])
    else:
        content = decoded(item.get("payload"), item.get("payload_encoding"))
        sys.stdout.buffer.write(content + b"\n")
    sys.stdout.flush()


@command
def browse(
    session: Session,
    name: QueueName,
    count: Annotated[int, typer.Option("--count", "-c", min=1, help="Maximum number.")] = 20,
    offset: Annotated[
        int, typer.Option(min=0, help="Skip this many from the head of the queue.")
    ] = 0,
    truncate: Truncate = None,
) -> None:
    """Show a queue's messages without removing or changing them."""
    where, what = path("queues", session.vhost, name, "browse"), queue_named(session, name)
    query = {"count": count, "offset": offset, "truncate": truncate}
    answer = session.api.get(where, what=what, **query)
    items = answer.get("items", []) if isinstance(answer, dict) else answer
    if session.out.formatter is Formatter.JSON:
        write_json(items)
        return
    session.out.rows(
        _BROWSE_COLUMNS, [[item.get(key) for key in _BROWSE_COLUMNS] for item in items]
    )


@command
def route(
    session: Session,
    exchange: Exchange = "",
    routing_key: RoutingKey = "",
    headers: Headers = None,
) -> None:
    """Show to which queues, and by which bindings, a message would be routed."""
    body = {
        "exchange": exchange,
        "routing_key": routing_key,
        "headers": pairs(headers, "header"),
    }
    what = exchange_named(session, exchange)
    answer = session.api.post(path("route", session.vhost), body, what=what)
    if session.out.formatter is Formatter.JSON:
        write_json(answer)
        return
    names = ("source", "destination", "destination_type", "routing_key", "arguments")
    steps = answer.get("path") or []
    session.out.rows(names, [[step.get(name) for name in names] for step in steps])
    queues = [item if isinstance(item, str) else item["name"] for item in answer["queues"]]
    session.out.remark(f"Routed to: {', '.join(queues)}." if queues else "Routed to no queue.")


@command
def list_scheduled(
    session: Session,
    name: ExchangeName,
    count: Annotated[
        int, typer.Option("--count", "-c", min=1, max=MAX_SCHEDULED, help="Maximum number.")
    ] = 100,
    offset: Annotated[int, typer.Option(min=0, help="Skip this many of the earliest.")] = 0,
) -> None:
    """List the messages scheduled at a delayed exchange, earliest first."""
    where = path("exchanges", session.vhost, name, "scheduled")
    what = exchange_named(session, name)
    items = session.api.get(where, what=what, count=count, offset=offset)
    if session.out.formatter is Formatter.JSON:
        write_json(items)
        return
    session.out.rows(
        _SCHEDULED_COLUMNS,
        [[_scheduled_cell(item, key) for key in _SCHEDULED_COLUMNS] for item in items],
    )


def _scheduled_cell(item: Json, key: str) -> Json:
    if key != "due":
        return item.get(key)
    due = datetime.fromtimestamp(item["due_ms"] / 1000, UTC)
    return due.isoformat(timespec="milliseconds").replace("+00:00", "Z")


@command
def cancel_scheduled(
    session: Session,
    name: ExchangeName,
    message_id: Annotated[int, typer.Argument(help="The id shown by list_scheduled.")],
) -> None:
    """Cancel one scheduled message of a delayed exchange, which drops it."""
    where = path("exchanges", session.vhost, name, "scheduled", str(message_id))
    what = f"scheduled message {message_id} at {exchange_named(session, name)}"
    session.api.delete(where, what=what)
    session.out.remark(f"Message {message_id} cancelled.")
