"""Queues, exchanges and bindings: declare, delete, bind."""

from __future__ import annotations

from typing import Annotated

import typer

from leveret.cli.api import InVhost, path
from leveret.cli.errors import CliError, ExitCode
from leveret.cli.inputs import pairs
from leveret.cli.session import Session, client_command

commands = typer.Typer()
command = client_command(commands, panel="Queues, exchanges and bindings")

QueueName = Annotated[str, typer.Argument(help="Name of the queue.")]
ExchangeName = Annotated[str, typer.Argument(help="Name of the exchange.")]
Source = Annotated[str, typer.Argument(help="Source exchange.")]
Destination = Annotated[str, typer.Argument(help="Destination queue (or exchange).")]
ToExchange = Annotated[bool, typer.Option("--to-exchange", help="DESTINATION is an exchange.")]
RoutingKey = Annotated[str, typer.Option("--routing-key", "-k", help="Routing key or pattern.")]
Arguments = Annotated[
    list[str] | None,
    typer.Option(
        "--arg",
        "-a",
        metavar="KEY=VALUE",
        help="Argument such as x-max-length=10; the value may be JSON.",
    ),
]
Durable = Annotated[
    bool, typer.Option("--durable/--transient", help="Whether it survives a restart.")
]
AutoDelete = Annotated[
    bool, typer.Option("--auto-delete", help="Delete it with its last consumer or binding.")
]
IfUnused = Annotated[bool, typer.Option("--if-unused", help="Only if it has no bindings.")]


def queue_named(session: Session, name: str) -> InVhost:
    return session.inside(f"queue '{name}'")


def exchange_named(session: Session, name: str) -> InVhost:
    return session.inside(f"exchange '{name}'")


@command
def declare_queue(
    session: Session,
    name: QueueName,
    durable: Durable = True,
    auto_delete: AutoDelete = False,
    type_: Annotated[
        str | None,
        typer.Option("--type", help="classic, quorum or stream.", show_default="classic"),
    ] = None,
    arguments: Arguments = None,
) -> None:
    """Create a queue, or check that it exists with the same properties."""
    given = pairs(arguments, "argument")
    if type_ is not None:
        given["x-queue-type"] = type_
    body = {"durable": durable, "auto_delete": auto_delete, "arguments": given}
    session.api.put(path("queues", session.vhost, name), body, what=f"vhost '{session.vhost}'")
    session.out.remark(f"Queue '{name}' declared.")


@command
def delete_queue(
    session: Session,
    name: QueueName,
    if_empty: Annotated[
        bool, typer.Option("--if-empty", "-e", help="Only if it has no messages.")
    ] = False,
    if_unused: Annotated[
        bool, typer.Option("--if-unused", help="Only if it has no consumers.")
    ] = False,
) -> None:
    """Delete a queue and its messages."""
    conditions = {"if-empty": if_empty or None, "if-unused": if_unused or None}
    where = path("queues", session.vhost, name)
    session.api.delete(where, what=queue_named(session, name), query=conditions)
    session.out.remark(f"Queue '{name}' deleted.")


@command
def purge_queue(session: Session, name: QueueName) -> None:
    """Delete all ready messages of a queue."""
    where = path("queues", session.vhost, name, "contents")
    session.api.delete(where, what=queue_named(session, name))
    session.out.remark(f"Queue '{name}' purged.")


@command
def declare_exchange(
    session: Session,
    name: ExchangeName,
    type_: Annotated[
        str, typer.Option("--type", help="direct, fanout, topic, headers, …")
    ] = "direct",
    durable: Durable = True,
    auto_delete: AutoDelete = False,
    internal: Annotated[
        bool, typer.Option("--internal", help="Clients cannot publish to it.")
    ] = False,
    arguments: Arguments = None,
) -> None:
    """Create an exchange, or check that it exists with the same properties."""
    body = {
        "type": type_,
        "durable": durable,
        "auto_delete": auto_delete,
        "internal": internal,
        "arguments": pairs(arguments, "argument"),
    }
    session.api.put(path("exchanges", session.vhost, name), body, what=f"vhost '{session.vhost}'")
    session.out.remark(f"Exchange '{name}' declared.")


@command
def delete_exchange(session: Session, name: ExchangeName, if_unused: IfUnused = False) -> None:
    """Delete an exchange and its bindings."""
    where, what = path("exchanges", session.vhost, name), exchange_named(session, name)
    session.api.delete(where, what=what, query={"if-unused": if_unused or None})
    session.out.remark(f"Exchange '{name}' deleted.")


@command
def bind(
    session: Session,
    source: Source,
    destination: Destination,
    routing_key: RoutingKey = "",
    to_exchange: ToExchange = False,
    arguments: Arguments = None,
) -> None:
    """Bind a queue or an exchange to a source exchange."""
    kind = "e" if to_exchange else "q"
    body = {"routing_key": routing_key, "arguments": pairs(arguments, "argument")}
    where = path("bindings", session.vhost, "e", source, kind, destination)
    try:
        session.api.post(where, body)
    except CliError as error:
        raise _missing_end(session, source, destination, to_exchange, error) from None
    session.out.remark(f"'{destination}' bound to exchange '{source}'.")


def _missing_end(
    session: Session, source: str, destination: str, to_exchange: bool, error: CliError
) -> CliError:
    """Return the same error with the name of the missing object."""
    if error.code is not ExitCode.NOT_FOUND:
        return error
    named = exchange_named if to_exchange else queue_named
    if session.api.exists(path("exchanges", session.vhost, source)):
        missing = named(session, destination)
    else:
        missing = exchange_named(session, source)
    return CliError(f"there is no {session.api.missing(missing)}.", ExitCode.NOT_FOUND)


@command
def unbind(
    session: Session,
    source: Source,
    destination: Destination,
    routing_key: RoutingKey = "",
    to_exchange: ToExchange = False,
    arguments: Arguments = None,
) -> None:
    """Remove the binding with this routing key and these arguments."""
    kind = "e" if to_exchange else "q"
    where = path("bindings", session.vhost, "e", source, kind, destination)
    key = (routing_key, pairs(arguments, "argument"))
    what = f"binding from '{source}' to '{destination}' with routing key '{routing_key}'"
    for binding in session.api.get(where, what=InVhost(what, session.vhost)):
        if (binding["routing_key"], binding.get("arguments") or {}) == key:
            session.api.delete(f"{where}/{path(binding['properties_key'])}", what=what)
            session.out.remark(f"'{destination}' unbound from exchange '{source}'.")
            return
    raise CliError(f"there is no {what} and these arguments.", ExitCode.NOT_FOUND)
