"""Which messages have been seen: keys with an end, the oldest forgotten first.

A key is remembered in the batch its message joins, so after a crash either both are there or
neither. If that batch cannot be written the key is forgotten again, because its publisher will be
told so and come back. Only keys of persistent messages are kept over a restart. Event-loop thread.
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

from leveret.model.message import Message
from leveret.model.store import ParameterDefinition, Store

log = logging.getLogger("leveret.queues")

KEY_HEADER, TTL_HEADER = "x-deduplication-header", "x-cache-ttl"
DEFAULT_SIZE = 10_000
LONGEST_KEY = 1_024

_TYPES = (str, int, float, bool, bytes, bytearray, Decimal, datetime, list, dict)
_TYPED = tuple(f"{kind.__name__} " for kind in _TYPES)
"""How keys of other types begin; a text that begins so has its type before it, too."""

AfterCommit = Callable[[int, Callable[[], None], Callable[[], None] | None], None]


@dataclass(frozen=True, slots=True)
class KeyKeeper:
    """Where the keys of one queue or exchange are stored."""

    store: Store
    after_commit: AfterCommit
    vhost: str
    component: str

    def save(self, key: str, seen_ms: int, expires_ms: int, failed: Callable[[], None]) -> None:
        self.store.save(self._row(key, json.dumps([seen_ms, expires_ms])))
        self.after_commit(self.store.mark, _nothing, failed)

    def delete(self, key: str) -> None:
        self.store.delete(self._row(key))

    def _row(self, key: str, value: str = "null") -> ParameterDefinition:
        return ParameterDefinition(self.vhost, self.component, key, value)


class Deduplication:
    """`keeper` is None where nothing survives a restart anyway."""

    def __init__(
        self, arguments: Mapping[str, Any], keeper: KeyKeeper | None, now_ms: Callable[[], int]
    ) -> None:
        self._size = int(arguments.get("x-cache-size", DEFAULT_SIZE))
        self._ttl = int(arguments.get("x-cache-ttl", 0))
        self._keeper = keeper
        self._now_ms = now_ms
        self._seen: OrderedDict[str, int] = OrderedDict()
        self._kept: set[str] = set()
        self.repeated = 0

    def __len__(self) -> int:
        return len(self._seen)

    def recover(self, rows: Iterable[tuple[str, str]]) -> None:
        """Keys and values as they were stored."""
        sound = []
        for key, value in rows:
            self._kept.add(key)
            try:
                sound.append((_times(value), key))
            except ValueError:
                log.error("a damaged key %r is left out: %r", key, value)
                self._forget(key)
        for (_, expires_ms), key in sorted(sound):
            self._seen[key] = expires_ms
        self._forget_surplus()

    def is_repeated(self, message: Message) -> bool:
        """Whether a message with this one's key was here and is still remembered."""
        key = key_of(message)
        expires_ms = self._seen.get(key) if key is not None else None
        if key is None or expires_ms is None:
            return False
        if expires_ms and expires_ms <= self._now_ms():
            self._forget(key)
            return False
        self.repeated += 1
        return True

    def remember(self, message: Message) -> None:
        """This one is in: whoever comes with its key now is a repetition."""
        key = key_of(message)
        if key is None:
            return
        now = self._now_ms()
        own = message.headers().get(TTL_HEADER)
        ttl = own if isinstance(own, int) and own > 0 else self._ttl
        expires_ms = now + ttl if ttl else 0
        self._seen[key] = expires_ms
        if self._keeper is not None and message.scan.persistent:
            self._kept.add(key)
            self._keeper.save(key, now, expires_ms, lambda: self._forget(key))
        self._forget_surplus()

    def _forget_surplus(self) -> None:
        while len(self._seen) > self._size:
            self._forget(next(iter(self._seen)))

    def _forget(self, key: str) -> None:
        self._seen.pop(key, None)
        if self._keeper is not None and key in self._kept:
            self._kept.discard(key)
            self._keeper.delete(key)

    def clear(self) -> None:
        for key in list(self._seen):
            self._forget(key)


def key_of(message: Message) -> str | None:
    if not message.scan.has_headers:
        return None
    value = message.headers().get(KEY_HEADER)
    if value is None:
        return None
    is_plain = isinstance(value, str) and not value.startswith(_TYPED)
    key = value if is_plain else f"{type(value).__name__} {value}"
    return key[:LONGEST_KEY]


def _times(value: str) -> tuple[int, int]:
    """When a stored key was seen and when it ends; a ValueError where rot is in between."""
    match json.loads(value):
        case [int(seen_ms), int(expires_ms)]:
            return seen_ms, expires_ms
    raise ValueError("not two times")


def _nothing() -> None:
    return None
