"""What clients published, as tests look at it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from leveret.model.message import Message
from leveret.model.properties import decode_properties


@dataclass(frozen=True, slots=True)
class Published:
    """One message as a client published it over AMQP, routed or not."""

    vhost: str
    exchange: str
    routing_key: str
    properties: dict[str, Any]
    body: bytes

    @staticmethod
    def of(vhost: str, message: Message) -> Published:
        properties = decode_properties(message.properties)
        return Published(
            vhost, message.exchange, message.routing_key, properties, bytes(message.body)
        )

    @property
    def headers(self) -> dict[str, Any]:
        return dict(self.properties.get("headers") or {})

    def json(self) -> Any:
        return json.loads(self.body)
