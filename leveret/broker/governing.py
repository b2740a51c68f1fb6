"""Where policies and limits take effect.

Of a policy: what queues, logs and exchanges take of it, at once and on whatever is made later;
where there are very many of them, some at a time, and others are served in between. A partition of
a log is governed by the policies of its own name, or else by those of its log. Of limits:
`max-queues`, `max-connections` and `max-channels`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from exchange import Exchange
from leveret.broker.log_keeper import partition_names
from leveret.broker.policies import EXCHANGE
from leveret.broker.users import Action
from leveret.broker.vhost import NO_LIMIT
from leveret.model.errors import NotAllowed
from leveret.model.history import Keep
from queues import ClassicQueue, HeldQueue, LogQueue, PartitionedLog
from queues.stream.spec import MAX_PARTITIONS

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.users import User
    from leveret.broker.vhost import VirtualHost

AT_ONCE = 200
AT_ONCE_SECONDS = 0.005
"""Of processor time: a pattern made for it takes milliseconds for one name."""
KEEP = {"full": Keep.FULL, "metadata": Keep.METADATA, "off": Keep.NOTHING}


def apply_policies(broker: Broker, vhost_name: str) -> None:
    """A policy of this vhost has changed."""
    vhost = broker.vhosts.get(vhost_name)
    if vhost is not None:
        vhost.ungoverned = iter([*vhost.exchanges.values(), *vhost.queues.values()])
        _apply_some(broker, vhost, vhost.ungoverned)


def _apply_some(broker: Broker, vhost: VirtualHost, left: Iterator[Exchange | HeldQueue]) -> None:
    """Unless another change has begun anew."""
    if vhost.ungoverned is not left:
        return
    until = time.thread_time() + AT_ONCE_SECONDS
    for number, made in enumerate(islice(left, AT_ONCE), 1):
        there = vhost.exchanges if isinstance(made, Exchange) else vhost.queues
        if there.get(made.name) is made:
            apply_policy(broker, vhost, made)
        if number == AT_ONCE or time.thread_time() > until:
            broker.turn.later(lambda: _apply_some(broker, vhost, left))
            break
    vhost.version += 1


def apply_policy(broker: Broker, vhost: VirtualHost, made: Exchange | HeldQueue) -> None:
    kind = EXCHANGE if isinstance(made, Exchange) else made.spec.kind
    asked = broker.policies.effective(vhost.name, made.name, kind).definition
    if isinstance(made, Exchange):
        made.alternate = made.spec.alternate or asked.get("alternate-exchange")
    elif isinstance(made, ClassicQueue):
        made.govern(asked)
        if made.journal is not None:
            made.journal.keep = KEEP[asked.get("history", broker.settings.history)]
    elif isinstance(made, LogQueue):
        if not asked and made.whole is not None:
            asked = broker.policies.effective(vhost.name, made.whole.name, kind).definition
        made.govern(asked)
    elif isinstance(made, PartitionedLog):
        for partition in made.partitions:
            apply_policy(broker, vhost, partition)


def require_dead_letters(
    broker: Broker, user: str, vhost: VirtualHost, name: str, arguments: Mapping[str, Any]
) -> None:
    """What dies in a new queue is read there and written to its target, in its maker's name."""
    target = arguments.get("x-dead-letter-exchange")
    if isinstance(target, str) and name not in vhost.queues:
        broker.users.demand(user, vhost.name, Action.QUEUE_DEAD_LETTER, queue=name, exchange=target)


def require_partitions(
    broker: Broker, user: str, vhost: VirtualHost, name: str, arguments: Mapping[str, Any]
) -> None:
    """A partitioned log makes queues of names of their own, and whoever may use the log may use
    them: who takes over one that is there must be able to do all of that already."""
    partitions = arguments.get("x-partitions")
    if name in vhost.queues or not isinstance(partitions, int):
        return
    for partition in partition_names(name, min(partitions, MAX_PARTITIONS)):
        is_there = partition in vhost.queues
        action = Action.QUEUE_TAKE_OVER if is_there else Action.QUEUE_PARTITION
        broker.users.demand(user, vhost.name, action, partition=partition)


def apply_limits(broker: Broker, vhost_name: str) -> None:
    """A parameter of this vhost has changed, perhaps its limits."""
    vhost = broker.vhosts.get(vhost_name)
    if vhost is not None:
        limits = broker.parameters.vhost_limits(vhost_name)
        vhost.most_queues = limits.get("max-queues", broker.settings.queue_max or NO_LIMIT)


def require_room(broker: Broker, user: User, vhost: VirtualHost) -> None:
    """Refuse a connection beyond the limits of its vhost or user."""
    most = broker.parameters.vhost_limits(vhost.name).get("max-connections", NO_LIMIT)
    if 0 <= most <= sum(one.vhost is vhost for one in broker.connections):
        raise NotAllowed(
            f"access to vhost '{vhost.name}' refused for user '{user.name}': "
            f"connection limit ({most}) is reached"
        )
    most = _user_limit(broker, user, "max-connections")
    if 0 <= most <= sum(one.user.name == user.name for one in broker.connections):
        raise NotAllowed(
            f"connection refused for user '{user.name}': user connection limit ({most}) is reached"
        )


def require_channel_room(broker: Broker, user: User) -> None:
    """Refuse a channel beyond the limit of its user, over all connections."""
    most = _user_limit(broker, user, "max-channels")
    if most < 0:
        return
    mine = [one for one in broker.connections if one.user.name == user.name]
    if most <= sum(len(one.channels) for one in mine):
        raise NotAllowed(
            f"number of channels opened for user '{user.name}' has reached the maximum allowed "
            f"user limit of ({most})"
        )


def _user_limit(broker: Broker, user: User, name: str) -> int:
    """As it is now: it may have changed since the user logged in."""
    return broker.users.by_name.get(user.name, user).limits.get(name, NO_LIMIT)
