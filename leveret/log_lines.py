"""The broker's log on standard error: one line per record, for people or for programs.

Names come from outside, so a record must not be able to make a second line or to move the cursor:
what cannot be printed is escaped, in both forms. Nobody hands a password to a logger; the tests
look for some all the same. As JSON, `facts` given with a record are fields of their own.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

from leveret.config import Settings


def escaped(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class TextLines(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        record.message = escaped(record.message)
        return super().formatMessage(record)


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC)
        row = {
            "time": when.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info:
            row["exception"] = self.formatException(record.exc_info)
        return json.dumps(row, default=str)


def configure(settings: Settings) -> None:
    """Log to standard error from now on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if settings.log_format == "json" else TextLines())
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler])
    # Its starts, stops and refused requests have lines of ours.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
