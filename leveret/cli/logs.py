"""`leveret log …`: create, inspect and reset logs (partitioned streams).

Offsets are Kafka's: `next_offset` is the offset of the next record to be appended, a group's
`committed` offset is that of the next record it will read, and lag is the distance between them.
"""

from __future__ import annotations

from typing import Annotated

import typer

from leveret.cli.api import Json, path
from leveret.cli.errors import CliError, ExitCode
from leveret.cli.log_records import commands as record_commands
from leveret.cli.log_records import did_you_mean, log_named, suggesting
from leveret.cli.output import Formatter, counted, write_json
from leveret.cli.session import Session, client_command
from leveret.model.quantities import maybe_age_ms

commands = typer.Typer(help="Partitioned, replayable logs with consumer groups.")
command = client_command(commands)

LogName = Annotated[str, typer.Argument(help="Name of the log.")]
Group = Annotated[str, typer.Option("--group", "-g", help="Name of the consumer group.")]


@command
def create(
    session: Session,
    name: LogName,
    partitions: Annotated[
        int, typer.Option("--partitions", "-n", min=1, help="Number of partitions.")
    ] = 1,
    max_age: Annotated[
        str | None, typer.Option(help="How long records are kept, such as 12h or 7D.")
    ] = None,
    max_bytes: Annotated[
        int | None, typer.Option(min=1, help="Maximum bytes kept per partition.")
    ] = None,
    compact: Annotated[
        bool, typer.Option("--compact", help="Keep only the last record of each key.")
    ] = False,
    delete_retention: Annotated[
        str | None, typer.Option(help="How long compaction keeps tombstones, such as 1D.")
    ] = None,
    segment_bytes: Annotated[
        int | None, typer.Option(min=1, help="Size of a segment file.")
    ] = None,
) -> None:
    """Create a log."""
    values = {
        "partitions": partitions,
        "max_age": _age("--max-age", max_age),
        "max_length_bytes": max_bytes,
        "cleanup_policy": "compact" if compact else None,
        "delete_retention": _age("--delete-retention", delete_retention),
        "segment_bytes": segment_bytes,
    }
    body = {key: value for key, value in values.items() if value is not None}
    where = path("logs", session.vhost, name)
    existed = session.api.exists(where)
    session.api.put(where, body, what=f"vhost '{session.vhost}'")
    if existed:
        session.out.remark(f"Log '{name}' already exists with these settings.")
    else:
        session.out.remark(f"Log '{name}' created with {counted(partitions, 'partition')}.")


def _age(option: str, text: str | None) -> str | None:
    if text is not None and maybe_age_ms(text) is None:
        raise CliError(
            f"{option} must be a number followed by Y, M, D, h, m or s, such as 7D, not {text!r}.",
            ExitCode.USAGE,
        )
    return text


@client_command(commands, "list")
def list_logs(session: Session) -> None:
    """List the logs of a virtual host."""
    logs = session.api.get(path("logs", session.vhost), what=f"vhost '{session.vhost}'")
    if session.out.formatter is Formatter.JSON:
        write_json(logs)
        return
    rows = []
    for log in logs:
        parts = log["partitions"]
        records = sum(part["messages"] for part in parts)
        size = sum(part.get("bytes") or 0 for part in parts)
        rows.append((log["name"], len(parts), records, size, log.get("cleanup_policy") or "delete"))
    session.out.rows(("name", "partitions", "records", "bytes", "cleanup_policy"), rows)


@command
def describe(session: Session, name: LogName) -> None:
    """Show a log's settings and, for each partition, its offsets, size and segments."""
    with suggesting(session, name):
        log = session.api.get(path("logs", session.vhost, name), what=log_named(session, name))
    if session.out.formatter is Formatter.JSON:
        write_json(log)
        return
    retention = log.get("retention") or {}
    settings = [f"{key}={value}" for key, value in retention.items() if value is not None]
    settings.append(f"cleanup_policy={log.get('cleanup_policy') or 'delete'}")
    session.out.remark(f"Log '{name}': {len(log['partitions'])} partitions, {', '.join(settings)}")
    names = ("partition", "queue", "first_offset", "next_offset", "bytes", "segments")
    rows = []
    for part in log["partitions"]:
        segments = part.get("segments")
        values = {**part, "partition": part["index"]}
        values["segments"] = len(segments) if isinstance(segments, list) else segments
        rows.append([values.get(key) for key in names])
    session.out.rows(names, rows)
    for part in log["partitions"]:
        for damage in part.get("damage") or ():
            session.out.remark(_damage_text(part["index"], damage))


def _damage_text(partition: int, damage: Json) -> str:
    first, after = damage["first_offset"], damage["next_offset"]
    lost = f"from {first} on" if after is None else f"{first} to {after - 1}"
    return f"Partition {partition}: offsets {lost} are lost and skipped ({damage['reason']})."


@command
def delete(session: Session, name: LogName) -> None:
    """Delete a log with all its records and groups."""
    with suggesting(session, name):
        session.api.delete(path("logs", session.vhost, name), what=log_named(session, name))
    session.out.remark(f"Log '{name}' deleted.")


@command
def groups(
    session: Session,
    name: Annotated[
        str | None, typer.Argument(help="Name of the log.", show_default="all logs")
    ] = None,
    group: Annotated[str | None, typer.Option("--group", "-g", help="Only this group.")] = None,
) -> None:
    """List consumer groups with their offsets, lag and members."""
    logs = _grouped_logs(session) if name is None else [name]
    every = [{"log": log, **row} for log in logs for row in _groups_of(session, log)]
    matching = [row for row in every if group in (None, row["group"])]
    if group is not None and not matching:
        where = f"log '{name}'" if name is not None else "any log"
        known = sorted({row["group"] for row in every})
        text = f"there is no group '{group}' on {where} in vhost '{session.vhost}'"
        raise CliError(text + did_you_mean(group, known), ExitCode.NOT_FOUND)
    if session.out.formatter is Formatter.JSON:
        write_json(matching)
        return
    names = ("log", "group", "partition", "committed", "end", "lag", "member", "connection")
    rows = [[each["log"], *row] for each in matching for row in _group_rows(each)]
    skipped = 1 if name is not None else 0
    session.out.rows(names[skipped:], [row[skipped:] for row in rows])


def _grouped_logs(session: Session) -> list[str]:
    every = session.api.get(path("logs", session.vhost), what=f"vhost '{session.vhost}'")
    return [log["name"] for log in every if log["groups"]]


def _groups_of(session: Session, log: str) -> list[Json]:
    with suggesting(session, log):
        where = path("logs", session.vhost, log, "groups")
        groups: list[Json] = session.api.get(where, what=log_named(session, log))
    return groups


def _group_rows(group: Json) -> list[list[Json]]:
    readers = {index: member for member in group["members"] for index in member["partitions"]}
    rows = []
    for part in group["partitions"]:
        reader = readers.get(part["partition"], {})
        values = [part["partition"], part["committed"], part["end"], part["lag"]]
        member = [reader.get("consumer_tag"), reader.get("connection")]
        rows.append([group["group"], *values, *member])
    return rows


@command
def reset(
    session: Session,
    name: LogName,
    group: Group,
    to: Annotated[
        str, typer.Option("--to", help="first, last, next, an offset, a time or 1h (ago).")
    ],
    partition: Annotated[
        int | None,
        typer.Option("--partition", min=0, help="Only this partition.", show_default="all"),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would change.")
    ] = False,
) -> None:
    """Move a group to another offset."""
    target: int | str = int(to) if to.isdecimal() else to
    body: dict[str, Json] = {"to": target, "dry_run": dry_run}
    body |= {} if partition is None else {"partition": partition}
    where = path("logs", session.vhost, name, "groups", group, "reset")
    with suggesting(session, name, group):
        what = f"group '{group}' on {log_named(session, name)}"
        answer = session.api.post(where, body, what=what)
    moves = answer.get("offsets", []) if isinstance(answer, dict) else answer
    names = ("partition", "from", "to")
    session.out.rows(names, [[move.get(key) for key in names] for move in moves or []])
    if dry_run:
        session.out.remark("Nothing changed (--dry-run).")


@command
def forget(session: Session, name: LogName, group: Group) -> None:
    """Delete a group without members, and its offsets."""
    where = path("logs", session.vhost, name, "groups", group)
    with suggesting(session, name, group):
        session.api.delete(where, what=f"group '{group}' on {log_named(session, name)}")
    session.out.remark(f"Group '{group}' deleted.")


commands.add_typer(record_commands)
