"""Where access meets the rest of the hub: log-ins, and rights that change under open connections.

Nothing is asked again per message. A change of rights raises `Users.revision`, under which channels
remember what they may do; and each connection of the users concerned is reviewed once, at the end
of the loop turn, so that consumers that may no longer read are cancelled at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from leveret.broker.access.audit import Audit
from leveret.broker.access.logins import Logins

if TYPE_CHECKING:
    from leveret.broker.broker import Broker

_ANOTHER_PASSWORD = ("user.password.changed", "user.deleted")


class Gate:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.logins = Logins(
            broker.users, broker.settings, broker.clock.monotonic, broker.turn.schedule
        )
        folder = None if broker.settings.memory else broker.settings.data_dir
        self.audit = Audit(folder, broker.clock.wall_ms)
        self._to_review: set[str] = set()

    def __repr__(self) -> str:
        return f"<Gate {self.logins!r} to_review={len(self._to_review)}>"

    def changed(self, event: str, facts: Mapping[str, Any]) -> None:
        """Something about a user has changed, as `Users` tells it."""
        self._broker.events.tell(event, facts)
        if event in _ANOTHER_PASSWORD:
            self.logins.forget(facts["name"])
        if event.startswith("permission.") and self._broker.connections:
            if not self._to_review:
                asyncio.get_running_loop().call_soon(self._review)
            self._to_review.add(facts["user"])

    def _review(self) -> None:
        users, self._to_review = self._to_review, set()
        for connection in [one for one in self._broker.connections if one.user.name in users]:
            connection.review_rights()

    async def stop(self) -> None:
        self.logins.stop()
        await self.audit.stop()
