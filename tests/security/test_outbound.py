"""R-47: no name is a path, no value is an address that the broker calls, no redirect is followed.

Leveret has no shovels, no federation and no webhooks: what RabbitMQ would keep for them is kept as
parameters, and nobody acts on it. The proofs: a listener at the address that everything names hears
nothing; the data directory's neighbours stay as they were; and of the broker's own modules none can
open a connection.
"""

from __future__ import annotations

import ast
import http.server
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from leveret.cli.api import Api, Target, segment
from leveret.cli.errors import CliError
from leveret.spark_sink.arrow.remote import RemoteSource
from leveret.spark_sink.arrow.selection import Selection
from leveret.spark_sink.errors import SourceError
from tests.http.conftest import Served, serve
from tests.support.brokers import ROOT

CLIMBING = (
    "../../outside",
    "/etc/leveret-was-here",
    "..",
    ".",
    "a/../../../outside",
    "..\\..\\outside",
    "%2e%2e%2foutside",
    "file:///etc/passwd",
    "link",
    "nul\x00byte",
    "C:\\outside",
    "x" * 255,
)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory's parent, with a secret and a place that a link leads to."""
    folder = tmp_path_factory.mktemp("home")
    (folder / "secret.txt").write_text("secret")
    (folder / "elsewhere").mkdir()
    return folder


@pytest.fixture(scope="module")
def served(home: Path) -> Iterator[Served]:
    with serve(data_dir=home / "data") as threaded:
        (home / "data" / "link").symlink_to(home / "elsewhere")
        yield Served(threaded)


@pytest.fixture
def api(served: Served) -> Iterator[httpx.Client]:
    with served.client() as client:
        yield client


@pytest.fixture
def trap() -> Iterator[socket.socket]:
    """A listening socket; whoever connects stays in its queue, accepted or not."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        yield listening


def _is_untouched(home: Path) -> bool:
    inside = sorted(path.name for path in home.iterdir())
    return (
        inside == ["data", "elsewhere", "secret.txt"]
        and not list((home / "elsewhere").iterdir())
        and (home / "secret.txt").read_text() == "secret"
        and not Path("/etc/leveret-was-here").exists()
    )


def _url(*parts: str) -> str:
    return "/api/" + "/".join(segment(part) for part in parts)


@pytest.mark.parametrize("name", CLIMBING)
def test_no_name_is_a_path(api: httpx.Client, home: Path, name: str) -> None:
    """Vhosts, queues and above all logs, which are directories: those have numbers for names."""
    vhost = api.put(_url("vhosts", name), json={})
    assert vhost.status_code in (201, 204, 400), vhost.text
    where = name if vhost.status_code < 300 else "/"
    log = api.put(_url("logs", where, name), json={"partitions": 2})
    assert log.status_code in (201, 400), log.text
    if log.status_code == 201:
        records = {"records": [{"value": "v", "key": "k"}]}
        assert api.post(_url("logs", where, name, "publish"), json=records).status_code == 200
    queue = api.put(_url("queues", where, f"q {name}"[:255]), json={"durable": True})
    assert queue.status_code in (201, 400), queue.text
    assert _is_untouched(home)
    assert api.delete(_url("logs", where, name)).status_code in (204, 404)
    if where != "/":
        assert api.delete(_url("vhosts", name)).status_code == 204
    assert _is_untouched(home)


@pytest.mark.parametrize("name", CLIMBING)
def test_imported_names_are_no_paths_either(api: httpx.Client, home: Path, name: str) -> None:
    stream = {"x-queue-type": "stream", "x-partitions": 2}
    queue = {"name": name, "vhost": name, "durable": True, "auto_delete": False}
    rights = {"user": "guest", "vhost": name, "configure": ".*", "write": ".*", "read": ".*"}
    document = {
        "vhosts": [{"name": name}],
        "permissions": [rights],
        "queues": [queue | {"arguments": stream}],
    }
    assert api.post("/api/definitions", json=document).status_code in (204, 400)
    assert _is_untouched(home)
    assert api.delete(_url("vhosts", name)).status_code in (204, 404)
    assert _is_untouched(home)


@pytest.mark.parametrize("key", ["data_dir", "path", "to", "url", "read_log", "file", "table"])
@pytest.mark.parametrize("value", ["../secret.txt", "/etc/passwd", "file:///etc/passwd"])
def test_history_is_read_from_nowhere_else(
    api: httpx.Client, home: Path, key: str, value: str
) -> None:
    for what in ("ranges", "export"):
        answer = api.get(f"/api/history/{what}", params={"table": "events", key: value})
        assert answer.status_code == (400 if key == "table" else 200), answer.text
        content = answer.content.replace(value.encode(), b"")  # a refusal may name it
        assert b"secret" not in content and b"root:" not in content
    assert _is_untouched(home)


@pytest.mark.parametrize("name", ["../../x", "/etc/passwd", 'a"; filename="b', "a\r\nx: y"])
def test_name_of_a_download_is_only_a_name(api: httpx.Client, name: str) -> None:
    answer = api.get("/api/definitions", params={"download": name})
    said = answer.headers["content-disposition"]
    assert said.startswith('attachment; filename="') and said.count('"') == 2
    assert "/" not in said and "x" not in answer.headers


def _addresses(trap: socket.socket) -> list[str]:
    host, port = trap.getsockname()
    bare = f"{host}:{port}"
    return [f"http://{bare}/x", f"https://{bare}/x", f"amqp://a:b@{bare}/%2F", f"//{bare}/x"]


def test_no_value_is_an_address_to_call(api: httpx.Client, trap: socket.socket) -> None:
    """Everything that RabbitMQ's plugins, or a browser, would connect to."""
    for number, url in enumerate(_addresses(trap)):
        name = f"call-{number}"
        shovel = {"src-uri": url, "src-queue": "a", "dest-uri": url, "dest-queue": "b"}
        for component, value in (
            ("shovel", shovel),
            ("federation-upstream", {"uri": url, "expires": 1}),
            ("federation-upstream-set", [{"upstream": name}]),
            ("webhook", {"url": url}),
        ):
            path = _url("parameters", component, "/", name)
            assert api.put(path, json={"value": value}).status_code in (201, 204)
        assert api.put(_url("global-parameters", name), json={"value": url}).status_code == 201
        policy = {"pattern": ".*", "definition": {"federation-upstream": name}}
        assert api.put(_url("policies", "/", name), json=policy).status_code in (201, 204, 400)
        queue: Any = {"arguments": {"x-dead-letter-exchange": url, "x-uri": url}}
        assert api.put(_url("queues", "/", url), json=queue).status_code in (201, 400)
        assert api.put(_url("exchanges", "/", url), json={"type": "topic"}).status_code in (
            201,
            400,
        )
        body = {"vhosts": [], "parameters": [{"vhost": "/", "component": "shovel", "name": name}]}
        body["parameters"][0]["value"] = shovel  # type: ignore[assignment]
        assert api.post("/api/definitions", json=body).status_code == 204
        assert api.post("/api/definitions", json={"$ref": url}).status_code in (204, 400)
        for path in (f"/api/stream?view={quote(url, '')}", f"/api/route/{quote(url, '')}"):
            assert api.get(path).status_code >= 400
    with pytest.raises(BlockingIOError):
        trap.accept()


def test_no_header_is_an_address_to_call(api: httpx.Client, trap: socket.socket) -> None:
    for url in _addresses(trap):
        headers = {"x-forwarded-host": url, "referer": url, "x-original-url": url, "via": url}
        assert api.get("/api/overview", headers=headers).status_code == 200
    for target in _addresses(trap):
        assert _raw(api, f"GET {target} HTTP/1.1").startswith(b"HTTP/1.1 40"), target
        assert _raw(api, f"CONNECT {target} HTTP/1.1").startswith(b"HTTP/1.1 40"), target
    with pytest.raises(BlockingIOError):
        trap.accept()


def _raw(api: httpx.Client, line: str) -> bytes:
    """The first line of the answer to a request as a proxy would get it."""
    url = api.base_url
    with socket.create_connection((url.host, url.port or 0), timeout=60) as connection:
        connection.sendall(f"{line}\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())
        return connection.makefile("rb").readline()


# What can open connections at all ----------------------------------------------------------------

BROKER = ("leveret", "exchange", "queues", "bindings", "amqp_server", "http_admin")
CLIENTS = {
    "urllib.request", "http.client", "httpx", "requests", "aiohttp", "smtplib", "ftplib",
    "telnetlib", "poplib", "imaplib", "nntplib", "xmlrpc", "pika", "aio_pika", "kombu", "amqpstorm",
}  # fmt: skip
CALLS = {"create_connection", "open_connection", "create_datagram_endpoint", "sock_connect"}


OWN_CLIENTS = ("cli", "move", "testing")
"""The command line, the moving of messages between brokers, the fixtures of the pytest plugin."""

ENTRY_POINTS = ("__main__.py", "pytest_plugin.py")


def _is_own_client(module: str) -> bool:
    return module.startswith(tuple(f"leveret.{name}" for name in OWN_CLIENTS))


def _of_the_broker() -> Iterator[Path]:
    for room in BROKER:
        for path in sorted((ROOT / room).rglob("*.py")):
            parts = path.relative_to(ROOT).parts
            if not {"node_modules", *OWN_CLIENTS} & set(parts) and path.name not in ENTRY_POINTS:
                yield path


def test_no_module_of_the_broker_can_call_out() -> None:
    """Our own clients of brokers call out; everything else only listens, and imports none."""
    found = []
    for path in _of_the_broker():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [one.name for one in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            elif isinstance(node, ast.Attribute) and node.attr in CALLS:
                names = [node.attr]
            if any(name in CALLS or name in CLIENTS or _is_own_client(name) for name in names):
                found.append(f"{path.relative_to(ROOT)}: {names}")
    assert not found


# Clients of ours ---------------------------------------------------------------------------------


@pytest.fixture
def elsewhere(trap: socket.socket) -> Iterator[str]:
    """A server that sends everybody on to the trap."""
    target = f"http://127.0.0.1:{trap.getsockname()[1]}/api/overview"

    class Sends(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(302)
            self.send_header("location", target)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Sends)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_passwords_do_not_follow_a_redirect(elsewhere: str, trap: socket.socket) -> None:
    with pytest.raises(CliError, match="redirects the request"):
        Api(Target(elsewhere, "guest", "secret")).get("overview")
    with pytest.raises(SourceError, match="redirects to another address"):
        RemoteSource(elsewhere, "guest", "secret").ranges(Selection())
    with pytest.raises(BlockingIOError):
        trap.accept()
