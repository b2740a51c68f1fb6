"""Methods that we send in a form that pamqp refuses.

Not compiled: mypyc cannot compile subclasses of pamqp's classes.
"""

from __future__ import annotations

from leveret.amqp_server.codec import commands


class QueueDeclareOk(commands.Queue.DeclareOk):
    """RabbitMQ allows any UTF-8 in a queue name; pamqp's own check is stricter."""

    def validate(self) -> None:
        return None


class ChannelOpenOk(commands.Channel.OpenOk):
    """The reserved channel id is sent empty, as RabbitMQ sends it."""

    def validate(self) -> None:
        return None
