"""Message content as JSON: properties in both directions, bodies as text or base64."""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, cast

from leveret.http_admin.errors import bad_request
from leveret.http_admin.schemas.common import MessageProperties
from leveret.http_admin.schemas.messages import Payload
from leveret.model.message import (
    PROPERTY_NAMES,
    Address,
    Body,
    LargeBody,
    Message,
    decode_properties,
    encode_properties,
)
from leveret.model.tables import require_table_limits

MAX_SHOWN_BODY = 16 * 1024 * 1024
"""Bytes of one body in a response."""
_MAX_INTEGER = {"delivery_mode": 255, "priority": 255, "timestamp": (1 << 64) - 1}


def message_of(exchange: str, routing_key: str, properties: dict[str, Any], body: bytes) -> Message:
    """A message from a client's JSON; 400 where it cannot be written as AMQP."""
    values = checked_properties(properties)
    try:
        address = Address.of(exchange, routing_key)
        return Message.build(address, encode_properties(values), body)
    except (ValueError, TypeError, OverflowError, struct.error) as error:
        raise bad_request(f"cannot be written as AMQP: {error}") from error


def checked_properties(properties: Mapping[str, Any]) -> dict[str, Any]:
    """The properties that AMQP knows, each of the right type; like RabbitMQ, ignore others."""
    values = {
        name: value
        for name, value in properties.items()
        if name in PROPERTY_NAMES and value is not None
    }
    for name, value in values.items():
        _check(name, value)
    return values


def _check(name: str, value: Any) -> None:
    maximum = _MAX_INTEGER.get(name)
    if name == "headers":
        if not isinstance(value, dict):
            raise bad_request("property headers must be an object")
        _check_headers(value)
    elif maximum is not None:
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= maximum:
            raise bad_request(f"property {name} must be a whole number from 0 to {maximum}")
    elif not isinstance(value, str):
        raise bad_request(f"property {name} must be a string")


def _check_headers(headers: dict[str, Any]) -> None:
    """Check the number of headers before encoding, which is slow if there are many."""
    try:
        require_table_limits(headers)
    except ValueError as error:
        raise bad_request(f"headers cannot be written as AMQP: {error}") from None


def shown_properties(properties: bytes) -> MessageProperties:
    """Properties as RabbitMQ shows them."""
    return cast(MessageProperties, shown_values(decode_properties(properties)))


def shown_values(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _shown(value) for name, value in values.items()}


def _shown(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _shown(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_shown(inner) for inner in value]
    if isinstance(value, bytes | bytearray):
        return text_or_base64(bytes(value))[0]
    if isinstance(value, datetime):
        return int(value.timestamp())
    if isinstance(value, Decimal):
        return float(value)
    return value


def body_of(payload: str, encoding: str) -> bytes:
    if encoding == "string":
        return payload.encode()
    if encoding != "base64":
        raise bad_request(f"unsupported payload_encoding {encoding!r}: string or base64")
    try:
        return base64.b64decode(payload, validate=True)
    except binascii.Error as error:
        raise bad_request(f"payload is not base64: {error}") from error


def payload_fields(body: Body, encoding: str, truncate: int | None) -> Payload:
    """The payload, its size before truncation, and its encoding."""
    if isinstance(body, bytes):
        shown = body if truncate is None else body[:truncate]
    else:
        shown = body.start(_shown_size(body, truncate))
    if encoding == "base64":
        payload, payload_encoding = base64.b64encode(shown).decode(), "base64"
    else:
        payload, payload_encoding = text_or_base64(shown, is_cut=len(shown) < len(body))
    return {
        "payload_bytes": len(body),
        "payload": payload,
        "payload_encoding": payload_encoding,
    }


def _shown_size(body: LargeBody, truncate: int | None) -> int:
    """Encoding a body as JSON occupies the loop, so there is a limit."""
    size = len(body) if truncate is None else min(truncate, len(body))
    if size > MAX_SHOWN_BODY:
        raise bad_request(
            f"a message has {len(body)} bytes, and the HTTP API returns at most {MAX_SHOWN_BODY} "
            "of one: set truncate to that or less, or consume the message over AMQP"
        )
    return size


def text_or_base64(raw: bytes, is_cut: bool = False) -> tuple[str, str]:
    """Text if it is UTF-8, else base64, and its name; an incomplete last character is dropped."""
    try:
        return raw.decode(), "string"
    except UnicodeDecodeError as error:
        if is_cut and error.reason == "unexpected end of data":
            return raw[: error.start].decode(), "string"
        return base64.b64encode(raw).decode(), "base64"
