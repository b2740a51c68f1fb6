"""The cluster's name: a global parameter, or the node's name while nobody has set one."""

from __future__ import annotations

from leveret.broker import Broker


def cluster_name(broker: Broker) -> str:
    return broker.settings.node_name
