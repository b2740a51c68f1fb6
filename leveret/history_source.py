"""Lets the HTTP API hand out stored history, without the two fronts knowing each other.

pyarrow is imported at the first request, and only there: a broker without it runs, and says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


class StoredHistory:
    """Answers `/api/history/ranges` and `/api/history/export` from the data directory."""

    def ranges(
        self, data_dir: Path, params: Mapping[str, str], vhosts: frozenset[str] | None
    ) -> dict[str, Any]:
        from spark_sink.errors import SourceError
        from spark_sink.readers import answer_ranges

        try:
            return answer_ranges(data_dir, params, vhosts)
        except SourceError as error:
            raise ValueError(str(error)) from error

    def export(
        self, data_dir: Path, params: Mapping[str, str], vhosts: frozenset[str] | None
    ) -> Iterator[bytes]:
        from spark_sink.errors import SourceError
        from spark_sink.readers import answer_export

        try:
            yield from answer_export(data_dir, params, vhosts)
        except SourceError as error:
            raise ValueError(str(error)) from error
