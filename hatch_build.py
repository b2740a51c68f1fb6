"""Build hook: build the web UI, for the sdist with its sources, for the wheel without.

The sdist brings the built UI along, so that a wheel made from it needs no node. An editable
install has the sources at hand and gets its assets from `make ui` instead.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


def builder_of(root: str) -> ModuleType:
    """tools/build_ui.py, loaded by path: a build environment does not see the project."""
    spec = importlib.util.spec_from_file_location("build_ui", Path(root) / "tools/build_ui.py")
    if spec is None or spec.loader is None:
        raise FileNotFoundError("tools/build_ui.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


class WebUiHook(BuildHookInterface[Any]):
    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        builder = builder_of(self.root)
        is_current = builder.is_current(Path(self.root) / "http_admin" / "ui")
        is_needed = not is_current and builder.maybe_system_node() is None
        return [builder.NODE_FROM_PYPI] if is_needed else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version != "editable":
            said = builder_of(self.root).build(Path(self.root) / "http_admin" / "ui")
            print(said, file=sys.stderr)  # noqa: T201 - what a build says is its output
