"""The typer application: every command under one roof, in panels.

Command names are rabbitmqctl's, with underscores; the same with hyphens is understood, too.
"""

from __future__ import annotations

import functools
import io
import sys
from collections.abc import Sequence
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
    operations,
    policies,
    scheduled,
    server,
    spark,
    streams,
    topology,
)
from leveret.cli.serve import SUMMARY, serve
from leveret.cli.server import own_version
from leveret.cli.session import SHARED_OPTIONS


class HyphenGroup(TyperGroup):
    """Finds `list_queues` also as `list-queues`."""

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


def _show_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(own_version())
        raise typer.Exit


@app.callback()
def leveret(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print it.")
    ] = False,
) -> None:
    """A RabbitMQ-compatible broker: run it, look at it, manage it."""


class ServeCommand(TyperCommand):
    """Stands in the help; its own help and parsing are those of the light path."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        raise typer.Exit(serve(args))


@app.command("serve", help=SUMMARY, cls=ServeCommand, rich_help_panel="Server")
def _serve() -> None:
    raise AssertionError("the command line of serve is read before this")


for _part in (server, listing, topology, messages, scheduled):
    app.add_typer(_part.commands)
for _part in (access, policies, operations, streams):
    app.add_typer(_part.commands)
app.add_typer(logs.commands, name="log", rich_help_panel="Logs")
for _part in (history, spark):
    app.add_typer(_part.commands)


@functools.cache
def program() -> Any:
    """The application as one callable; building it from some eighty functions takes a while."""
    return get_command(app)


def after_command(argv: Sequence[str]) -> list[str]:
    """Shared options before the command's name (`leveret -q list_queues`) moved behind it."""
    end = 0
    while end < len(argv) and argv[end].split("=")[0] in SHARED_OPTIONS:
        option, equals, _ = argv[end].partition("=")
        end += 2 if SHARED_OPTIONS[option] and not equals else 1
    is_nested = list(argv[end : end + 1]) == ["log"]
    start = end + 2 if is_nested else end + 1
    return [*argv[end:start], *argv[:end], *argv[start:]]


def asking_help(argv: Sequence[str]) -> Sequence[str]:
    """`help`, `help publish` and `log help`, as rabbitmqctl understands them."""
    if list(argv[:1]) == ["help"]:
        return [*argv[1:], "--help"]
    return ["log", "--help"] if list(argv) == ["log", "help"] else argv


def run_client(argv: Sequence[str]) -> int:
    """Run any command but `serve`; return its exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Names and bodies are other people's: what cannot be printed is escaped, never an error.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        program()(after_command(asking_help(argv)), prog_name="leveret")
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(bool(stop.code))
    return 0
