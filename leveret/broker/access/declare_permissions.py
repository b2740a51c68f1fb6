"""Permissions that declaring a queue requires beyond the one on its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from leveret.broker.access.users import Action
from leveret.queues.log.spec import MAX_PARTITIONS, partition_names

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.vhost import VirtualHost


def require_dead_letter_permission(
    broker: Broker, user: str, vhost: VirtualHost, name: str, arguments: Mapping[str, Any]
) -> None:
    """Refuse a new queue unless its creator may read it and write to its dead-letter exchange."""
    exchange = arguments.get("x-dead-letter-exchange")
    if isinstance(exchange, str) and name not in vhost.queues:
        action = Action.QUEUE_DEAD_LETTER
        broker.users.authorize(user, vhost.name, action, queue=name, exchange=exchange)


def require_partition_permission(
    broker: Broker, user: str, vhost: VirtualHost, name: str, arguments: Mapping[str, Any]
) -> None:
    """Refuse a new partitioned log unless its creator may create its partitions.

    A user of the log may use its partitions, which are queues with names of their own. So a
    partition that exists already requires all permissions on it.
    """
    partitions = arguments.get("x-partitions")
    if name in vhost.queues or not isinstance(partitions, int):
        return
    for partition in partition_names(name, min(partitions, MAX_PARTITIONS)):
        exists = partition in vhost.queues
        action = Action.QUEUE_TAKE_OVER if exists else Action.QUEUE_PARTITION
        broker.users.authorize(user, vhost.name, action, partition=partition)
