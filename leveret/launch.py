"""The composition root: makes a running broker from settings.

Start-up in order: store, broker, AMQP listener, HTTP socket, the ready line. FastAPI is half of the
broker's memory and most of its imports, so it is imported on another thread when the first HTTP
client connects, while AMQP clients are served. Shutdown is the reverse; everything confirmed is on
disk before it ends.
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
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from leveret import __version__
from leveret.amqp_server.server import AmqpServer
from leveret.broker import Broker
from leveret.broker.broker import StartKind
from leveret.config import Settings, load_settings
from leveret.logging_setup import configure_logging
from leveret.model import form
from leveret.model.clock import Clock
from leveret.model.store import OnCommitted, OnFailed, Store, StoreError
from leveret.stored_history import StoredHistory

if TYPE_CHECKING:
    import ssl

    from leveret.http_admin.server import HttpServer
    from leveret.tls import Tls

SWITCH_INTERVAL_SECONDS = 0.0005
CALL_SECONDS = STOP_SECONDS = 60.0
GC_THRESHOLDS = (5_000, 4, 12_500)
"""At most 25,000 new objects are looked at in one go, which takes some milliseconds."""
NOTIFY_VARIABLE = "NOTIFY_SOCKET"

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

    `async with RunningBroker(http_enabled=True) as running:` is ready to accept when it is entered.
    Settings are given by name, or all at once as `settings`.
    """

    def __init__(
        self, settings: Settings | None = None, clock: Clock | None = None, **changes: Any
    ) -> None:
        self.settings = _settings_of(settings, changes)
        self.broker = Broker(self.settings, self._make_store, clock)
        self.amqp = AmqpServer(self.broker)
        self.amqp_address = ("", 0)
        self.http_address: tuple[str, int] | None = None
        self.amqps_address: tuple[str, int] | None = None
        self.https_address: tuple[str, int] | None = None
        self.tls: Tls | None = None
        self.start_kind = StartKind.RESTART
        self.stop_requested = asyncio.Event()
        self.history = StoredHistory()
        self._http_sockets: list[socket.socket] = []
        self._http_start: asyncio.Task[HttpServer] | None = None
        self._importing_http = False

    def _make_store(self, on_committed: OnCommitted, on_failed: OnFailed) -> Store:
        if self.settings.memory:
            from leveret.queues.storage.memory_store import MemoryStore

            return MemoryStore(on_committed=on_committed, on_failed=on_failed)
        from leveret.queues.storage.sql_store import SqlStore

        return SqlStore(
            self.settings.data_dir,
            on_committed=on_committed,
            on_failed=on_failed,
            notes={"history": self.settings.history},
        )

    @property
    def url(self) -> str:
        """The URL for AMQP clients, with the default user and password."""
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
        raise RuntimeError("this broker does not serve HTTP: set http_enabled")

    async def start(self) -> None:
        settings = self.settings
        if not settings.memory and not settings.data_dir.exists():
            _require_free_ports(settings)  # a failed start must not leave a directory behind
        try:
            self.start_kind = self.broker.start()
        except StoreError as error:
            raise LaunchError(str(error)) from error
        try:
            self.amqp.start()
            if settings.plain_enabled:
                with _naming_port(settings, "amqp_port"):
                    self.amqp_address = await self.amqp.listen(settings.host, settings.amqp_port)
                self.http_address = self._listen_for_http("http_port")
            if _wants_tls(settings):
                await self._listen_securely()
        except (OSError, LaunchError) as error:
            await self.stop()
            if isinstance(error, LaunchError):
                raise
            raise LaunchError(f"cannot listen on {settings.host}: {error}") from error
        for listening in self._http_sockets:
            # Readable means that a client waits to be accepted.
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
        with _naming_port(settings, "amqps_port"):
            self.amqps_address = await self.amqp.listen(host, port, context)
        self.https_address = self._listen_for_http("https_port")

    def _tls_context(self) -> ssl.SSLContext:
        """Return the context for the next handshake."""
        assert self.tls is not None
        return self.tls.context

    def _listen_for_http(self, setting: str) -> tuple[str, int] | None:
        if not self.settings.http_enabled:
            return None
        with _naming_port(self.settings, setting):
            listening = _listen(self.settings.host, getattr(self.settings, setting))
        self._http_sockets.append(listening)
        host, bound = listening.getsockname()[:2]
        return host, bound

    def _start_http(self) -> asyncio.Task[HttpServer]:
        if self._http_start is None:
            self._stop_watching_http()
            self._http_start = asyncio.create_task(self._serve_http())
        return self._http_start

    def _stop_watching_http(self) -> None:
        for listening in self._http_sockets:
            asyncio.get_running_loop().remove_reader(listening)

    async def _serve_http(self) -> HttpServer:
        sockets = list(self._http_sockets)
        secure = [(sockets.pop(), self._tls_context)] if self.tls is not None else []
        try:
            self._importing_http = True
            server = await _run_on_daemon_thread(self._make_http)
            self._importing_http = False
            await server.start(sockets, secure)
        except Exception:
            log.exception("cannot start the HTTP API; AMQP continues")
            for listening in self._http_sockets:
                listening.close()  # refuse clients instead of leaving them waiting
            raise
        return server

    def _make_http(self) -> HttpServer:
        """Runs on another thread: importing and building the API would block the loop too long."""
        from leveret.http_admin.server import HttpServer

        addresses = {
            "amqp": self.amqp_address if self.settings.plain_enabled else None,
            "http": self.http_address,
            "amqp/ssl": self.amqps_address,
            "https": self.https_address,
        }
        listeners = [(name, *address) for name, address in addresses.items() if address]
        return HttpServer(
            self.broker,
            self.stop_requested.set,
            listeners,
            self.history,
            self._certificate_expires,
        )

    def _certificate_expires(self) -> float | None:
        return self.tls.expires if self.tls is not None else None

    async def http_ready(self) -> None:
        """Start the HTTP API now instead of with its first client."""
        if self._http_sockets:
            await asyncio.shield(self._start_http())

    async def stop(self) -> None:
        """Close connections, then make everything durable."""
        await self.amqp.stop()
        if self.tls is not None:
            self.tls.stop()
        # The port stays open until all data is on disk: clients that wait for the end poll it.
        copies = [each.dup() for each in self._http_sockets if each.fileno() >= 0]
        await self._stop_http()
        try:
            await self.broker.stop()
        finally:
            for listening in (*self._http_sockets, *copies):
                listening.close()

    def reload(self) -> None:
        """On SIGHUP: read the certificate again. Without TLS there is nothing to read again."""
        if self.tls is not None:
            self.tls.reload()
        else:
            log.info("SIGHUP reloads TLS certificates; other settings need a restart")

    async def kill(self) -> None:
        """End as a process does that is killed: what is not committed is lost. For tests."""
        self.amqp.kill()
        if self.tls is not None:
            self.tls.stop()
        await self._stop_http()
        try:
            await self.broker.kill()
        finally:
            for listening in self._http_sockets:
                listening.close()

    async def _stop_http(self) -> None:
        if self._http_start is None:
            self._stop_watching_http()
        elif self._importing_http:
            self._http_start.cancel()
        else:
            with contextlib.suppress(Exception):
                await (await self._http_start).stop()
        await self.history.close()

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
    """Return settings for a broker in this process: free ports, in memory without `data_dir`.

    Raises `ConfigError` for an unknown setting or a wrong value.
    """
    checked = load_settings(changes)
    defaults: dict[str, Any] = {**dict.fromkeys(_PORTS, 0), "http_enabled": False}
    if "data_dir" not in changes:
        defaults["memory"] = True
    return Settings(**(defaults | {name: getattr(checked, name) for name in changes}))


def _settings_of(settings: Settings | None, changes: dict[str, Any]) -> Settings:
    if settings is None:
        return in_process_settings(**changes)
    if changes:
        names = ", ".join(sorted(changes))
        raise TypeError(f"give either `settings` or single settings, not both: {names}")
    return settings


class ThreadedBroker:
    """A broker on its own thread: a context manager for synchronous code.

    `with ThreadedBroker(http_enabled=True) as broker:` is ready to accept when it is entered.
    Settings are given by name, or all at once as `settings`.
    """

    def __init__(
        self, settings: Settings | None = None, clock: Clock | None = None, **changes: Any
    ) -> None:
        self._settings = _settings_of(settings, changes)
        self._clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self.running: RunningBroker | None = None
        self._is_killed = False

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
        self._is_killed = False
        self._ready.clear()
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
        with contextlib.suppress(RuntimeError):  # it has already ended and closed its loop
            self._loop.call_soon_threadsafe(self.running.stop_requested.set)
        self._thread.join(STOP_SECONDS)
        if error is None and self._thread.is_alive():
            raise RuntimeError(f"the broker did not stop within {STOP_SECONDS:g} s")
        if error is None and self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=_new_loop) as runner:
                runner.run(self._main())
        except BaseException as error:  # noqa: BLE001 - raised in the waiting thread
            self._error = error
        finally:
            self._ready.set()

    def call(self, step: Callable[[], T]) -> T:
        """Run a function on the broker's thread and return its result."""
        assert self._loop is not None
        done: Future[T] = Future()

        def run() -> None:
            try:
                done.set_result(step())
            except BaseException as error:  # noqa: BLE001 - raised in the waiting thread
                done.set_exception(error)

        self._loop.call_soon_threadsafe(run)
        return done.result(CALL_SECONDS)

    def _make(self) -> RunningBroker:
        """Make the broker, which does not listen yet. Runs on the broker's thread."""
        return RunningBroker(self._settings, self._clock)

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        running = self._make()
        await running.start()
        try:
            self.running = running
            await running.http_ready()
            self._ready.set()
            await running.stop_requested.wait()
        finally:
            await (running.kill() if self._is_killed else running.stop())


def serve(settings: Settings) -> int:
    """Run until SIGTERM or SIGINT; return the exit code."""
    configure_logging(settings)
    python = sys.version.split()[0]
    log.info("leveret %s starts: %s on Python %s", __version__, form.current(), python)
    os.umask(0o077)  # files are readable by their owner only
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
        loop.add_signal_handler(signal.SIGHUP, running.reload)
        _announce(running)
        _notify_supervisor("READY=1")
        _configure_garbage_collector()
        await running.stop_requested.wait()
        log.info("stopping")
        _notify_supervisor("STOPPING=1")


async def _run_on_daemon_thread(make: Callable[[], T]) -> T:
    """Like `asyncio.to_thread`, but a stop does not wait for the thread."""
    result: Future[T] = Future()
    result.set_running_or_notify_cancel()

    def run() -> None:
        try:
            result.set_result(make())
        except BaseException as error:  # noqa: BLE001 - raised in the waiting coroutine
            result.set_exception(error)

    threading.Thread(target=run, name="leveret-http-import", daemon=True).start()
    return await asyncio.wrap_future(result)


def _announce(running: RunningBroker) -> None:
    plain = running.amqp_address if running.settings.plain_enabled else None
    addresses = {"amqp": plain, "http": running.http_address}
    if running.tls is not None:
        addresses |= {"amqps": running.amqps_address, "https": running.https_address}
    parts = (f"{name}={_address_text(address)}" for name, address in addresses.items())
    lines = [f"leveret ready {' '.join(parts)}", *_remarks(running)]
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


def _remarks(running: RunningBroker) -> Iterator[str]:
    """What a person wants to know when the broker has started."""
    settings = running.settings
    if settings.memory:
        yield "Data: in memory only; nothing is kept after a stop."
    else:
        yield f"Data directory: {settings.data_dir.resolve()}"
    if settings.http_enabled:
        yield f"Dashboard: {_browser_url(running.http_url)}"
    if running.start_kind is StartKind.FIRST and settings.default_user:
        is_default = settings.default_password == Settings().default_password
        password = settings.default_password if is_default else "as in the setting default_password"
        yield f"First start: user {settings.default_user}, password {password}"


def _browser_url(url: str) -> str:
    """A browser cannot open the address that stands for all addresses of this machine."""
    for wildcard in ("//0.0.0.0:", "//:::"):
        url = url.replace(wildcard, "//localhost:")
    return f"{url}/"


def _notify_supervisor(state: str) -> None:
    """Send a state to systemd or another supervisor that names a socket (protocol of sd_notify).

    Does not wait: a message that cannot be sent is dropped, because serving is more important.
    """
    address = os.environ.get(NOTIFY_VARIABLE, "")
    if not address.startswith(("/", "@")):
        return
    if address.startswith("@"):  # an abstract socket
        address = "\0" + address[1:]
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.setblocking(False)
        notify.sendto(state.encode(), address)


def _address_text(address: tuple[str, int] | None) -> str:
    return "{}:{}".format(*address) if address is not None else "off"


def _configure_garbage_collector() -> None:
    """Exempt start-up objects, and collect rarely: a queue may hold a million messages."""
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    gc.enable()


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def _listen(host: str, port: int) -> socket.socket:
    listening = _bind(host, port)
    try:
        listening.listen(1024)
        listening.setblocking(False)
    except OSError:
        listening.close()
        raise
    return listening


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio disables Nagle's algorithm only if the socket's protocol is given.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except OSError:
        bound.close()
        raise
    return bound


def _require_free_ports(settings: Settings) -> None:
    """Refuse ports that are in use; other errors show up when the broker listens."""
    secure = ("amqps_port", "https_port") if _wants_tls(settings) else ()
    plain = ("amqp_port", "http_port") if settings.plain_enabled else ()
    for setting in (*plain, *secure):
        if not settings.http_enabled and setting.startswith("http"):
            continue
        try:
            _bind(settings.host, getattr(settings, setting)).close()
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise LaunchError(_cannot_listen(settings, setting, error)) from error


def _wants_tls(settings: Settings) -> bool:
    """Whether any TLS setting is given: TLS must not be missing because one is forgotten."""
    files = settings.tls_cert or settings.tls_key or settings.tls_ca
    options = settings.tls_verify != "none" or settings.tls_login != "off"
    return bool(files) or options or not settings.plain_enabled


@contextlib.contextmanager
def _naming_port(settings: Settings, setting: str) -> Iterator[None]:
    """Turn an error of the operating system into one that names the port."""
    try:
        yield
    except OSError as error:
        raise LaunchError(_cannot_listen(settings, setting, error)) from error


def _cannot_listen(settings: Settings, setting: str, error: OSError) -> str:
    protocol, flag = _PORTS[setting]
    why = error.strerror or str(error)
    if error.errno == errno.EADDRINUSE:
        why = f"the port is in use (by RabbitMQ?); choose another one with {flag}"
    return (
        f"cannot listen on {settings.host}, port {getattr(settings, setting)} ({protocol}): {why}"
    )
