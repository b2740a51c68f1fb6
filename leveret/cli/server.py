"""The server as a whole: status, version, settings, health, stop, reset."""

from __future__ import annotations

import sys
import time
from importlib import metadata
from typing import Annotated

import typer

from leveret.cli import columns as tables
from leveret.cli.api import Json, path
from leveret.cli.columns import value_at
from leveret.cli.errors import CliError, ExitCode
from leveret.cli.listing import show
from leveret.cli.session import Session, client_command
from leveret.model.quantities import approximate_size

commands = typer.Typer()
command = client_command(commands, panel="Server")

STOP_DEADLINE = 15.0
STOP_POLL = 0.05

_OVERVIEW = {
    "product": "product_name",
    "version": "product_version",
    "form": "form",
    "compatible with RabbitMQ": "rabbitmq_version",
    "node": "node",
    "cluster": "cluster_name",
    "connections": "object_totals.connections",
    "channels": "object_totals.channels",
    "consumers": "object_totals.consumers",
    "exchanges": "object_totals.exchanges",
    "queues": "object_totals.queues",
    "messages ready": "queue_totals.messages_ready",
    "messages unacknowledged": "queue_totals.messages_unacknowledged",
    "publish rate": "message_stats.publish_details.rate",
    "deliver rate": "message_stats.deliver_get_details.rate",
    "ack rate": "message_stats.ack_details.rate",
}
_SIZES = {
    "memory used": "mem_used",
    "memory limit": "mem_limit",
    "disk free": "disk_free",
    "disk free limit": "disk_free_limit",
}
_DISK_USES = {
    "messages in queues": "messages",
    "history": "history",
    "logs": "logs",
    "write-ahead log": "wal",
    "free pages": "free_pages",
    "other files": "other",
}


@command
def status(session: Session) -> None:
    """Show version, form (compiled or pure Python), uptime, alarms, listeners, totals and rates."""
    overview = session.api.get("overview")
    nodes = session.api.get("nodes") or []
    if session.out.is_machine_readable:
        session.out.record("", {"overview": overview, "nodes": nodes})
        return
    values = {name: value_at(overview, where) for name, where in _OVERVIEW.items()}
    for node in nodes:
        values |= _node_status(node)
    listeners = overview.get("listeners") or []
    values["listeners"] = [
        f"{item.get('protocol')} {item.get('ip_address')}:{item.get('port')}" for item in listeners
    ]
    shown = {name: value for name, value in values.items() if value is not None}
    session.out.record(f"Status of {session.target.shown} ...", shown)


def _node_status(node: Json) -> dict[str, Json]:
    values: dict[str, Json] = {
        "uptime": _duration(node["uptime"]) if "uptime" in node else None,
        "alarms": _alarms(node) or "none",
        "file descriptors": f"{node.get('fd_used')} of {node.get('fd_total')}",
    }
    sizes = {name: node.get(key) for name, key in _SIZES.items()}
    uses = node.get("disk_usage") or {}
    sizes |= {f"disk used by {use}": uses.get(key) for use, key in _DISK_USES.items()}
    return values | {
        name: approximate_size(size) for name, size in sizes.items() if size is not None
    }


def _alarms(node: Json) -> list[str]:
    """RabbitMQ tells only which alarms are raised, Leveret also why."""
    if "alarms" in node:
        return [f"{alarm['name']}: {alarm['reason']}" for alarm in node["alarms"]]
    flags = {"memory": node.get("mem_alarm"), "disk": node.get("disk_free_alarm")}
    return [name for name, is_on in flags.items() if is_on]


def _duration(milliseconds: float) -> str:
    minutes, seconds = divmod(int(milliseconds // 1000), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"{days}d {hours}h {minutes}m {seconds}s" if days else f"{hours}h {minutes}m {seconds}s"


@command
def ping(session: Session) -> None:
    """Check that the server answers and accepts the login."""
    started = time.perf_counter()
    session.api.get("whoami")
    elapsed = (time.perf_counter() - started) * 1000
    session.out.remark(f"Ping succeeded: {session.target.shown} answered in {elapsed:.0f} ms.")


@command
def version(
    session: Session,
    server: Annotated[
        bool, typer.Option("--server", help="Print the server's version instead.")
    ] = False,
) -> None:
    """Print the version of this command, or of the server."""
    if server:
        overview = session.api.get("overview")
        text = overview.get("product_version") or overview.get("rabbitmq_version") or "unknown"
    else:
        text = own_version()
    sys.stdout.write(f"{text}\n")


def own_version() -> str:
    try:
        return metadata.version("leveret")
    except metadata.PackageNotFoundError:
        return "unknown (not installed as a package)"


@command
def environment(session: Session) -> None:
    """List the current settings and the source of each."""
    items = session.api.get("settings")
    names = ("key", "value", "source")
    session.out.remark("Current settings ...")
    rows = [
        [item.get("key"), item.get("shown", item.get("value")), item.get("source")]
        for item in items
    ]
    session.out.rows(names, rows)


@command
def cluster_status(session: Session) -> None:
    """Show the cluster's name and its nodes."""
    name = session.api.get("cluster-name").get("name")
    nodes = session.api.get("nodes") or []
    rows = [
        (name, node.get("name"), node.get("type", "disc"), node.get("running", True))
        for node in nodes
    ]
    session.out.remark(f"Cluster status of {session.target.shown} ...")
    session.out.rows(("cluster_name", "node", "type", "running"), rows)


@command
def set_cluster_name(
    session: Session, name: Annotated[str, typer.Argument(help="The new name.")]
) -> None:
    """Set the cluster's name."""
    session.api.put("cluster-name", {"name": name})
    session.out.remark(f"Cluster renamed to '{name}'.")


@command
def set_vm_memory_high_watermark(
    session: Session,
    fraction: Annotated[
        str, typer.Argument(help="Share of the machine's memory from 0 to 1, or `absolute`.")
    ],
    limit: Annotated[
        str, typer.Argument(help="After `absolute`: a size such as 512MiB.", show_default=False)
    ] = "",
) -> None:
    """Set the memory use above which publishers are paused, until the next start."""
    if (fraction == "absolute") != bool(limit):
        raise CliError("give a fraction, or `absolute` and a size such as 512MiB", ExitCode.USAGE)
    if limit:
        body: dict[str, Json] = {"absolute": limit}
    else:
        body = {"relative": _fraction(fraction)}
    session.api.put("memory-high-watermark", body)
    session.out.remark(f"Memory high watermark set to {limit or fraction}.")


def _fraction(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise CliError(f"the fraction must be a number from 0 to 1, not '{text}'", ExitCode.USAGE)
    return value


@command
def list_feature_flags(session: Session) -> None:
    """List the feature flags."""
    show(session, tables.FEATURE_FLAGS, None, session.api.get("feature-flags"))


@command
def health(
    session: Session,
    check: Annotated[
        str, typer.Argument(help="A check of /api/health/checks, such as alarms.")
    ] = "alarms",
) -> None:
    """Run a health check; exit code 1 if it fails."""
    where = f"health/checks/{path(*check.split('/'))}"
    try:
        session.api.get(where, what=f"health check '{check}'")
    except CliError as error:
        if error.code is not ExitCode.FAILED:
            raise
        raise CliError(f"health check '{check}': {error}") from None
    session.out.remark(f"Health check '{check}' passed.")


@command
def stop(
    session: Session,
    wait: Annotated[bool, typer.Option(help="Wait until the server has stopped.")] = True,
) -> None:
    """Stop the server cleanly; everything confirmed is on disk when it has stopped."""
    session.api.post("shutdown")
    session.out.remark(f"{session.target.shown} is stopping.")
    if wait:
        _wait_until_stopped(session)
        session.out.remark("Stopped.")


def _wait_until_stopped(session: Session) -> None:
    deadline = time.monotonic() + STOP_DEADLINE
    while time.monotonic() < deadline:
        try:
            session.api.get("whoami")
        except CliError as error:
            if error.code is ExitCode.UNAVAILABLE:
                return
        time.sleep(STOP_POLL)
    text = f"{session.target.shown} still answers {STOP_DEADLINE:g} s after the request to stop."
    raise CliError(text, ExitCode.TIMEOUT)


@command
def reset(
    session: Session,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Delete everything on the server: vhosts, users, queues, messages and history."""
    # RabbitMQ only clears statistics for the same request; that must not look like success.
    session.api.get("settings", what="Leveret server at this URL; only Leveret can be reset")
    if not yes and sys.stdin.isatty():
        question = f"Everything on {session.target.shown} will be deleted. Continue?"
        if not typer.confirm(question, err=True):
            raise CliError("nothing was reset.")
    session.api.delete("reset", query={"everything": True})
    session.out.remark(f"{session.target.shown} was reset.")
