"""The broker's log on standard error: one line per record, as text or JSON.

Names come from clients, so a record must not be able to start a second line or move the cursor:
unprintable characters are escaped in both formats. Passwords are never logged; tests look for them.
In JSON, the `facts` given with a record become separate fields.
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


class TextFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        record.message = escaped(record.message)
        return super().formatMessage(record)


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC)
        row = {
            "time": time.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info:
            row["exception"] = self.formatException(record.exc_info)
        return json.dumps(row, default=str)


def configure_logging(settings: Settings) -> None:
    """Log to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if settings.log_format == "json" else TextFormatter())
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler])
    # We log uvicorn's starts, stops and rejected requests ourselves.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
