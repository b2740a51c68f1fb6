"""The broker between servers and queues: virtual hosts, users, permissions, and the event loop."""

from leveret.broker.access.users import Action, Permission, User
from leveret.broker.broker import Broker, ChannelEntry, ConnectionEntry
from leveret.broker.runtime.commit_waiters import ConfirmWait
from leveret.broker.runtime.resource_monitor import BACKLOG_HIGH
from leveret.broker.vhost import Plan, VirtualHost

__all__ = [
    "BACKLOG_HIGH",
    "Action",
    "Broker",
    "ChannelEntry",
    "ConfirmWait",
    "ConnectionEntry",
    "Permission",
    "Plan",
    "User",
    "VirtualHost",
]  # fmt: skip
