"""Leveret: a RabbitMQ-compatible message broker with a log and a history.

In process: `async with leveret.Broker() as broker` or, from synchronous code,
`with leveret.ThreadedBroker() as broker`; both listen on a free port, at `broker.url`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leveret.model import form

if TYPE_CHECKING:
    from leveret.launch import RunningBroker as Broker
    from leveret.launch import ThreadedBroker, in_process_settings

__version__ = "0.2.0"
__all__ = ["Broker", "ThreadedBroker", "in_process_settings"]

form.install()


def __getattr__(name: str) -> Any:
    # Importing the package must stay cheap: `leveret --help` does it.
    if name in __all__:
        from leveret import launch

        return launch.RunningBroker if name == "Broker" else getattr(launch, name)
    raise AttributeError(name)
