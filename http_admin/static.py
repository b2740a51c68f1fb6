"""The web UI's files: a build under `ui/dist`, served from memory and compressed once.

Files under `assets/` have a hash of their content in their names and may be cached for ever; others
are revalidated by ETag on each request. Without a build, a page says so; the API does not need it.

Not starlette's StaticFiles (docs/decisions/0012): it neither negotiates pre-compressed files nor
compresses, and compressing on each request would occupy the event loop.
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

from leveret.http_admin.errors import not_found

DIST = Path(__file__).parent / "ui" / "dist"
PAGES = Path(__file__).parent / "pages"
IMMUTABLE = "public, max-age=31536000, immutable"
REVALIDATE = "no-cache"
MIN_COMPRESSED_SIZE = 1024
_COMPRESSIBLE = ("text/", "application/javascript", "application/json", "image/svg")
_MEDIA_TYPES = {
    ".js": "text/javascript",
    ".mjs": "text/javascript",
    ".svg": "image/svg+xml",
    ".css": "text/css",
    ".html": "text/html",
    ".woff2": "font/woff2",
}
_ENCODINGS = {"br": ".br", "gzip": ".gz"}


class _UiPath(Convertor[str]):
    """Every path that does not belong to the API."""

    regex = "(?!(?:api|metrics)(?:/|$)).*"

    def convert(self, value: str) -> str:
        return unquote(value)

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("ui", _UiPath())
router = APIRouter(include_in_schema=False)


@dataclass(frozen=True, slots=True)
class File:
    media_type: str
    etag: str
    content: bytes
    encoded: dict[str, bytes]
    """The content compressed, by content encoding."""
    modified_ns: int


class Files:
    """Files of one directory, read on the first request and again when they change."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._cache: dict[str, File] = {}

    def maybe_get(self, name: str) -> File | None:
        path = self._root / name
        try:
            if not path.resolve().is_relative_to(self._root.resolve()) or not path.is_file():
                return None
            modified = path.stat().st_mtime_ns
            file = self._cache.get(name)
            if file is None or file.modified_ns != modified:
                file = self._cache[name] = _read(path, modified)
        except (OSError, ValueError):
            return None
        return file


def _read(path: Path, modified_ns: int) -> File:
    content = path.read_bytes()
    media_type = _MEDIA_TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0]
    media_type = media_type or "application/octet-stream"
    compressed = {encoding: path.with_name(path.name + end) for encoding, end in _ENCODINGS.items()}
    encoded = {
        encoding: file.read_bytes() for encoding, file in compressed.items() if file.is_file()
    }
    is_worthwhile = len(content) >= MIN_COMPRESSED_SIZE and media_type.startswith(_COMPRESSIBLE)
    if "gzip" not in encoded and is_worthwhile:
        encoded["gzip"] = gzip.compress(content, 9, mtime=0)
    etag = f'"{hashlib.sha256(content).hexdigest()[:20]}"'
    return File(media_type, etag, content, encoded, modified_ns)


def respond(request: Request, file: File, caching: str) -> Response:
    headers = {"etag": file.etag, "cache-control": caching, "vary": "accept-encoding"}
    if request.headers.get("if-none-match") == file.etag:
        return Response(status_code=304, headers=headers)
    content = file.content
    accepted = request.headers.get("accept-encoding", "")
    for encoding in _ENCODINGS:
        if encoding in accepted and encoding in file.encoded:
            content, headers["content-encoding"] = file.encoded[encoding], encoding
            break
    return Response(content, media_type=file.media_type, headers=headers)


ui = Files(DIST)
pages = Files(PAGES)


@router.get("/{path:ui}")
async def serve_ui(path: str, request: Request) -> Response:
    """A file of the web UI; its page at the root."""
    file = ui.maybe_get(path or "index.html")
    if file is not None:
        return respond(request, file, IMMUTABLE if path.startswith("assets/") else REVALIDATE)
    if path in ("", "index.html"):
        page = pages.maybe_get("no-ui.html")
        assert page is not None
        return respond(request, page, "no-store")
    if path == "style.css":
        style = pages.maybe_get("style.css")
        assert style is not None
        return respond(request, style, REVALIDATE)
    raise not_found()
