"""Write http_admin/ui/src/api/schema.ts: the types of the HTTP API, from its OpenAPI document.

python tools/generate_api_types.py            rewrite the file
python tools/generate_api_types.py --check    fail if that would change it
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
UI = ROOT / "http_admin" / "ui"


def without_titles(schema: Any) -> Any:
    """Pydantic gives every field a title that only repeats its name."""
    if isinstance(schema, list):
        return [without_titles(item) for item in schema]
    if isinstance(schema, dict):
        items = schema.items()
        return {key: without_titles(value) for key, value in items if not is_title(key, value)}
    return schema


def is_title(key: str, value: Any) -> bool:
    return key == "title" and isinstance(value, str)


def generate(*options: str) -> None:
    from tools import build_ui
    from tools.openapi_document import document

    node = build_ui.maybe_system_node() or build_ui.maybe_packaged_node()
    if node is None:
        raise build_ui.BuildError("no node: `make ui` fetches one.")
    build_ui.install(UI, node)
    # The UI names paths itself, and their descriptions would change the file without need.
    whole = document()
    schemas = whole | {"paths": {}, "components": without_titles(whole["components"])}
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "openapi.json"
        source.write_text(json.dumps(schemas, sort_keys=True), encoding="utf-8")
        build_ui.npm(UI, node, "run", "api-types", "--", str(source), *options)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    generate(*sys.argv[1:])
