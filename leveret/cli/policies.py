"""Policies, operator policies and runtime parameters."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from leveret.cli import columns as tables
from leveret.cli.api import Json, path
from leveret.cli.errors import CliError, ExitCode
from leveret.cli.inputs import json_object
from leveret.cli.listing import fetch_and_show, show
from leveret.cli.session import Session, client_command

commands = typer.Typer()
command = client_command(commands, panel="Policies and parameters")

PolicyName = Annotated[str, typer.Argument(help="Name of the policy.")]
Pattern = Annotated[str, typer.Argument(help="Regular expression for names.")]
Definition = Annotated[str, typer.Argument(help="JSON object such as '{\"max-length\": 9}'.")]
Component = Annotated[str, typer.Argument(help="Component the parameter belongs to.")]
ParameterName = Annotated[str, typer.Argument(help="Name of the parameter.")]
Priority = Annotated[
    int, typer.Option(help="Of all matching policies, the one with the highest priority applies.")
]


@command
def list_policies(session: Session) -> None:
    """List the policies of a virtual host."""
    where, what = path("policies", session.vhost), f"policies for vhost {session.vhost}"
    fetch_and_show(session, tables.POLICIES, None, where, what)


@command
def set_policy(
    session: Session,
    name: PolicyName,
    pattern: Pattern,
    definition: Definition,
    priority: Priority = 0,
    apply_to: Annotated[
        str,
        typer.Option(help="queues, exchanges, all, classic_queues, quorum_queues or streams."),
    ] = "all",
) -> None:
    """Set a policy for all queues or exchanges whose name matches a pattern."""
    _put_policy(session, "policies", name, (pattern, definition, priority, apply_to))


@command
def clear_policy(session: Session, name: PolicyName) -> None:
    """Delete a policy."""
    where = path("policies", session.vhost, name)
    session.api.delete(where, what=session.inside(f"policy '{name}'"))
    session.out.remark(f"Policy '{name}' cleared.")


@command
def list_operator_policies(session: Session) -> None:
    """List the operator policies of a virtual host."""
    where = path("operator-policies", session.vhost)
    what = f"operator policies for vhost {session.vhost}"
    fetch_and_show(session, tables.POLICIES, None, where, what)


@command
def set_operator_policy(
    session: Session,
    name: PolicyName,
    pattern: Pattern,
    definition: Definition,
    priority: Priority = 0,
    apply_to: Annotated[
        str, typer.Option(help="queues, classic_queues, quorum_queues or streams.")
    ] = "queues",
) -> None:
    """Set an operator policy, whose limits queue owners cannot exceed."""
    _put_policy(session, "operator-policies", name, (pattern, definition, priority, apply_to))


@command
def clear_operator_policy(session: Session, name: PolicyName) -> None:
    """Delete an operator policy."""
    where = path("operator-policies", session.vhost, name)
    session.api.delete(where, what=session.inside(f"operator policy '{name}'"))
    session.out.remark(f"Operator policy '{name}' cleared.")


def _put_policy(session: Session, kind: str, name: str, values: tuple[str, str, int, str]) -> None:
    pattern, definition, priority, apply_to = values
    body = {
        "pattern": pattern,
        "definition": json_object(definition, "the definition", '{"max-length": 1000}'),
        "priority": priority,
        "apply-to": apply_to,
    }
    session.api.put(path(kind, session.vhost, name), body, what=f"vhost '{session.vhost}'")
    session.out.remark(f"Policy '{name}' set in vhost '{session.vhost}'.")


@command
def list_parameters(session: Session) -> None:
    """List the runtime parameters of a virtual host."""
    session.out.remark(f"Listing runtime parameters for vhost {session.vhost} ...")
    items = session.api.get("parameters") or []
    in_vhost = [item for item in items if item.get("vhost") == session.vhost]
    show(session, tables.PARAMETERS, None, in_vhost)


@command
def set_parameter(
    session: Session,
    component: Component,
    name: ParameterName,
    value: Annotated[str, typer.Argument(help="The value, as JSON.")],
) -> None:
    """Set a runtime parameter."""
    try:
        content: Json = json.loads(value)
    except ValueError as error:
        raise CliError(f"the value is not valid JSON: {error}.", ExitCode.USAGE) from None
    body = {"component": component, "vhost": session.vhost, "name": name, "value": content}
    session.api.put(
        path("parameters", component, session.vhost, name), body, what=f"component '{component}'"
    )
    session.out.remark(f"Parameter '{name}' of '{component}' set.")


@command
def clear_parameter(session: Session, component: Component, name: ParameterName) -> None:
    """Delete a runtime parameter."""
    where = path("parameters", component, session.vhost, name)
    session.api.delete(where, what=f"parameter '{name}' of '{component}'")
    session.out.remark(f"Parameter '{name}' of '{component}' cleared.")
