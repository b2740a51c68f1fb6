"""TLS listeners: from a socket that was accepted to a protocol that hears what the peer says.

A socket is counted when it is accepted, as any stranger's, and before anything is read from it.
Each handshake uses the context of that moment, so that another certificate, or other authorities,
count from then on. It has a few seconds; whoever does not finish it is cut off. After it the
front's own protocol takes over and counts the connection itself.

One task per handshake, held here until it ends. Runs on the loop; a crash leaves nothing.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any

from leveret.broker.access.strangers import Stranger, Strangers
from leveret.broker.access.tally import Tally

SECONDS = 5.0
BACKLOG = 1024
ACCEPTED_AT_ONCE = 64
WITHOUT_DESCRIPTORS_SECONDS = 1.0

Context = Callable[[], ssl.SSLContext]


class Handshakes:
    def __init__(
        self,
        context: Context,
        make: Callable[[], asyncio.Protocol],
        admit: Callable[[str, Stranger], bool],
        strangers: Strangers,
        log: logging.Logger,
    ) -> None:
        """`make` makes the front's protocol; `admit` counts a stranger or refuses it."""
        self._context = context
        self._make = make
        self._admit = admit
        self._strangers = strangers
        self._log = log
        self._failed = Tally(self._tell)
        self._under_way: set[_Handshake] = set()
        self._listening: dict[socket.socket, asyncio.TimerHandle | None] = {}

    def __repr__(self) -> str:
        return f"<Handshakes under_way={len(self._under_way)} failed={self._failed.count}>"

    def __len__(self) -> int:
        return len(self._under_way)

    # Accepting ---------------------------------------------------------------------------------

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """Accept on every address of this host; the first of them."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        made: list[socket.socket] = []
        try:
            for family, address in dict.fromkeys((one[0], one[4]) for one in found):
                made.append(_bound(family, address))
        except OSError:
            for one in made:
                one.close()
            raise
        for one in made:
            self.accept_on(one)
        bound: tuple[str, int] = made[0].getsockname()[:2]
        return bound

    def accept_on(self, listening: socket.socket) -> None:
        """From a socket that listens and does not block; it is closed by `stop`."""
        self._listening[listening] = None
        asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                accepted, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause(listening, error)
                return
            accepted.setblocking(False)
            self._begin(accepted, str(address[0]))

    def _pause(self, listening: socket.socket, error: OSError) -> None:
        """No more descriptors, most likely: asking again at once would get the same answer."""
        self._log.error("no TLS connection can be accepted: %s", error.strerror)
        loop = asyncio.get_running_loop()
        loop.remove_reader(listening)
        again = loop.call_later(WITHOUT_DESCRIPTORS_SECONDS, self.accept_on, listening)
        self._listening[listening] = again

    # Shaking hands -----------------------------------------------------------------------------

    def _begin(self, accepted: socket.socket, host: str) -> None:
        one = _Handshake()
        if not self._admit(host, one):
            accepted.close()
            return
        self._under_way.add(one)
        one.task = asyncio.get_running_loop().create_task(self._shake(accepted, host, one))
        one.task.add_done_callback(partial(self._ended, accepted, host, one))

    async def _shake(self, accepted: socket.socket, host: str, one: _Handshake) -> None:
        uncount = partial(self._uncount, host, one)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: _Arrival(self._make, uncount),
                accepted,
                ssl=self._context(),
                ssl_handshake_timeout=SECONDS,
            )
        except (OSError, TimeoutError) as error:
            why = getattr(error, "reason", None) or str(error) or "the peer has gone"
            self._failed.add(host, why)

    def _uncount(self, host: str, one: _Handshake) -> None:
        self._strangers.go(host, one)
        self._under_way.discard(one)

    def _ended(
        self, accepted: socket.socket, host: str, one: _Handshake, task: asyncio.Task[None]
    ) -> None:
        if one in self._under_way:
            self._uncount(host, one)
            accepted.close()  # nobody has taken it over
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.error("a TLS connection could not be taken over", exc_info=error)

    def _tell(self, host: str, why: str, count: int) -> None:
        facts = {"event": "TLS handshake failed", "peer": host, "why": why, "count": count}
        self._log.warning(
            "TLS handshake with %s failed: %s (%d so far)", host, why, count, extra={"facts": facts}
        )

    def stop(self) -> None:
        """Accept no more; handshakes under way end."""
        for listening, again in self._listening.items():
            if again is not None:
                again.cancel()
            asyncio.get_running_loop().remove_reader(listening)
            listening.close()
        self._listening.clear()
        for one in list(self._under_way):
            one.drop()


class _Handshake:
    """One that is under way."""

    task: asyncio.Task[None]

    def drop(self) -> None:
        self.task.cancel()


class _Arrival(asyncio.Protocol):
    """Stands in for the front's protocol until there is a connection to count."""

    def __init__(self, make: Callable[[], asyncio.Protocol], uncount: Callable[[], None]) -> None:
        self._make = make
        self._uncount = uncount

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._uncount()
        protocol = self._make()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)


def _bound(family: int, address: Any) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(address)
        made.listen(BACKLOG)
        made.setblocking(False)
    except OSError:
        made.close()
        raise
    return made
