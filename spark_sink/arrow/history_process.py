"""Reads stored history for a broker, in a process of its own (docs/decisions/0023).

The broker runs `python -m leveret.spark_sink.arrow.history_process`. Standard input is a Unix
socket, on which the broker passes a further socket for each request. On that one it sends the
request, a line of JSON, and a thread answers with frames: `HEADER`, then as many bytes as it says.
The first frame that is not DATA is the last. A socket that is closed ends its request.

The process ends when standard input does, which is also when the broker is killed. It only reads
the data directory, so that nothing is lost with it. What it prints goes to the broker's log.

The broker imports this module too, so pyarrow and SQLAlchemy are imported by the first request.
"""

from __future__ import annotations

import enum
import json
import os
import socket
import struct
import threading
import traceback
from collections.abc import Generator, Iterator
from contextlib import closing, suppress
from typing import Any

from leveret.spark_sink.errors import SourceError

NICENESS = 10
"""On a machine with few cores, clients who publish are more urgent than those who read history."""
HEADER = struct.Struct(">BI")
"""The kind of a frame, and how many bytes follow."""


class Frame(enum.IntEnum):
    """What the bytes of a frame are."""

    DATA = 0
    """A part of the answer."""
    END = 1
    """Nothing: the answer is complete."""
    REFUSED = 2
    """A sentence for the client: what is wrong with the request."""
    MODULE_MISSING = 3
    """Which module cannot be imported."""
    FAILED = 4
    """The traceback of any other error."""


def main() -> None:
    with suppress(PermissionError):  # a sandbox may forbid it
        os.nice(NICENESS)
    with socket.socket(fileno=os.dup(0)) as requests, suppress(ConnectionError):
        while True:
            message, descriptors, _, _ = socket.recv_fds(requests, 1, 1)
            if not message:
                break
            for descriptor in descriptors:
                connection = socket.socket(fileno=descriptor)
                threading.Thread(target=answer, args=(connection,), daemon=True).start()
    if threading.active_count() > 1:
        os._exit(0)  # the broker has gone; C++ code on these threads may not survive a normal exit


def answer(connection: socket.socket) -> None:
    """Answer the one request of a connection. The broker closes it if the client has gone."""
    with connection, suppress(ConnectionError):
        with connection.makefile("rb") as lines:
            request = json.loads(lines.readline() or "{}")
        with closing(_frames(request)) as frames:
            for kind, content in frames:
                connection.sendall(HEADER.pack(kind, len(content)))
                connection.sendall(content)


def _frames(request: dict[str, Any]) -> Generator[tuple[Frame, bytes], None, None]:
    try:
        for part in _parts(**request):
            yield Frame.DATA, part
        yield Frame.END, b""
    except (SourceError, ValueError) as error:
        yield Frame.REFUSED, str(error).encode()
    except ImportError as error:
        yield Frame.MODULE_MISSING, str(error).encode()
    except Exception:  # noqa: BLE001 - logged by the broker
        yield Frame.FAILED, traceback.format_exc().encode()


def _parts(
    path: str, data_dir: str, params: dict[str, str], vhosts: list[str] | None
) -> Iterator[bytes]:
    """The answer to `/api/history/{path}`; `vhosts` are those the user may see (None: all)."""
    from leveret.spark_sink.arrow.local import history_export, history_ranges

    visible = None if vhosts is None else frozenset(vhosts)
    if path == "ranges":
        yield json.dumps(history_ranges(data_dir, params, visible)).encode()
    else:
        yield from history_export(data_dir, params, visible)


if __name__ == "__main__":
    main()
