"""Reads a broker's history over its HTTP API: the same interface as `local.LocalSource`.

Executors on other machines need no access to the broker's disk, and see what the user may see.
No connection stays open between calls. A `RemoteSource` belongs to one thread.
"""

from __future__ import annotations

import io
import json
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import httpx
import pyarrow as pa

from leveret.queues.storage.trims import Trims
from leveret.spark_sink.arrow.selection import Request, Selection, Split, selection_to_params
from leveret.spark_sink.arrow.source import LOST, LogPartition, Ranges, ReadStats
from leveret.spark_sink.errors import SourceError

TIMEOUT_SECONDS = 60.0
_BUFFER_BYTES = 1 << 20
_ERROR_BYTES = 2000


class RemoteSource:
    """The history of the broker at `url`, read as `user`."""

    def __init__(self, url: str, user: str, password: str) -> None:
        if not url.startswith(("http://", "https://")):
            raise SourceError(f"{url!r} is not a URL: it must begin with http:// or https://.")
        if "@" in url.split("/")[2]:
            raise SourceError("The URL must not contain a password: give --user and --password.")
        self._url = url.rstrip("/")
        self._client = httpx.Client(
            auth=(user, password),
            headers={"Accept-Encoding": "identity"},
            timeout=TIMEOUT_SECONDS,
            limits=httpx.Limits(max_keepalive_connections=0),
            verify=ssl.create_default_context(),
            follow_redirects=False,  # the password is for this broker only
        )

    def __repr__(self) -> str:
        return f"<RemoteSource {self._url}>"

    def close(self) -> None:
        self._client.close()

    def check(self, selection: Selection, table: str | None = None) -> None:
        named = {} if table is None else {"table": table}
        self._ranges(selection_to_params(selection) | named | {"check": "1"})

    def ranges(self, selection: Selection) -> Ranges:
        response = self._ranges(selection_to_params(selection))
        partitions = [LogPartition(**part) for part in response["partitions"]]
        return Ranges(
            identity=str(response["identity"]),
            messages=_span(response["messages"]),
            events=_span(response["events"]),
            partitions={part.queue_id: part for part in partitions},
            trims={table: Trims.from_values(trims) for table, trims in response["trims"].items()},
        )

    def splits(self, request: Request, rows: int, limit: int | None = None) -> list[Split]:
        params = request.to_params() | {"rows": str(rows), "limit": str(limit or 0)}
        return [Split(**split) for split in self._ranges(params)["splits"]]

    def count(self, request: Request) -> dict[str, Any]:
        counts: dict[str, Any] = self._ranges(request.to_params() | {"count": "1"})["count"]
        return counts

    def read(self, request: Request, stats: ReadStats) -> Iterator[pa.RecordBatch]:
        stats.columns = request.columns
        with self._get("export", request.to_params()) as response:
            body = io.BufferedReader(_ResponseBody(response.iter_bytes()), _BUFFER_BYTES)
            for batch in _batches(pa.ipc.open_stream(body), stats):
                stats.queries += 1
                stats.rows += batch.num_rows
                stats.scanned += batch.num_rows
                stats.bytes += batch.nbytes
                yield batch

    def _ranges(self, params: Mapping[str, str]) -> dict[str, Any]:
        with self._get("ranges", params) as response:
            decoded: dict[str, Any] = json.loads(response.read())
        return decoded

    @contextmanager
    def _get(self, path: str, params: Mapping[str, str]) -> Iterator[httpx.Response]:
        request = self._client.build_request(
            "GET", f"{self._url}/api/history/{path}", params=dict(params)
        )
        try:
            response = self._client.send(request, stream=True)
        except (OSError, httpx.HTTPError, httpx.InvalidURL) as error:
            raise SourceError(
                f"Cannot reach a broker at {self._url} ({error}): check the URL, "
                "and that the broker's management listener is on."
            ) from None
        try:
            if response.status_code != httpx.codes.OK:
                raise SourceError(_error_text(response, self._url))
            yield response
        finally:
            response.close()


def _batches(reader: Any, stats: ReadStats) -> Iterator[pa.RecordBatch]:
    with suppress(StopIteration):
        while True:
            batch, metadata = reader.read_next_batch_with_custom_metadata()
            if metadata is not None and LOST.encode() in metadata:
                stats.lost += [_span(span) for span in json.loads(metadata[LOST.encode()])]
            else:
                yield batch


class _ResponseBody(io.RawIOBase):
    """The chunks of a response as a file."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            try:
                self._rest = next(self._chunks)
            except StopIteration:
                return 0
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size


def _error_text(response: httpx.Response, url: str) -> str:
    code = response.status_code
    if code == httpx.codes.UNAUTHORIZED:
        return f"{url} refused the user or the password: give --user and --password."
    if code == httpx.codes.FORBIDDEN:
        return f"{url} does not let this user read history: it needs the tag monitoring."
    if code == httpx.codes.NOT_FOUND:
        return f"{url} has no message history: give the URL of a Leveret HTTP API."
    if code < 400:
        return f"{url} redirects to another address ({code}): give the broker's own URL."
    body = _first_bytes(response, _ERROR_BYTES).decode("utf-8", "replace")
    try:
        reason = json.loads(body).get("reason") or body
    except (ValueError, AttributeError):
        reason = body
    return f"{url} answered {code}: {reason}"


def _first_bytes(response: httpx.Response, limit: int) -> bytes:
    body = b""
    for chunk in response.iter_bytes():
        body += chunk
        if len(body) >= limit:
            break
    return body[:limit]


def _span(values: Any) -> tuple[int, int]:
    first, following = values
    return int(first), int(following)
