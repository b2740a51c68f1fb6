"""Encodes and decodes methods. The only module that uses pamqp's framing.

pamqp handles every method except the frequent ones: basic.publish, basic.deliver, basic.ack,
basic.nack (sent by us), basic.return and basic.get-ok carry an address or a tag, and struct reads
and writes them. pamqp trusts the lengths that it finds, so `decode_method` checks the arguments
first and refuses what does not fit its frame. Argument tables are decoded separately, by
`leveret.model.tables`. Functions without state.
"""

from __future__ import annotations

import struct
import warnings

from pamqp import base
from pamqp import commands as commands

from leveret.model.errors import ProtocolError, ReplyCode
from leveret.model.message import Address, scan
from leveret.model.tables import check_table, decode_checked

PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
HEARTBEAT_FRAME = b"\x08\x00\x00\x00\x00\x00\x00\xce"
FRAME_METHOD, FRAME_HEADER, FRAME_BODY, FRAME_HEARTBEAT = 1, 2, 3, 8
PUBLISH_ID = b"\x00\x3c\x00\x28"
ACK_ID = b"\x00\x3c\x00\x50"
EMPTY_TABLE = b"\x00\x00\x00\x00"

Method = base.Frame

_FRAME = struct.Struct(">BHI")
_METHOD_FRAME = struct.Struct(">BHIHH")
_ACK_FRAME = struct.Struct(">BHIHHQBB")
_TAG = struct.Struct(">QB")
_NO_PROPERTIES = b"\x00\x00"
_WIDTHS = {"octet": 1, "short": 2, "long": 4, "longlong": 8, "timestamp": 8}

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    _CLIENT_METHODS: dict[int, type[Method]] = {
        method.index: method
        for method in (
            commands.Connection.StartOk,
            commands.Connection.SecureOk,
            commands.Connection.TuneOk,
            commands.Connection.Open,
            commands.Connection.Close,
            commands.Connection.CloseOk,
            commands.Connection.UpdateSecret,
            commands.Channel.Open,
            commands.Channel.Flow,
            commands.Channel.FlowOk,
            commands.Channel.Close,
            commands.Channel.CloseOk,
            commands.Exchange.Declare,
            commands.Exchange.Delete,
            commands.Exchange.Bind,
            commands.Exchange.Unbind,
            commands.Queue.Declare,
            commands.Queue.Bind,
            commands.Queue.Purge,
            commands.Queue.Delete,
            commands.Queue.Unbind,
            commands.Basic.Qos,
            commands.Basic.Consume,
            commands.Basic.Cancel,
            commands.Basic.CancelOk,
            commands.Basic.Get,
            commands.Basic.Ack,
            commands.Basic.Reject,
            commands.Basic.Nack,
            commands.Basic.Recover,
            commands.Basic.RecoverAsync,
            commands.Confirm.Select,
            commands.Tx.Select,
            commands.Tx.Commit,
            commands.Tx.Rollback,
        )
    }


_TABLES = {
    kind: argument
    for kind in _CLIENT_METHODS.values()
    for argument in kind.__slots__
    if kind.amqp_type(argument) == "table"
}
"""The name of a method's table argument; no method has more than one."""


class Publish:
    """A decoded basic.publish. The channel keeps its routing plan in `plan`, and in `effort` the
    cost of a message as a multiple of one to a single queue; 0 means not known yet. The wire keeps
    the properties of the last message, if they are short, and their scan."""

    __slots__ = ("address", "effort", "immediate", "mandatory", "plan", "properties", "scan")

    def __init__(self, address: Address, mandatory: bool, immediate: bool) -> None:
        self.address = address
        self.mandatory = mandatory
        self.immediate = immediate
        self.plan: object = None
        self.effort = 0
        self.properties = _NO_PROPERTIES
        self.scan = scan(_NO_PROPERTIES)


def decode_publish(payload: bytes) -> Publish:
    """Decode the arguments of basic.publish: ticket, exchange, routing key, bits."""
    try:
        at = 6
        name_end = at + 1 + payload[at]
        key_end = name_end + 1 + payload[name_end]
        bits = payload[key_end]
        if key_end + 1 != len(payload):
            raise ProtocolError("basic.publish does not fit its frame")
        exchange = payload[at + 1 : name_end].decode()
        routing_key = payload[name_end + 1 : key_end].decode()
    except (IndexError, UnicodeDecodeError) as error:
        raise ProtocolError("basic.publish cannot be decoded") from error
    return Publish(Address.of(exchange, routing_key), bool(bits & 1), bool(bits & 2))


def decode_method(payload: bytes) -> tuple[Method, bytes]:
    """Decode a method that clients may send; also return the bytes of its argument table."""
    if len(payload) < 4:
        raise ProtocolError("method frame is shorter than a method id")
    index = int.from_bytes(payload[:4], "big")
    kind = _CLIENT_METHODS.get(index)
    if kind is None:
        raise ProtocolError(
            f"unknown or unexpected method {index >> 16}.{index & 0xFFFF}",
            ReplyCode.COMMAND_INVALID,
        )
    table, start = _check_arguments(kind, payload)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        method = kind()
    try:
        if len(table) <= 4:
            method.unmarshal(payload[4:])
        else:
            method.unmarshal(payload[4:start] + EMPTY_TABLE + payload[start + len(table) :])
            setattr(method, _TABLES[kind], decode_checked(table))
    except (ValueError, struct.error, IndexError, OverflowError, OSError) as error:
        raise ProtocolError(f"{kind.name} cannot be decoded: {error}") from error
    return method, table


def _check_arguments(kind: type[Method], payload: bytes) -> tuple[bytes, int]:
    """Check the lengths of all arguments; returns the argument table and where it starts."""
    position, limit, bits = 4, len(payload), 0
    table, table_start = b"", 0
    for argument in kind.__slots__:
        wire_type = kind.amqp_type(argument)
        if wire_type == "bit":
            position += 1 if bits % 8 == 0 else 0
            bits += 1
        else:
            bits = 0
            start = position
            position = _argument_end(wire_type, payload, position, limit)
            if wire_type == "table":
                table, table_start = payload[start:position], start
        if position > limit:
            raise ProtocolError(f"{kind.name} is truncated at {argument!r}")
    if position != limit:
        raise ProtocolError(f"{kind.name} is followed by {limit - position} extra bytes")
    return table, table_start


def _argument_end(wire_type: str, payload: bytes, position: int, limit: int) -> int:
    if wire_type == "table":
        return check_table(payload, position, limit)
    if wire_type == "shortstr":
        return position + 1 + (payload[position] if position < limit else 0)
    if wire_type == "longstr":
        return position + 4 + int.from_bytes(payload[position : position + 4], "big")
    return position + _WIDTHS[wire_type]


def encode_method(channel: int, method: Method) -> bytes:
    payload = method.marshal()
    head = _METHOD_FRAME.pack(
        FRAME_METHOD, channel, 4 + len(payload), method.index >> 16, method.index & 0xFFFF
    )
    return head + payload + b"\xce"


def encode_ack(channel: int, tag: int, multiple: bool) -> bytes:
    return _ACK_FRAME.pack(FRAME_METHOD, channel, 13, 60, 80, tag, multiple, 0xCE)


def encode_nack(channel: int, tag: int, multiple: bool) -> bytes:
    return _ACK_FRAME.pack(FRAME_METHOD, channel, 13, 60, 120, tag, multiple, 0xCE)


def deliver_prefix(channel: int, consumer_tag: bytes, address: Address) -> bytes:
    """A basic.deliver frame up to the delivery tag: constant for one consumer and address."""
    size = 4 + 1 + len(consumer_tag) + 9 + len(address.wire) - 1
    head = _METHOD_FRAME.pack(FRAME_METHOD, channel, size, 60, 60)
    return head + bytes([len(consumer_tag)]) + consumer_tag


encode_tag = _TAG.pack


def encode_get_ok(channel: int, tag: int, redelivered: bool, address: Address, left: int) -> bytes:
    payload = _TAG.pack(tag, redelivered) + address.wire[:-1] + left.to_bytes(4, "big")
    return _METHOD_FRAME.pack(FRAME_METHOD, channel, 4 + len(payload), 60, 71) + payload + b"\xce"


def encode_return(channel: int, code: int, text: str, address: Address) -> bytes:
    reason = text.encode()[:255]
    payload = code.to_bytes(2, "big") + bytes([len(reason)]) + reason + address.wire[:-1]
    return _METHOD_FRAME.pack(FRAME_METHOD, channel, 4 + len(payload), 60, 50) + payload + b"\xce"
