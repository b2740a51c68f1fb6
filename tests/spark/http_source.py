"""The two history routes on a plain HTTP server, answered by the readers themselves."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from spark_sink.errors import SourceError
from spark_sink.readers import answer_export, answer_ranges

_ALLOWED = "Basic " + base64.b64encode(b"u:p").decode()


@contextmanager
def serve(data_dir: Path) -> Iterator[str]:
    """The address of a server for one data directory; user u, password p."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.headers["Authorization"] != _ALLOWED:
                self.answer(401, b"{}")
                return
            parts = urlsplit(self.path)
            params = dict(parse_qsl(parts.query, keep_blank_values=True))
            try:
                if parts.path == "/api/history/ranges":
                    self.answer(200, json.dumps(answer_ranges(data_dir, params)).encode())
                else:
                    assert parts.path == "/api/history/export"
                    self.answer(200, b"".join(answer_export(data_dir, params)))
            except SourceError as error:
                self.answer(400, json.dumps({"reason": str(error)}).encode())

        def answer(self, code: int, body: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Tests are quiet."""

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
