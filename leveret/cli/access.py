"""Users, virtual hosts, permissions and limits.

The HTTP API's PUT creates or replaces; rabbitmqctl's `add_…` refuses an existing object, and its
`set_user_tags` keeps the password. So these commands read the object first, then write all of it.
"""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from leveret.cli import columns as tables
from leveret.cli.api import Api, InVhost, Json, Target, path
from leveret.cli.errors import CliError, ExitCode
from leveret.cli.inputs import json_object
from leveret.cli.listing import Columns, fetch_and_show, list_command, show
from leveret.cli.session import Session, client_command

commands = typer.Typer()
PANEL = "Users, vhosts and permissions"
command = client_command(commands, panel=PANEL)

KNOWN_TAGS = ("administrator", "monitoring", "policymaker", "management")

Username = Annotated[str, typer.Argument(help="Name of the user.")]
NewPassword = Annotated[
    str | None,
    typer.Argument(
        metavar="[PASSWORD]",
        help="The password; if omitted, it is prompted for or read from a pipe.",
    ),
]
VhostName = Annotated[str, typer.Argument(help="Name of the virtual host.")]
ExchangeName = Annotated[str, typer.Argument(help="Name of the exchange.")]
Pattern = Annotated[
    str, typer.Argument(help="Regular expression; '' matches nothing, '.*' everything.")
]
Limits = Annotated[str, typer.Argument(help="JSON object of limits; -1 removes a limit.")]


def _password(given: str | None) -> str:
    if given is not None:
        return given
    if sys.stdin.isatty():
        return str(typer.prompt("Password", hide_input=True, confirmation_prompt=True))
    return sys.stdin.readline().rstrip("\n")


def _user(session: Session, username: str) -> dict[str, Json]:
    user: dict[str, Json] = session.api.get(path("users", username), what=f"user '{username}'")
    return user


def _tags(user: dict[str, Json]) -> str:
    tags = user.get("tags") or ""
    return tags if isinstance(tags, str) else ",".join(tags)


@list_command(commands, tables.USERS, panel=PANEL)
def list_users(session: Session, columns: Columns = None) -> None:
    """List the users and their tags."""
    fetch_and_show(session, tables.USERS, columns, "users", "users")


@command
def add_user(
    session: Session,
    username: Username,
    secret: NewPassword = None,
    tags: Annotated[str, typer.Option(help="Comma-separated tags.")] = "",
) -> None:
    """Create a user without permissions."""
    if session.api.exists(path("users", username)):
        raise CliError(f"user '{username}' already exists.")
    session.api.put(path("users", username), {"password": _password(secret), "tags": tags})
    session.out.remark(f"User '{username}' added; it has no permissions yet (set_permissions).")


@command
def delete_user(session: Session, username: Username) -> None:
    """Delete a user and its permissions."""
    session.api.delete(path("users", username), what=f"user '{username}'")
    session.out.remark(f"User '{username}' deleted.")


@command
def change_password(
    session: Session,
    username: Username,
    secret: NewPassword = None,
) -> None:
    """Change a user's password."""
    user = _user(session, username)
    body = {"password": _password(secret), "tags": _tags(user)}
    session.api.put(path("users", username), body)
    session.out.remark(f"Password of user '{username}' changed.")


@command
def clear_password(session: Session, username: Username) -> None:
    """Remove a user's password, so that it can no longer log in with one."""
    user = _user(session, username)
    session.api.put(path("users", username), {"password_hash": "", "tags": _tags(user)})
    session.out.remark(f"Password of user '{username}' cleared.")


@command
def authenticate_user(
    session: Session,
    username: Username,
    secret: NewPassword = None,
) -> None:
    """Check a user's password."""
    own = session.target
    other = Target(own.url, username, _password(secret), own.timeout, own.ca_file, own.is_insecure)
    probe = Api(other)
    try:
        probe.get("whoami")
    except CliError as error:
        # The password was right if only a tag for the management API is missing.
        if error.code is not ExitCode.NO_PERMISSION or "may not do this" not in str(error):
            raise
    finally:
        probe.close()
    session.out.remark(f"User '{username}' authenticated.")


@command
def set_user_tags(
    session: Session,
    username: Username,
    tags: Annotated[
        list[str] | None,
        typer.Argument(
            help="administrator, monitoring, policymaker, management; none removes all."
        ),
    ] = None,
) -> None:
    """Set the tags of a user, which say what it may see and manage."""
    user = _user(session, username)
    body = {"tags": ",".join(tags or [])}
    body |= {key: user[key] for key in ("password_hash", "hashing_algorithm") if key in user}
    session.api.put(path("users", username), body)
    session.out.remark(f"Tags of user '{username}' set to [{', '.join(tags or [])}].")
    for tag in tags or ():
        if tag not in KNOWN_TAGS:
            known = ", ".join(KNOWN_TAGS)
            session.out.remark(f"The tag '{tag}' grants nothing; tags that do are {known}.")


@command
def add_vhost(
    session: Session,
    vhost_name: VhostName,
    description: Annotated[str | None, typer.Option(help="What it is for.")] = None,
    tags: Annotated[str | None, typer.Option(help="Comma-separated tags.")] = None,
    default_queue_type: Annotated[
        str | None, typer.Option(help="Type of queues that are declared without a type.")
    ] = None,
) -> None:
    """Create a virtual host."""
    if session.api.exists(path("vhosts", vhost_name)):
        raise CliError(f"vhost '{vhost_name}' already exists.")
    body = {"description": description, "tags": tags, "default_queue_type": default_queue_type}
    given = {key: value for key, value in body.items() if value is not None}
    session.api.put(path("vhosts", vhost_name), given)
    session.out.remark(f"Vhost '{vhost_name}' added.")


@command
def delete_vhost(session: Session, vhost_name: VhostName) -> None:
    """Delete a virtual host with all its queues and messages."""
    session.api.delete(path("vhosts", vhost_name), what=f"vhost '{vhost_name}'")
    session.out.remark(f"Vhost '{vhost_name}' deleted.")


@list_command(commands, tables.PERMISSIONS, panel=PANEL)
def list_permissions(session: Session, columns: Columns = None) -> None:
    """List the permissions in a virtual host."""
    where = path("vhosts", session.vhost, "permissions")
    what = f"permissions for vhost {session.vhost}"
    fetch_and_show(session, tables.PERMISSIONS, columns, where, what)


@command
def list_user_permissions(session: Session, username: Username) -> None:
    """List the permissions of one user in all virtual hosts."""
    session.out.remark(f"Listing permissions for user {username} ...")
    items = session.api.get(path("users", username, "permissions"), what=f"user '{username}'")
    show(session, tables.USER_PERMISSIONS, None, items)


@command
def set_permissions(
    session: Session, username: Username, configure: Pattern, write: Pattern, read: Pattern
) -> None:
    """Set the patterns of names that a user may configure, write to and read from."""
    body = {"configure": configure, "write": write, "read": read}
    where = path("permissions", session.vhost, username)
    session.api.put(where, body, what=InVhost(f"user '{username}'", session.vhost))
    session.out.remark(f"Permissions of user '{username}' in vhost '{session.vhost}' set.")


@command
def clear_permissions(session: Session, username: Username) -> None:
    """Remove a user's permissions in a virtual host."""
    where = path("permissions", session.vhost, username)
    session.api.delete(where, what=session.inside(f"permission of user '{username}'"))
    session.out.remark(f"Permissions of user '{username}' in vhost '{session.vhost}' cleared.")


@command
def list_topic_permissions(session: Session) -> None:
    """List the topic permissions in a virtual host."""
    where = path("vhosts", session.vhost, "topic-permissions")
    what = f"topic permissions for vhost {session.vhost}"
    fetch_and_show(session, tables.TOPIC_PERMISSIONS, None, where, what)


@command
def set_topic_permissions(
    session: Session, username: Username, exchange: ExchangeName, write: Pattern, read: Pattern
) -> None:
    """Restrict the routing keys with which a user may publish to and bind from a topic exchange."""
    body = {"exchange": exchange, "write": write, "read": read}
    where = path("topic-permissions", session.vhost, username)
    session.api.put(where, body, what=InVhost(f"user '{username}'", session.vhost))
    session.out.remark(f"Topic permissions of user '{username}' on '{exchange}' set.")


@command
def clear_topic_permissions(session: Session, username: Username) -> None:
    """Remove a user's topic permissions in a virtual host."""
    where = path("topic-permissions", session.vhost, username)
    what = session.inside(f"topic permission of user '{username}'")
    session.api.delete(where, what=what)
    session.out.remark(f"Topic permissions of user '{username}' cleared.")


@command
def list_vhost_limits(session: Session) -> None:
    """List the limits of all virtual hosts, or of one with -p."""
    where = path("vhost-limits", session.vhost) if session.is_vhost_given else "vhost-limits"
    items = session.api.get(where, what=f"vhost '{session.vhost}'")
    show(session, tables.VHOST_LIMITS, None, items)


def _whole_numbers(definition: str, example: str) -> dict[str, int]:
    """Parse limits; all are checked before the first one is set."""
    limits = json_object(definition, "the limits", example)
    for name, value in limits.items():
        if type(value) is not int:
            wrong = f"the limit '{name}' must be a whole number, not {json.dumps(value)}."
            raise CliError(wrong, ExitCode.USAGE)
    return limits


@command
def set_vhost_limits(session: Session, definition: Limits) -> None:
    """Limit a virtual host: `'{"max-connections": 64, "max-queues": 100}'`."""
    for name, value in _whole_numbers(definition, '{"max-queues": 100}').items():
        where = path("vhost-limits", session.vhost, name)
        session.api.put(where, {"value": value}, what=f"vhost '{session.vhost}'")
    session.out.remark(f"Limits of vhost '{session.vhost}' set.")


@command
def clear_vhost_limits(session: Session) -> None:
    """Remove the limits of a virtual host."""
    where = path("vhost-limits", session.vhost)
    for entry in session.api.get(where, what=f"vhost '{session.vhost}'"):
        for name in entry.get("value") or {}:
            session.api.delete(path("vhost-limits", session.vhost, name))
    session.out.remark(f"Limits of vhost '{session.vhost}' cleared.")


@command
def list_user_limits(session: Session) -> None:
    """List the limits of users."""
    show(session, tables.USER_LIMITS, None, session.api.get("user-limits"))


@command
def set_user_limits(session: Session, username: Username, definition: Limits) -> None:
    """Limit a user: `'{"max-connections": 10, "max-channels": 100}'`."""
    for name, value in _whole_numbers(definition, '{"max-channels": 100}').items():
        where = path("user-limits", username, name)
        session.api.put(where, {"value": value}, what=f"user '{username}'")
    session.out.remark(f"Limits of user '{username}' set.")
