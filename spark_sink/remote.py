"""A broker's history over its HTTP API: the same questions as `readers.LocalSource` answers.

Executors on other machines need no access to the broker's disk, and see what the user may see.
Nothing is kept between calls, so a `RemoteSource` can be pickled and used anywhere.
"""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from http.client import HTTPResponse
from typing import Any

import pyarrow as pa

from spark_sink.chunks import Tally
from spark_sink.errors import SourceError
from spark_sink.readers import Ranges
from spark_sink.selection import Request, Selection, Split, selection_params

TIMEOUT_SECONDS = 60.0


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Where an answer leads is not where the password belongs."""

    def redirect_request(self, *_: Any) -> None:
        return None


class RemoteSource:
    """The history of the broker at `url`, read as `user`."""

    def __init__(self, url: str, user: str, password: str) -> None:
        if not url.startswith(("http://", "https://")):
            raise SourceError(f"{url!r} is no address: it begins with http:// or https://.")
        if "@" in url.split("/")[2]:
            raise SourceError("The address must hold no password: give --user and --password.")
        self._url = url.rstrip("/")
        token = base64.b64encode(f"{user}:{password}".encode()).decode()
        self._headers = {"Authorization": f"Basic {token}"}

    def __repr__(self) -> str:
        return f"<RemoteSource {self._url}>"

    def close(self) -> None:
        """Nothing is open between calls."""

    def check(self, selection: Selection) -> None:
        self._ranges(selection_params(selection) | {"check": "1"})

    def ranges(self, selection: Selection) -> Ranges:
        answer = self._ranges(selection_params(selection))
        return Ranges(
            identity=str(answer["identity"]),
            messages=_span(answer["messages"]),
            events=_span(answer["events"]),
            logs={int(queue_id): _span(span) for queue_id, span in answer["logs"].items()},
        )

    def splits(self, request: Request, rows: int, limit: int | None = None) -> list[Split]:
        params = request.to_params() | {"rows": str(rows), "limit": str(limit or 0)}
        return [Split(**split) for split in self._ranges(params)["splits"]]

    def count(self, request: Request) -> dict[str, Any]:
        counted: dict[str, Any] = self._ranges(request.to_params() | {"count": "1"})["count"]
        return counted

    def read(self, request: Request, tally: Tally) -> Iterator[pa.RecordBatch]:
        tally.columns = request.columns
        with self._get("export", request.to_params()) as answer:
            for batch in pa.ipc.open_stream(answer):
                tally.queries += 1
                tally.rows += batch.num_rows
                tally.scanned += batch.num_rows
                tally.bytes += batch.nbytes
                yield batch

    def _ranges(self, params: Mapping[str, str]) -> dict[str, Any]:
        with self._get("ranges", params) as answer:
            decoded: dict[str, Any] = json.load(answer)
        return decoded

    def _get(self, what: str, params: Mapping[str, str]) -> HTTPResponse:
        query = urllib.parse.urlencode(dict(params))
        request = urllib.request.Request(  # noqa: S310 (the scheme was checked)
            f"{self._url}/api/history/{what}?{query}", headers=self._headers
        )
        try:
            opener = urllib.request.build_opener(_NoRedirects)
            answer: HTTPResponse = opener.open(request, timeout=TIMEOUT_SECONDS)
        except urllib.error.HTTPError as error:
            raise SourceError(_sentence(error, self._url)) from None
        except (OSError, urllib.error.URLError) as error:
            reason = getattr(error, "reason", error)
            raise SourceError(
                f"Cannot reach a broker at {self._url} ({reason}): check the address, "
                "and that its management listener is on."
            ) from None
        return answer


def _sentence(error: urllib.error.HTTPError, url: str) -> str:
    with error:
        if error.code == 401:
            return f"{url} refused the user or the password: give --user and --password."
        if error.code == 403:
            return f"{url} does not let this user read history: it needs the tag monitoring."
        if error.code == 404:
            return f"{url} has no message history: give the address of a Leveret's HTTP API."
        if error.code < 400:
            return f"{url} sends readers elsewhere ({error.code}): give the broker's own address."
        body = error.read(2000).decode("utf-8", "replace")
    try:
        reason = json.loads(body).get("reason") or body
    except (ValueError, AttributeError):
        reason = body
    return f"{url} answered {error.code}: {reason}"


def _span(values: Any) -> tuple[int, int]:
    first, following = values
    return int(first), int(following)
