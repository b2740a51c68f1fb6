"""Write the OpenAPI document of the HTTP API to a file, without starting a broker.

    python tools/openapi_document.py build/openapi.json

The types of the web UI are generated from it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def document() -> dict[str, Any]:
    """The document of an application whose broker never starts."""
    from leveret.broker import Broker
    from leveret.config import Settings
    from leveret.http_admin.app import create_app
    from leveret.http_admin.openapi import describe
    from leveret.model.store import OnCommitted, OnFailed, Store
    from leveret.queues.storage.memory_store import MemoryStore

    def make_store(on_committed: OnCommitted, on_failed: OnFailed) -> Store:
        return MemoryStore(on_committed=on_committed, on_failed=on_failed)

    return describe(create_app(Broker(Settings(memory=True), make_store)))


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(f"usage: python {sys.argv[0]} FILE")
    target = Path(sys.argv[1])
    target.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(document(), indent=2, ensure_ascii=False, sort_keys=True)
    target.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
