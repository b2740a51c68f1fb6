"""Random methods sent to Leveret and to another broker at once: their answers must agree.

    python -m tests.semantics.differential amqp://guest:guest@127.0.0.1:5672/ --seeds 1-20

The other broker should be a RabbitMQ 3.10 with a virtual host that has no other users. A seed is a
session of two connections with two channels each and a few names, so that methods interact: they
declare, bind, publish, consume, settle, delete, and make mistakes. After each method everything
that arrives is compared, channel by channel. Differences on purpose (docs/compatibility.md) are
avoided (a prefetch is set once, before anything else) or normalized; the first difference ends a
seed and is printed.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import time
from collections.abc import Callable
from typing import Any

from pamqp import body, header
from pamqp.commands import Basic, Channel, Confirm, Connection, Exchange, Queue, Tx

from tests.support.brokers import Target, running_leveret, target_of
from tests.support.rawclient import (
    ConnectionEndedError,
    NoFrameError,
    RawClient,
    describe,
)
from tests.support.wire import RawFrame

QUEUES = ("diff-a", "diff-b", "diff-c")
OWN_EXCHANGES = ("diff-direct", "diff-topic", "diff-fanout")
EXCHANGES = (*OWN_EXCHANGES, "amq.topic", "")
KEYS = (*QUEUES[:2], "k", "k.l", "#", "*.l", "")
TAGS = ("one", "two", "three")
ARGUMENTS: tuple[Any, ...] = (
    None,
    None,
    {"x-max-length": 2},
    {"x-message-ttl": 60_000},
    {"x-max-priority": 3},
    {"x-single-active-consumer": True},
    {"x-max-length": 1, "x-overflow": "reject-publish"},
    {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": QUEUES[2]},
    {
        "x-max-length": 1,
        "x-overflow": "reject-publish-dlx",
        "x-dead-letter-exchange": "diff-fanout",
    },
)
PREFETCH = 2
CONFIRMS, CLOSES = ("Basic.Ack", "Basic.Nack"), ("Channel.Close", "Connection.Close")
ANSWER_SECONDS, QUIET_SECONDS, LATE_SECONDS = 5.0, 0.06, 0.6
ChannelKey = tuple[int, int]
Received = dict[ChannelKey, list[str]]
Queues = dict[tuple[ChannelKey, str], str]


# Sending -----------------------------------------------------------------------------------------


class MethodGenerator:
    """Generates methods; the same seed gives the same methods."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._makers: dict[Callable[[], list[Any]], int] = {
            self.publish: 27, self.declare: 10, self.exchange: 5, self.bind: 9, self.join: 3,
            self.delete: 4, self.consume: 12, self.poll: 6, self.settle: 16, self.mode: 5,
            self.burst: 8,
        }  # fmt: skip

    def next(self) -> tuple[int, int, list[Any]]:
        (maker,) = self._random.choices(list(self._makers), list(self._makers.values()))
        return self._random.randrange(2), self._random.choice((1, 2)), maker()

    def often(self, share: float = 0.5) -> bool:
        return self._random.random() < share

    def of(self, choices: Any) -> Any:
        return self._random.choice(choices)

    def publish(self) -> list[Any]:
        properties: dict[str, Any] = {}
        for name, share, choices in (
            ("delivery_mode", 0.3, (1, 2)),
            ("expiration", 0.1, ("60000", "-1")),
            ("headers", 0.15, ({"CC": ["diff-b"]}, {"BCC": ["diff-a", "diff-c"]}, {"CC": "no"})),
            ("priority", 0.1, (0, 2, 9)),
            ("user_id", 0.02, ("nobody",)),
        ):
            if self.often(share):
                properties[name] = self.of(choices)
        return [
            Basic.Publish(
                exchange=self.of((*EXCHANGES, "", "")),
                routing_key=self.of(KEYS),
                mandatory=self.often(0.3),
            ),
            header.ContentHeader(0, 1, Basic.Properties(**properties)),
            body.ContentBody(self.of(b"abcdefgh").to_bytes(1, "big")),
        ]

    def declare(self) -> list[Any]:
        return [
            Queue.Declare(
                queue=self.of(QUEUES),
                passive=self.often(0.2),
                durable=self.often(0.3),
                exclusive=self.often(0.15),
                auto_delete=self.often(0.2),
                arguments=self.of(ARGUMENTS),
            )
        ]

    def exchange(self) -> list[Any]:
        return [
            Exchange.Declare(
                exchange=self.of(OWN_EXCHANGES),
                exchange_type=self.of(("direct", "topic", "fanout")),
                passive=self.often(0.2),
                durable=self.often(0.2),
                auto_delete=self.often(0.2),
                internal=self.often(0.1),
                arguments=self.of((None, None, {"alternate-exchange": "diff-fanout"})),
            )
        ]

    def bind(self) -> list[Any]:
        kind: Any = Queue.Bind if self.often(0.75) else Queue.Unbind
        return [kind(queue=self.of(QUEUES), exchange=self.of(EXCHANGES), routing_key=self.of(KEYS))]

    def join(self) -> list[Any]:
        kind: Any = Exchange.Bind if self.often(0.7) else Exchange.Unbind
        ends = {"destination": self.of(OWN_EXCHANGES), "source": self.of(EXCHANGES)}
        return [kind(**ends, routing_key=self.of(KEYS))]

    def delete(self) -> list[Any]:
        if self.often(0.25):
            return [Exchange.Delete(exchange=self.of(OWN_EXCHANGES), if_unused=self.often())]
        if self.often(0.3):
            return [Queue.Purge(queue=self.of(QUEUES))]
        unused, empty = self.often(0.3), self.often(0.3)
        return [Queue.Delete(queue=self.of(QUEUES), if_unused=unused, if_empty=empty)]

    def consume(self) -> list[Any]:
        if self.often(0.35):
            return [Basic.Cancel(consumer_tag=self.of(TAGS))]
        return [
            Basic.Consume(
                queue=self.of(QUEUES),
                consumer_tag=self.of(TAGS),
                no_ack=self.often(0.3),
                exclusive=self.often(0.1),
                arguments=self.of((None, None, {"x-priority": 5})),
            )
        ]

    def poll(self) -> list[Any]:
        return [Basic.Get(queue=self.of(QUEUES), no_ack=self.often(0.4))]

    def burst(self) -> list[Any]:
        """A publish and another method in one write."""
        return [*self.publish(), *self.of((self.poll, self.delete, self.consume, self.declare))()]

    def settle(self) -> list[Any]:
        tag, multiple = self.of((0, 1, 1, 2, 3)), self.often(0.4)
        return [
            self.of(
                (
                    Basic.Ack(delivery_tag=tag, multiple=multiple),
                    Basic.Nack(delivery_tag=tag, multiple=multiple, requeue=self.often()),
                    Basic.Reject(delivery_tag=max(tag, 1), requeue=self.often()),
                    Basic.Recover(requeue=True),
                )
            )
        ]

    def mode(self) -> list[Any]:
        return [self.of((Confirm.Select, Confirm.Select, Tx.Select, Tx.Commit, Tx.Rollback))()]


# Receiving ---------------------------------------------------------------------------------------


class Side:
    """One of the two brokers: two connections, whose channels are opened when needed."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._clients = [target.connect(), target.connect()]
        self._open: set[tuple[int, int]] = set()

    def do(self, connection: int, channel: int, frames: list[Any]) -> Received:
        if not self._clients[connection].opened:
            self._clients[connection] = self._target.connect()
        if (connection, channel) not in self._open:
            self._clients[connection].channel(channel).qos(PREFETCH)
            self._open.add((connection, channel))
        self._clients[connection].send(channel, *frames)
        is_answered = any(getattr(frame, "synchronous", False) for frame in frames)
        return self.listen(connection, QUIET_SECONDS, ANSWER_SECONDS if is_answered else 0.0)

    def listen(self, connection: int, quiet: float, answer: float = 0.0) -> Received:
        """Read until nothing more arrives; wait longer if an answer is due."""
        received: Received = {}
        for number, client in enumerate(self._clients):
            wait = quiet if number == connection else 0.01
            end = time.monotonic() + (answer if answer and number == connection else wait)
            while client.opened:
                try:
                    frame = client.next_frame(max(0.002, end - time.monotonic()))
                except NoFrameError:
                    break
                except ConnectionEndedError:
                    self._connection_lost(number)
                    break
                end = time.monotonic() + wait
                received.setdefault((number, frame.channel), []).append(self._text_of(frame))
                self._react(number, client, frame)
        return received

    def _react(self, number: int, client: RawClient, frame: RawFrame) -> None:
        method = frame.decode() if frame.kind == 1 else None
        if isinstance(method, Channel.Close):
            client.send(frame.channel, Channel.CloseOk())
            self._open.discard((number, frame.channel))
        elif isinstance(method, Connection.Close):
            client.send(0, Connection.CloseOk())
            self._connection_lost(number)

    def _connection_lost(self, number: int) -> None:
        self._clients[number].drop()
        self._open = {channel_key for channel_key in self._open if channel_key[0] != number}

    def _text_of(self, frame: RawFrame) -> str:
        value = frame.decode()
        if frame.kind == 1:
            text = describe(value).replace(f"vhost '{self._target.vhost}'", "vhost 'V'")
            text = re.sub(r"(invalid expiration '-1').*?\"", r'\1"', text)
            return re.sub(r"invalid (message: {unacceptable|B?CC header).*", "bad copies", text)
        if frame.kind == 2:
            values = value.properties
            fields = (values.priority, values.expiration, values.delivery_mode)
            return f"header {_comparable(values.headers or {})} {fields}"
        return f"body {value.value if value else b''!r}"

    def clean_up(self) -> None:
        for client in self._clients:
            client.close()
        with self._target.connect() as client:
            channel = client.channel()
            for queue in QUEUES:
                channel.call(Queue.Delete(queue=queue))
            for exchange in OWN_EXCHANGES:
                channel.call(Exchange.Delete(exchange=exchange))


def _comparable(headers: dict[str, Any]) -> dict[str, Any]:
    """Headers without fields that only one of the two writes, without times, sorted by name."""
    fields = {
        name: headers[name] for name in sorted(headers) if not name.startswith("x-last-death")
    }
    if "x-death" in fields:
        deaths = fields["x-death"]
        fields["x-death"] = [
            {key: text[key] for key in sorted(text) if key != "time"} for text in deaths
        ]
    return fields


def _settled(received: Received) -> Received:
    """Keep only the last confirm: brokers may combine them differently. An error may come before a
    confirm that waits for the disk."""
    return {
        channel_key: [text for text in words if not text.startswith(CONFIRMS)]
        + [_last(words, kind) for kind in CONFIRMS if not words[-1].startswith(CLOSES)]
        for channel_key, words in received.items()
    }


def _last(words: list[str], kind: str) -> str:
    """The last confirm of a kind, without `requeue`, which only RabbitMQ sets."""
    found = [text for text in words if text.startswith(kind)]
    return re.sub(r", (multiple|requeue)=\w+", "", found[-1]) if found else ""


def _by_queue(received: Received, queues: Queues) -> dict[tuple[ChannelKey, str], list[str]]:
    """Deliveries by queue, without tags: the order between queues may differ."""
    by_queue: dict[tuple[ChannelKey, str], list[str]] = {}
    for channel_key, words in _settled(received).items():
        queue = ""
        for text in words:
            found = re.match(r"Basic.Deliver\(consumer_tag='(\w+)', delivery_tag=\d+", text)
            if found:
                queue = queues.get((channel_key, found[1]), "")
            elif not text.startswith(("header", "body")):
                queue = ""
            untagged = re.sub(r"delivery_tag=\d+", "", text)
            by_queue.setdefault((channel_key, queue), []).append(untagged)
    return by_queue


def _merge(received: Received, more: Received) -> None:
    for channel_key, words in more.items():
        received.setdefault(channel_key, []).extend(words)


def compare(seed: int, steps: int, leveret: Target, other: Target) -> bool:
    """Run one seed on both brokers; return whether they agreed.

    If deliveries of two queues arrive in another order, the session ends without a difference,
    because delivery tags differ from there on.
    """
    generator, sides = MethodGenerator(seed), (Side(leveret), Side(other))
    queues: Queues = {}
    try:
        for number in range(steps):
            connection, channel, frames = generator.next()
            for consume in (frame for frame in frames if isinstance(frame, Basic.Consume)):
                queues[(connection, channel), consume.consumer_tag] = consume.queue
            ours, theirs = (side.do(connection, channel, frames) for side in sides)
            if _settled(ours) != _settled(theirs):
                for side, received in zip(sides, (ours, theirs), strict=True):
                    _merge(received, side.listen(connection, LATE_SECONDS))
            if _settled(ours) != _settled(theirs):
                if _by_queue(ours, queues) == _by_queue(theirs, queues):
                    return True
                print(f"seed {seed}, step {number}: {describe(frames[0])}")
                print(f"  leveret: {ours}\n  other:   {theirs}")
                return False
        return True
    finally:
        for side in sides:
            side.clean_up()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("other", help="amqp:// URL of the broker to compare with")
    parser.add_argument("--seeds", default="1-20", metavar="FIRST-LAST")
    parser.add_argument("--steps", type=int, default=80)
    options = parser.parse_args()
    first, _, last = options.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    other = target_of(options.other)
    with running_leveret(environment={"LEVERET_HTTP_ENABLED": "false"}) as leveret:
        agreed = [compare(seed, options.steps, leveret, other) for seed in seeds]
    print(f"{sum(agreed)} of {len(agreed)} seeds agree")
    return 0 if all(agreed) else 1


if __name__ == "__main__":
    sys.exit(main())
