"""The hub the rooms meet in: virtual hosts, users and rights, and the end of a loop turn."""

from leveret.broker.broker import BACKLOG_HIGH, Broker, ChannelEntry, ConnectionEntry
from leveret.broker.users import Action, Right, User
from leveret.broker.vhost import Plan, VirtualHost

__all__ = [
    "BACKLOG_HIGH", "Action", "Broker", "ChannelEntry", "ConnectionEntry", "Plan", "Right", "User",
    "VirtualHost",
]  # fmt: skip
