"""Messages through the HTTP API: publish, get, browse, consume, and where one would go.

`consume` is a loop of long-poll gets that acknowledge on the server before the answer leaves it:
a message printed by a crashed `consume` is gone, as with `basic.get` and automatic ack.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from enum import StrEnum
from itertools import repeat
from typing import Annotated

import typer

from leveret.cli.api import LONGEST_WAIT, Json, decoded, encoded, path
from leveret.cli.errors import CliError, ExitCode
from leveret.cli.inputs import lines, pairs, read_all, tell_who_types
from leveret.cli.output import Formatter, counted, write_csv, write_json
from leveret.cli.session import Session, client_command
from leveret.cli.topology import QueueName, exchange_named, queue_named

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


class AckMode(StrEnum):
    ACK_REQUEUE_TRUE = "ack_requeue_true"
    ACK_REQUEUE_FALSE = "ack_requeue_false"
    REJECT_REQUEUE_TRUE = "reject_requeue_true"
    REJECT_REQUEUE_FALSE = "reject_requeue_false"


Exchange = Annotated[str, typer.Option("--exchange", "-x", help="Empty is the default exchange.")]
RoutingKey = Annotated[str, typer.Option("--routing-key", "-k", help="Routing key (queue name).")]
Headers = Annotated[
    list[str] | None, typer.Option("--header", "-H", metavar="KEY=VALUE", help="A header.")
]
Properties = Annotated[
    list[str] | None,
    typer.Option("--property", "-P", metavar="KEY=VALUE", help="A property such as message_id=7."),
]
Truncate = Annotated[
    int | None, typer.Option("--truncate", min=0, help="Cut payloads after so many bytes.")
]


def _properties(
    properties: list[str] | None, headers: list[str] | None, *, is_persistent: bool
) -> dict[str, Json]:
    from leveret.model.properties import NAMES

    found: dict[str, Json] = {"delivery_mode": 2 if is_persistent else 1}
    numeric = {"delivery_mode", "priority", "timestamp"}
    for key, value in pairs(properties, "property").items():
        if key not in NAMES:
            known = f"the properties are {', '.join(NAMES)}"
            raise CliError(f"there is no property {key!r}; {known}.", ExitCode.USAGE)
        found[key] = value if key in numeric or key == "headers" else _as_text(value)
    if headers:
        found["headers"] = {**found.get("headers", {}), **pairs(headers, "header")}
    return found


def _as_text(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _payloads(payload: str | None, file: str | None, count: int, is_lines: bool) -> Iterator[bytes]:
    if is_lines:
        tell_who_types()
        yield from lines(sys.stdin.fileno())
        return
    if payload is None:
        yield from repeat(read_all(file or "-"), count)
    elif file is not None:
        raise CliError("give a payload or --file, not both.", ExitCode.USAGE)
    else:
        yield from repeat(os.fsencode(payload), count)


Payload = Annotated[
    str | None, typer.Argument(help="The body; read from standard input if left out.")
]
Persistent = Annotated[
    bool, typer.Option("--persistent/--transient", help="Kept on disk by durable queues.")
]
BodyFile = Annotated[str | None, typer.Option("--file", "-f", help="File with the body.")]
ByLine = Annotated[
    bool, typer.Option("--lines", help="One message for each line of standard input.")
]
Copies = Annotated[int, typer.Option("--count", "-c", min=1, help="So many copies.")]
Mandatory = Annotated[bool, typer.Option("--mandatory", help="Fail if no queue takes a message.")]


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
    mandatory: Mandatory = False,
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
        raise CliError(f"no queue took {unrouted} of {messages}.")
    if unrouted:
        session.out.warn(f"no queue took {unrouted} of {messages}.")
    session.out.remark(f"{messages} published.")


@command
def get(
    session: Session,
    name: QueueName,
    count: Annotated[int, typer.Option("--count", "-c", min=1, help="At most so many.")] = 1,
    ackmode: Annotated[
        AckMode, typer.Option("--ackmode", help="What happens to the messages.")
    ] = AckMode.ACK_REQUEUE_TRUE,
    ack: Annotated[bool, typer.Option("--ack", help="Take them: ack_requeue_false.")] = False,
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait for the first one.")] = 0.0,
    truncate: Truncate = None,
) -> None:
    """Get messages from a queue; they go back to it unless --ack takes them."""
    mode = AckMode.ACK_REQUEUE_FALSE if ack else ackmode
    deadline = time.monotonic() + wait
    while True:
        left = max(0.0, deadline - time.monotonic())
        items = _get(session, name, count, mode, min(left, LONGEST_WAIT), truncate)
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
    """One long-poll get, which never returns empty faster than a polite pause."""
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
        text = f"'{name}' is a log; `leveret log consume {name} --from-beginning` reads it."
        raise CliError(text, error.code) from None
    if not items:  # RabbitMQ knows no long poll and answers at once
        pause = min(wait, _EMPTY_PAUSE) - (time.monotonic() - started)
        time.sleep(max(0.0, pause))
    return items or []


@command
def consume(
    session: Session,
    name: QueueName,
    count: Annotated[
        int | None, typer.Option("--count", "-c", min=1, help="Stop after so many.")
    ] = None,
    idle: Annotated[
        float | None,
        typer.Option("--idle", min=0, help="Stop after so many seconds without a message."),
    ] = None,
) -> None:
    """Take messages as they come and print each body on a line, until interrupted."""
    session.out.remark(f"Consuming from queue '{name}'; interrupt to stop ...")
    if session.out.formatter is Formatter.CSV and session.out.has_headers:
        write_csv(_CSV_COLUMNS)
    seen = 0
    try:
        for item in _arriving(session, name, count, idle):
            _print_message(session, item)
            seen += 1
    except KeyboardInterrupt:
        pass
    session.out.remark(f"{counted(seen, 'message')} consumed.")


def _arriving(session: Session, name: str, count: int | None, idle: float | None) -> Iterator[Json]:
    """Messages until `count` have come or `idle` seconds have brought none."""
    seen, last = 0, time.monotonic()
    while count is None or seen < count:
        left = LONGEST_WAIT if idle is None else idle - (time.monotonic() - last)
        most = _BATCH if count is None else min(_BATCH, count - seen)
        wait = max(0.0, min(left, LONGEST_WAIT))
        items = _get(session, name, most, AckMode.ACK_REQUEUE_FALSE, wait, None)
        if items:
            yield from items
            seen, last = seen + len(items), time.monotonic()
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
    count: Annotated[int, typer.Option("--count", "-c", min=1, help="At most so many.")] = 20,
    offset: Annotated[int, typer.Option(min=0, help="Skip so many from the head.")] = 0,
    truncate: Truncate = None,
) -> None:
    """Look at a queue's messages without taking or disturbing them."""
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
    """Show which queues a message would reach, and by which bindings, without sending one."""
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
    session.out.remark(f"Reaches: {', '.join(queues)}." if queues else "Reaches no queue.")
