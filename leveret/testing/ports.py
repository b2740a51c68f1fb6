"""A free TCP port for a program that must be told its port before it starts."""

from __future__ import annotations

import contextlib
import random
import socket

_HOST = "127.0.0.1"
_PORTS = range(20_000, 32_000)
"""Below the ephemeral range, so that the system does not assign these ports to others."""


def free_port() -> int:
    """A random port that nothing listens on; it stays free until the caller binds it."""
    for port in random.SystemRandom().sample(_PORTS, len(_PORTS)):
        with socket.socket() as sock, contextlib.suppress(OSError):
            sock.bind((_HOST, port))
            return port
    raise OSError(f"no port is free from {_PORTS.start} to {_PORTS.stop - 1}")
