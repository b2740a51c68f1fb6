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

    def __hash__(self) -> int:
        """The generated method would hash the kind, too, which costs more than it separates."""
        return hash(self.name)


@dataclass(frozen=True, slots=True)
class Binding:
    """Identified by source, destination, routing key and arguments: binding it again is a no-op."""

    source: str
    destination: Destination
    routing_key: str
    arguments: Mapping[str, Any] = field(compare=False)
    fingerprint: str

    def __hash__(self) -> int:
        return hash((self.routing_key, self.destination.name))

    @staticmethod
    def of(
        source: str, destination: Destination, routing_key: str, arguments: Mapping[str, Any]
    ) -> Binding:
        return Binding(source, destination, routing_key, arguments, _fingerprint(arguments))

    @property
    def properties_key(self) -> str:
        """Names this binding in the HTTP API among those with the same source and destination.

        The key is quoted, as in RabbitMQ, so that `~` can separate it from the arguments.
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
