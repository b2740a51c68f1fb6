"""What all client commands share: the options for server, login and format, and error handling.

`client_command` turns a plain function `f(session, own options…)` into a typer command whose help
shows the shared options after its own. So `-p`, `--formatter` and the others are accepted after any
command name, as with rabbitmqctl.

Invariant: a command ends with an `ExitCode`; a `CliError` is printed as one sentence.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, get_type_hints
from urllib.parse import unquote, urlsplit, urlunsplit

import typer

from leveret.cli.api import Api, InVhost, Target
from leveret.cli.errors import CliError, ExitCode
from leveret.cli.output import Formatter, Output

DEFAULT_URL = "http://127.0.0.1:15672"
_SERVER = "Server and login"
_FORMAT = "Output"


@dataclass(frozen=True, slots=True)
class Session:
    """The server, output and virtual host of one command."""

    api: Api
    target: Target
    out: Output
    vhost: str
    is_vhost_given: bool

    def inside(self, text: str) -> InVhost:
        """Return an object of this virtual host, as messages name it."""
        return InVhost(f"{text} in vhost '{self.vhost}'", self.vhost)


Url = Annotated[
    str,
    typer.Option(
        "--url", envvar="LEVERET_URL", help="URL of the server's HTTP API.", rich_help_panel=_SERVER
    ),
]
User = Annotated[
    str | None,
    typer.Option(
        "--user",
        "-u",
        envvar="LEVERET_USER",
        help="User name.",
        show_default="guest",
        rich_help_panel=_SERVER,
    ),
]
Password = Annotated[
    str | None,
    typer.Option(
        "--password",
        envvar="LEVERET_PASSWORD",
        help="Password; safer in the environment, where other users cannot see it.",
        show_default="guest",
        show_envvar=True,
        rich_help_panel=_SERVER,
    ),
]
Vhost = Annotated[
    str | None,
    typer.Option(
        "--vhost",
        "-p",
        envvar="LEVERET_VHOST",
        help="Virtual host.",
        show_default="/",
        rich_help_panel=_SERVER,
    ),
]
Timeout = Annotated[
    float,
    typer.Option(
        "--timeout",
        "-t",
        min=0.1,
        help="Seconds to wait for the server's response.",
        rich_help_panel=_SERVER,
    ),
]
CaFile = Annotated[
    str | None,
    typer.Option(
        "--ca-file",
        help="PEM file of certificate authorities to trust for https.",
        rich_help_panel=_SERVER,
    ),
]
Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure", help="Do not verify the server's certificate.", rich_help_panel=_SERVER
    ),
]
Format = Annotated[
    Formatter, typer.Option("--formatter", help="Output format.", rich_help_panel=_FORMAT)
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="No remarks, no progress.", rich_help_panel=_FORMAT)
]
Silent = Annotated[
    bool,
    typer.Option(
        "--silent", "-s", help="Like --quiet, and no header row.", rich_help_panel=_FORMAT
    ),
]
NoHeaders = Annotated[
    bool, typer.Option("--no-table-headers", help="No header row.", rich_help_panel=_FORMAT)
]


def open_session(
    *,
    url: Url = DEFAULT_URL,
    user: User = None,
    password: Password = None,
    vhost: Vhost = None,
    timeout: Timeout = 60.0,
    ca_file: CaFile = None,
    insecure: Insecure = False,
    formatter: Format = Formatter.TABLE,
    quiet: Quiet = False,
    silent: Silent = False,
    no_table_headers: NoHeaders = False,
) -> Session:
    """Open a session; this signature declares the shared options of all commands."""
    plain_url, url_user, url_password = _split_login(url)
    target = Target(
        url=plain_url,
        user=user or url_user or "guest",
        password=url_password or "guest" if password is None else password,
        timeout=timeout,
        ca_file=ca_file,
        is_insecure=insecure,
    )
    out = Output(formatter, quiet or silent, not (silent or no_table_headers))
    return Session(Api(target), target, out, vhost or "/", vhost is not None)


def _split_login(url: str) -> tuple[str, str | None, str | None]:
    """Remove `user:password@` from a URL, so that messages never show it."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return url, None, None
    login, at, host = parts.netloc.rpartition("@")
    if not at:
        return url, None, None
    user, colon, password = login.partition(":")
    plain = urlunsplit(parts._replace(netloc=host))
    return plain, unquote(user), unquote(password) if colon else None


def _spellings(annotation: Any) -> list[str]:
    option = annotation.__metadata__[0]
    return [option.default, *(option.param_decls or ())]


_SHARED = list(inspect.signature(open_session, eval_str=True).parameters.values())
_SHARED_NAMES = [parameter.name for parameter in _SHARED]

# Every spelling of a shared option, and whether it takes a value.
SHARED_OPTIONS = {
    spelling: parameter.annotation.__origin__ is not bool
    for parameter in _SHARED
    for spelling in _spellings(parameter.annotation)
}


def with_session(function: Callable[..., None]) -> Callable[..., None]:
    """Add the shared options and error handling to a function that takes a session first."""

    @functools.wraps(function)
    def command(**options: Any) -> None:
        shared = {name: options.pop(name) for name in _SHARED_NAMES}
        raise typer.Exit(_run_command(function, shared, options))

    own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
    own = [item.replace(kind=inspect.Parameter.KEYWORD_ONLY) for item in own]
    hints = get_type_hints(function, include_extras=True)
    hints |= get_type_hints(open_session, include_extras=True) | {"return": None}
    command.__signature__ = inspect.Signature([*own, *_SHARED])  # type: ignore[attr-defined]
    command.__annotations__ = {key: hint for key, hint in hints.items() if key != "session"}
    del command.__wrapped__  # otherwise typer would use the signature of the plain function
    return command


def _run_command(
    function: Callable[..., None], shared: dict[str, Any], options: dict[str, Any]
) -> ExitCode:
    def body() -> None:
        session = open_session(**shared)
        try:
            function(session, **options)
            sys.stdout.flush()
        finally:
            session.api.close()

    return run_body(body)


def run_body(body: Callable[[], None]) -> ExitCode:
    """Run a command's body; an error becomes an exit code and one sentence."""
    try:
        body()
    except CliError as error:
        sys.stderr.write(f"leveret: {error}\n")
        return error.code
    except BrokenPipeError:
        # The reader (head, less) has closed the pipe; Python must not report it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    return ExitCode.OK


def client_command(
    app: typer.Typer,
    name: str | None = None,
    *,
    panel: str | None = None,
    epilog: str | None = None,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function as a command under its own name (or `name`).

    `epilog` is shown at the end of its help page.
    """

    def register(function: Callable[..., None]) -> Callable[..., None]:
        register_command = app.command(
            name or function.__name__, rich_help_panel=panel, epilog=epilog
        )
        register_command(with_session(function))
        return function

    return register
