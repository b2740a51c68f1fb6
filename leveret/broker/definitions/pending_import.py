"""Imports of definitions, one at a time, that a crash does not leave half done.

A short import is checked and applied at once, so it is in one batch of the store. A long one takes
seconds and many batches, so that other clients' commits need not wait for it. Before it changes
anything it is itself stored, and each batch contains how many of its definitions are applied. If
the broker stops or crashes before the end, the next start applies the rest: after a restart either
all of the import exists or nothing, as with a short one.

Both are stored as parameters of an internal component. Event-loop thread only.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import zlib
from collections.abc import Awaitable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import orjson

from leveret.broker.definitions.export import (
    Row,
    binding_row,
    exchange_row,
    permission_row,
    policy_row,
    queue_definition_row,
    topic_permission_row,
    user_row,
)
from leveret.broker.definitions.extension import SECTION
from leveret.broker.definitions.file import ParsedDefinitions, parse_definitions
from leveret.broker.definitions.importer import apply_import, check_import
from leveret.broker.policies.parameters import GLOBAL, IMPORT
from leveret.broker.runtime.slices import Steps, run_at_once, run_in_slices
from leveret.model.definitions import ParameterDefinition
from leveret.model.errors import BrokerError

if TYPE_CHECKING:
    from leveret.broker.broker import Broker

log = logging.getLogger("leveret.broker")

SHORT_IMPORT = 200
"""Up to this many definitions are imported at once."""
_CONTENT, _APPLIED = "content", "applied"
_ROWS_PER_STEP = 100


class DefinitionsImports:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._one_at_a_time = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, definitions: ParsedDefinitions) -> None:
        """Check and apply definitions; it continues if the caller is cancelled."""
        actor = self._broker.events.actor
        work = actor.run_as(actor.name, self._run(definitions))
        task = asyncio.create_task(_as_coroutine(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await asyncio.shield(task)

    async def _run(self, definitions: ParsedDefinitions) -> None:
        async with self._one_at_a_time:
            for name, _ in definitions.vhosts:
                await self._broker.vhost_deletions.finished(name)
            if len(definitions) <= SHORT_IMPORT:
                run_at_once(check_import(self._broker, definitions))
                run_at_once(apply_import(self._broker, definitions))
                return
            await run_in_slices(check_import(self._broker, definitions))
            self._save(_CONTENT, await run_in_slices(_encode(definitions)))
            await run_in_slices(self._apply(definitions), self._broker.store.waiting_changes)

    def _apply(self, definitions: ParsedDefinitions, first: int = 0) -> Steps[None]:
        """Apply the definitions from number `first` on, and store with each how many are."""
        applied, steps = first, apply_import(self._broker, definitions, first)
        try:
            for _ in steps:
                applied += 1
                self._save(_APPLIED, str(applied))
                yield
        finally:
            if applied == len(definitions):
                self._delete(_APPLIED)
                self._delete(_CONTENT)

    def finish_stored(self, stored: Iterable[ParameterDefinition]) -> None:
        """Apply the rest of an import during which the broker stopped or crashed."""
        values = {row.name: row.value for row in stored if row.component == IMPORT}
        if _CONTENT not in values:
            return
        try:
            definitions = run_at_once(parse_definitions(_decode(values[_CONTENT])))
            applied = int(json.loads(values.get(_APPLIED, "0")))
            log.warning("resuming an import: %d of %d applied", applied, len(definitions))
            run_at_once(self._apply(definitions, applied))
        except BrokerError as error:
            log.error("resumed an import: %s", error.explanation)
        except (ValueError, TypeError, zlib.error) as error:
            log.error("the rest of an import is damaged and ignored: %r", error)
            self._delete(_CONTENT)

    async def stop(self) -> None:
        """Leave an unfinished import to the next start."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _save(self, name: str, value: str) -> None:
        self._broker.store.save(ParameterDefinition(GLOBAL, IMPORT, name, value))
        self._broker.scheduler.schedule()

    def _delete(self, name: str) -> None:
        self._broker.store.delete(ParameterDefinition(GLOBAL, IMPORT, name))
        self._broker.scheduler.schedule()


async def _as_coroutine(work: Awaitable[None]) -> None:
    await work


def _encode(definitions: ParsedDefinitions) -> Steps[str]:
    """The definitions as a compressed document in a JSON string.

    Not the document that was sent: the check may have left out parts of it, and it may contain
    passwords, which are hashed by now.
    """
    compress, parts = zlib.compressobj(1), list[bytes]()
    for part in _json_parts(definitions):
        parts.append(compress.compress(part))
        yield
    parts.append(compress.flush())
    return json.dumps(base64.b64encode(b"".join(parts)).decode())


def _decode(value: str) -> Any:
    return orjson.loads(zlib.decompress(base64.b64decode(json.loads(value))))


def _json_parts(definitions: ParsedDefinitions) -> Iterator[bytes]:
    """A definitions document in pieces of some rows each."""
    start = b"{"
    for section, rows in _sections(definitions).items():
        yield start + orjson.dumps(section) + b":["
        separator = b""
        while some := list(islice(rows, _ROWS_PER_STEP)):
            yield separator + orjson.dumps(some)[1:-1]
            separator = b","
        yield b"]"
        start = b","
    policies = [{**policy_row(each), "operator": each.operator} for each in definitions.policies]
    yield b"," + orjson.dumps(SECTION) + b":" + orjson.dumps({"policies": policies}) + b"}"


def _sections(definitions: ParsedDefinitions) -> dict[str, Iterator[Row]]:
    return {
        "users": map(user_row, definitions.users),
        "vhosts": ({"name": name, **options} for name, options in definitions.vhosts),
        "permissions": map(permission_row, definitions.permissions),
        "topic_permissions": map(topic_permission_row, definitions.topic_permissions),
        "parameters": (
            {"vhost": vhost, "component": component, "name": name, "value": value}
            for (vhost, component, name), value in definitions.parameters
            if vhost != GLOBAL
        ),
        "global_parameters": (
            {"name": name, "value": value}
            for (vhost, _, name), value in definitions.parameters
            if vhost == GLOBAL
        ),
        "queues": (queue_definition_row(vhost, spec) for vhost, spec in definitions.queues),
        "exchanges": (exchange_row(vhost, spec) for vhost, spec in definitions.exchanges),
        "bindings": (binding_row(vhost, binding) for vhost, binding in definitions.bindings),
    }
