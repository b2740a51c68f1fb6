"""A small HTTP server with scripted answers that records its requests."""

from __future__ import annotations

import base64
import json
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from leveret.cli import run

Answer = Any


@dataclass(frozen=True)
class Request:
    """One request: path as sent (escapes kept), query, decoded JSON body, headers."""

    method: str
    path: str
    query: dict[str, str]
    body: Any
    headers: dict[str, str]

    @property
    def line(self) -> str:
        return f"{self.method} {self.path}"


@dataclass
class FakeServer:
    """`answers["GET /api/x"]` is JSON, bytes, (status, value), `AnswerSequence` or a callable."""

    url: str = ""
    answers: dict[str, Answer] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    password: str = "guest"
    close: Callable[[], None] = lambda: None

    def lines(self) -> list[str]:
        return [request.line for request in self.requests]

    def bodies(self, line: str) -> list[Any]:
        return [request.body for request in self.requests if request.line == line]

    def answer(self, request: Request) -> tuple[int, Answer]:
        expected = base64.b64encode(f"guest:{self.password}".encode()).decode()
        if request.headers.get("authorization") != f"Basic {expected}":
            return 401, {"error": "not_authorized", "reason": "Login failed"}
        if request.line not in self.answers:
            missing = {"error": "Object Not Found", "reason": "Not Found"}
            return (404, missing) if request.method == "GET" else (204, None)
        answer = self.answers[request.line]
        if isinstance(answer, AnswerSequence):
            answer = answer.items.pop(0)
        if callable(answer):
            answer = answer()
        return answer if isinstance(answer, tuple) else (200, answer)


@dataclass
class AnswerSequence:
    """Successive answers to the same request."""

    items: list[Answer]


def _handler(script: FakeServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        # HTTP/1.0: each request has its own connection, so a closed server stops at once.
        protocol_version = "HTTP/1.0"

        def handle_any(self) -> None:
            parts = urlsplit(self.path)
            content = self.rfile.read(int(self.headers.get("content-length") or 0))
            headers = {key.lower(): value for key, value in self.headers.items()}
            body = json.loads(content) if content else None
            request = Request(self.command, parts.path, dict(parse_qsl(parts.query)), body, headers)
            script.requests.append(request)
            status, value = script.answer(request)
            payload = value if isinstance(value, bytes) else json.dumps(value).encode()
            payload = b"" if value is None else payload
            self.send_response(status)
            self.send_header("content-length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        do_GET = do_PUT = do_POST = do_DELETE = handle_any  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    return Handler


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    script = FakeServer()
    http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(script))
    http.daemon_threads = True
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    script.close = http.server_close
    script.url = f"http://127.0.0.1:{http.server_address[1]}"
    for name in ("LEVERET_USER", "LEVERET_PASSWORD", "LEVERET_VHOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LEVERET_URL", script.url)
    yield script
    http.shutdown()
    thread.join()
    http.server_close()


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """Run a command line in this process."""

    def call(*argv: str) -> Ended:
        code = run(argv)
        return Ended(int(code), *capfd.readouterr())

    return call


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bytes], None]]:
    """Replace standard input by a pipe with this content."""
    opened = []

    def give(content: bytes) -> None:
        read, write = os.pipe()
        os.write(write, content)
        os.close(write)
        opened.append(os.fdopen(read))
        monkeypatch.setattr("sys.stdin", opened[-1])

    yield give
    for file in opened:
        file.close()
