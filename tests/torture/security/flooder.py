"""A client that never waits: `python -m ... publish|consume HOST PORT QUEUE [OCTETS]`.

It publishes as fast as the broker reads, or reads whatever the broker sends, in a process of its
own, until standard input ends; then it writes how many messages it has sent, or octets it was sent.
"""

from __future__ import annotations

import select
import socket
import sys

from pamqp import commands

from benchmarks.connection import Address, Connection
from benchmarks.frames import delivery_mode, publish

BODY = 1024
OCTETS_AT_ONCE = 256 * 1024


def main() -> None:
    what, host, port, queue, *octets = sys.argv[1:]
    connection = Connection(Address(host, int(port)))
    if what == "publish":
        count = _publish(connection, queue, int(octets[0]) if octets else BODY)
    else:
        count = _consume(connection, queue)
    print(count, flush=True)
    connection.sock.close()


def _publish(connection: Connection, queue: str, octets: int) -> int:
    message = publish("", queue, delivery_mode(persistent=True), bytes(octets))
    blob = memoryview(message * (OCTETS_AT_ONCE // len(message) + 1))
    sent = 0
    while _may_go_on(connection.sock, for_writing=True):
        sent += connection.sock.send(blob[sent % len(blob) :])
    return sent // len(message)


def _consume(connection: Connection, queue: str) -> int:
    connection.call(commands.Basic.Consume(queue=queue, no_ack=True))
    received = 0
    while _may_go_on(connection.sock, for_writing=False):
        received += len(connection.sock.recv(OCTETS_AT_ONCE))
    return received


def _may_go_on(sock: socket.socket, for_writing: bool) -> bool:
    """Waits for the socket; False when standard input has ended."""
    sock.setblocking(False)
    writing = [sock] if for_writing else []
    reading = [sys.stdin] if for_writing else [sys.stdin, sock]
    readable, _, _ = select.select(reading, writing, [])
    return sys.stdin not in readable


if __name__ == "__main__":
    main()
