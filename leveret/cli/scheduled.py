"""Messages that wait at an `x-delayed-message` exchange: list them, take one off the schedule."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from leveret.cli.api import Json, path
from leveret.cli.output import Formatter, write_json
from leveret.cli.session import Session, client_command
from leveret.cli.topology import ExchangeName, exchange_named

commands = typer.Typer()
command = client_command(commands, panel="Messages")

MOST_AT_ONCE = 500
_COLUMNS = ("id", "due", "routing_key", "payload", "payload_bytes", "properties")


@command
def list_scheduled(
    session: Session,
    name: ExchangeName,
    count: Annotated[
        int, typer.Option("--count", "-c", min=1, max=MOST_AT_ONCE, help="At most so many.")
    ] = 100,
    offset: Annotated[int, typer.Option(min=0, help="Skip so many of the soonest.")] = 0,
) -> None:
    """List the messages that wait at a delayed exchange, soonest first."""
    where = path("exchanges", session.vhost, name, "scheduled")
    what = exchange_named(session, name)
    items = session.api.get(where, what=what, count=count, offset=offset)
    if session.out.formatter is Formatter.JSON:
        write_json(items)
        return
    session.out.rows(_COLUMNS, [[_cell(item, key) for key in _COLUMNS] for item in items])


def _cell(item: Json, key: str) -> Json:
    if key != "due":
        return item.get(key)
    due = datetime.fromtimestamp(item["due_ms"] / 1000, UTC)
    return due.isoformat(timespec="milliseconds").replace("+00:00", "Z")


@command
def cancel_scheduled(
    session: Session,
    name: ExchangeName,
    message_id: Annotated[int, typer.Argument(help="As list_scheduled names it (column id).")],
) -> None:
    """Take one message off the schedule of a delayed exchange: it is dropped."""
    where = path("exchanges", session.vhost, name, "scheduled", str(message_id))
    what = f"message {message_id} on the schedule of {exchange_named(session, name)}"
    session.api.delete(where, what=what)
    session.out.remark(f"Message {message_id} cancelled.")
