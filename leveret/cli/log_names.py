"""Names of logs and groups in messages, and what was meant by one that is not there."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from leveret.cli.api import InVhost, path
from leveret.cli.errors import CliError, ExitCode
from leveret.cli.session import Session


def log_named(session: Session, name: str) -> InVhost:
    return session.inside(f"log '{name}'")


@contextmanager
def suggesting(session: Session, name: str, group: str | None = None) -> Iterator[None]:
    """Where a log (or its group) is not found, say which one has such a name."""
    try:
        yield
    except CliError as error:
        if error.code is not ExitCode.NOT_FOUND:
            raise
        raise CliError(_better(session, name, group) or str(error), error.code) from error


def _better(session: Session, name: str, group: str | None) -> str | None:
    try:
        logs = session.api.get(path("logs", session.vhost))
    except CliError:
        return None
    groups = {log["name"]: log.get("groups") or [] for log in logs}
    if name not in groups:
        return f"there is no {log_named(session, name)}" + did_you_mean(name, groups)
    if group is not None and group not in groups[name]:
        where = f"group '{group}' on {log_named(session, name)}"
        return f"there is no {where}" + did_you_mean(group, groups[name])
    return None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a sentence."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean '{close[0]}'?" if close else "."
