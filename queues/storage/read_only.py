"""Opens a data directory's database for reading, beside the broker that writes it or without one.

The connection never writes and never checkpoints. Each statement is its own short read
transaction, so a reader never blocks the writer and never keeps the write-ahead log from being
reset. A crash of the reader leaves nothing behind.
"""

import sqlite3
from pathlib import Path
from typing import Final

from leveret.queues.storage import statements

BUSY_SECONDS: Final = 10.0


def open_read_only(
    database: Path, *, as_bytes: bool = False, immutable: bool = False
) -> sqlite3.Connection:
    """`as_bytes`: text is returned undecoded.

    `immutable`: no process writes the file, and no write-ahead log can be created beside it.
    The connection may be used from any thread, but by one thread at a time.
    """
    mode = "immutable=1" if immutable else "mode=ro"
    connection = sqlite3.connect(
        f"{database.resolve().as_uri()}?{mode}",
        uri=True,
        timeout=BUSY_SECONDS,
        isolation_level=None,
        check_same_thread=False,
    )
    try:
        if as_bytes:
            connection.text_factory = bytes
        for statement in statements.AT_READER_START:
            connection.execute(statement).fetchall()
    except BaseException:
        connection.close()
        raise
    return connection
