"""Build hook: build the web UI, for the sdist with its sources, for the wheel without.

With LEVERET_BUILD_COMPILED=1 it also compiles the hot-path modules and makes a platform wheel.
Without it the wheel is pure Python, and building it needs no compiler.

The sdist brings the built UI along, so that a wheel made from it needs no node. An editable
install has the sources at hand and gets its assets from `make ui` instead.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

COMPILED_VARIABLE = "LEVERET_BUILD_COMPILED"


def builder_of(root: str) -> ModuleType:
    return tool_of(root, "build_ui")


def tool_of(root: str, name: str) -> ModuleType:
    """A module of tools/, loaded by path: a build environment does not see the project."""
    spec = importlib.util.spec_from_file_location(name, Path(root) / "tools" / f"{name}.py")
    if spec is None or spec.loader is None:
        raise FileNotFoundError(f"tools/{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


class BuildHook(BuildHookInterface[Any]):
    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        builder = builder_of(self.root)
        is_current = builder.is_current(Path(self.root) / "http_admin" / "ui")
        is_needed = not is_current and builder.maybe_system_node() is None
        needed = [builder.NODE_FROM_PYPI] if is_needed else []
        if os.environ.get(COMPILED_VARIABLE) == "1":
            needed += ["mypy>=2.4.1", "setuptools>=80.9", "pamqp>=4.0.1"]
        return needed

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version != "editable":
            said = builder_of(self.root).build(Path(self.root) / "http_admin" / "ui")
            print(said, file=sys.stderr)  # noqa: T201 - what a build says is its output
            if self.target_name == "wheel" and os.environ.get(COMPILED_VARIABLE) == "1":
                self._add_compiled(build_data)

    def _add_compiled(self, build_data: dict[str, Any]) -> None:
        """Put the compiled modules beside their sources; the tag then names the platform."""
        folder = tool_of(self.root, "compile_modules").compile_modules(Path(self.root))
        for path in folder.rglob("*.*"):
            build_data["force_include"][str(path)] = str(path.relative_to(folder))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
