"""Where policies take effect.

A changed policy is applied to all queues, logs and exchanges of its vhost, and to objects that are
created later. If a vhost has very many objects, this happens in slices so that other work can run
in between. A partition of a log uses the policies that match its own name, or else those of its
log.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from leveret.broker.policies.policies import EXCHANGE
from leveret.exchange import Exchange
from leveret.model.history import Keep
from leveret.queues.port import Queue

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.vhost import VirtualHost

SLICE = 200
SLICE_SECONDS = 0.005
"""CPU time: matching a hostile pattern against one name can take milliseconds."""
KEEP = {"full": Keep.FULL, "metadata": Keep.METADATA, "off": Keep.NOTHING}


def apply_policies(broker: Broker, vhost_name: str) -> None:
    """Apply policies to all objects of a vhost in which a policy has changed."""
    vhost = broker.vhosts.get(vhost_name)
    if vhost is not None:
        vhost.policy_pass = iter([*vhost.exchanges.values(), *vhost.queues.values()])
        _apply_slice(broker, vhost, vhost.policy_pass)


def _apply_slice(broker: Broker, vhost: VirtualHost, remaining: Iterator[Exchange | Queue]) -> None:
    """Apply policies to the next objects; stop if a newer change has started another pass."""
    if vhost.policy_pass is not remaining:
        return
    until = time.thread_time() + SLICE_SECONDS
    for number, target in enumerate(islice(remaining, SLICE), 1):
        existing = vhost.exchanges if isinstance(target, Exchange) else vhost.queues
        if existing.get(target.name) is target:
            apply_policy(broker, vhost, target)
        if number == SLICE or time.thread_time() > until:
            broker.scheduler.call_soon(lambda: _apply_slice(broker, vhost, remaining))
            break
    vhost.version += 1


def apply_policy(broker: Broker, vhost: VirtualHost, target: Exchange | Queue) -> None:
    kind = EXCHANGE if isinstance(target, Exchange) else target.spec.kind
    definition = broker.policies.effective(vhost.name, target.name, kind).definition
    if isinstance(target, Exchange):
        target.alternate = target.spec.alternate or definition.get("alternate-exchange")
        return
    log = target.partition_of
    if not definition and log is not None:
        definition = broker.policies.effective(vhost.name, log.name, kind).definition
    target.apply_policy(definition, KEEP[definition.get("history", broker.settings.history)])
    for partition in target.partitions:
        apply_policy(broker, vhost, partition)
