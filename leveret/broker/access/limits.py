"""Limits of vhosts and users: `max-queues`, `max-connections` and `max-channels`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.broker.vhost import NO_LIMIT
from leveret.model.errors import NotAllowed

if TYPE_CHECKING:
    from leveret.broker.access.users import User
    from leveret.broker.broker import Broker
    from leveret.broker.vhost import VirtualHost


def apply_limits(broker: Broker, vhost_name: str) -> None:
    """Apply the limits of a vhost in which a parameter has changed."""
    vhost = broker.vhosts.get(vhost_name)
    if vhost is not None:
        limits = broker.parameters.vhost_limits(vhost_name)
        vhost.max_queues = limits.get("max-queues", broker.settings.queue_max or NO_LIMIT)


def require_connection_limit(broker: Broker, user: User, vhost: VirtualHost) -> None:
    """Refuse a connection beyond the limits of its vhost or user."""
    limit = broker.parameters.vhost_limits(vhost.name).get("max-connections", NO_LIMIT)
    if 0 <= limit <= sum(connection.vhost is vhost for connection in broker.connections):
        raise NotAllowed(
            f"access to vhost '{vhost.name}' refused for user '{user.name}': "
            f"connection limit ({limit}) is reached"
        )
    limit = _user_limit(broker, user, "max-connections")
    if 0 <= limit <= sum(each.user.name == user.name for each in broker.connections):
        raise NotAllowed(
            f"connection refused for user '{user.name}': user connection limit ({limit}) is reached"
        )


def require_channel_limit(broker: Broker, user: User) -> None:
    """Refuse a channel beyond the limit of its user, over all connections."""
    limit = _user_limit(broker, user, "max-channels")
    if limit < 0:
        return
    connections = [each for each in broker.connections if each.user.name == user.name]
    if limit <= sum(len(connection.channels) for connection in connections):
        raise NotAllowed(
            f"number of channels opened for user '{user.name}' has reached the maximum allowed "
            f"user limit of ({limit})"
        )


def _user_limit(broker: Broker, user: User, name: str) -> int:
    """Return the current limit, which may have changed since the user logged in."""
    return broker.users.by_name.get(user.name, user).limits.get(name, NO_LIMIT)
