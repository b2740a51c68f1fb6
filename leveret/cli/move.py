"""`leveret move`: moves messages between two AMQP brokers, over AMQP only.

The management API of the source is used for one thing: to list the queues for --all.
"""

from __future__ import annotations

import signal
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress

from leveret.cli.api import Api, Json, Target, path
from leveret.cli.errors import CliError, ExitCode
from leveret.cli.output import Formatter, Output, counted
from leveret.cli.session import run_body
from leveret.move.amqp_client import AmqpClient, AmqpError, AmqpUrl, ConnectionLost, NoReply
from leveret.move.mover import MoveError, Pace, QueueMover
from leveret.move.state import MoveState, StateInUse, Totals

commands = typer.Typer()
STATE_FILE = "leveret-move.db"
_API_PORT_DISTANCE = 10_000
_NOT_FOUND, _PRECONDITION_FAILED = 404, 406
_REPLY_CODES = {_NOT_FOUND: ExitCode.NOT_FOUND, 403: ExitCode.NO_PERMISSION}
_BROKER_GONE = (ExitCode.UNAVAILABLE, ExitCode.TIMEOUT)
_COLUMNS = ("queue", "messages", "bytes", "skipped", "possible_duplicates", "checksum", "state")

From = Annotated[
    str, typer.Option("--from", envvar="LEVERET_MOVE_FROM", help="amqp:// URL of the source.")
]
To = Annotated[
    str, typer.Option("--to", envvar="LEVERET_MOVE_TO", help="amqp:// URL of the target.")
]
Queues = Annotated[
    list[str] | None, typer.Option("--queue", metavar="NAME", help="Queue to move; repeatable.")
]
All = Annotated[bool, typer.Option("--all", help="All queues of the source's virtual host.")]
FromApi = Annotated[
    str | None,
    typer.Option(
        "--from-api",
        help="URL of the source's HTTP API, for --all.",
        show_default="the AMQP port + 10000",
    ),
]
StateFile = Annotated[
    Path, typer.Option("--state", help="File that remembers what has been moved.")
]
Batch = Annotated[
    int, typer.Option(min=1, max=65_535, help="Messages in flight, all of them in memory.")
]
Idle = Annotated[
    float, typer.Option(min=0.1, help="Seconds without a message that end an empty queue.")
]
Timeout = Annotated[
    float, typer.Option("--timeout", "-t", min=0.1, help="Seconds to wait for a reply.")
]
CaFile = Annotated[
    str | None, typer.Option("--ca-file", help="PEM file of authorities to trust for amqps.")
]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Do not verify certificates of the brokers.")
]
Format = Annotated[Formatter, typer.Option("--formatter", help="Output format.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No remarks, no progress.")]


@commands.command(rich_help_panel="Messages")
def move(
    from_url: From,
    to_url: To,
    queue: Queues = None,
    every_queue: All = False,
    from_api: FromApi = None,
    state: StateFile = Path(STATE_FILE),
    batch: Batch = 250,
    idle: Idle = 3.0,
    timeout: Timeout = 60.0,
    ca_file: CaFile = None,
    insecure: Insecure = False,
    formatter: Format = Formatter.TABLE,
    quiet: Quiet = False,
) -> None:
    """Move messages from the queues of one broker to those of another, over AMQP."""

    def body() -> None:
        if bool(queue) == every_queue:
            raise CliError("use either --queue or --all.", ExitCode.USAGE)
        source, target = _url(from_url, "--from"), _url(to_url, "--to")
        if str(source) == str(target):
            raise CliError("--from and --to are the same broker and vhost.", ExitCode.USAGE)
        job = _Job(
            source=source,
            target=target,
            state=state,
            pace=Pace(batch, idle),
            timeout=timeout,
            tls=_tls(ca_file, is_insecure=insecure),
            out=Output(formatter, quiet),
        )
        named: dict[str, bool | None] = dict.fromkeys(queue or ())
        job.run(_listed_queues(source, from_api, job) if every_queue else named)

    raise typer.Exit(run_body(body))


def _tls(ca_file: str | None, *, is_insecure: bool) -> ssl.SSLContext | None:
    if ca_file is None and not is_insecure:
        return None
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise CliError(f"{ca_file} cannot be used: {error}.", ExitCode.USAGE) from None
    if is_insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


@dataclass(frozen=True, slots=True)
class _Result:
    totals: Totals
    """Of this run and of all earlier ones with the same state file."""
    moved_now: int
    state: str
    error: CliError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    source: AmqpUrl
    target: AmqpUrl
    state: Path
    pace: Pace
    timeout: float
    tls: ssl.SSLContext | None
    out: Output

    def run(self, queues: Mapping[str, bool | None]) -> None:
        """Move these queues; the values tell whether a queue is a stream, if that is known."""
        try:
            state = MoveState(self.state, f"{self.source} -> {self.target}")
        except StateInUse as error:
            text = f"the state file cannot be used ({error}); does another move use it?"
            raise CliError(text) from None
        self.out.remark(f"Moving from {self.source} to {self.target}; state in {self.state} ...")
        results: dict[str, _Result] = {}
        try:
            with self.out.progress() as progress, _stop_event() as stop:
                for queue, is_stream in queues.items():
                    result = self._move(state, queue, is_stream, progress, stop)
                    results[queue] = result
                    if stop.is_set() or (result.error and result.error.code in _BROKER_GONE):
                        break
        finally:
            state.close()
        self._report(results, len(queues), is_stopped=stop.is_set())

    def _move(
        self,
        state: MoveState,
        queue: str,
        is_stream: bool | None,
        progress: Progress,
        stop: threading.Event,
    ) -> _Result:
        """Move one queue over connections of its own, because an error closes its channel."""
        task, before = progress.add_task(queue, total=None), state.totals(queue).messages
        try:
            if is_stream is None:
                with _connected(self.source, self) as probe:
                    is_stream = probe.is_stream(queue)
            with _connected(self.source, self) as source, _connected(self.target, self) as target:
                target.select_confirms()
                progress.update(task, total=source.message_count(queue) or None)
                mover = QueueMover(source, target, state, queue, self.pace, is_stream=is_stream)
                totals = mover.run(stop.is_set, lambda count: progress.advance(task, count))
        except (MoveError, AmqpError, ConnectionLost, NoReply) as error:
            totals = state.totals(queue)
            now = totals.messages - before
            return _Result(totals, now, "failed", _cli_error(error, queue))
        done = "moved" if totals.next_offset is None else "copied"
        return _Result(totals, totals.messages - before, "stopped" if stop.is_set() else done)

    def _report(self, results: Mapping[str, _Result], count: int, *, is_stopped: bool) -> None:
        self.out.rows(_COLUMNS, [_row(queue, result) for queue, result in results.items()])
        errors = [result.error for result in results.values() if result.error is not None]
        messages = counted(sum(each.moved_now for each in results.values()), "message")
        queues = counted(len(results), "queue")
        if is_stopped:
            raise CliError(
                f"stopped after {messages}; the same command continues.", ExitCode.INTERRUPTED
            )
        if len(errors) == 1:
            raise errors[0]
        for error in errors:
            self.out.warn(str(error))
        if errors:
            raise CliError(f"{len(errors)} of {count} queues were not moved completely.")
        self.out.remark(f"{messages} of {queues} moved in this run, all confirmed by the target.")


def _row(queue: str, result: _Result) -> tuple[Json, ...]:
    totals = result.totals
    counts = (totals.messages, totals.bytes, totals.skipped, totals.possible_duplicates)
    return (queue, *counts, f"{totals.checksum:032x}", result.state)


@contextmanager
def _connected(url: AmqpUrl, job: _Job) -> Iterator[AmqpClient]:
    client = AmqpClient(url, job.timeout, job.tls)
    try:
        yield client
    finally:
        client.close()


@contextmanager
def _stop_event() -> Iterator[threading.Event]:
    """An event that SIGINT and SIGTERM set: the current batch is finished, then the move ends."""
    stop = threading.Event()
    before = {
        number: signal.signal(number, lambda *_: stop.set())
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _cli_error(error: Exception, queue: str) -> CliError:
    text = str(error).rstrip(".")
    if isinstance(error, AmqpError):
        if error.code == _PRECONDITION_FAILED and "user_id" in text:
            text += "; the user of --to needs the tag impersonator to publish for other users"
        elif error.code == _NOT_FOUND:
            text += "; `leveret import_definitions` creates the queues"
        code = _REPLY_CODES.get(error.code, ExitCode.FAILED)
        return CliError(f"queue '{queue}': {text}.", code)
    codes = {ConnectionLost: ExitCode.UNAVAILABLE, NoReply: ExitCode.TIMEOUT}
    return CliError(f"queue '{queue}': {text}.", codes.get(type(error), ExitCode.FAILED))


def _url(text: str, option: str) -> AmqpUrl:
    try:
        return AmqpUrl.parse(text)
    except ValueError as error:
        raise CliError(f"{option} is not valid: {error}.", ExitCode.USAGE) from None


def _listed_queues(source: AmqpUrl, api_url: str | None, job: _Job) -> dict[str, bool | None]:
    """The queues of the source's virtual host, without exclusive ones."""
    default = f"http://{source.host}:{source.port + _API_PORT_DISTANCE}"
    target = Target(api_url or default, source.user, source.password, job.timeout)
    api = Api(target)
    try:
        what = f"vhost '{source.vhost}'"
        rows: list[Json] = api.get(path("queues", source.vhost), what=what)
    finally:
        api.close()
    queues: dict[str, bool | None] = {}
    for row in rows:
        if row.get("exclusive"):
            job.out.warn(f"queue '{row['name']}' is exclusive and is not moved.")
        elif not (row.get("arguments") or {}).get("x-partitions"):
            # A partitioned log is moved as its partitions, which are in the list.
            queues[row["name"]] = row.get("type") == "stream"
    return queues
