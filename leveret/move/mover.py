"""Moves the messages of one queue, in batches: receive, publish, await confirms, ack.

Nothing is acked before the target has confirmed it, so nothing is lost, whenever the process ends.
Each step of a batch is written to `MoveState` first. After a kill, the source delivers the batch
again:

- A message that the target had confirmed is acked without being published again, if it is surely
  the same message: the source marks it as redelivered, it was not before, and no other message of
  the batch has the same content.
- Any other message of that batch is published again and counted as a possible duplicate.

So that the messages delivered again are those of the batch and no others, the source never delivers
more than a batch: the prefetch is the size of a batch, and a batch that is not full is handled
after the consumer was cancelled.

A stream is read by offset. Its messages stay in the source, and the next offset is saved together
with the confirms.

A message is published through a temporary fanout exchange with its own routing key. So consumers
see the routing key, keys of logs are kept, and a CC header leads to no other queue. Of the headers,
only those are removed that the source has added to the delivery.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from leveret.model.message import edit_headers, headers_of, replace_property
from leveret.model.tables import Table
from leveret.move.amqp_client import STREAM_OFFSET, AmqpClient, Delivery
from leveret.move.state import InFlight, MoveState, Step, Totals

_PARTITION = "x-partition"
_ADDED_BY_BROKERS = frozenset({STREAM_OFFSET, "x-delivery-count"})
_HEADERS_FLAG = 0x20
"""In the first byte of the properties."""
_CONSUMER = "leveret-move"
_EXCHANGE_PREFIX = "leveret.move."
_MAX_NAME = 255
_SHORT_WAIT = 0.05
_PATIENCE_SECONDS = 30.0


class MoveError(Exception):
    """The queue cannot be moved; the text is a sentence for people."""


@dataclass(frozen=True, slots=True)
class Moved:
    """A message as it is published, and what identifies it."""

    tag: int
    redelivered: bool
    routing_key: str
    properties: bytes
    body: bytes
    digest: int
    offset: int | None

    @property
    def key(self) -> str:
        """Identifies the message after a restart: its offset, or a digest of its content."""
        return f"{self.digest:032x}" if self.offset is None else f"@{self.offset}"


def to_publish(delivery: Delivery, queue: str, product: str) -> Moved:
    """Return a delivery from this queue without the headers that its broker has added."""
    properties, offset, headers = delivery.properties, None, Table()
    if properties[0] & _HEADERS_FLAG:
        headers = headers_of(properties)
        if isinstance(found := headers.get(STREAM_OFFSET), int):
            offset = found
        added = headers.keys() & _ADDED_BY_BROKERS
        if offset is not None and product == "Leveret" and _PARTITION in headers:
            if not queue.endswith(f"-{headers[_PARTITION]}"):
                raise MoveError("it is a partitioned log: move the queues of its partitions")
            added.add(_PARTITION)
        if added:
            properties = edit_headers(properties, frozenset(added), {})
            if added == headers.keys():
                properties = _without_headers(properties)
            headers = {name: value for name, value in headers.items() if name not in added}
    digest = _digest(delivery, properties, headers)
    tag, redelivered, key = delivery.tag, delivery.redelivered, delivery.routing_key
    return Moved(tag, redelivered, key, properties, delivery.body, digest, offset)


def _digest(delivery: Delivery, properties: bytes, headers: Table) -> int:
    """A digest of the message that is the same whenever and wherever it is delivered.

    RabbitMQ sorts the headers when it adds one, so their order must not matter.
    """
    others = replace_property(properties, "headers", None)
    digest = hashlib.blake2b(digest_size=16)
    key = delivery.routing_key.encode("utf-8", "surrogateescape")
    for part in (key, others, repr(_sorted(headers)).encode(), delivery.body):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return int.from_bytes(digest.digest(), "big")


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return [(name, _sorted(part)) for name, part in sorted(value.items())]
    return [_sorted(part) for part in value] if isinstance(value, list) else value


def _without_headers(properties: bytes) -> bytes:
    """Remove an empty header table: there was none before the broker added its headers."""
    start = 2
    for flag in (0x80, 0x40):  # content type, content encoding
        if properties[0] & flag:
            start += 1 + properties[start]
    flags = bytes([properties[0] & ~_HEADERS_FLAG, properties[1]])
    return flags + properties[2:start] + properties[start + 4 :]


def exchange_for(queue: str) -> str:
    """The name of the temporary exchange at the target."""
    name = _EXCHANGE_PREFIX + queue
    if len(name.encode("utf-8", "surrogateescape")) <= _MAX_NAME:
        return name
    digest = hashlib.blake2b(queue.encode("utf-8", "surrogateescape"), digest_size=16)
    return _EXCHANGE_PREFIX + digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Pace:
    """How much is in flight at a time, and how long an empty queue is awaited."""

    batch: int
    idle_seconds: float


class QueueMover:
    """Moves one queue. `on_progress` is called with the number of messages of each batch."""

    def __init__(
        self,
        source: AmqpClient,
        target: AmqpClient,
        state: MoveState,
        queue: str,
        pace: Pace,
        *,
        is_stream: bool,
    ) -> None:
        self._source, self._target = source, target
        self._state, self.queue, self._pace = state, queue, pace
        self._exchange = exchange_for(queue)
        self._is_stream = is_stream
        self._is_consuming = False
        self.totals = state.totals(queue)
        self._earlier = Earlier.of(state.in_flight(queue))

    def run(self, should_stop: Callable[[], bool], on_progress: Callable[[int], None]) -> Totals:
        """Move until the queue is empty, or a stream has been read to its end."""
        self._target.message_count(self.queue)  # the queue must exist there
        self._target.declare_fanout(self._exchange, self.queue)
        self._source.set_prefetch(self._pace.batch)
        while not should_stop():
            batch = self._receive(should_stop)
            if not batch:
                break
            self._move(batch)
            on_progress(len(batch))
        self._stop_consuming()
        self._state.save(self.queue, self.totals, ())
        self._target.delete_exchange(self._exchange)
        return self.totals

    # Receiving ----------------------------------------------------------------------------------

    def _receive(self, should_stop: Callable[[], bool]) -> list[Moved]:
        """Return the next batch; an empty one if there is nothing more."""
        source, size = self._source, self._pace.batch
        if not self._is_consuming:
            if not self._is_stream and not source.message_count(self.queue):
                return []
            source.consume(self.queue, _CONSUMER, self._position())
            self._is_consuming = True
        self._wait_for_deliveries(should_stop)
        if len(source.deliveries) < size:
            self._stop_consuming()
        received = [source.deliveries.popleft() for _ in range(len(source.deliveries))]
        return [to_publish(each, self.queue, source.product) for each in received]

    def _position(self) -> dict[str, str | int]:
        """The argument of a consumer that continues a stream; a queue needs none."""
        if not self._is_stream:
            return {}
        offset = self.totals.next_offset
        return {STREAM_OFFSET: "first" if offset is None else offset}

    def _wait_for_deliveries(self, should_stop: Callable[[], bool]) -> None:
        """Wait for a full batch; return earlier if the source pauses."""
        source, began = self._source, time.monotonic()
        while len(source.deliveries) < self._pace.batch and not should_stop():
            if source.is_cancelled:
                raise MoveError("the source has deleted it")
            if source.read(_SHORT_WAIT):
                continue
            if source.deliveries:
                return
            waited = time.monotonic() - began
            if waited < self._pace.idle_seconds:
                continue
            if self._is_stream:
                return
            ready = source.message_count(self.queue)
            if not ready and not source.deliveries:
                return
            if not source.deliveries and waited > _PATIENCE_SECONDS:
                raise MoveError(
                    f"the source has {ready} messages that it does not deliver; another consumer "
                    "may be the only one that receives them"
                )

    def _stop_consuming(self) -> None:
        if self._is_consuming:
            self._source.cancel(_CONSUMER)
            self._is_consuming = False

    # Moving -------------------------------------------------------------------------------------

    def _move(self, batch: list[Moved]) -> None:
        fresh = [each for each in batch if not self._is_moved_already(each)]
        duplicates = sum(self._earlier.was_published(each) for each in fresh)
        totals = replace(
            self.totals, possible_duplicates=self.totals.possible_duplicates + duplicates
        )
        # What a killed run left is kept in the file until the queue has delivered all of it.
        kept = self._earlier.rows()
        self._state.save(self.queue, totals, [*kept, *_rows(fresh, Step.PUBLISHED)])
        confirmed = self._publish(fresh)
        totals = totals.plus((len(each.body) for each in confirmed), (m.digest for m in confirmed))
        skipped = len(batch) - len(fresh)
        self.totals = replace(totals, skipped=totals.skipped + skipped)
        if len(confirmed) < len(fresh):
            rest = [each for each in fresh if each not in confirmed]
            rows = [*_rows(confirmed, Step.CONFIRMED), *_rows(rest, Step.PUBLISHED)]
            self._state.save(self.queue, self.totals, [*kept, *rows])
            raise MoveError(self._refusal(len(rest)))
        if batch[-1].offset is not None:
            self.totals = replace(self.totals, next_offset=batch[-1].offset + 1)
        self._state.save(self.queue, self.totals, [*kept, *_rows(fresh, Step.CONFIRMED)])
        self._source.ack(batch[-1].tag, self.queue)
        self._state.save(self.queue, self.totals, kept)

    def _is_moved_already(self, message: Moved) -> bool:
        if message.offset is not None and self.totals.next_offset is not None:
            return message.offset < self.totals.next_offset  # a chunk begins before the offset
        return self._earlier.take_confirmed(message)

    def _publish(self, batch: list[Moved]) -> list[Moved]:
        """Publish and wait; return what the target has confirmed, in order."""
        target = self._target
        target.returned.clear()
        target.nacked.clear()
        tags = {}
        for each in batch:
            tag = target.publish(self._exchange, each.routing_key, each.properties, each.body)
            tags[tag] = each
        target.wait_for_confirms()
        if target.returned:
            return []
        return [each for tag, each in tags.items() if tag not in target.nacked]

    def _refusal(self, count: int) -> str:
        if self._target.returned:
            return f"the target could not route {count} messages: {self._target.returned[0].text}"
        return f"the target refused {count} messages (nack); is it full, or out of disk space?"


def _rows(batch: list[Moved], step: Step) -> list[InFlight]:
    return [InFlight(each.key, step, each.redelivered) for each in batch]


class Earlier:
    """The messages that a killed run had in flight.

    The source delivers them again before all others, so as many deliveries as there were messages
    may be one of them. After that, an equal message is another one.
    """

    def __init__(self, confirmed: Counter[str], published: Counter[str]) -> None:
        self._confirmed = confirmed
        self._published = published
        self._left = confirmed.total() + published.total()

    @classmethod
    def of(cls, rows: list[InFlight]) -> Earlier:
        contents = Counter(row.key for row in rows)
        sure = Counter(
            row.key
            for row in rows
            if row.step is Step.CONFIRMED and not row.redelivered and contents[row.key] == 1
        )
        return cls(sure, contents - sure)

    def take_confirmed(self, message: Moved) -> bool:
        """Whether the target has this message already; each is found once."""
        self._left -= 1
        if self._left < 0:
            self._published += self._confirmed
            self._confirmed.clear()
        if not message.redelivered or not self._confirmed[message.key]:
            return False
        self._confirmed[message.key] -= 1
        return True

    def was_published(self, message: Moved) -> bool:
        """Whether the killed run may have published this message; each is found once."""
        if not self._published[message.key]:
            return False
        self._published[message.key] -= 1
        return True

    def rows(self) -> list[InFlight]:
        """What has not been delivered again so far."""
        return [
            *(InFlight(key, Step.CONFIRMED, False) for key in self._confirmed.elements()),
            *(InFlight(key, Step.PUBLISHED, False) for key in self._published.elements()),
        ]
