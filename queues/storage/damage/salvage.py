"""Makes a new, sound database from what can be read of a damaged one, and says what is lost.

The new database has the tables of the damaged one and every row that `table_reader` accepts; its
indexes are built again. Then the losses are given to those who have them:

- a queue whose definition is lost, but not its messages, returns as `leveret.recovered.<id>`;
- a virtual host that only other rows still name is made again;
- messages without content are settled (dropped), so that no queue counts or delivers them; of a
  pack whose index is readable, only those that do not match their checksum;
- a queue that has lost rows of its journal is replayed from its oldest event instead of its last
  snapshot: messages that were acknowledged may come again, marked as redelivered.

The damaged file is not changed. Runs on one thread, offline or before the store is open.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final

from leveret.model.history import EventKind
from leveret.model.store import LostData, StoreError
from leveret.queues.storage import compiled_statements as compiled
from leveret.queues.storage import old_messages, statements
from leveret.queues.storage.damage.btree import DamagedPage, Tree, TreeWalk
from leveret.queues.storage.damage.content import PACKS, ROWS, Content, sound_part
from leveret.queues.storage.damage.sqlite_file import Malformed, SqliteFile, Value
from leveret.queues.storage.damage.table_reader import (
    RowValues,
    TableDamage,
    TableReader,
    read_columns,
)
from leveret.queues.storage.directory import sync_file
from leveret.queues.storage.migrations import VERSION_KEY, migrate
from leveret.queues.storage.packing import event_checksum, pack_ids
from leveret.queues.storage.packs import PackRow
from leveret.queues.storage.read_only import open_read_only
from leveret.queues.storage.reader import is_undecodable
from leveret.queues.storage.recovery import Recovery
from leveret.queues.storage.transaction import NEEDS_REPAIR
from leveret.queues.storage.trims import EVENTS_KEY, MESSAGES_KEY, Trims

RECOVERED_PREFIX: Final = "leveret.recovered."
LOST_CONTENT: Final = "unreadable: its content was on a damaged page"
_SCHEMA: Final = "SELECT type, name, tbl_name, rootpage, sql FROM sqlite_schema ORDER BY rowid"
_ALWAYS_THERE: Final = frozenset({"meta", "users", "vhosts", "queues", "events", "group_offsets"})
"""The tables of every version of the schema that the losses below are read from."""
_LARGE: Final = frozenset({ROWS, PACKS, "body_parts", "events"})
_ROWS_PER_INSERT: Final = 10_000
_MAX_LISTED: Final = 20
_KEY_WORDS: Final = {
    "users": "user {0!r}",
    "vhosts": "virtual host {0!r}",
    "exchanges": "exchange {1!r} in vhost {0!r}",
    "permissions": "the permissions of user {0!r} in vhost {1!r}",
    "topic_permissions": "the topic permissions of user {0!r} in vhost {1!r} for {2!r}",
    "policies": "policy {1!r} in vhost {0!r}",
    "parameters": "parameter {2!r} of {1!r} in vhost {0!r}",
    "bindings": "the binding from {1!r} to {2!r} in vhost {0!r} with key {4!r}",
    "meta": "the broker's own note {0!r}",
}


@dataclass(frozen=True, slots=True)
class TableResult:
    """`lost_ids`: ranges in which rows are missing; `lost_keys`: the keys of missing rows."""

    rows: int
    lost_ids: tuple[str, ...] = ()
    lost_keys: tuple[str, ...] = ()


@dataclass(slots=True)
class SalvageReport:
    """What was read, what is lost, and which pages are damaged."""

    tables: dict[str, TableResult] = field(default_factory=dict)
    lost: list[LostData] = field(default_factory=list)
    pages: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Schema:
    """The tables, indexes and statements of a database, as its first page has them."""

    trees: tuple[Tree, ...]
    statements: tuple[str, ...]

    @property
    def tables(self) -> tuple[Tree, ...]:
        return tuple(tree for tree in self.trees if tree.is_table)

    def maybe_key_index(self, table: str) -> Tree | None:
        name = f"sqlite_autoindex_{table}_1"
        return next((tree for tree in self.trees if tree.name == name), None)

    def maybe_tree(self, name: str) -> Tree | None:
        return next((tree for tree in self.trees if tree.name == name), None)


def read_schema(connection: sqlite3.Connection) -> Schema:
    """Raises Malformed if a text of the schema, or a table that is always there, is unreadable."""
    try:
        rows = connection.execute(_SCHEMA).fetchall()
    except sqlite3.OperationalError as error:
        if is_undecodable(error):
            raise Malformed("its schema on page 1 cannot be read") from error
        raise
    names = {name for kind, name, *_ in rows if kind == "table"}
    if not names >= _ALWAYS_THERE or names.isdisjoint({ROWS, PACKS}):
        raise Malformed("its schema on page 1 has lost a table")
    trees = tuple(
        Tree(name, table, root, kind == "table")
        for kind, name, table, root, _ in rows
        if root and not name.startswith("sqlite_stat")
    )
    return Schema(trees, tuple(sql for *_, sql in rows if sql))


def salvage_database(
    source: Path, target: Path, log_ids: frozenset[int] = frozenset()
) -> SalvageReport:
    """Write what is readable of `source` to `target`, which must not exist.

    The source has no write-ahead log. `log_ids`: the queue ids of logs that have files.
    """
    with closing(open_read_only(source, immutable=True)) as old:
        schema = read_schema(old)
        columns = {tree.name: read_columns(old, tree.name) for tree in schema.tables}
    with closing(sqlite3.connect(target, isolation_level=None)) as new, SqliteFile(source) as file:
        for statement in (*statements.AT_CREATION, *statements.WITHOUT_JOURNAL, *schema.statements):
            new.execute(statement)
        salvage = _Salvage(new, file, schema)
        new.execute("BEGIN")
        for tree in sorted(schema.tables, key=lambda tree: tree.name == PACKS):  # needs body_parts
            index = schema.maybe_key_index(tree.name)
            reader = TableReader(file, tree, columns[tree.name], index, salvage.twins)
            salvage.copy(reader, tree.name)
        salvage.give_losses_to_queues(log_ids)
        new.execute("COMMIT")
    sync_file(target)
    return salvage.report


def database_of_logs(target: Path, log_ids: frozenset[int]) -> SalvageReport:
    """Make a database that knows nothing but the logs, whose own database is lost."""
    report = SalvageReport(tables={"queues": TableResult(len(log_ids))})
    with closing(sqlite3.connect(target, isolation_level=None)) as new:
        for statement in statements.AT_CREATION:
            new.execute(statement)
        migrate(new)
        new.execute(statements.BEGIN)
        new.execute("INSERT INTO vhosts (name) VALUES ('/')")
        for queue_id in sorted(log_ids):
            name = _insert_queue(new, queue_id, "/", is_log=True)
            text = f"the name and arguments of a log are lost; its records are in {name!r}"
            report.lost.append(LostData("queues", text, "/", name))
        new.execute(statements.COMMIT)
    report.lost.insert(0, LostData("", "everything but the records of logs is lost"))
    sync_file(target)
    return report


def _insert_queue(
    connection: sqlite3.Connection, queue_id: int, vhost: str, *, is_log: bool
) -> str:
    name = f"{RECOVERED_PREFIX}{queue_id}"
    kind = "stream" if is_log else "classic"
    arguments = json.dumps({"x-queue-type": "stream"}) if is_log else "{}"
    connection.execute(
        "INSERT INTO queues (id, vhost, name, kind, durable, arguments, delivered_to)"
        " VALUES (?, ?, ?, ?, 1, ?, ?)",
        (queue_id, vhost, name, kind, arguments, Content(connection).last_id()),
    )
    return name


class _Salvage:
    def __init__(self, new: sqlite3.Connection, file: SqliteFile, schema: Schema) -> None:
        self._new = new
        self._file = file
        self._schema = schema
        self._damage: dict[str, TableDamage] = {}
        self._content = Content(new)
        self._lost_content = TableDamage()
        """By ids of messages, of rows and of packs."""
        self.report = SalvageReport()
        self.twins = _find_twins(file, schema)

    # Rows --------------------------------------------------------------------------------------

    def copy(self, reader: TableReader, table: str) -> None:
        sql = statements.insert_unknown(table, len(reader.names))
        rows, count = reader.rows(), 0
        if table == PACKS:
            rows = self._sound_packs(rows)
        while part := list(islice(rows, _ROWS_PER_INSERT)):
            count += self._new.executemany(sql, part).rowcount
        damage = self._damage[table] = reader.damage
        self.report.pages += [str(page) for page in dict.fromkeys(damage.pages)]
        if table in (ROWS, PACKS):
            self._note_lost_content(damage, in_packs=table == PACKS)
            damage = self._lost_content
        self.report.tables[table] = TableResult(
            count, tuple(_ranges(damage)), tuple(map(_key_text, damage.keys))
        )
        self._name_lost_rows(table, damage)

    def _sound_packs(self, rows: Iterator[RowValues]) -> Iterator[RowValues]:
        for row in rows:
            sound, damaged = sound_part(self._new, PackRow._make(row))
            self._lost_content.bad_ids.update(damaged)
            if sound is not None:
                yield sound

    def _note_lost_content(self, damage: TableDamage, *, in_packs: bool) -> None:
        """A pack ends before the next one begins."""
        lost = self._lost_content
        if not in_packs:
            lost.ids += damage.ids
            lost.bad_ids |= damage.bad_ids
            return
        for low, high in [*damage.ids, *((pack, pack) for pack in sorted(damage.bad_ids))]:
            first = max(low, self._content.last_packed_before(low) + 1)
            following = None if high is None else self._content.maybe_next_id(high)
            lost.ids.append((first, None if following is None else following - 1))

    def _name_lost_rows(self, table: str, damage: TableDamage) -> None:
        if table in _KEY_WORDS:
            for key in damage.keys:
                what = _KEY_WORDS[table].format(*key)
                self._add(table, f"{what} is lost")
        is_named_later = table in ("queues", "events", ROWS, PACKS, "origins")
        if damage.ids and not damage.knows_all_keys and not is_named_later:
            self._add(table, f"rows of the table {table} are lost: {', '.join(_ranges(damage))}")
        if damage.has_lost_rows and table == "origins":
            self._add(table, "history no longer knows some of the connections it refers to")

    def _add(self, table: str, text: str, vhost: str = "", queue: str = "") -> None:
        self.report.lost.append(LostData(table, text, vhost, queue))

    # What the losses mean ------------------------------------------------------------------------

    def give_losses_to_queues(self, log_ids: frozenset[int]) -> None:
        self._restore_version()
        self._new.execute(compiled.SET_META, (NEEDS_REPAIR, "0"))
        self._restore_queues(log_ids)
        self._restore_vhosts()
        self._drop_loose_bindings()
        self._replay_from_oldest_event()
        self._settle_messages_without_content()
        self._name_lost_offsets()
        newest = "SELECT max(last_id) FROM events"
        self._tell_readers(self._lost_content, MESSAGES_KEY, newest)
        self._tell_readers(self._damage["events"], EVENTS_KEY, "SELECT max(id) FROM events")
        if not self._row("SELECT count(*) FROM users")[0] and self._damage["users"].pages:
            self._add("users", "no user is left: nobody can log in")

    def _row(self, sql: str, *values: object) -> tuple[Any, ...]:
        row: tuple[Any, ...] = self._new.execute(sql, values).fetchone()
        return row

    def _restore_version(self) -> None:
        """Its columns tell it, if they are those of this version or the one before."""
        if self._new.execute(compiled.GET_SCHEMA_VERSION).fetchone() is not None:
            return
        rows = self._new.execute(compiled.COLUMN_NAMES)
        stored = {(table.lower(), name.lower()) for table, name in rows}
        current = {(table, name) for table, names in compiled.COLUMNS.items() for name in names}
        packs = {column for column in current if column[0] == PACKS}
        before = current - packs | {(ROWS, name) for name in old_messages.COLUMNS}
        if stored == current:
            version = statements.SCHEMA_VERSION
        elif stored - packs == before:
            version = old_messages.LAST_VERSION
        else:
            raise StoreError("leveret.db is damaged: it has lost the version of its schema")
        self._new.execute(compiled.SET_META, (VERSION_KEY, str(version)))
        self._new.execute(compiled.SET_META, ("clean", "0"))

    def _restore_queues(self, log_ids: frozenset[int]) -> None:
        """Make the queues again whose definitions are lost, under names of their own."""
        if not self._damage["queues"].has_lost_rows:
            return
        in_events = self._new.execute(
            "SELECT DISTINCT queue_id FROM events WHERE queue_id > 0"
            " UNION SELECT queue_id FROM group_offsets"
        )
        used = {queue_id for (queue_id,) in in_events} | log_ids
        known = {queue_id for (queue_id,) in self._new.execute("SELECT id FROM queues")}
        for queue_id in sorted(used - known):
            self._restore_queue(queue_id, is_log=queue_id in log_ids)
        ranges = ", ".join(_ranges(self._damage["queues"]))
        self._add("queues", f"definitions of queues are lost (queue {ranges})")

    def _restore_queue(self, queue_id: int, *, is_log: bool) -> None:
        vhost, probable = self._probable_name(queue_id)
        name = _insert_queue(self._new, queue_id, vhost, is_log=is_log)
        recovery = Recovery(self._new)
        recovery.read_journal(queue_id, 0)
        count = sum(len(part.ids) for part in recovery.live.get(queue_id, ()))
        if not count and not is_log:
            self._new.execute("DELETE FROM queues WHERE id = ?", (queue_id,))
            return
        held = "its records" if is_log else _counted(count, "message")
        was = f" (probably {probable!r})" if probable else ""
        self._add(
            "queues",
            f"the name and arguments of a queue{was} are lost; {name!r} has {held}",
            vhost,
            name,
        )

    def _probable_name(self, queue_id: int) -> tuple[str, str]:
        """The vhost and name that messages published to the default exchange tell."""
        routes = list(self._content.routes(self._some_ids(queue_id)))
        rows = self._new.execute("SELECT id, vhost FROM origins WHERE vhost != ''")
        known = dict(rows.fetchall())
        vhosts = Counter(known[origin] for origin, _, _ in routes if origin in known)
        names = Counter(key for _, exchange, key in routes if not exchange)
        only = [name for (name,) in self._new.execute("SELECT name FROM vhosts")]
        vhost = max(vhosts, key=vhosts.__getitem__, default=only[0] if len(only) == 1 else "/")
        return vhost, max(names, key=names.__getitem__, default="")

    def _some_ids(self, queue_id: int) -> list[int]:
        row = self._new.execute(
            "SELECT ids FROM events WHERE queue_id = ? AND kind IN (?, ?) LIMIT 1",
            (queue_id, EventKind.ENQUEUED, EventKind.SNAPSHOT),
        ).fetchone()
        return list(array("Q", row[0])[:_MAX_LISTED]) if row else []

    def _restore_vhosts(self) -> None:
        if not self._damage["vhosts"].has_lost_rows:
            return
        rows = self._new.execute(
            "SELECT vhost FROM queues WHERE deleted_ms IS NULL AND durable"
            " UNION SELECT vhost FROM exchanges UNION SELECT vhost FROM permissions"
            " EXCEPT SELECT name FROM vhosts"
        ).fetchall()
        for (name,) in rows:
            self._new.execute("INSERT INTO vhosts (name) VALUES (?)", (name,))
            self._add("vhosts", f"the options of virtual host {name!r} are lost")

    def _drop_loose_bindings(self) -> None:
        """Delete bindings to queues that are gone."""
        if not self._damage["queues"].has_lost_rows:
            return
        rows = self._new.execute(
            "DELETE FROM bindings WHERE destination_kind = 'queue' AND NOT EXISTS"
            " (SELECT 1 FROM queues AS q WHERE q.vhost = bindings.vhost AND"
            "  q.name = bindings.destination AND q.deleted_ms IS NULL)"
            " RETURNING vhost, source, destination, routing_key"
        ).fetchall()
        for vhost, source, destination, key in rows:
            self._add(
                "bindings",
                f"queue {destination!r} is lost, and with it its binding from {source!r}"
                f" with key {key!r}",
                vhost,
                destination,
            )

    def _replay_from_oldest_event(self) -> None:
        for queue_id, count in self._lost_journal_rows().items():
            row = self._new.execute(
                "SELECT vhost, name FROM queues WHERE id = ? AND deleted_ms IS NULL AND durable",
                (queue_id,),
            ).fetchone()
            self._new.execute("UPDATE queues SET snapshot_event = 0 WHERE id = ?", (queue_id,))
            if row is not None:
                self._add(
                    "events",
                    f"queue {row[1]!r} has lost {_counted(count, 'row')} of its journal;"
                    " messages may be missing, or come again",
                    *row,
                )
        if self._damage["events"].has_lost_rows:
            ranges = ", ".join(_ranges(self._damage["events"]))
            self._add("events", f"history has a gap: events {ranges} are lost")

    def _lost_journal_rows(self) -> Counter[int]:
        """How many events each queue has lost, as far as the index still names them."""
        damage, index = self._damage["events"], self._schema.maybe_tree("events_by_queue")
        lost: Counter[int] = Counter()
        if not damage.has_lost_rows or index is None:
            return lost
        for page in TreeWalk(self._file, index).pages():
            if isinstance(page, DamagedPage):
                self.report.pages.append(str(page))
                continue
            for entry in self._file.rows(page.node):
                if entry is not None and damage.may_include(entry.rowid):
                    queue_id = entry.values[0]
                    if isinstance(queue_id, int) and not self._has_event(entry.rowid):
                        lost[queue_id] += 1
        return lost

    def _has_event(self, event_id: int) -> bool:
        return bool(self._row("SELECT count(*) FROM events WHERE id = ?", event_id)[0])

    def _settle_messages_without_content(self) -> None:
        if not self._lost_content.has_lost_rows:
            return
        recovery = Recovery(self._new)
        recovery.read_journals()
        for queue_id, parts in recovery.live.items():
            lost = self._content.missing(sorted(i for part in parts for i in part.ids))
            if not lost:
                continue
            self._settle(queue_id, lost)
            vhost, name = self._row("SELECT vhost, name FROM queues WHERE id = ?", queue_id)
            self._add(
                ROWS,
                f"queue {name!r} has lost {_counted(len(lost), 'message')}, whose content cannot"
                f" be read (ids {_id_ranges(lost)})",
                vhost,
                name,
            )
        ranges = ", ".join(_ranges(self._lost_content))
        self._add(ROWS, f"history has a gap: the content of messages {ranges} is lost")

    def _settle(self, queue_id: int, message_ids: list[int]) -> None:
        event_id = self._row(compiled.LAST_EVENT)[0] + 1
        time_ms = self._row("SELECT coalesce(max(time_ms), 0) FROM events")[0]
        kind, count, ids = int(EventKind.DROPPED), len(message_ids), pack_ids(message_ids)
        crc = event_checksum(time_ms, kind, queue_id, 0, LOST_CONTENT, count, ids, None)
        self._new.execute(
            compiled.INSERT_EVENTS,
            (event_id, time_ms, kind, queue_id, 0, LOST_CONTENT, count,
             min(message_ids), max(message_ids), ids, None, crc),
        )  # fmt: skip

    def _tell_readers(self, damage: TableDamage, key: str, newest: str) -> None:
        """Note the highest lost id, for readers of the history that have not come so far."""
        if damage.has_lost_rows:
            highest = self._row(newest)[0] or 0
            ends = [highest if high is None else high for _, high in damage.ids]
            row = self._new.execute(compiled.META_VALUE, (key,)).fetchone()
            trims = Trims.from_json(row[0] if row else None)
            trims = trims.after_deleting(max([*ends, *damage.bad_ids]))
            self._new.execute(compiled.SET_META, (key, trims.to_json()))

    def _name_lost_offsets(self) -> None:
        for queue_id, group, *_ in self._damage["group_offsets"].keys:
            row = self._new.execute(
                "SELECT vhost, name FROM queues WHERE id = ?", (queue_id,)
            ).fetchone()
            where = row or ("", str(queue_id))
            self._add(
                "group_offsets",
                f"group {group!r} has lost its offset in log {where[1]!r}",
                *where,
            )


def _find_twins(file: SqliteFile, schema: Schema) -> frozenset[int]:
    """Pages of small tables and indexes whose content another page has as well."""
    pages: dict[bytes, list[int]] = {}
    for tree in schema.trees:
        if tree.table in _LARGE:
            continue
        for page in TreeWalk(file, tree).pages():
            if not isinstance(page, DamagedPage) and page.node.cells:
                digest = hashlib.blake2b(page.node.data).digest()
                pages.setdefault(digest, []).append(page.node.number)
    return frozenset(number for same in pages.values() if len(same) > 1 for number in same)


def _ranges(damage: TableDamage) -> list[str]:
    pages = [f"{low} to {'the newest' if high is None else high}" for low, high in damage.ids]
    rows = [_id_ranges(sorted(damage.bad_ids))] if damage.bad_ids else []
    return pages + rows


def _id_ranges(ids: Iterable[int]) -> str:
    """Like "3-7, 9": consecutive numbers as one range."""
    ranges: list[list[int]] = []
    for number in ids:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    texts = [str(a) if a == b else f"{a}-{b}" for a, b in ranges[:_MAX_LISTED]]
    more = f" and {len(ranges) - _MAX_LISTED} more ranges" if len(ranges) > _MAX_LISTED else ""
    return ", ".join(texts) + more


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _key_text(key: tuple[Value, ...]) -> str:
    return ", ".join(map(str, key))
