"""A broker for tests: in process, on a free port, with a clock that jumps and faults on demand.

The pytest fixtures (`leveret.pytest_plugin`) hand one out per test; without pytest it is a plain
context manager: `with LeveretBroker() as broker:`.
"""

from leveret.testing.broker import LeveretBroker
from leveret.testing.clock import LeveretClock
from leveret.testing.published import Published

__all__ = ["LeveretBroker", "LeveretClock", "Published"]
