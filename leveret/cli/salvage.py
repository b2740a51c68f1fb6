"""`leveret salvage`: copies what is readable of a stopped broker's damaged directory to a new one.

Works on files, without a server. The source is locked and not changed. `leveret.db` appears in the
target at the end, so an incomplete target is never taken for a complete one.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from leveret.cli.errors import CliError, ExitCode
from leveret.cli.session import run_body

if TYPE_CHECKING:
    from leveret.queues.storage.damage.salvage import SalvageReport

commands = typer.Typer()

_KEPT = ("audit.log", "audit.log.1")
_WORK = "salvage.tmp"


@commands.command(rich_help_panel="Server")
def salvage(
    source: Annotated[Path, typer.Argument(help="Data directory of a stopped broker.")],
    target: Annotated[Path, typer.Argument(help="Directory to create.")],
) -> None:
    """Copy what is readable of a damaged data directory to a new one, and report what is lost."""
    raise typer.Exit(run_body(lambda: _salvage(source, target)))


def _salvage(source: Path, target: Path) -> None:
    from leveret.model.store import StoreError
    from leveret.queues.storage.damage.sqlite_file import Malformed
    from leveret.queues.storage.directory import StoppedDirectory

    _require_directories(source, target)
    try:
        lock = StoppedDirectory(source)
        try:
            report = _copy(source, target)
        except BaseException:
            _clear(target)
            raise
        finally:
            lock.release()
    except (StoreError, sqlite3.Error, Malformed, OSError) as error:
        raise CliError(f"cannot salvage {source}: {error}.") from error
    _print(report, target)


def _require_directories(source: Path, target: Path) -> None:
    from leveret.queues.storage.directory import DATABASE_NAME, LOGS_NAME

    if not (source / DATABASE_NAME).exists() and not (source / LOGS_NAME).is_dir():
        raise CliError(
            f"{source} is not a data directory: it has no {DATABASE_NAME} and no {LOGS_NAME}.",
            ExitCode.NOT_FOUND,
        )
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise CliError(f"{target} is not empty; name a directory that does not exist.")
    if target.resolve().is_relative_to(source.resolve()):
        raise CliError(f"{target} is inside {source}; name a directory outside.")


def _clear(target: Path) -> None:
    """Remove what an interrupted run has written: the directory was empty before."""
    for entry in target.iterdir() if target.is_dir() else ():
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink()


def _copy(source: Path, target: Path) -> SalvageReport:
    from leveret.queues.storage.damage.repair import keep_report, log_ids
    from leveret.queues.storage.damage.salvage import database_of_logs, salvage_database
    from leveret.queues.storage.damage.source_copy import copy_database
    from leveret.queues.storage.directory import DATABASE_NAME

    work = target / _WORK
    work.mkdir(mode=0o700, parents=True)
    new, ids = work / f"{DATABASE_NAME}.new", log_ids(source)
    database = source / DATABASE_NAME
    if database.exists() and database.stat().st_size:
        copy, damaged = copy_database(source, work)
        report = salvage_database(copy, new, ids)
        report.pages[:0] = damaged
    else:
        report = database_of_logs(new, ids)
    _copy_logs(source, target, report)
    for name in _KEPT:
        if (source / name).exists():
            shutil.copy2(source / name, target / name)
    if report.lost or report.pages:
        keep_report(target, report)
    os.replace(new, target / DATABASE_NAME)
    shutil.rmtree(work)
    return report


def _copy_logs(source: Path, target: Path, report: SalvageReport) -> None:
    from leveret.model.store import LostData
    from leveret.queues.storage.directory import LOGS_NAME

    home = source / LOGS_NAME
    for path in sorted(home.rglob("*")) if home.is_dir() else ():
        copy = target / LOGS_NAME / path.relative_to(home)
        try:
            if path.is_dir():
                copy.mkdir(mode=0o700, parents=True, exist_ok=True)
            else:
                copy.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                shutil.copy2(path, copy)
        except OSError as error:
            report.lost.append(LostData(LOGS_NAME, f"cannot read {path}: {error.strerror}"))
    report.lost += [LostData(LOGS_NAME, text) for text in _damage_of_logs(target / LOGS_NAME)]


def _damage_of_logs(home: Path) -> Iterator[str]:
    """Read every record once: damage in old segments shows only then."""
    from leveret.queues.log.files import LogError, LogReader

    for directory in sorted(home.iterdir()) if home.is_dir() else ():
        if not directory.name.isdecimal():
            continue
        try:
            with LogReader(directory) as reader:
                for damage in reader.verify():
                    until = damage.next_offset or "the end"
                    yield (
                        f"log {directory.name}: records {damage.first_offset} to {until} of"
                        f" segment {damage.segment} are damaged ({damage.reason})"
                    )
        except (LogError, OSError) as error:
            yield f"log {directory.name} cannot be read: {error}"


def _print(report: SalvageReport, target: Path) -> None:
    write = sys.stdout.write
    for name, table in report.tables.items():
        lost = [*(f"ids {ids}" for ids in table.lost_ids), *table.lost_keys]
        write(f"{name}: {table.rows} rows{', lost: ' + '; '.join(lost) if lost else ''}\n")
    for page in report.pages:
        write(f"damaged: {page}\n")
    for item in report.lost:
        write(f"lost: {item.text}\n")
    if not report.lost:
        write("nothing is lost\n")
    sys.stderr.write(f"Salvaged to {target}: start it with `leveret serve --data-dir {target}`.\n")
