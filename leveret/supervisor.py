"""Tells whoever started this process, systemd as a rule, that it is ready or about to stop.

A supervisor that wants to know names a socket in the environment (`NOTIFY_SOCKET`, the protocol of
sd_notify); without one nothing happens. Nobody answers, and nothing here waits: a message that
cannot be sent is dropped, because a broker that serves is worth more than one that was announced.
"""

from __future__ import annotations

import contextlib
import os
import socket

VARIABLE = "NOTIFY_SOCKET"
READY, STOPPING = "READY=1", "STOPPING=1"


def tell(state: str) -> None:
    address = os.environ.get(VARIABLE, "")
    if not address.startswith(("/", "@")):
        return
    if address.startswith("@"):  # a name that is no file
        address = "\0" + address[1:]
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to:
        to.setblocking(False)
        to.sendto(state.encode(), address)
