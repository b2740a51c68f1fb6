"""`leveret export` and `leveret report`: the Spark jobs, imported only when they run."""

from __future__ import annotations

import os
from enum import StrEnum
from importlib import util
from pathlib import Path
from typing import Annotated, Any

import typer

from leveret.cli.errors import CliError, ExitCode
from leveret.cli.session import DEFAULT_URL, run_body

commands = typer.Typer()
_PANEL = "History and Spark"


def _require_spark() -> None:
    if util.find_spec("pyspark") is None:
        raise CliError("Spark is not installed; install it with `pip install 'leveret[spark]'`.")


class Format(StrEnum):
    PARQUET = "parquet"
    JSON = "json"
    CSV = "csv"


To = Annotated[str, typer.Option("--to", help="Directory to write to.")]
DataDir = Annotated[Path | None, typer.Option(help="Read a broker's data directory.")]
Url = Annotated[
    str | None,
    typer.Option(
        help="Read through a broker's HTTP API.",
        show_default="LEVERET_URL, or http://127.0.0.1:15672",
    ),
]
User = Annotated[str, typer.Option("--user", "-u", envvar="LEVERET_USER", help="User for --url.")]
Password = Annotated[str, typer.Option(envvar="LEVERET_PASSWORD", help="Password for --url.")]
Tables = Annotated[str, typer.Option(help="Comma-separated: messages, events, logs, queues.")]
From = Annotated[str | None, typer.Option("--from", help="Start time.")]
Until = Annotated[str | None, typer.Option(help="End time.")]
Queue = Annotated[str | None, typer.Option(help="Only this queue.")]
Vhost = Annotated[str | None, typer.Option("--vhost", "-p", help="Only this virtual host.")]
FileFormat = Annotated[Format, typer.Option("--format", help="File format.")]
Master = Annotated[str, typer.Option(help="Spark master: local[*] or spark://….")]
Incremental = Annotated[
    bool, typer.Option("--incremental", help="Continue where the last export stopped.")
]
FailOnDataLoss = Annotated[
    bool,
    typer.Option(
        "--fail-on-data-loss/--no-fail-on-data-loss",
        help="Fail if rows were deleted before they were exported; otherwise warn and count them.",
    ),
]
Every = Annotated[str | None, typer.Option(help="Repeat at this interval, such as 15m.")]


@commands.command(rich_help_panel=_PANEL)
def export(
    to: To,
    data_dir: DataDir = None,
    url: Url = None,
    user: User = "guest",
    password: Password = "guest",  # noqa: S107 - RabbitMQ's well-known default
    table: Tables = "messages,events",
    since: From = None,
    until: Until = None,
    queue: Queue = None,
    vhost: Vhost = None,
    format_: FileFormat = Format.PARQUET,
    master: Master = "local[*]",
    incremental: Incremental = False,
    every: Every = None,
    fail_on_data_loss: FailOnDataLoss = True,
) -> None:
    """Export messages, their history and logs with Spark."""
    values = {
        "to": to,
        "data_dir": data_dir,
        "user": user,
        "password": password,
        "tables": tuple(name.strip() for name in table.split(",") if name.strip()),
        "since": since,
        "until": until,
        "queue": queue,
        "vhost": vhost,
        "format": format_.value,
        "master": master,
        "incremental": incremental,
        "every": every,
        "fail_on_data_loss": fail_on_data_loss,
    }
    raise typer.Exit(run_body(lambda: _export(values, url)))


def _export(values: dict[str, Any], url: str | None) -> None:
    if values["data_dir"] is None:
        url = url or os.environ.get("LEVERET_URL") or DEFAULT_URL
    elif url is not None:
        raise CliError("use either --data-dir or --url, not both.", ExitCode.USAGE)
    _require_spark()
    from leveret.spark_sink.export import ExportOptions, run

    raise typer.Exit(run(ExportOptions(url=url, **values)))


@commands.command(rich_help_panel=_PANEL)
def report(
    directory: Annotated[Path, typer.Argument(help="Directory of an export.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Directory to write to.", show_default="DIRECTORY/report"),
    ] = None,
    master: Master = "local[*]",
) -> None:
    """Summarise an export: tables as Parquet and one HTML page with plots."""

    def body() -> None:
        if not directory.is_dir():
            raise CliError(f"there is no directory {directory}.", ExitCode.NOT_FOUND)
        _require_spark()
        from leveret.spark_sink.report import run

        raise typer.Exit(run(directory, out or directory / "report", master))

    raise typer.Exit(run_body(body))
