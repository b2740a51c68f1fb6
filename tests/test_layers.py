"""Imports follow the layers of docs/architecture.md.

A file belongs to the innermost package of `ALLOWED` that contains it. Imports inside functions
and under TYPE_CHECKING count too, because they are dependencies as well. A change of a table below
needs a note in docs/decisions/.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

LEAVES = {"leveret.model"}
STORES = {"leveret.queues.storage", "leveret.queues.log.files"}
DOMAIN = LEAVES | STORES | {"leveret.bindings", "leveret.exchange", "leveret.queues"}
HUB = DOMAIN | {"leveret.broker", "leveret.config"}
FRONTS = {"leveret.amqp_server", "leveret.http_admin", "leveret.spark_sink"}

# Top-level folders of the repository that are packages of `leveret` (docs/architecture.md).
LINKED = ("exchange", "queues", "bindings", "amqp_server", "http_admin", "spark_sink")

# Which other packages a package may import.
ALLOWED: dict[str, set[str]] = {
    "leveret.model": set(),
    "leveret.config": LEAVES,
    "leveret.bindings": LEAVES,
    "leveret.queues.log.files": LEAVES,
    "leveret.queues.storage": LEAVES,
    "leveret.exchange": LEAVES | {"leveret.bindings"},
    "leveret.queues": LEAVES | STORES,
    "leveret.broker": HUB,
    "leveret.amqp_server": HUB,
    "leveret.http_admin": HUB,
    "leveret.spark_sink": LEAVES | STORES,
    "leveret": HUB | FRONTS,  # launch, cli, testing: composition
}

# Which modules may import a library; a package includes its modules.
ONLY_IN: dict[str, tuple[str, ...]] = {
    "pamqp": ("leveret.amqp_server.codec", "leveret.model", "leveret.move.amqp_client"),
    "sqlalchemy": ("leveret.queues.storage", "leveret.spark_sink.arrow"),
    "aiosqlite": ("leveret.queues.storage",),
    "fastapi": ("leveret.http_admin",),
    "starlette": ("leveret.http_admin",),
    "pyspark": ("leveret.spark_sink",),
    "py4j": ("leveret.spark_sink",),
    "typer": ("leveret.cli",),
}


def is_within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def package_of(module: str) -> str | None:
    packages = [package for package in ALLOWED if is_within(module, package)]
    return max(packages, key=len) if packages else None


def source_files(root: Path) -> Iterator[tuple[str, Path]]:
    """Module names and files. `leveret/queues` and its like are links to top-level folders."""
    folders = [root / "leveret", *(root / name for name in LINKED)]
    for path in sorted(path for folder in folders for path in folder.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if "node_modules" not in parts and parts[:2] not in {("leveret", name) for name in LINKED}:
            full = parts if parts[0] == "leveret" else ("leveret", *parts)
            yield ".".join(part for part in full if part != "__init__"), path


def base_of(module: str, path: Path, node: ast.ImportFrom) -> str:
    """The package that a `from` import names, also for relative imports."""
    if not node.level:
        return node.module or ""
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    parents = package[: len(package) - node.level + 1]
    return ".".join([*parents, *filter(None, [node.module])])


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
    if library in ONLY_IN and not any(is_within(module, package) for package in ONLY_IN[library]):
        return f"only {' and '.join(ONLY_IN[library])} may"
    package, imported_package = package_of(module), package_of(imported)
    if package is None or imported_package is None or imported == "leveret.__version__":
        return None
    if package == imported_package or imported_package in ALLOWED[package]:
        return None
    return f"{package} may import {', '.join(sorted(ALLOWED[package])) or 'no other package'}"


def violations(root: Path) -> list[str]:
    faults = []
    for module, path in source_files(root):
        for line, imported in imports_of(module, path):
            fault = maybe_fault(module, imported)
            if fault is not None:
                faults.append(f"{path.relative_to(root)}:{line} imports {imported}: {fault}")
    return faults


def modules_named_queue(root: Path) -> list[str]:
    paths = (path.relative_to(root) for _, path in source_files(root))
    return [str(path) for path in paths if "queue" in path.with_suffix("").parts]


def test_imports_follow_the_layers():
    faults = violations(ROOT)
    assert not faults, "imports against the layers:\n" + "\n".join(faults)


def test_no_module_is_named_queue():
    assert not modules_named_queue(ROOT)


def test_every_room_is_checked():
    packages = {package_of(module) for module, _ in source_files(ROOT)}
    assert packages == set(ALLOWED)


# --- The check itself, on generated source trees --------------------------------------------------


def write_source(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "text", "imported"),
    [
        ("leveret/model/message.py", "import leveret.bindings", "leveret.bindings"),
        (
            "leveret/model/clock.py",
            "from leveret.config import Settings",
            "leveret.config.Settings",
        ),
        ("bindings/topic.py", "from leveret.exchange import Exchange", "leveret.exchange.Exchange"),
        (
            "exchange/routing.py",
            "def f():\n    from leveret.queues import base",
            "leveret.queues.base",
        ),
        ("queues/base.py", "from leveret.broker import vhost", "leveret.broker.vhost"),
        (
            "queues/log/files/segment.py",
            "from leveret.queues.classic import Entry",
            "leveret.queues.classic.Entry",
        ),
        ("queues/storage/sql.py", "from ..classic import Entry", "leveret.queues.classic.Entry"),
        ("queues/classic.py", "import sqlalchemy as sa", "sqlalchemy"),
        (
            "leveret/broker/vhost.py",
            "from leveret.amqp_server.channel import C",
            "leveret.amqp_server.channel.C",
        ),
        ("leveret/broker/hub.py", "from leveret import launch", "leveret.launch"),
        ("amqp_server/server.py", "import leveret.http_admin.app", "leveret.http_admin.app"),
        ("amqp_server/channel.py", "from pamqp import commands", "pamqp.commands"),
        ("http_admin/app.py", "from leveret.cli import main", "leveret.cli.main"),
        ("spark_sink/source.py", "from leveret.broker.hub import Hub", "leveret.broker.hub.Hub"),
        ("leveret/launch.py", "import fastapi", "fastapi"),
        ("leveret/broker/x.py", "import importlib\nimportlib.import_module('pyspark')", "pyspark"),
        (
            "queues/stats.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import leveret.amqp_server",
            "leveret.amqp_server",
        ),
    ],
)
def test_violation_is_reported(tmp_path, name, text, imported):
    write_source(tmp_path, name, text + "\n")
    line = len(text.splitlines())
    assert [fault.split(": ")[0] for fault in violations(tmp_path)] == [
        f"{name}:{line} imports {imported}"
    ]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("leveret/model/tables.py", "from pamqp import decode"),
        ("amqp_server/codec.py", "import pamqp.frame"),
        ("amqp_server/session.py", "from leveret import __version__"),
        (
            "leveret/broker/vhost.py",
            "from leveret.queues import ClassicQueue\nimport leveret.exchange, leveret.bindings",
        ),
        ("queues/storage/sql.py", "import sqlalchemy, aiosqlite\nfrom . import schema"),
        ("spark_sink/source.py", "from leveret.queues.log.files import reader\nimport pyspark.sql"),
        (
            "leveret/launch.py",
            "import leveret.amqp_server, leveret.http_admin\nfrom leveret.broker import Hub",
        ),
    ],
)
def test_allowed_import_is_accepted(tmp_path, name, text):
    write_source(tmp_path, name, text + "\n")
    assert violations(tmp_path) == []


@pytest.mark.parametrize("name", ["queues/queue.py", "queues/queue/__init__.py"])
def test_module_named_queue_is_reported(tmp_path, name):
    write_source(tmp_path, name, "")
    assert modules_named_queue(tmp_path) == [name]
