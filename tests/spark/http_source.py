"""The two history routes on a plain HTTP server, served directly by the readers."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from leveret.spark_sink.arrow.local import history_export, history_ranges
from leveret.spark_sink.errors import SourceError

_ALLOWED = "Basic " + base64.b64encode(b"u:p").decode()


@contextmanager
def serve(data_dir: Path) -> Iterator[str]:
    """The URL of a server for one data directory; user u, password p."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.headers["Authorization"] != _ALLOWED:
                self.respond(401, b"{}")
                return
            parts = urlsplit(self.path)
            params = dict(parse_qsl(parts.query, keep_blank_values=True))
            try:
                if parts.path == "/api/history/ranges":
                    self.respond(200, json.dumps(history_ranges(data_dir, params)).encode())
                else:
                    assert parts.path == "/api/history/export"
                    self.respond(200, b"".join(history_export(data_dir, params)))
            except SourceError as error:
                self.respond(400, json.dumps({"reason": str(error)}).encode())

        def respond(self, code: int, body: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """No log output."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
