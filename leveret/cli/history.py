"""The history: the events of one message, and the extent of what is kept."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from leveret.cli.api import Json
from leveret.cli.errors import CliError, ExitCode
from leveret.cli.output import Formatter, write_json
from leveret.cli.session import Session, client_command
from leveret.model.quantities import approximate_size

commands = typer.Typer()
command = client_command(commands, panel="History and Spark")

_COLUMNS = ("time", "after", "event", "queue", "consumer", "user", "connection", "detail")


@command
def trace(
    session: Session,
    message: Annotated[str, typer.Argument(help="The message_id property, or the internal id.")],
    internal: Annotated[
        bool, typer.Option("--internal", help="MESSAGE is the broker's internal id.")
    ] = False,
) -> None:
    """Show what happened to one message (published, delivered, acked, …) and when."""
    if internal and not (message.isdecimal() and int(message) < 1 << 63):
        raise CliError(
            f"an internal id is a whole number, not '{message}'; without --internal, "
            "MESSAGE is searched as a message_id.",
            ExitCode.USAGE,
        )
    query = {"id": message} if internal else {"message_id": message}
    query |= {"vhost": session.vhost} if session.is_vhost_given else {}
    what = f"message with {'internal id' if internal else 'message_id'} '{message}' in the history"
    answer = session.api.get("trace", what=what, **query)
    traces = answer if isinstance(answer, list) else [answer]
    if not traces or not any(trace.get("events") for trace in traces):
        raise CliError(f"there is no {what}.", ExitCode.NOT_FOUND)
    if session.out.formatter is Formatter.JSON:
        write_json(answer)
        return
    for trace in traces:
        _show_trace(session, trace)


def _show_trace(session: Session, trace: Json) -> None:
    events = sorted(trace["events"], key=lambda event: event["time_ms"])
    message = trace.get("message") or {}
    title = [f"{key}={message[key]}" for key in ("id", "exchange", "routing_key") if key in message]
    session.out.remark(f"Message {' '.join(title)}")
    for copy, original in (trace.get("parents") or {}).items():
        session.out.remark(f"Message {copy} is a copy of message {original}")
    rows, before = [], events[0]["time_ms"]
    for event in events:
        rows.append([_field(event, name, before) for name in _COLUMNS])
        before = event["time_ms"]
    session.out.rows(_COLUMNS, rows)


def _field(event: Json, name: str, before: float) -> Json:
    if name == "time":
        return clock_text(event["time_ms"])
    if name == "after":
        return f"+{(event['time_ms'] - before) / 1000:.3f} s"
    return event.get(name)


def clock_text(milliseconds: float | None) -> str | None:
    """Return a time as local date and time with milliseconds."""
    if milliseconds is None:
        return None
    local = time.localtime(milliseconds / 1000)
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', local)}.{int(milliseconds % 1000):03d}"


@command
def history(session: Session) -> None:
    """Show how much history is kept, and since when."""
    info = session.api.get("history")
    if session.out.formatter is Formatter.JSON:
        write_json(info)
        return
    values = {
        "messages": info.get("messages"),
        "events": info.get("events"),
        "size": approximate_size(info.get("size_bytes") or 0),
        "limit": approximate_size(info["limit_bytes"]) if info.get("limit_bytes") else "none",
        "oldest": clock_text(info.get("first_time")),
        "newest": clock_text(info.get("last_time")),
    }
    session.out.record("History ...", values)
