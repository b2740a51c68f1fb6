"""Closing connections, exporting and importing definitions, tracing."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from leveret.cli.api import Json, path
from leveret.cli.errors import CliError, ExitCode
from leveret.cli.inputs import json_object, read_all, require_overwrite, write_all
from leveret.cli.output import counted
from leveret.cli.session import Session, client_command

commands = typer.Typer()
command = client_command(commands, panel="Connections, definitions and tracing")

Reason = Annotated[str, typer.Argument(help="Reason sent to the client.")]


@command
def close_connection(
    session: Session,
    name: Annotated[str, typer.Argument(help="The name shown by list_connections (column name).")],
    reason: Reason = "Closed via leveret",
) -> None:
    """Close one client connection."""
    headers = {"X-Reason": reason}
    session.api.delete(path("connections", name), what=f"connection '{name}'", headers=headers)
    session.out.remark(f"Connection '{name}' closed.")


@command
def close_all_connections(
    session: Session,
    reason: Reason = "Closed via leveret",
    everywhere: Annotated[bool, typer.Option("--global", help="In all virtual hosts.")] = False,
    limit: Annotated[int, typer.Option(min=0, help="Maximum number; 0 closes all.")] = 0,
) -> None:
    """Close the client connections of a virtual host."""
    where = "connections" if everywhere else path("vhosts", session.vhost, "connections")
    items = session.api.get(where, what=f"vhost '{session.vhost}'", columns="name")
    names = [item["name"] for item in items][: limit or None]
    closed = 0
    for name in session.out.track(names, "closing"):
        try:
            session.api.delete(path("connections", name), headers={"X-Reason": reason})
            closed += 1
        except CliError as error:
            if error.code is not ExitCode.NOT_FOUND:  # the client has disconnected
                raise
    session.out.remark(f"{counted(closed, 'connection')} closed.")


@command
def export_definitions(
    session: Session,
    file: Annotated[str, typer.Argument(help="File to write; - for standard output.")],
    force: Annotated[
        bool, typer.Option("--force", "-f", help="Overwrite an existing file without asking.")
    ] = False,
) -> None:
    """Export the definitions, or those of one virtual host with -p, to a JSON file."""
    if not force:
        require_overwrite(file)
    definitions = session.api.get(_path(session), what=f"vhost '{session.vhost}'")
    write_all(file, json.dumps(definitions, indent=2, ensure_ascii=False) + "\n")
    if file != "-":
        session.out.remark(f"Definitions exported to {file}: {_counts(definitions)}.")
    if users := _extension(definitions).get("users"):
        names = ", ".join(user["name"] for user in users)
        session.out.remark(
            f"RabbitMQ will ignore the users {names}: it cannot check Argon2id password hashes."
        )


@command
def import_definitions(
    session: Session,
    file: Annotated[str, typer.Argument(help="File to read; - for standard input.")] = "-",
) -> None:
    """Import definitions from a JSON file of Leveret or RabbitMQ."""
    source = "standard input" if file == "-" else file
    body = json_object(read_all(file).decode("utf-8", "replace"), source, '{"queues": []}')
    what = f"vhost '{session.vhost}'"
    report = session.api.post(_path(session), body, what=what, query={"warnings": True})
    for warning in report["warnings"] if isinstance(report, dict) else ():
        session.out.warn(f"{warning}.")
    session.out.remark(f"Definitions imported from {source}: {_counts(body)}.")


_ACCOUNTS = ("users", "permissions", "topic_permissions")


def _path(session: Session) -> str:
    return path("definitions", session.vhost) if session.is_vhost_given else "definitions"


def _counts(definitions: dict[str, Json]) -> str:
    extension = _extension(definitions)
    counts = {
        kind: len(value) + (len(extension.get(kind) or ()) if kind in _ACCOUNTS else 0)
        for kind, value in definitions.items()
        if isinstance(value, list)
    }
    named = [f"{count} {kind.replace('_', ' ')}" for kind, count in counts.items() if count]
    return ", ".join(named) or "nothing"


def _extension(definitions: dict[str, Json]) -> dict[str, Json]:
    """Return the section `leveret`, which RabbitMQ ignores."""
    extension = definitions.get("leveret")
    return extension if isinstance(extension, dict) else {}


@command
def trace_on(session: Session) -> None:
    """Copy all published and delivered messages of a virtual host to amq.rabbitmq.trace."""
    _set_tracing(session, is_on=True)


@command
def trace_off(session: Session) -> None:
    """Stop tracing a virtual host."""
    _set_tracing(session, is_on=False)


def _set_tracing(session: Session, *, is_on: bool) -> None:
    where, what = path("vhosts", session.vhost), f"vhost '{session.vhost}'"
    session.api.get(where, what=what)  # PUT would create a vhost with a misspelt name
    session.api.put(where, {"tracing": is_on}, what=what)
    session.out.remark(f"Tracing of vhost '{session.vhost}' is {'on' if is_on else 'off'}.")
