"""Measures the load generator against a stub broker: its maximum rate.

The stub runs in this process and the worker in its own process, as in a real run.
"""

from collections.abc import Iterator

from benchmarks.roles import Consumer, Publisher, Stream
from benchmarks.stub_broker import StubBroker, deliveries
from benchmarks.workers import Role, WorkerPool

_DELIVERIES = 600_000
_SECONDS = 1.0
_TIMEOUT = 60.0


def lines() -> Iterator[str]:
    """One sentence per hot loop: its rate, and the share of a core it needed for that."""
    with StubBroker(deliveries(1, _DELIVERIES, body_size=100)) as stub:
        stream, queue = Stream("", ("q",)), ("q",)
        roles: dict[str, Role] = {
            "publish": Publisher(stub.address, stream, seconds=_SECONDS, part=600),
            "publish, confirms": Publisher(stub.address, stream, seconds=_SECONDS, window=1000),
            "consume, auto-ack": Consumer(stub.address, queue, 0, late=True),
            "consume, ack every 100": Consumer(stub.address, queue, 0, ack_every=100, late=True),
            "consume, ack each": Consumer(stub.address, queue, 0, ack_every=1, late=True),
        }
        for name, role in roles.items():
            with WorkerPool([role], consumers=1) as pool:
                pool.counts.expect(_DELIVERIES)
                pool.go()
                (report,) = pool.reports(slice(None), _TIMEOUT)
            rate = report.count / (report.finished - report.started)
            yield f"{name:24} {rate:12,.0f}/s at {report.busy:4.0%} of a core"
