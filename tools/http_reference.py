"""Write the tables of docs/http-api.md from the API's own description.

    python tools/http_reference.py            rewrite the page
    python tools/http_reference.py --check    fail if that would change it

A line for each operation: what it does in its first sentence, and whether RabbitMQ has it.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "http-api.md"
BEGIN, END = "<!-- operations: made by tools/http_reference.py -->", "<!-- end of operations -->"
TITLES = {
    "overview": "The broker", "session": "Signing in", "health": "Health", "metrics": "Metrics",
    "vhosts": "Virtual hosts", "users": "Users", "permissions": "Permissions",
    "connections": "Connections", "channels": "Channels", "consumers": "Consumers",
    "exchanges": "Exchanges", "queues": "Queues", "bindings": "Bindings", "messages": "Messages",
    "policies": "Policies", "parameters": "Parameters", "definitions": "Definitions",
    "logs": "Logs", "streams": "Streams", "history": "History", "live": "Live views",
    "operations": "Operating",
}  # fmt: skip


def operations_of(described: dict[str, Any]) -> dict[str, list[str]]:
    """The rows of each group, in the order of TITLES; new groups come last."""
    groups: dict[str, list[str]] = defaultdict(list)
    for path, methods in sorted(described["paths"].items()):
        for method, operation in sorted(methods.items()):
            groups[operation["tags"][0]].append(_row(method.upper(), path, operation))
    titles = TITLES | {tag: tag.capitalize() for tag in sorted(groups) if tag not in TITLES}
    return {title: groups[tag] for tag, title in titles.items() if tag in groups}


def _row(method: str, path: str, operation: dict[str, Any]) -> str:
    text = " ".join(operation["description"].split("\n\n")[0].split())
    own = "yes" if operation.get("x-leveret") else ""
    return f"| `{path}` | {method} | {text.replace('|', ';')} | {own} |"


def tables(described: dict[str, Any]) -> str:
    parts = []
    for title, rows in operations_of(described).items():
        head = f"### {title}\n\n| Path | Method | What it does | Own |\n|---|---|---|---|"
        parts.append("\n".join([head, *rows]))
    return "\n\n".join(parts)


def rewritten(page: str, described: dict[str, Any]) -> str:
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{tables(described)}\n\n{END}{after}"


def description() -> dict[str, Any]:
    """Of an application whose broker never starts."""
    from http_admin.app import create_app
    from http_admin.openapi import describe
    from leveret.broker import Broker
    from leveret.config import Settings
    from leveret.model.store import OnCommitted, OnFailed, Store
    from queues.storage.memory_store import MemoryStore

    def make_store(on_committed: OnCommitted, on_failed: OnFailed) -> Store:
        return MemoryStore(on_committed=on_committed, on_failed=on_failed)

    return describe(create_app(Broker(Settings(memory=True), make_store)))


def main() -> None:
    page = PAGE.read_text(encoding="utf-8")
    made = rewritten(page, description())
    if "--check" in sys.argv:
        sys.exit(0 if made == page else f"{PAGE} is out of date: run python {__file__}")
    PAGE.write_text(made, encoding="utf-8")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
