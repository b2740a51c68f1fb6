"""Message deduplication by key: a bounded set of keys with expiry; the oldest is forgotten first.

A key joins the same batch as its message, so after a crash either both are there or neither. If
that batch cannot be written the key is forgotten: its publisher gets a nack and will publish again.
Only the keys of persistent messages survive a restart. Event-loop thread only.
"""

from __future__ import annotations

import json
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from leveret.model.definitions import ParameterDefinition
from leveret.model.message import Message
from leveret.model.store import Store
from leveret.queues.port import CommitPort

log = logging.getLogger("leveret.queues")

KEY_HEADER, TTL_HEADER = "x-deduplication-header", "x-cache-ttl"
DEFAULT_SIZE = 10_000
MAX_KEY_LENGTH = 1_024

_TYPES = (str, int, float, bool, bytes, bytearray, Decimal, datetime, list, dict)
_TYPE_PREFIXES = tuple(f"{kind.__name__} " for kind in _TYPES)
"""Keys that are not strings are prefixed with their type, and so are strings that begin like that.
"""


@dataclass(frozen=True, slots=True)
class DeduplicationStore:
    """Stores the keys of one queue or exchange as parameters of its virtual host."""

    store: Store
    commits: CommitPort
    vhost: str
    component: str

    def save(self, key: str, seen_ms: int, expires_ms: int, on_failed: Callable[[], None]) -> None:
        self.store.save(self._row(key, json.dumps([seen_ms, expires_ms])))
        self.commits.when_committed(self.store.batch_number, _nothing, on_failed)

    def delete(self, key: str) -> None:
        self.store.delete(self._row(key))

    def _row(self, key: str, value: str = "null") -> ParameterDefinition:
        return ParameterDefinition(self.vhost, self.component, key, value)


class Deduplication:
    """`key_store` is None for queues and exchanges that do not survive a restart."""

    def __init__(
        self,
        arguments: Mapping[str, Any],
        key_store: DeduplicationStore | None,
        now_ms: Callable[[], int],
    ) -> None:
        self._size = int(arguments.get("x-cache-size", DEFAULT_SIZE))
        self._ttl = int(arguments.get("x-cache-ttl", 0))
        self._key_store = key_store
        self._now_ms = now_ms
        self._expiries: OrderedDict[str, int] = OrderedDict()
        self._stored: set[str] = set()
        self.duplicates = 0

    def __len__(self) -> int:
        return len(self._expiries)

    def recover(self, rows: Iterable[tuple[str, str]]) -> None:
        """Restore keys from stored (key, value) rows."""
        valid = []
        for key, value in rows:
            self._stored.add(key)
            try:
                valid.append((_parse_times(value), key))
            except ValueError:
                log.error("ignored deduplication key %r with damaged value %r", key, value)
                self._forget(key)
        for (_, expires_ms), key in sorted(valid):
            self._expiries[key] = expires_ms
        self._forget_surplus()

    def detect_duplicate(self, message: Message) -> bool:
        """Whether a message with this key was seen; counts duplicates and drops an expired key."""
        key = key_of(message)
        expires_ms = self._expiries.get(key) if key is not None else None
        if key is None or expires_ms is None:
            return False
        if expires_ms and expires_ms <= self._now_ms():
            self._forget(key)
            return False
        self.duplicates += 1
        return True

    def remember(self, message: Message) -> None:
        """The message was accepted: later messages with its key are duplicates."""
        key = key_of(message)
        if key is None:
            return
        now = self._now_ms()
        own_ttl = message.headers().get(TTL_HEADER)
        ttl = own_ttl if isinstance(own_ttl, int) and own_ttl > 0 else self._ttl
        expires_ms = now + ttl if ttl else 0
        self._expiries[key] = expires_ms
        if self._key_store is not None and message.scan.persistent:
            self._stored.add(key)
            self._key_store.save(key, now, expires_ms, lambda: self._forget(key))
        self._forget_surplus()

    def _forget_surplus(self) -> None:
        while len(self._expiries) > self._size:
            self._forget(next(iter(self._expiries)))

    def _forget(self, key: str) -> None:
        self._expiries.pop(key, None)
        if self._key_store is not None and key in self._stored:
            self._stored.discard(key)
            self._key_store.delete(key)

    def clear(self) -> None:
        for key in list(self._expiries):
            self._forget(key)


def key_of(message: Message) -> str | None:
    if not message.scan.has_headers:
        return None
    value = message.headers().get(KEY_HEADER)
    if value is None:
        return None
    is_plain = isinstance(value, str) and not value.startswith(_TYPE_PREFIXES)
    key = value if is_plain else f"{type(value).__name__} {value}"
    return key[:MAX_KEY_LENGTH]


def _parse_times(value: str) -> tuple[int, int]:
    """When a key was seen and when it expires; ValueError if the stored value is damaged."""
    match json.loads(value):
        case [int(seen_ms), int(expires_ms)]:
            return seen_ms, expires_ms
    raise ValueError("not two times")


def _nothing() -> None:
    return None
