"""The `list_…` commands: one GET each, rabbitmqctl's columns, no more fields than shown."""

from __future__ import annotations

from typing import Annotated

import typer

from leveret.cli import columns as tables
from leveret.cli.api import Json, path
from leveret.cli.columns import Listing
from leveret.cli.session import Session, client_command

commands = typer.Typer()
command = client_command(commands, panel="Look")

Columns = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="COLUMN",
        help="What to show of each, as rabbitmqctl names it.",
        show_default=False,
    ),
]


def show(session: Session, listing: Listing, asked: list[str] | None, items: list[Json]) -> None:
    """Print things that are already here."""
    chosen = listing.chosen(asked)
    session.out.rows(chosen, listing.rows(chosen, items))


def fetch_and_show(
    session: Session, listing: Listing, asked: list[str] | None, where: str, what: str
) -> None:
    chosen = listing.chosen(asked)
    session.out.remark(f"Listing {what} ...")
    missing = f"vhost '{session.vhost}'" if path(session.vhost) in where.split("/") else None
    items = session.api.get(where, what=missing, columns=listing.fields(chosen))
    session.out.rows(chosen, listing.rows(chosen, items or []))


@command
def list_queues(session: Session, columns: Columns = None) -> None:
    """List the queues of a virtual host: `leveret list_queues name messages consumers`."""
    where, what = path("queues", session.vhost), f"queues for vhost {session.vhost}"
    fetch_and_show(session, tables.QUEUES, columns, where, what)


@command
def list_exchanges(session: Session, columns: Columns = None) -> None:
    """List the exchanges of a virtual host."""
    where, what = path("exchanges", session.vhost), f"exchanges for vhost {session.vhost}"
    fetch_and_show(session, tables.EXCHANGES, columns, where, what)


@command
def list_bindings(session: Session, columns: Columns = None) -> None:
    """List the bindings of a virtual host."""
    where, what = path("bindings", session.vhost), f"bindings for vhost {session.vhost}"
    fetch_and_show(session, tables.BINDINGS, columns, where, what)


@command
def list_consumers(session: Session, columns: Columns = None) -> None:
    """List the consumers of a virtual host."""
    where, what = path("consumers", session.vhost), f"consumers for vhost {session.vhost}"
    chosen = tables.CONSUMERS.chosen(columns)
    session.out.remark(f"Listing {what} ...")
    # RabbitMQ's consumer listing knows no `columns`.
    items = session.api.get(where, what=f"vhost '{session.vhost}'")
    session.out.rows(chosen, tables.CONSUMERS.rows(chosen, items or []))


@command
def list_connections(session: Session, columns: Columns = None) -> None:
    """List the client connections (of one virtual host, if -p names it)."""
    fetch_and_show(
        session, tables.CONNECTIONS, columns, _scoped(session, "connections"), "connections"
    )


@command
def list_channels(session: Session, columns: Columns = None) -> None:
    """List the channels (of one virtual host, if -p names it)."""
    fetch_and_show(session, tables.CHANNELS, columns, _scoped(session, "channels"), "channels")


@command
def list_vhosts(session: Session, columns: Columns = None) -> None:
    """List the virtual hosts."""
    fetch_and_show(session, tables.VHOSTS, columns, "vhosts", "vhosts")


def _scoped(session: Session, kind: str) -> str:
    return path("vhosts", session.vhost, kind) if session.is_vhost_given else kind
