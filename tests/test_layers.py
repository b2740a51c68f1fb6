"""Imports go one way (docs/architecture.md), and this proves it from the source text.

A room is a package; a file belongs to the most specific room that holds it. Imports inside
functions and under TYPE_CHECKING count, too: they are knowledge all the same. Changing a table
below needs a note in docs/decisions/.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

LEAVES = {"leveret.model"}
STORES = {"queues.storage", "queues.log"}
DOMAIN = LEAVES | STORES | {"bindings", "exchange", "queues"}
HUB = DOMAIN | {"leveret.broker", "leveret.config"}
FRONTS = {"amqp_server", "http_admin", "spark_sink"}

# Which rooms a room may import, beside itself.
ALLOWED: dict[str, set[str]] = {
    "leveret.model": set(),
    "leveret.config": {"leveret.config_kinds"},
    "leveret.config_kinds": set(),
    "bindings": LEAVES,
    "queues.log": LEAVES,
    "queues.storage": LEAVES,
    "exchange": LEAVES | {"bindings"},
    "queues": LEAVES | STORES,
    "leveret.broker": HUB,
    "amqp_server": HUB,
    "http_admin": HUB,
    "spark_sink": LEAVES | STORES,
    "leveret": HUB | FRONTS | {"leveret.config_kinds"},  # launch, cli, testing: composition
}

# Which modules may import a library; a package stands for all that is in it.
ONLY_IN: dict[str, tuple[str, ...]] = {
    "pamqp": ("amqp_server.codec", "leveret.model"),
    "sqlalchemy": ("queues.storage",),
    "aiosqlite": ("queues.storage",),
    "fastapi": ("http_admin",),
    "starlette": ("http_admin",),
    "pyspark": ("spark_sink",),
    "py4j": ("spark_sink",),
    "typer": ("leveret.cli",),
}
TOP_LEVEL = sorted({room.split(".")[0] for room in ALLOWED})


def is_within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def room_of(module: str) -> str | None:
    rooms = [room for room in ALLOWED if is_within(module, room)]
    return max(rooms, key=len) if rooms else None


def source_files(root: Path) -> Iterator[tuple[str, Path]]:
    for top in TOP_LEVEL:
        for path in sorted((root / top).rglob("*.py")):
            if "node_modules" not in path.parts:
                parts = path.relative_to(root).with_suffix("").parts
                yield ".".join(part for part in parts if part != "__init__"), path


def base_of(module: str, path: Path, node: ast.ImportFrom) -> str:
    """The package a `from` import starts at; relative ones count from the module's package."""
    if not node.level:
        return node.module or ""
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    kept = package[: len(package) - node.level + 1]
    return ".".join([*kept, *filter(None, [node.module])])


def imports_of(module: str, path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, alias.name) for alias in names)
            case ast.ImportFrom(names=names):
                base = base_of(module, path, node)
                yield from ((node.lineno, f"{base}.{alias.name}") for alias in names)
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[first, *_]):
                if name in {"import_module", "__import__"} and isinstance(first, ast.Constant):
                    yield node.lineno, str(first.value)


def maybe_fault(module: str, imported: str) -> str | None:
    library = imported.split(".")[0]
    if library in ONLY_IN and not any(is_within(module, place) for place in ONLY_IN[library]):
        return f"only {' and '.join(ONLY_IN[library])} may"
    here, there = room_of(module), room_of(imported)
    if here is None or there is None or imported == "leveret.__version__":
        return None
    if here == there or there in ALLOWED[here]:
        return None
    return f"{here} may import {', '.join(sorted(ALLOWED[here])) or 'no other room'}"


def violations(root: Path) -> list[str]:
    found = []
    for module, path in source_files(root):
        for line, imported in imports_of(module, path):
            fault = maybe_fault(module, imported)
            if fault is not None:
                found.append(f"{path.relative_to(root)}:{line} imports {imported}: {fault}")
    return found


def shadowing(root: Path) -> list[str]:
    found = (path.relative_to(root) for _, path in source_files(root))
    return [str(path) for path in found if "queue" in path.with_suffix("").parts]


def test_imports_go_one_way():
    found = violations(ROOT)
    assert not found, "imports against the layers:\n" + "\n".join(found)


def test_no_module_is_named_queue():
    assert not shadowing(ROOT)


def test_every_room_was_looked_at():
    seen = {room_of(module) for module, _ in source_files(ROOT)}
    assert seen == set(ALLOWED)


# --- The check itself, on planted trees ----------------------------------------------------------


def plant(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "text", "imported"),
    [
        ("leveret/model/message.py", "import bindings", "bindings"),
        (
            "leveret/model/clock.py",
            "from leveret.config import Settings",
            "leveret.config.Settings",
        ),
        ("bindings/topic.py", "from exchange import Exchange", "exchange.Exchange"),
        ("exchange/routing.py", "def f():\n    from queues import base", "queues.base"),
        ("queues/base.py", "from leveret.broker import vhost", "leveret.broker.vhost"),
        ("queues/log/segment.py", "from queues.classic import Entry", "queues.classic.Entry"),
        ("queues/storage/sql.py", "from ..classic import Entry", "queues.classic.Entry"),
        ("queues/classic.py", "import sqlalchemy as sa", "sqlalchemy"),
        ("leveret/broker/vhost.py", "from amqp_server.channel import C", "amqp_server.channel.C"),
        ("leveret/broker/hub.py", "from leveret import launch", "leveret.launch"),
        ("amqp_server/server.py", "import http_admin.app", "http_admin.app"),
        ("amqp_server/channel.py", "from pamqp import commands", "pamqp.commands"),
        ("http_admin/app.py", "from leveret.cli import main", "leveret.cli.main"),
        ("spark_sink/source.py", "from leveret.broker.hub import Hub", "leveret.broker.hub.Hub"),
        ("leveret/launch.py", "import fastapi", "fastapi"),
        ("leveret/broker/x.py", "import importlib\nimportlib.import_module('pyspark')", "pyspark"),
        (
            "queues/stats.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import amqp_server",
            "amqp_server",
        ),
    ],
)
def test_planted_violation_is_found(tmp_path, name, text, imported):
    plant(tmp_path, name, text + "\n")
    line = len(text.splitlines())
    assert [found.split(": ")[0] for found in violations(tmp_path)] == [
        f"{name}:{line} imports {imported}"
    ]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("leveret/model/tables.py", "from pamqp import decode"),
        ("amqp_server/codec.py", "import pamqp.frame"),
        ("amqp_server/session.py", "from leveret import __version__"),
        ("leveret/broker/vhost.py", "from queues import ClassicQueue\nimport exchange, bindings"),
        ("queues/storage/sql.py", "import sqlalchemy, aiosqlite\nfrom . import schema"),
        ("spark_sink/source.py", "from queues.log import reader\nimport pyspark.sql"),
        ("leveret/launch.py", "import amqp_server, http_admin\nfrom leveret.broker import Hub"),
    ],
)
def test_allowed_import_is_left_alone(tmp_path, name, text):
    plant(tmp_path, name, text + "\n")
    assert violations(tmp_path) == []


@pytest.mark.parametrize("name", ["queues/queue.py", "queues/queue/__init__.py"])
def test_planted_queue_module_is_found(tmp_path, name):
    plant(tmp_path, name, "")
    assert shadowing(tmp_path) == [name]
