"""Message content as JSON: properties both ways, and bodies as text or base64."""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

from http_admin.errors import bad_request
from leveret.model.message import Address, Message
from leveret.model.properties import NAMES, decode_properties, encode_properties
from leveret.model.tables import check_extent

_WHOLE = {"delivery_mode": 255, "priority": 255, "timestamp": (1 << 64) - 1}


def message_of(exchange: str, routing_key: str, properties: dict[str, Any], body: bytes) -> Message:
    """A message from what a client wrote in JSON; 400 where AMQP has no room for it."""
    values = checked_properties(properties)
    try:
        address = Address.of(exchange, routing_key)
        return Message.build(address, encode_properties(values), body)
    except (ValueError, TypeError, OverflowError, struct.error) as error:
        raise bad_request(f"cannot be written as AMQP: {error}") from error


def checked_properties(properties: Mapping[str, Any]) -> dict[str, Any]:
    """The properties AMQP knows, each of its kind; others are passed over as RabbitMQ does."""
    values = {
        name: value for name, value in properties.items() if name in NAMES and value is not None
    }
    for name, value in values.items():
        _check(name, value)
    return values


def _check(name: str, value: Any) -> None:
    most = _WHOLE.get(name)
    if name == "headers":
        if not isinstance(value, dict):
            raise bad_request("property headers must be an object")
        _check_headers(value)
    elif most is not None:
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
            raise bad_request(f"property {name} must be a whole number from 0 to {most}")
    elif not isinstance(value, str):
        raise bad_request(f"property {name} must be a string")


def _check_headers(headers: dict[str, Any]) -> None:
    """Before they are encoded, which takes long where they are many."""
    try:
        check_extent(headers)
    except ValueError as error:
        raise bad_request(f"headers cannot be written as AMQP: {error}") from None


def shown_properties(properties: bytes) -> dict[str, Any]:
    """Properties as RabbitMQ shows them."""
    return shown_values(decode_properties(properties))


def shown_values(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _shown(value) for name, value in values.items()}


def _shown(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _shown(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_shown(one) for one in value]
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


def shown_body(body: bytes, encoding: str, truncate: int | None) -> dict[str, Any]:
    """`payload`, its size before it was cut, and how it is encoded."""
    cut = body if truncate is None else body[:truncate]
    if encoding == "base64":
        payload, how = base64.b64encode(cut).decode(), "base64"
    else:
        payload, how = text_or_base64(cut, was_cut=len(cut) < len(body))
    return {"payload_bytes": len(body), "payload": payload, "payload_encoding": how}


def text_or_base64(raw: bytes, was_cut: bool = False) -> tuple[str, str]:
    """Text where it is UTF-8; the half character that a cut leaves at the end does not count."""
    try:
        return raw.decode(), "string"
    except UnicodeDecodeError as error:
        if was_cut and error.reason == "unexpected end of data":
            return raw[: error.start].decode(), "string"
        return base64.b64encode(raw).decode(), "base64"
