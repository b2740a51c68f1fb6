"""The composition root: settings in, a running broker out.

Start-up in order: store, hub, AMQP listener, HTTP socket, the ready line. FastAPI is half of the
broker's memory and most of its imports: it comes in when the first HTTP client does, on another
thread, while AMQP clients are served. Shutdown is the reverse, and everything confirmed is on disk
before it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from amqp_server.server import AmqpServer
from leveret import supervisor
from leveret.broker import Broker
from leveret.config import Settings
from leveret.log_lines import configure
from leveret.model.clock import Clock
from leveret.model.store import OnCommitted, OnFailed, Store, StoreError

if TYPE_CHECKING:
    import ssl

    from http_admin.server import HttpServer
    from leveret.tls import Tls

SWITCH_INTERVAL_SECONDS = 0.0005
CALL_SECONDS = STOP_SECONDS = 60.0
GC_THRESHOLDS = (50_000, 50, 100)

_PORTS = {
    "amqp_port": ("AMQP", "--amqp-port"),
    "http_port": ("HTTP", "--http-port"),
    "amqps_port": ("AMQP over TLS", "--set amqps_port=PORT"),
    "https_port": ("HTTP over TLS", "--set https_port=PORT"),
}

log = logging.getLogger("leveret")
T = TypeVar("T")


class LaunchError(Exception):
    """The broker cannot start; the text is one sentence for people."""


class RunningBroker:
    """A broker with its listeners: an async context manager.

    `async with RunningBroker(settings) as running:` is ready to accept when it is entered.
    """

    def __init__(self, settings: Settings | None = None, clock: Clock | None = None) -> None:
        self.settings = settings or in_process_settings()
        self.broker = Broker(self.settings, self._make_store, clock)
        self.amqp = AmqpServer(self.broker)
        self.amqp_address = ("", 0)
        self.http_address: tuple[str, int] | None = None
        self.amqps_address: tuple[str, int] | None = None
        self.https_address: tuple[str, int] | None = None
        self.tls: Tls | None = None
        self.stop_requested = asyncio.Event()
        self._http_sockets: list[socket.socket] = []
        self._http_start: asyncio.Task[HttpServer] | None = None
        self._importing_http = False

    def _make_store(self, on_committed: OnCommitted, on_failed: OnFailed) -> Store:
        if self.settings.memory:
            from queues.storage.memory_store import MemoryStore

            return MemoryStore(on_committed=on_committed, on_failed=on_failed)
        from queues.storage.sql_store import SqlStore

        return SqlStore(
            self.settings.data_dir,
            on_committed=on_committed,
            on_failed=on_failed,
            notes={"history": self.settings.history},
        )

    @property
    def url(self) -> str:
        """Where clients connect to, with the default user."""
        settings = self.settings
        host, port = self.amqp_address
        scheme = "amqp"
        if not settings.plain_enabled and self.amqps_address is not None:
            scheme, (host, port) = "amqps", self.amqps_address
        return f"{scheme}://{settings.default_user}:{settings.default_password}@{host}:{port}/"

    @property
    def http_url(self) -> str:
        if self.http_address is not None:
            return "http://{}:{}".format(*self.http_address)
        if self.https_address is not None:
            return "https://{}:{}".format(*self.https_address)
        raise RuntimeError("this broker serves no HTTP")

    async def start(self) -> None:
        settings = self.settings
        if not settings.memory and not settings.data_dir.exists():
            _require_free_ports(settings)  # a start in vain must not leave one behind
        try:
            self.broker.start()
        except StoreError as error:
            raise LaunchError(str(error)) from error
        try:
            self.amqp.start()
            if settings.plain_enabled:
                with _named(settings, "amqp_port"):
                    self.amqp_address = await self.amqp.listen(settings.host, settings.amqp_port)
                self.http_address = self._listen_for_http("http_port")
            if _asks_for_tls(settings):
                await self._listen_securely()
        except (OSError, LaunchError) as error:
            await self.stop()
            if isinstance(error, LaunchError):
                raise
            raise LaunchError(f"cannot listen on {settings.host}: {error}") from error
        for listening in self._http_sockets:
            # Readable: a client is waiting to be accepted, and goes on waiting until it is.
            asyncio.get_running_loop().add_reader(listening, self._start_http)

    async def _listen_securely(self) -> None:
        from leveret.tls import Tls, TlsError

        settings = self.settings
        try:
            self.tls = Tls(settings)
        except TlsError as error:
            raise LaunchError(f"{error}.") from None
        self.tls.watch()
        host, port, context = settings.host, settings.amqps_port, self._tls_context
        with _named(settings, "amqps_port"):
            self.amqps_address = await self.amqp.listen(host, port, context)
        self.https_address = self._listen_for_http("https_port")

    def _tls_context(self) -> ssl.SSLContext:
        """For the next handshake."""
        assert self.tls is not None
        return self.tls.context

    def _listen_for_http(self, setting: str) -> tuple[str, int] | None:
        if not self.settings.http_enabled:
            return None
        with _named(self.settings, setting):
            listening = _listen(self.settings.host, getattr(self.settings, setting))
        self._http_sockets.append(listening)
        host, bound = listening.getsockname()[:2]
        return host, bound

    def _start_http(self) -> asyncio.Task[HttpServer]:
        if self._http_start is None:
            self._forget_http_clients()
            self._http_start = asyncio.create_task(self._serve_http())
        return self._http_start

    def _forget_http_clients(self) -> None:
        for listening in self._http_sockets:
            asyncio.get_running_loop().remove_reader(listening)

    async def _serve_http(self) -> HttpServer:
        sockets = list(self._http_sockets)
        secure = [(sockets.pop(), self._tls_context)] if self.tls is not None else []
        try:
            self._importing_http = True
            server = await _on_a_daemon_thread(self._make_http)
            self._importing_http = False
            await server.start(sockets, secure)
        except Exception:
            log.exception("the HTTP API cannot start; AMQP goes on")
            for listening in self._http_sockets:
                listening.close()  # clients are refused instead of left waiting
            raise
        return server

    def _make_http(self) -> HttpServer:
        """Runs on another thread: importing and building the API takes longer than a turn may."""
        from http_admin.server import HttpServer
        from leveret.history_source import StoredHistory

        named = {
            "amqp": self.amqp_address if self.settings.plain_enabled else None,
            "http": self.http_address,
            "amqp/ssl": self.amqps_address,
            "https": self.https_address,
        }
        listeners = [(name, *address) for name, address in named.items() if address is not None]
        return HttpServer(
            self.broker,
            self.stop_requested.set,
            listeners,
            StoredHistory(),
            self._certificate_expires,
        )

    def _certificate_expires(self) -> float | None:
        return self.tls.expires if self.tls is not None else None

    async def http_ready(self) -> None:
        """Have the HTTP API up, without waiting for its first client."""
        if self._http_sockets:
            await asyncio.shield(self._start_http())

    async def stop(self) -> None:
        """Ask clients to go, then make everything durable."""
        await self.amqp.stop()
        if self.tls is not None:
            self.tls.stop()
        # Who waits for the end asks until nobody listens: not before the data is whole on disk.
        listening = [one.dup() for one in self._http_sockets if one.fileno() >= 0]
        await self._stop_http()
        try:
            await self.broker.stop()
        finally:
            for one in (*self._http_sockets, *listening):
                one.close()

    async def _stop_http(self) -> None:
        if self._http_start is None:
            self._forget_http_clients()
        elif self._importing_http:
            self._http_start.cancel()
        else:
            with contextlib.suppress(Exception):
                await (await self._http_start).stop()

    async def __aenter__(self) -> RunningBroker:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()


def in_process_settings(**changes: Any) -> Settings:
    """A broker for one process: free ports, nothing on disk unless a directory is named."""
    defaults: dict[str, Any] = {**dict.fromkeys(_PORTS, 0), "http_enabled": False}
    if "data_dir" not in changes:
        defaults["memory"] = True
    else:
        defaults["data_dir"] = Path(changes.pop("data_dir"))
    return Settings(**(defaults | changes))


class ThreadedBroker:
    """A broker on a thread of its own: a plain context manager for synchronous code."""

    def __init__(self, settings: Settings | None = None, clock: Clock | None = None) -> None:
        self._settings = settings or in_process_settings()
        self._clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self.running: RunningBroker | None = None

    @property
    def url(self) -> str:
        assert self.running is not None
        return self.running.url

    @property
    def amqp_address(self) -> tuple[str, int]:
        assert self.running is not None
        return self.running.amqp_address

    @property
    def http_url(self) -> str:
        assert self.running is not None
        return self.running.http_url

    def __enter__(self) -> ThreadedBroker:
        self._thread = threading.Thread(target=self._run, name="leveret", daemon=True)
        self._thread.start()
        self._ready.wait()
        if self._error is not None:
            self._thread.join()
            raise self._error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._loop is not None and self._thread is not None and self.running is not None
        with contextlib.suppress(RuntimeError):  # it has ended already, and its loop with it
            self._loop.call_soon_threadsafe(self.running.stop_requested.set)
        self._thread.join(STOP_SECONDS)
        if error is None and self._thread.is_alive():
            raise RuntimeError(f"the broker has not stopped within {STOP_SECONDS:g} s")
        if error is None and self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=_new_loop) as runner:
                runner.run(self._main())
        except BaseException as error:  # noqa: BLE001 - handed over to the thread that waits
            self._error = error
        finally:
            self._ready.set()

    def call(self, step: Callable[[], T]) -> T:
        """Run this on the broker's thread, between two turns, and wait for its answer."""
        assert self._loop is not None
        done: Future[T] = Future()

        def run() -> None:
            try:
                done.set_result(step())
            except BaseException as error:  # noqa: BLE001 - handed over to the thread that waits
                done.set_exception(error)

        self._loop.call_soon_threadsafe(run)
        return done.result(CALL_SECONDS)

    def _make(self) -> RunningBroker:
        """On the broker's thread; nothing listens yet."""
        return RunningBroker(self._settings, self._clock)

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        async with self._make() as running:
            self.running = running
            await running.http_ready()
            self._ready.set()
            await running.stop_requested.wait()


def serve(settings: Settings) -> int:
    """Run until SIGTERM or SIGINT; the exit code."""
    configure(settings)
    os.umask(0o077)  # what the broker writes is its owner's
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    try:
        with asyncio.Runner(loop_factory=_new_loop) as runner:
            runner.run(_serve(settings))
    except LaunchError as error:
        sys.stderr.write(f"leveret: {error}\n")
        return 1
    return 0


async def _serve(settings: Settings) -> None:
    loop = asyncio.get_running_loop()
    running = RunningBroker(settings)
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, running.stop_requested.set)
    async with running:
        if running.tls is not None:
            loop.add_signal_handler(signal.SIGHUP, running.tls.reload)
        _announce(running)
        supervisor.tell(supervisor.READY)
        _settle_garbage_collector()
        running.broker.apart = _place_apart()
        await running.stop_requested.wait()
        log.info("stopping")
        supervisor.tell(supervisor.STOPPING)


async def _on_a_daemon_thread(make: Callable[[], T]) -> T:
    """Like `asyncio.to_thread`, but a stop does not wait for it."""
    made: Future[T] = Future()
    made.set_running_or_notify_cancel()

    def run() -> None:
        try:
            made.set_result(make())
        except BaseException as error:  # noqa: BLE001 - handed over to the loop that waits
            made.set_exception(error)

    threading.Thread(target=run, name="leveret-http-import", daemon=True).start()
    return await asyncio.wrap_future(made)


def _announce(running: RunningBroker) -> None:
    plain = running.amqp_address if running.settings.plain_enabled else None
    where = {"amqp": plain, "http": running.http_address}
    if running.tls is not None:
        where |= {"amqps": running.amqps_address, "https": running.https_address}
    said = (f"{name}={_shown(address)}" for name, address in where.items())
    sys.stdout.write(f"leveret ready {' '.join(said)}\n")
    sys.stdout.flush()


def _shown(address: tuple[str, int] | None) -> str:
    return "{}:{}".format(*address) if address is not None else "off"


def _settle_garbage_collector() -> None:
    """What start-up made stays; a queue of a million messages must not be walked all the time."""
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    gc.enable()


def _place_apart() -> AbstractContextManager[None]:
    """Only here: memory is arranged by whoever has the process to himself."""
    from leveret.broker.apart import find_place_apart

    return find_place_apart()


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def _listen(host: str, port: int) -> socket.socket:
    listening = _bound(host, port)
    try:
        listening.listen(1024)
        listening.setblocking(False)
    except OSError:
        listening.close()
        raise
    return listening


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio switches Nagle's algorithm off only where the protocol is named.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except OSError:
        bound.close()
        raise
    return bound


def _require_free_ports(settings: Settings) -> None:
    """Refuse ports on which somebody listens; whatever else is wrong turns up when we do."""
    secure = ("amqps_port", "https_port") if _asks_for_tls(settings) else ()
    plain = ("amqp_port", "http_port") if settings.plain_enabled else ()
    for setting in (*plain, *secure):
        if not settings.http_enabled and setting.startswith("http"):
            continue
        try:
            _bound(settings.host, getattr(settings, setting)).close()
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise LaunchError(_cannot_listen(settings, setting, error)) from error


def _asks_for_tls(settings: Settings) -> bool:
    """Any of it asks: whoever wants certificates of clients must not get a plain port unawares."""
    files = settings.tls_cert or settings.tls_key or settings.tls_ca
    wishes = settings.tls_verify != "none" or settings.tls_login != "off"
    return bool(files) or wishes or not settings.plain_enabled


@contextlib.contextmanager
def _named(settings: Settings, setting: str) -> Iterator[None]:
    """What goes wrong with a port is said of that port."""
    try:
        yield
    except OSError as error:
        raise LaunchError(_cannot_listen(settings, setting, error)) from error


def _cannot_listen(settings: Settings, setting: str, error: OSError) -> str:
    protocol, flag = _PORTS[setting]
    why = error.strerror or str(error)
    if error.errno == errno.EADDRINUSE:
        why = f"it is taken (by RabbitMQ?); {flag} chooses another"
    return (
        f"cannot listen on {settings.host}, port {getattr(settings, setting)} ({protocol}): {why}"
    )
