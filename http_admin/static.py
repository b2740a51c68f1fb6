"""The web UI's files: a build under `ui/dist`, served from memory, compressed once.

Names under `assets/` carry a hash of their content and may be kept for ever; everything else is
asked for anew each time and answered with 304 while it has not changed. Where no build is present
a page says so: the API does not need it.
"""

from __future__ import annotations

import gzip
import hashlib
import mimetypes
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from fastapi import APIRouter, Request
from starlette.convertors import Convertor, register_url_convertor
from starlette.responses import Response

from http_admin.errors import not_found

DIST = Path(__file__).parent / "ui" / "dist"
PAGES = Path(__file__).parent / "pages"
FOR_EVER = "public, max-age=31536000, immutable"
ASK_AGAIN = "no-cache"
SMALLEST_COMPRESSED = 1024
_COMPRESSED_KINDS = ("text/", "application/javascript", "application/json", "image/svg")
_KINDS = {".js": "text/javascript", ".mjs": "text/javascript", ".svg": "image/svg+xml"}
_KINDS |= {".css": "text/css", ".html": "text/html", ".woff2": "font/woff2"}


class _UiPath(Convertor[str]):
    """Everything that is no path of the API."""

    regex = "(?!(?:api|metrics)(?:/|$)).*"

    def convert(self, value: str) -> str:
        return unquote(value)

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("ui", _UiPath())
router = APIRouter(include_in_schema=False)


@dataclass(frozen=True, slots=True)
class File:
    kind: str
    tag: str
    plain: bytes
    packed: dict[str, bytes]
    changed_ns: int


class Files:
    """Files of one directory, read when first asked for and again when they change."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._held: dict[str, File] = {}

    def find(self, name: str) -> File | None:
        path = self._root / name
        try:
            if not path.resolve().is_relative_to(self._root.resolve()) or not path.is_file():
                return None
            changed = path.stat().st_mtime_ns
            held = self._held.get(name)
            if held is None or held.changed_ns != changed:
                held = self._held[name] = _read(path, changed)
        except (OSError, ValueError):
            return None
        return held


def _read(path: Path, changed_ns: int) -> File:
    plain = path.read_bytes()
    kind = _KINDS.get(path.suffix) or mimetypes.guess_type(path.name)[0]
    kind = kind or "application/octet-stream"
    packed = {}
    for encoding, suffix in (("br", ".br"), ("gzip", ".gz")):
        ready = path.with_name(path.name + suffix)
        if ready.is_file():
            packed[encoding] = ready.read_bytes()
    if (
        "gzip" not in packed
        and len(plain) >= SMALLEST_COMPRESSED
        and kind.startswith(_COMPRESSED_KINDS)
    ):
        packed["gzip"] = gzip.compress(plain, 9, mtime=0)
    tag = f'"{hashlib.sha256(plain).hexdigest()[:20]}"'
    return File(kind, tag, plain, packed, changed_ns)


def answer_file(request: Request, file: File, caching: str) -> Response:
    headers = {"etag": file.tag, "cache-control": caching, "vary": "accept-encoding"}
    if request.headers.get("if-none-match") == file.tag:
        return Response(status_code=304, headers=headers)
    body = file.plain
    accepted = request.headers.get("accept-encoding", "")
    for encoding in ("br", "gzip"):
        if encoding in accepted and encoding in file.packed:
            body, headers["content-encoding"] = file.packed[encoding], encoding
            break
    return Response(body, media_type=file.kind, headers=headers)


ui = Files(DIST)
pages = Files(PAGES)


@router.get("/{path:ui}")
def serve_ui(path: str, request: Request) -> Response:
    """A file of the web UI; its page at the root."""
    file = ui.find(path or "index.html")
    if file is not None:
        return answer_file(request, file, FOR_EVER if path.startswith("assets/") else ASK_AGAIN)
    if path in ("", "index.html"):
        missing = pages.find("no-ui.html")
        assert missing is not None
        return answer_file(request, missing, "no-store")
    if path == "style.css":
        style = pages.find("style.css")
        assert style is not None
        return answer_file(request, style, ASK_AGAIN)
    raise not_found()
