"""`leveret export` and `leveret report`: the Spark jobs, imported only when asked for."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from leveret.cli.errors import CliError, ExitCode
from leveret.cli.session import DEFAULT_URL, ended

commands = typer.Typer()
_PANEL = "History and Spark"


def _spark_module(name: str) -> Any:
    try:
        importlib.import_module("pyspark")
    except ImportError:
        text = "Spark is not installed; `pip install leveret[spark]` adds it."
        raise CliError(text) from None
    return importlib.import_module(name)


def _run_job(job: Callable[[], int]) -> None:
    from spark_sink.errors import SourceError

    try:
        code = job()
    except SourceError as error:
        raise CliError(str(error)) from None
    if code:
        raise typer.Exit(code)


class Format(StrEnum):
    PARQUET = "parquet"
    JSON = "json"
    CSV = "csv"


@commands.command(rich_help_panel=_PANEL)
def export(
    to: Annotated[str, typer.Option("--to", help="Directory to write to.")],
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", help="Read a broker's data directory.")
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            "--url",
            help="Read over a broker's HTTP API.",
            show_default="LEVERET_URL, or http://127.0.0.1:15672",
        ),
    ] = None,
    user: Annotated[
        str, typer.Option("--user", "-u", envvar="LEVERET_USER", help="User for --url.")
    ] = "guest",
    password: Annotated[
        str, typer.Option("--password", envvar="LEVERET_PASSWORD", help="Password for --url.")
    ] = "guest",  # noqa: S107 - RabbitMQ's well-known default
    table: Annotated[
        str, typer.Option("--table", help="Comma-separated: messages, events, logs, queues.")
    ] = "messages,events,logs",
    since: Annotated[str | None, typer.Option("--from", help="From this moment on.")] = None,
    until: Annotated[str | None, typer.Option("--until", help="Up to this moment.")] = None,
    queue: Annotated[str | None, typer.Option("--queue", help="Only this queue.")] = None,
    vhost: Annotated[str | None, typer.Option("--vhost", "-p", help="Only this vhost.")] = None,
    format_: Annotated[Format, typer.Option("--format", help="File format.")] = Format.PARQUET,
    master: Annotated[
        str, typer.Option("--master", help="Spark master: local[*] or spark://….")
    ] = "local[*]",
    incremental: Annotated[
        bool, typer.Option("--incremental", help="Go on where the last export stopped.")
    ] = False,
    every: Annotated[
        str | None, typer.Option("--every", help="Repeat at this interval, such as 15m.")
    ] = None,
) -> None:
    """Export messages, their history and logs with Spark."""

    source = None if data_dir else url or os.environ.get("LEVERET_URL") or DEFAULT_URL
    values = {
        "data_dir": data_dir,
        "url": source,
        "user": user,
        "password": password,
        "to": to,
        "tables": tuple(name.strip() for name in table.split(",") if name.strip()),
        "since": since,
        "until": until,
        "queue": queue,
        "vhost": vhost,
        "format": format_.value,
        "master": master,
        "incremental": incremental,
        "every": every,
    }

    def body() -> None:
        if data_dir is not None and url is not None:
            raise CliError("give --data-dir or --url, not both.", ExitCode.USAGE)
        module = _spark_module("spark_sink.export")
        _run_job(lambda: module.run(module.ExportOptions(**values)))

    raise typer.Exit(ended(body))


@commands.command(rich_help_panel=_PANEL)
def report(
    directory: Annotated[Path, typer.Argument(help="Directory an export was written to.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Where to write.", show_default="DIRECTORY/report"),
    ] = None,
    master: Annotated[
        str, typer.Option("--master", help="Spark master: local[*] or spark://….")
    ] = "local[*]",
) -> None:
    """Summarise an export: tables as Parquet and one HTML page with plots."""

    def body() -> None:
        if not directory.is_dir():
            raise CliError(f"there is no directory {directory}.", ExitCode.NOT_FOUND)
        module = _spark_module("spark_sink.report")
        _run_job(lambda: module.run(directory, out or directory / "report", master))

    raise typer.Exit(ended(body))
