"""The `list_…` commands: one GET each, with rabbitmqctl's columns and only the fields shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from leveret.cli import columns as tables
from leveret.cli.api import Json, path
from leveret.cli.columns import Listing
from leveret.cli.session import Session, client_command

commands = typer.Typer()
PANEL = "Listing"

Columns = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="COLUMN",
        help="Columns to show, with rabbitmqctl's names.",
        show_default=False,
    ),
]


def list_command(
    app: typer.Typer, listing: Listing, *, panel: str
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a command that takes columns; its help page lists them."""
    return client_command(app, panel=panel, epilog=listing.help_text)


def show(
    session: Session, listing: Listing, requested: list[str] | None, items: list[Json]
) -> None:
    """Print objects that have been fetched already."""
    columns = listing.select(requested)
    session.out.rows(columns, listing.rows(columns, items))


def fetch_and_show(
    session: Session, listing: Listing, requested: list[str] | None, where: str, what: str
) -> None:
    columns = listing.select(requested)
    session.out.remark(f"Listing {what} ...")
    missing = f"vhost '{session.vhost}'" if path(session.vhost) in where.split("/") else None
    items = session.api.get(where, what=missing, columns=listing.fields(columns))
    session.out.rows(columns, listing.rows(columns, items or []))


@list_command(commands, tables.QUEUES, panel=PANEL)
def list_queues(session: Session, columns: Columns = None) -> None:
    """List the queues of a virtual host: `leveret list_queues name messages consumers`."""
    where, what = path("queues", session.vhost), f"queues for vhost {session.vhost}"
    fetch_and_show(session, tables.QUEUES, columns, where, what)


@list_command(commands, tables.EXCHANGES, panel=PANEL)
def list_exchanges(session: Session, columns: Columns = None) -> None:
    """List the exchanges of a virtual host."""
    where, what = path("exchanges", session.vhost), f"exchanges for vhost {session.vhost}"
    fetch_and_show(session, tables.EXCHANGES, columns, where, what)


@list_command(commands, tables.BINDINGS, panel=PANEL)
def list_bindings(session: Session, columns: Columns = None) -> None:
    """List the bindings of a virtual host."""
    where, what = path("bindings", session.vhost), f"bindings for vhost {session.vhost}"
    fetch_and_show(session, tables.BINDINGS, columns, where, what)


@list_command(commands, tables.CONSUMERS, panel=PANEL)
def list_consumers(session: Session, columns: Columns = None) -> None:
    """List the consumers of a virtual host."""
    where, what = path("consumers", session.vhost), f"consumers for vhost {session.vhost}"
    selected = tables.CONSUMERS.select(columns)
    session.out.remark(f"Listing {what} ...")
    # RabbitMQ's consumer listing does not support `columns`.
    items = session.api.get(where, what=f"vhost '{session.vhost}'")
    session.out.rows(selected, tables.CONSUMERS.rows(selected, items or []))


@list_command(commands, tables.CONNECTIONS, panel=PANEL)
def list_connections(session: Session, columns: Columns = None) -> None:
    """List the client connections, or those of one virtual host with -p."""
    fetch_and_show(
        session, tables.CONNECTIONS, columns, _scoped(session, "connections"), "connections"
    )


@list_command(commands, tables.CHANNELS, panel=PANEL)
def list_channels(session: Session, columns: Columns = None) -> None:
    """List the channels, or those of one virtual host with -p."""
    fetch_and_show(session, tables.CHANNELS, columns, _scoped(session, "channels"), "channels")


@list_command(commands, tables.VHOSTS, panel=PANEL)
def list_vhosts(session: Session, columns: Columns = None) -> None:
    """List the virtual hosts."""
    fetch_and_show(session, tables.VHOSTS, columns, "vhosts", "vhosts")


def _scoped(session: Session, kind: str) -> str:
    return path("vhosts", session.vhost, kind) if session.is_vhost_given else kind
