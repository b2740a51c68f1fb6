"""A broker for tests: in process, on a free port, with a clock that jumps and faults on demand.

The pytest fixtures (`leveret.pytest_plugin`) provide one per test; without pytest it is a plain
context manager: `with LeveretBroker() as broker:`.
"""

from leveret.testing.broker import LeveretBroker, Published
from leveret.testing.clock import LeveretClock

__all__ = ["LeveretBroker", "LeveretClock", "Published"]
