"""The generator against a peer that costs nothing: how fast it could go if a broker could.

The peer runs in this process and the worker in its own, as in a real run.
"""

from collections.abc import Iterator

from benchmarks.crew import Crew, Role
from benchmarks.nullbroker import NullBroker, deliveries
from benchmarks.roles import Consumer, Publisher, Stream

_DELIVERIES = 600_000
_SECONDS = 1.0
_WITHIN = 60.0


def lines() -> Iterator[str]:
    """One sentence per hot loop: its rate, and the share of a core it needed for that."""
    with NullBroker(deliveries(1, _DELIVERIES, body_size=100)) as peer:
        stream, queue = Stream("", ("q",)), ("q",)
        roles: dict[str, Role] = {
            "publish": Publisher(peer.address, stream, seconds=_SECONDS, part=600),
            "publish, confirms": Publisher(peer.address, stream, seconds=_SECONDS, window=1000),
            "consume, auto-ack": Consumer(peer.address, queue, 0, late=True),
            "consume, ack every 100": Consumer(peer.address, queue, 0, ack_every=100, late=True),
            "consume, ack each": Consumer(peer.address, queue, 0, ack_every=1, late=True),
        }
        for name, role in roles.items():
            with Crew([role], consumers=1) as crew:
                crew.tally.expect(_DELIVERIES)
                crew.go()
                (report,) = crew.reports(slice(None), _WITHIN)
            rate = report.count / (report.finished - report.started)
            yield f"{name:24} {rate:12,.0f}/s at {report.busy:4.0%} of a core"
