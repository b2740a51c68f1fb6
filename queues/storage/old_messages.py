"""The table `messages` of schemas 1 to 3, with one row per message: for migration and salvage.

A row has two checksums: one of its head (id, size, exchange, routing key, properties) and one of
its body. Schema 4 stores content in `message_packs` (see `packs`).
"""

from collections.abc import Mapping
from typing import Any, Final

from leveret.model.checksum import checksum, extend

LAST_VERSION: Final = 3
COLUMNS: Final = (
    "id", "time_ms", "origin", "keep", "size", "exchange", "routing_key", "properties", "body",
    "head_crc", "body_crc", "first_part",
)  # fmt: skip
_MASK: Final = 0xFFFFFFFF


class RowsOutOfOrder(Exception):
    """A page of the table is not where it belongs: the database has to be repaired first."""


def route_checksum(exchange: bytes, routing_key: bytes) -> int:
    """The part of the head that many messages share; the length separates the two names."""
    return extend(extend(len(exchange), exchange), routing_key)


def head_checksum(route: int, message_id: int, size: int, properties: bytes) -> int:
    """The numbers are part of the seed: a change of any single one changes the checksum."""
    return extend((route + message_id * 31 + size * 1021 + len(properties)) & _MASK, properties)


def is_sound(row: Mapping[str, Any]) -> bool:
    """Whether a row matches its checksums; a body in parts is not looked at."""
    route = route_checksum(row["exchange"].encode(), row["routing_key"].encode())
    if head_checksum(route, row["id"], row["size"], row["properties"]) != row["head_crc"]:
        return False
    body = row["body"]
    return body is None or (len(body) == row["size"] and checksum(body) == row["body_crc"])
