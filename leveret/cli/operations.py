"""Connections to close, definitions to carry over, tracing to switch."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from leveret.cli.api import Json, path
from leveret.cli.errors import CliError, ExitCode
from leveret.cli.inputs import json_object, read_all, write_all
from leveret.cli.output import counted
from leveret.cli.session import Session, client_command

commands = typer.Typer()
command = client_command(commands, panel="Connections, definitions and tracing")

Reason = Annotated[str, typer.Argument(help="Told to the client.")]


@command
def close_connection(
    session: Session,
    name: Annotated[str, typer.Argument(help="As list_connections names it (column name).")],
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
    limit: Annotated[int, typer.Option(min=0, help="At most so many; 0 is all.")] = 0,
) -> None:
    """Close the client connections of a virtual host."""
    where = "connections" if everywhere else path("vhosts", session.vhost, "connections")
    found = session.api.get(where, what=f"vhost '{session.vhost}'", columns="name")
    names = [item["name"] for item in found][: limit or None]
    closed = 0
    for name in session.out.track(names, "closing"):
        try:
            session.api.delete(path("connections", name), headers={"X-Reason": reason})
            closed += 1
        except CliError as error:
            if error.code is not ExitCode.NOT_FOUND:  # it left by itself
                raise
    session.out.remark(f"{counted(closed, 'connection')} closed.")


@command
def export_definitions(
    session: Session,
    file: Annotated[str, typer.Argument(help="File to write; - is standard output.")],
) -> None:
    """Write all definitions (of one virtual host, if -p names it) to a JSON file."""
    found = session.api.get(_definitions(session), what=f"vhost '{session.vhost}'")
    write_all(file, json.dumps(found, indent=2, ensure_ascii=False) + "\n")
    if file != "-":
        session.out.remark(f"Definitions exported to {file}: {_counts(found)}.")
    if own := _own(found).get("users"):
        names = ", ".join(user["name"] for user in own)
        session.out.remark(
            f"RabbitMQ will pass over {names}: it cannot check passwords kept as Argon2id."
        )


@command
def import_definitions(
    session: Session,
    file: Annotated[str, typer.Argument(help="File to read; - is standard input.")] = "-",
) -> None:
    """Create what a JSON file of definitions (from RabbitMQ, too) describes."""
    source = "standard input" if file == "-" else file
    body = json_object(read_all(file).decode("utf-8", "replace"), source, '{"queues": []}')
    session.api.post(_definitions(session), body, what=f"vhost '{session.vhost}'")
    session.out.remark(f"Definitions imported from {source}: {_counts(body)}.")


_ACCOUNTS = ("users", "permissions", "topic_permissions")


def _definitions(session: Session) -> str:
    return path("definitions", session.vhost) if session.is_vhost_given else "definitions"


def _counts(definitions: dict[str, Json]) -> str:
    own = _own(definitions)
    counts = {
        kind: len(value) + (len(own.get(kind) or ()) if kind in _ACCOUNTS else 0)
        for kind, value in definitions.items()
        if isinstance(value, list)
    }
    named = [f"{count} {kind.replace('_', ' ')}" for kind, count in counts.items() if count]
    return ", ".join(named) or "nothing"


def _own(definitions: dict[str, Json]) -> dict[str, Json]:
    """What is in a file for Leveret alone."""
    own = definitions.get("leveret")
    return own if isinstance(own, dict) else {}


@command
def trace_on(session: Session) -> None:
    """Copy every publish and delivery of a virtual host to amq.rabbitmq.trace."""
    _set_tracing(session, is_on=True)


@command
def trace_off(session: Session) -> None:
    """Stop what trace_on started."""
    _set_tracing(session, is_on=False)


def _set_tracing(session: Session, *, is_on: bool) -> None:
    where, what = path("vhosts", session.vhost), f"vhost '{session.vhost}'"
    session.api.get(where, what=what)  # PUT would create a vhost that was misspelt
    session.api.put(where, {"tracing": is_on}, what=what)
    session.out.remark(f"Tracing of vhost '{session.vhost}' is {'on' if is_on else 'off'}.")
