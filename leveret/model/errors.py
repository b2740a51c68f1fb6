"""Errors that refuse a request, with their AMQP reply codes.

The domain raises them; the front that handles the request adds class and method ids (AMQP) or a
status (HTTP). The code decides the scope: soft errors close the channel, hard errors the
connection.
"""

from __future__ import annotations

from enum import IntEnum

REPLY_TEXT_LIMIT = 255


class ReplyCode(IntEnum):
    """AMQP 0-9-1 reply codes, with the names that RabbitMQ puts before the explanation."""

    REPLY_SUCCESS = 200
    CONTENT_TOO_LARGE = 311
    NO_ROUTE = 312
    NO_CONSUMERS = 313
    CONNECTION_FORCED = 320
    INVALID_PATH = 402
    ACCESS_REFUSED = 403
    NOT_FOUND = 404
    RESOURCE_LOCKED = 405
    PRECONDITION_FAILED = 406
    FRAME_ERROR = 501
    SYNTAX_ERROR = 502
    COMMAND_INVALID = 503
    CHANNEL_ERROR = 504
    UNEXPECTED_FRAME = 505
    RESOURCE_ERROR = 506
    NOT_ALLOWED = 530
    NOT_IMPLEMENTED = 540
    INTERNAL_ERROR = 541


SOFT_CODES = frozenset({311, 312, 313, 403, 404, 405, 406})


class BrokerError(Exception):
    """A refused request: a reply code and an explanation."""

    code: ReplyCode = ReplyCode.INTERNAL_ERROR

    def __init__(self, explanation: str, code: ReplyCode | None = None) -> None:
        super().__init__(explanation)
        self.explanation = explanation
        if code is not None:
            self.code = code

    @property
    def closes_channel_only(self) -> bool:
        return int(self.code) in SOFT_CODES

    @property
    def reply_text(self) -> str:
        """`CODE_NAME - explanation`, cut to the length of a short string."""
        text = f"{self.code.name} - {self.explanation}".encode()[:REPLY_TEXT_LIMIT]
        return text.decode("utf-8", "ignore")


class AccessRefused(BrokerError):
    code = ReplyCode.ACCESS_REFUSED


class NotFound(BrokerError):
    code = ReplyCode.NOT_FOUND


class ResourceLocked(BrokerError):
    code = ReplyCode.RESOURCE_LOCKED


class PreconditionFailed(BrokerError):
    code = ReplyCode.PRECONDITION_FAILED


class NotAllowed(BrokerError):
    code = ReplyCode.NOT_ALLOWED


class NotImplementedHere(BrokerError):
    code = ReplyCode.NOT_IMPLEMENTED


class ConnectionForced(BrokerError):
    code = ReplyCode.CONNECTION_FORCED


class ProtocolError(BrokerError):
    """The peer violated the protocol. The only exception that `Wire` may raise."""

    code = ReplyCode.FRAME_ERROR
