"""The commands of rabbitmq-streams: super streams, groups and their offsets.

A stream is a log or one partition of it (`<log>-<number>`); rabbitmq-streams calls a group a
reference.
"""

from __future__ import annotations

from typing import Annotated

import typer

from leveret.cli.api import Json, path
from leveret.cli.errors import CliError, ExitCode
from leveret.cli.session import Session, client_command

commands = typer.Typer()
command = client_command(commands, panel="Streams")

SuperStream = Annotated[str, typer.Argument(help="Name of the super stream.")]
Stream = Annotated[str, typer.Option("--stream", help="Name of the stream (log or partition).")]
Reference = Annotated[str, typer.Option("--reference", help="Name of the group.")]


@command
def add_super_stream(
    session: Session,
    name: SuperStream,
    partitions: Annotated[
        int | None, typer.Option(min=1, help="Number of partitions.", show_default="3")
    ] = None,
    binding_keys: Annotated[
        str | None, typer.Option(help="Comma-separated binding keys, one per partition.")
    ] = None,
    max_length_bytes: Annotated[
        int | None, typer.Option(help="Maximum bytes kept per partition.")
    ] = None,
    max_age: Annotated[
        str | None, typer.Option(help="How long records are kept, such as 7D.")
    ] = None,
    stream_max_segment_size_bytes: Annotated[
        int | None, typer.Option(help="Size of a segment file.")
    ] = None,
) -> None:
    """Create a super stream: an exchange and its partitions."""
    if partitions is not None and binding_keys is not None:
        raise CliError("use either --partitions or --binding-keys, not both.", ExitCode.USAGE)
    arguments = {
        "max-length-bytes": max_length_bytes,
        "max-age": max_age,
        "stream-max-segment-size-bytes": stream_max_segment_size_bytes,
    }
    given = {f"x-{key}": value for key, value in arguments.items() if value is not None}
    body: dict[str, Json] = {"arguments": given}
    body |= {"binding-keys": binding_keys} if binding_keys else {"partitions": partitions or 3}
    where = path("stream", "super-streams", session.vhost, name)
    session.api.put(where, body, what=f"vhost '{session.vhost}'")
    session.out.remark(f"Super stream '{name}' added.")


@command
def delete_super_stream(session: Session, name: SuperStream) -> None:
    """Delete a super stream with its partitions and records."""
    what = session.inside(f"super stream '{name}'")
    session.api.delete(path("logs", session.vhost, name), what=what)
    session.out.remark(f"Super stream '{name}' deleted.")


def _logs(session: Session) -> list[Json]:
    what = f"vhost '{session.vhost}'"
    logs: list[Json] = session.api.get(path("logs", session.vhost), what=what)
    return logs


def _groups(session: Session, name: str) -> list[Json]:
    what = session.inside(f"log '{name}'")
    groups: list[Json] = session.api.get(path("logs", session.vhost, name, "groups"), what=what)
    return groups


def _locate(session: Session, stream: str) -> tuple[str, int | None]:
    """Return the log of a stream, and the partition's number if the stream is a partition."""
    for log in _logs(session):
        if log["name"] == stream:
            return stream, None
        for partition in log["partitions"]:
            if partition["queue"] == stream:
                return log["name"], partition["index"]
    raise CliError(f"there is no stream '{stream}' in vhost '{session.vhost}'.", ExitCode.NOT_FOUND)


@command
def list_stream_consumer_groups(session: Session) -> None:
    """List the consumer groups of all streams, one line per partition."""
    rows = []
    for log in _logs(session):
        for group in _groups(session, log["name"]):
            for partition in log["partitions"]:
                index = partition["index"]
                members = [item for item in group["members"] if index in item["partitions"]]
                rows.append((partition["queue"], group["group"], index, len(members)))
    session.out.remark(f"Listing stream consumer groups for vhost {session.vhost} ...")
    session.out.rows(("stream", "reference", "partition_index", "consumers"), rows)


@command
def list_stream_group_consumers(session: Session, stream: Stream, reference: Reference) -> None:
    """List the members of a group and the partitions of each."""
    name, index = _locate(session, stream)
    matching = [group for group in _groups(session, name) if group["group"] == reference]
    if not matching:
        raise CliError(f"there is no group '{reference}' on '{name}'.", ExitCode.NOT_FOUND)
    rows = []
    for member in matching[0]["members"]:
        if index is None or index in member["partitions"]:
            state = "active" if member["partitions"] else "waiting"
            rows.append((member["consumer_tag"], member["connection"], state, member["partitions"]))
    session.out.rows(("subscription_id", "connection_name", "state", "partitions"), rows)


@command
def list_stream_tracking(
    session: Session, stream: Annotated[str, typer.Argument(help="Name of the stream.")]
) -> None:
    """List the offsets and producer sequences stored for a stream."""
    what = session.inside(f"stream '{stream}'")
    tracked = session.api.get(path("stream", session.vhost, stream, "tracking"), what=what)
    kinds = (("offset", "offsets"), ("writer", "writers"))
    rows = [
        (kind, name, value)
        for kind, key in kinds
        for name, value in (tracked.get(key) or {}).items()
    ]
    session.out.rows(("type", "name", "tracking_value"), rows)


@command
def reset_offset(session: Session, stream: Stream, reference: Reference) -> None:
    """Reset a group to the first record of a stream."""
    name, index = _locate(session, stream)
    body: dict[str, Json] = {"to": "first", "dry_run": False}
    body |= {} if index is None else {"partition": index}
    where = path("logs", session.vhost, name, "groups", reference, "reset")
    session.api.post(where, body, what=f"group '{reference}' on '{name}'")
    session.out.remark(f"Group '{reference}' was reset to the first record of '{stream}'.")
