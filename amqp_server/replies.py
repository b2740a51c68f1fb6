"""Direct reply-to on one channel: a consumer at most, behind a queue whose name nobody can guess.

The queue lives as long as the consumer does; what is sent to it afterwards reaches nobody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amqp_server.consumer import AmqpConsumer
from leveret.model.errors import PreconditionFailed
from queues import ReplyQueue

if TYPE_CHECKING:
    from amqp_server.channel import Channel


class Replies:
    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._consumer: AmqpConsumer | None = None
        self.queue: ReplyQueue | None = None

    def has_consumer(self, tag: str) -> bool:
        return self._consumer is not None and self._consumer.tag == tag

    def start(self, tag: str, no_ack: bool) -> None:
        if not no_ack:
            raise PreconditionFailed("reply consumer cannot acknowledge")
        if self.queue is not None:
            raise PreconditionFailed("reply consumer already set")
        self.queue = self._channel.vhost.add_reply_queue()
        self._consumer = AmqpConsumer(self._channel, tag, self.queue, True, False, {})
        self.queue.add_consumer(self._consumer)

    def end(self) -> None:
        if self.queue is not None and self._consumer is not None:
            self._channel.vhost.remove_reply_queue(self.queue)
            self.queue.remove_consumer(self._consumer)
        self.queue = self._consumer = None
