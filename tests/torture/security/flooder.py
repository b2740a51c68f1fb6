"""A client that never waits: `python -m ... publish|consume HOST PORT QUEUE [BYTES]`.

It publishes as fast as the broker reads, or reads everything the broker sends, until standard input
ends; then it writes how many messages it published, or how many bytes it received.
"""

from __future__ import annotations

import select
import socket
import sys

from pamqp import commands

from benchmarks.connection import Address, Connection
from benchmarks.frames import delivery_mode, publish

BODY = 1024
CHUNK_BYTES = 256 * 1024


def main() -> None:
    action, host, port, queue, *size = sys.argv[1:]
    connection = Connection(Address(host, int(port)))
    if action == "publish":
        count = _publish(connection, queue, int(size[0]) if size else BODY)
    else:
        count = _consume(connection, queue)
    print(count, flush=True)
    connection.sock.close()


def _publish(connection: Connection, queue: str, size: int) -> int:
    message = publish("", queue, delivery_mode(persistent=True), bytes(size))
    blob = memoryview(message * (CHUNK_BYTES // len(message) + 1))
    sent = 0
    while _wait_for_socket(connection.sock, for_writing=True):
        sent += connection.sock.send(blob[sent % len(blob) :])
    return sent // len(message)


def _consume(connection: Connection, queue: str) -> int:
    connection.call(commands.Basic.Consume(queue=queue, no_ack=True))
    received = 0
    while _wait_for_socket(connection.sock, for_writing=False):
        received += len(connection.sock.recv(CHUNK_BYTES))
    return received


def _wait_for_socket(sock: socket.socket, for_writing: bool) -> bool:
    """Wait for the socket; return False if standard input has ended."""
    sock.setblocking(False)
    writing = [sock] if for_writing else []
    reading = [sys.stdin] if for_writing else [sys.stdin, sock]
    readable, _, _ = select.select(reading, writing, [])
    return sys.stdin not in readable


if __name__ == "__main__":
    main()
