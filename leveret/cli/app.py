"""The typer application: all commands, grouped into help panels.

Command names are rabbitmqctl's, with underscores; hyphens are accepted as well.
"""

from __future__ import annotations

import functools
import io
import sys
from argparse import Action
from collections.abc import Sequence
from inspect import Parameter, Signature
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from leveret.cli import (
    access,
    history,
    listing,
    logs,
    messages,
    move,
    operations,
    policies,
    salvage,
    server,
    spark,
    streams,
    topology,
)
from leveret.cli.serve import EPILOG, SUMMARY, serve, serve_flags, wants_help
from leveret.cli.server import own_version
from leveret.cli.session import SHARED_OPTIONS


class HyphenGroup(TyperGroup):
    """Accepts `list-queues` for `list_queues`."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return super().get_command(ctx, cmd_name.replace("-", "_"))


app = typer.Typer(
    name="leveret",
    cls=HyphenGroup,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _show_version(is_requested: bool) -> None:
    if is_requested:
        typer.echo(own_version())
        raise typer.Exit


@app.callback()
def leveret(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """A RabbitMQ-compatible broker: run it, inspect it, manage it.

    Every command but `serve` talks to the HTTP API of a running broker, by default at
    http://127.0.0.1:15672. `--url` or the environment variable `LEVERET_URL` names another one.
    """


class ServeCommand(TyperCommand):
    """Shows the help of `serve`; `leveret.cli.serve` parses its arguments."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if wants_help(args):
            return super().parse_args(ctx, ["--help"])
        raise typer.Exit(serve(args))


def _serve(**options: Any) -> None:
    raise AssertionError("ServeCommand parses the command line of serve")


def _option(action: Action) -> Parameter:
    kind, name = (bool, None) if action.nargs == 0 else (str, str(action.metavar))
    flag = typer.Option(*action.option_strings, help=action.help, metavar=name, show_default=False)
    default = False if kind is bool else ""
    return Parameter(
        action.dest, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, flag]
    )


_options = [_option(action) for action in serve_flags()]
_serve.__signature__ = Signature(_options)  # type: ignore[attr-defined]
_serve.__annotations__ = {option.name: option.annotation for option in _options}
app.command("serve", help=SUMMARY, epilog=EPILOG, cls=ServeCommand, rich_help_panel="Server")(
    _serve
)
for _part in (server, salvage, listing, topology, messages, move):
    app.add_typer(_part.commands)
for _part in (access, policies, operations, streams):
    app.add_typer(_part.commands)
app.add_typer(logs.commands, name="log", rich_help_panel="Logs")
for _part in (history, spark):
    app.add_typer(_part.commands)


@functools.cache
def program() -> Any:
    """Return the application as one callable, built once from some eighty functions."""
    return get_command(app)


def after_command(argv: Sequence[str]) -> list[str]:
    """Move shared options before the command's name (`leveret -q list_queues`) behind it."""
    end = 0
    while end < len(argv) and argv[end].split("=")[0] in SHARED_OPTIONS:
        option, equals, _ = argv[end].partition("=")
        end += 2 if SHARED_OPTIONS[option] and not equals else 1
    is_nested = list(argv[end : end + 1]) == ["log"]
    start = end + 2 if is_nested else end + 1
    return [*argv[end:start], *argv[:end], *argv[start:]]


def expand_help(argv: Sequence[str]) -> Sequence[str]:
    """Accept `help`, `help publish` and `log help`, as rabbitmqctl does."""
    if list(argv[:1]) == ["help"]:
        return [*argv[1:], "--help"]
    return ["log", "--help"] if list(argv) == ["log", "help"] else argv


def run_client(argv: Sequence[str]) -> int:
    """Run any command but `serve`; return its exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Names and bodies come from clients: unprintable text is escaped instead of an error.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        program()(after_command(expand_help(argv)), prog_name="leveret")
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(bool(stop.code))
    return 0
