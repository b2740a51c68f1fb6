"""The web UI's files, the docs page and the OpenAPI document."""

from __future__ import annotations

import gzip
from html.parser import HTMLParser
from pathlib import Path

import httpx
import pytest

from leveret.http_admin import static
from leveret.http_admin.static import Files
from tests.http.conftest import Served


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A build of the UI like that of Vite."""
    dist = tmp_path / "dist"
    (dist / "assets").mkdir(parents=True)
    (dist / "index.html").write_text("<!doctype html><title>ui</title>")
    (dist / "favicon.svg").write_text("<svg/>")
    (dist / "assets" / "index-abc.js").write_text("let a = 1;\n" * 500)
    (tmp_path / "secret.txt").write_text("secret")
    monkeypatch.setattr(static, "ui", Files(dist))
    return dist


def test_index_is_revalidated_and_assets_are_immutable(built: Path, api: httpx.Client) -> None:
    index = api.get("/")
    assert (index.status_code, index.headers["cache-control"]) == (200, "no-cache")
    assert index.headers["content-type"] == "text/html; charset=utf-8"
    asset = api.get("/assets/index-abc.js")
    assert "immutable" in asset.headers["cache-control"]
    assert asset.headers["content-type"].startswith("text/javascript")
    assert api.get("/favicon.svg").headers["content-type"] == "image/svg+xml"


def test_unchanged_file_is_304(built: Path, api: httpx.Client) -> None:
    tag = api.get("/").headers["etag"]
    assert api.get("/", headers={"if-none-match": tag}).status_code == 304
    (built / "index.html").write_text("<!doctype html><title>new</title>")
    assert "new" in api.get("/", headers={"if-none-match": tag}).text


def test_assets_are_compressed_if_accepted(built: Path, api: httpx.Client) -> None:
    plain = api.get("/assets/index-abc.js", headers={"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers
    packed = api.get("/assets/index-abc.js", headers={"accept-encoding": "gzip"})
    assert packed.headers["content-encoding"] == "gzip"
    assert int(packed.headers["content-length"]) < len(plain.content) / 5
    assert packed.content == plain.content


def test_precompressed_files_of_the_build_are_used(built: Path, api: httpx.Client) -> None:
    ready = built / "assets" / "index-abc.js.gz"
    ready.write_bytes(gzip.compress(b"from the build"))
    answer = api.get("/assets/index-abc.js", headers={"accept-encoding": "gzip"})
    assert answer.content == b"from the build"


@pytest.mark.parametrize(
    "path", ["/../secret.txt", "/..%2fsecret.txt", "/assets/..%2f..%2fsecret.txt", "/assets",
             "/%00", "//etc/passwd", "/%2fetc%2fpasswd"]
)  # fmt: skip
def test_nothing_outside_the_build_is_served(built: Path, broker: Served, path: str) -> None:
    with broker.client() as client:
        request = client.build_request("GET", "/")
        request.url = request.url.copy_with(raw_path=path.encode())
        answer = client.send(request)
    assert answer.status_code == 404
    assert "secret" not in answer.text


def test_page_without_a_build_of_the_ui(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, api: httpx.Client
) -> None:
    monkeypatch.setattr(static, "ui", Files(tmp_path / "nothing"))
    page = api.get("/")
    assert page.status_code == 200
    assert "without its dashboard" in page.text
    assert api.get("/style.css").headers["content-type"].startswith("text/css")
    assert api.get("/api/overview").status_code == 200


class _Inspector(HTMLParser):
    """Finds what the Content-Security-Policy would block."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[str] = []
        self.ids: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("script", "style"):
            self.faults.append(tag)
        for name, value in attrs:
            if name == "style" or name.startswith("on") or "//" in (value or ""):
                self.faults.append(f"{tag} {name}={value}")
            if name == "id":
                self.ids.add(value or "")


def test_docs_page_has_no_script_and_no_external_resource(api: httpx.Client) -> None:
    page = api.get("/api/docs")
    assert page.headers["content-type"].startswith("text/html")
    inspector = _Inspector()
    inspector.feed(page.text)
    assert inspector.faults == []
    assert "tag-queues" in inspector.ids
    assert "/api/queues/{vhost}/{name}" in page.text


def test_openapi_document_has_every_route(broker: Served, api: httpx.Client) -> None:
    described = api.get("/api/openapi.json").json()
    shown = {(method, path) for path, methods in described["paths"].items() for method in methods}
    routes = {
        (method.lower(), route.path_format)
        for route in broker.app.routes
        if route.include_in_schema
        for method in route.methods
    }
    assert shown == routes
    ids = [op["operationId"] for ops in described["paths"].values() for op in ops.values()]
    assert len(ids) == len(set(ids))
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            assert operation.get("description"), f"{method} {path} has no description"
            assert "422" not in operation["responses"]
    queue = described["components"]["schemas"]["QueueRow"]
    assert {"name", "vhost", "messages", "consumers"} <= queue["properties"].keys()
