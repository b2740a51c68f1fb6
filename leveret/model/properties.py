"""The property list of a content header, read without decoding what nobody asks for.

`properties` everywhere in Leveret means these bytes: property flags, then the property list, as
on the wire. A delivery carries the publisher's own bytes; `scan` finds what the broker must know.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from leveret.model.errors import ProtocolError
from leveret.model.tables import Table, check_table, decode_table, edit_table, encode_table

NAMES = (
    "content_type", "content_encoding", "headers", "delivery_mode", "priority",
    "correlation_id", "reply_to", "expiration", "message_id", "timestamp", "type",
    "user_id", "app_id", "cluster_id",
)  # fmt: skip
_WIDTHS = {"delivery_mode": 1, "priority": 1, "timestamp": 8}
_FLAG = {name: 1 << (15 - index) for index, name in enumerate(NAMES)}
_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")
_CACHEABLE = 128
EMPTY = b"\x00\x00"
DIRECT_REPLY_TO = "amq.rabbitmq.reply-to"
# Headers that have a say in routing, as their keys stand in a table.
_ROUTING_SIGNS = (b"\x02CC", b"\x03BCC", b"\x0bx-partition")


@dataclass(frozen=True, slots=True)
class Scan:
    """Where each property stands, and the few values that decide what happens to a message."""

    spans: dict[str, tuple[int, int]]
    persistent: bool
    priority: int | None
    expiration: str | None
    user_id: str | None
    reply_to: str | None
    has_headers: bool
    needs_care: bool
    """Something in it is judged or rewritten by the broker before routing."""


def scan(properties: bytes) -> Scan:
    """Find the properties; raises ProtocolError where they do not fit their bytes."""
    if len(properties) <= _CACHEABLE:
        return _scan_cached(properties)
    return _scan(properties)


def scan_own(properties: bytes) -> Scan:
    """The same for what the broker itself has edited: its additions never go beyond a limit."""
    try:
        return scan(properties)
    except ProtocolError:
        return _scan(properties, own=True)


def _scan(properties: bytes, own: bool = False) -> Scan:
    if len(properties) < 2:
        raise ProtocolError("content header has no property flags")
    flags = _U16.unpack_from(properties)[0]
    if flags & 0b11:
        raise ProtocolError("content header has unknown property flags")
    spans: dict[str, tuple[int, int]] = {}
    position, limit = 2, len(properties)
    for name in NAMES:
        if flags & _FLAG[name]:
            start = position
            position = _end_of(name, properties, position, limit, own)
            spans[name] = (start, position)
    if position != limit:
        raise ProtocolError("content header is longer than its properties")
    expiration = _text(properties, spans, "expiration")
    user_id = _text(properties, spans, "user_id")
    reply_to = _text(properties, spans, "reply_to")
    return Scan(
        spans=spans,
        persistent="delivery_mode" in spans and properties[spans["delivery_mode"][0]] == 2,
        priority=properties[spans["priority"][0]] if "priority" in spans else None,
        expiration=expiration,
        user_id=user_id,
        reply_to=reply_to,
        has_headers="headers" in spans,
        needs_care=expiration is not None
        or user_id is not None
        or reply_to == DIRECT_REPLY_TO
        or ("headers" in spans and any(sign in properties for sign in _ROUTING_SIGNS)),
    )


_scan_cached = lru_cache(maxsize=4096)(_scan)


def _end_of(name: str, data: bytes, position: int, limit: int, own: bool) -> int:
    if name == "headers":
        return check_table(data, position, limit, own)
    width = _WIDTHS.get(name)
    if width is None:
        width = 1 + data[position] if position < limit else 1
    if position + width > limit:
        raise ProtocolError(f"property {name} is cut off")
    return position + width


def _text(data: bytes, spans: dict[str, tuple[int, int]], name: str) -> str | None:
    span = spans.get(name)
    if span is None:
        return None
    try:
        return data[span[0] + 1 : span[1]].decode()
    except UnicodeDecodeError as error:
        raise ProtocolError(f"property {name} is not UTF-8") from error


def headers_of(properties: bytes) -> Table:
    span = scan_own(properties).spans.get("headers")
    return decode_table(properties[span[0] : span[1]], own=True) if span else {}


def decode_properties(properties: bytes) -> dict[str, Any]:
    """Every property by name, decoded; timestamps as seconds."""
    found: dict[str, Any] = {}
    spans = scan_own(properties).spans
    for name, (start, end) in spans.items():
        if name == "headers":
            found[name] = decode_table(properties[start:end], own=True)
        elif name == "timestamp":
            found[name] = _U64.unpack_from(properties, start)[0]
        elif name in _WIDTHS:
            found[name] = properties[start]
        else:
            found[name] = properties[start + 1 : end].decode("utf-8", "replace")
    return found


def encode_properties(values: dict[str, Any]) -> bytes:
    """The wire form of named properties; unknown names are refused."""
    unknown = values.keys() - _FLAG.keys()
    if unknown:
        raise ValueError(f"unknown property {sorted(unknown)[0]!r}")
    flags, parts = 0, []
    for name in NAMES:
        value = values.get(name)
        if value is None:
            continue
        flags |= _FLAG[name]
        parts.append(_encode_one(name, value))
    return _U16.pack(flags) + b"".join(parts)


def _encode_one(name: str, value: Any) -> bytes:
    if name == "headers":
        return encode_table(value)
    if name == "timestamp":
        return _U64.pack(int(value))
    if name in _WIDTHS:
        return bytes([int(value)])
    text = str(value).encode()
    if len(text) > 255:
        raise ValueError(f"property {name!r} is longer than 255 octets")
    return bytes([len(text)]) + text


def replace(properties: bytes, name: str, value: Any | None) -> bytes:
    """One property set or (None) removed, every other byte as it was."""
    spans = dict(scan_own(properties).spans)
    flags = _U16.unpack_from(properties)[0]
    pieces = {key: properties[start:end] for key, (start, end) in spans.items()}
    if value is None:
        flags &= ~_FLAG[name]
        pieces.pop(name, None)
    else:
        flags |= _FLAG[name]
        pieces[name] = _encode_one(name, value)
    return _U16.pack(flags) + b"".join(pieces[key] for key in NAMES if key in pieces)


def header_table(properties: bytes, known: Scan) -> bytes:
    """The headers as they are encoded."""
    span = known.spans.get("headers")
    return properties[span[0] : span[1]] if span else _U32.pack(0)


def with_fields(properties: bytes, known: Scan, fields: bytes) -> tuple[bytes, Scan]:
    """Encoded header fields in place of those there are, and the expiration taken out.

    The caller vouches for the fields: well-formed, and those that have a say in routing are those
    there were. So the scan of the result follows from the one there is.
    """
    return _with_table(properties, known, _U32.pack(len(fields)) + fields, False)


def change_headers(
    properties: bytes, known: Scan, remove: frozenset[str], add: dict[str, Any]
) -> tuple[bytes, Scan]:
    """Header fields removed and added, and the expiration taken out; a scan as above."""
    table = edit_table(header_table(properties, known), remove, add)
    return _with_table(properties, known, table, True)


def _with_table(properties: bytes, known: Scan, table: bytes, is_open: bool) -> tuple[bytes, Scan]:
    """`is_open`: whether the table may say something else about routing than the one there is."""
    flags = (_U16.unpack_from(properties)[0] | _FLAG["headers"]) & ~_FLAG["expiration"]
    pieces, spans, position = [_U16.pack(flags)], {}, 2
    for name in NAMES:
        span = known.spans.get(name)
        if name == "headers":
            piece = table
        elif span is None or name == "expiration":
            continue
        else:
            piece = properties[span[0] : span[1]]
        pieces.append(piece)
        spans[name] = (position, position + len(piece))
        position += len(piece)
    edited = b"".join(pieces)
    needs_care = known.needs_care
    if known.expiration is not None or is_open:
        needs_care = (
            known.user_id is not None
            or known.reply_to == DIRECT_REPLY_TO
            or any(sign in edited for sign in _ROUTING_SIGNS)
        )
    return edited, Scan(
        spans=spans,
        persistent=known.persistent,
        priority=known.priority,
        expiration=None,
        user_id=known.user_id,
        reply_to=known.reply_to,
        has_headers=True,
        needs_care=needs_care,
    )


def edit_headers(properties: bytes, remove: frozenset[str], add: dict[str, Any]) -> bytes:
    """Header fields removed and added; fields not named keep their exact bytes."""
    flags = _U16.unpack_from(properties)[0]
    span = scan_own(properties).spans.get("headers")
    if span is not None:
        table = edit_table(properties[span[0] : span[1]], remove, add)
        return properties[: span[0]] + table + properties[span[1] :]
    if not add:
        return properties
    start = 2
    for name in ("content_type", "content_encoding"):
        if flags & _FLAG[name]:
            start += 1 + properties[start]
    with_headers = _U16.pack(flags | _FLAG["headers"])
    return with_headers + properties[2:start] + encode_table(add) + properties[start:]
