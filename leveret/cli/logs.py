"""`leveret log …`: create, inspect and reset logs (partitioned streams), in the spirit of Kafka.

Offsets are as Kafka counts them: `next_offset` is the offset the next record will get, a group's
`committed` offset is the next record it will read, lag is the distance between the two.
"""

from __future__ import annotations

from typing import Annotated

import typer

from leveret.cli.api import Json, path
from leveret.cli.log_records import commands as record_commands
from leveret.cli.output import Formatter, write_json
from leveret.cli.session import Session, client_command

commands = typer.Typer(help="Logs: partitioned, replayable, with consumer groups.")
command = client_command(commands)

LogName = Annotated[str, typer.Argument(help="Name of the log.")]
Group = Annotated[str, typer.Option("--group", "-g", help="Name of the consumer group.")]


def log_named(session: Session, name: str) -> str:
    return f"log '{name}' in vhost '{session.vhost}'"


@command
def create(
    session: Session,
    name: LogName,
    partitions: Annotated[int, typer.Option("--partitions", "-n", min=1, help="How many.")] = 1,
    max_age: Annotated[
        str | None, typer.Option(help="Longest time records are kept, such as 12h or 7D.")
    ] = None,
    max_bytes: Annotated[
        int | None, typer.Option(min=1, help="Most bytes kept in a partition.")
    ] = None,
    compact: Annotated[
        bool, typer.Option("--compact", help="Keep the last record of each key.")
    ] = False,
) -> None:
    """Create a log."""
    values = {
        "partitions": partitions,
        "max_age": max_age,
        "max_length_bytes": max_bytes,
        "cleanup_policy": "compact" if compact else None,
    }
    body = {key: value for key, value in values.items() if value is not None}
    session.api.put(path("logs", session.vhost, name), body, what=f"vhost '{session.vhost}'")
    session.out.remark(f"Log '{name}' created with {partitions} partition(s).")


@client_command(commands, "list")
def list_logs(session: Session) -> None:
    """List the logs of a virtual host."""
    found = session.api.get(path("logs", session.vhost), what=f"vhost '{session.vhost}'")
    if session.out.formatter is Formatter.JSON:
        write_json(found)
        return
    rows = []
    for log in found:
        parts = log["partitions"]
        records = sum(part["next_offset"] - part["first_offset"] for part in parts)
        size = sum(part.get("bytes") or 0 for part in parts)
        rows.append((log["name"], len(parts), records, size, log.get("cleanup_policy") or "delete"))
    session.out.rows(("name", "partitions", "records", "bytes", "cleanup_policy"), rows)


@command
def describe(session: Session, name: LogName) -> None:
    """Show a log's settings and, for each partition, its offsets, size and segments."""
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
        known = {**part, "partition": part["index"]}
        known["segments"] = len(segments) if isinstance(segments, list) else segments
        rows.append([known.get(key) for key in names])
    session.out.rows(names, rows)


@command
def delete(session: Session, name: LogName) -> None:
    """Delete a log with all its records and groups."""
    session.api.delete(path("logs", session.vhost, name), what=log_named(session, name))
    session.out.remark(f"Log '{name}' deleted.")


@command
def groups(
    session: Session,
    name: LogName,
    group: Annotated[str | None, typer.Option("--group", "-g", help="Only this one.")] = None,
) -> None:
    """List the consumer groups of a log with their offsets, lag and members."""
    where = path("logs", session.vhost, name, "groups")
    found = session.api.get(where, what=log_named(session, name))
    wanted = [item for item in found if group in (None, item["group"])]
    if session.out.formatter is Formatter.JSON:
        write_json(wanted)
        return
    names = ("group", "partition", "committed", "end", "lag", "member", "connection")
    session.out.rows(names, [row for item in wanted for row in _group_rows(item)])


def _group_rows(group: Json) -> list[list[Json]]:
    readers = {index: member for member in group["members"] for index in member["partitions"]}
    rows = []
    for part in group["partitions"]:
        reader = readers.get(part["partition"], {})
        values = [part["partition"], part["committed"], part["end"], part["lag"]]
        who = [reader.get("consumer_tag"), reader.get("connection")]
        rows.append([group["group"], *values, *who])
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
        int | None, typer.Option("--partition", min=0, help="Only this one.", show_default="all")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would change.")
    ] = False,
) -> None:
    """Move a group to another place in the log."""
    target: int | str = int(to) if to.isdecimal() else to
    body: dict[str, Json] = {"to": target, "dry_run": dry_run}
    body |= {} if partition is None else {"partition": partition}
    where = path("logs", session.vhost, name, "groups", group, "reset")
    answer = session.api.post(where, body, what=f"group '{group}' on {log_named(session, name)}")
    moves = answer.get("offsets", []) if isinstance(answer, dict) else answer
    names = ("partition", "from", "to")
    session.out.rows(names, [[move.get(key) for key in names] for move in moves or []])
    if dry_run:
        session.out.remark("Nothing changed (--dry-run).")


commands.add_typer(record_commands)
