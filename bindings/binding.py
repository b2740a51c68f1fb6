"""A binding as a value: from an exchange to a queue or another exchange."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from urllib.parse import quote_plus

from leveret.model.tables import encode_table


class DestinationKind(StrEnum):
    QUEUE = "queue"
    EXCHANGE = "exchange"


@dataclass(frozen=True, slots=True)
class Destination:
    kind: DestinationKind
    name: str


@dataclass(frozen=True, slots=True)
class Binding:
    """Its identity is source, destination, routing key and arguments: binding twice is once."""

    source: str
    destination: Destination
    routing_key: str
    arguments: Mapping[str, Any] = field(compare=False)
    fingerprint: str

    @staticmethod
    def of(
        source: str, destination: Destination, routing_key: str, arguments: Mapping[str, Any]
    ) -> Binding:
        return Binding(source, destination, routing_key, arguments, _fingerprint(arguments))

    @property
    def properties_key(self) -> str:
        """The name the HTTP API gives this binding among those of the same two ends.

        Quoted in itself, as RabbitMQ does, so that `~` can stand between key and arguments.
        """
        key = quote_plus(self.routing_key, safe="").replace("~", "%7E")
        if not self.fingerprint:
            return key or "~"
        return f"{key}~{self.fingerprint}"


def _fingerprint(arguments: Mapping[str, Any]) -> str:
    if not arguments:
        return ""
    canonical = encode_table(dict(sorted(arguments.items())))
    return hashlib.sha256(canonical).hexdigest()[:16]
