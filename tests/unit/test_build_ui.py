"""The web UI's build: done when needed, not otherwise, and redone when it was cut short.

Node and npm are stand-ins on the PATH: what is tested is when they are called, not what they do.
"""

import stat
from pathlib import Path

import pytest

from tools import build_ui

NPM = """#!/bin/sh
echo "$*" >> "$CALLS"
case $1 in
ci) mkdir -p node_modules ;;
run) [ ! -e src/broken ] || exit 3; mkdir -p dist; echo built > dist/index.html ;;
esac
"""


class Stage:
    """A UI source tree, and a PATH on which node and npm are what a test wants."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ui, self.bin, self._calls = folder / "ui", folder / "bin", folder / "calls"
        self.bin.mkdir()
        monkeypatch.setenv("PATH", f"{self.bin}:/usr/bin:/bin")
        monkeypatch.setenv("CALLS", str(self._calls))
        self.program("npm", NPM)
        self.node("v22.1.0")
        self.source("package.json", "{}")
        self.source("package-lock.json", "{}")
        self.source("src/main.tsx", "1")

    def program(self, name: str, text: str) -> None:
        path = self.bin / name
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def node(self, version: str) -> None:
        self.program("node", f"#!/bin/sh\necho {version}\n")

    def source(self, name: str, text: str) -> None:
        path = self.ui / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def calls(self) -> list[str]:
        lines = self._calls.read_text().splitlines() if self._calls.exists() else []
        self._calls.unlink(missing_ok=True)
        return lines


@pytest.fixture
def stage(tmp_path, monkeypatch):
    return Stage(tmp_path, monkeypatch)


INSTALL, BUILD = "ci --no-audit --no-fund", "run build"


def test_first_build_installs_and_builds(stage):
    assert build_ui.build(stage.ui) == "The web UI is built."
    assert stage.calls() == [INSTALL, BUILD]
    assert build_ui.is_current(stage.ui)


def test_second_build_does_nothing(stage):
    build_ui.build(stage.ui)
    stage.calls()
    assert build_ui.build(stage.ui) == "The web UI is up to date."
    assert stage.calls() == []


@pytest.mark.parametrize("name", ["src/main.tsx", "src/new.tsx", "index.html"])
def test_changed_source_is_built_without_installing(stage, name):
    build_ui.build(stage.ui)
    stage.calls()
    stage.source(name, "2")
    build_ui.build(stage.ui)
    assert stage.calls() == [BUILD]


def test_changed_lock_file_is_installed_again(stage):
    build_ui.build(stage.ui)
    stage.calls()
    stage.source("package-lock.json", '{"lockfileVersion": 3}')
    build_ui.build(stage.ui)
    assert stage.calls() == [INSTALL, BUILD]


def test_failed_build_is_one_sentence_and_tried_again(stage):
    stage.source("src/broken", "")
    with pytest.raises(build_ui.BuildError, match=r"^`npm run build` in .* exit code 3\.$"):
        build_ui.build(stage.ui)
    (stage.ui / "src/broken").unlink()
    stage.calls()
    build_ui.build(stage.ui)
    assert stage.calls() == [BUILD]


def test_what_a_build_makes_is_no_source(stage):
    before = build_ui.digest(stage.ui)
    build_ui.build(stage.ui)
    assert build_ui.digest(stage.ui) == before


def test_no_sources_is_said(tmp_path):
    assert "nothing to build" in build_ui.build(tmp_path)


@pytest.mark.parametrize(
    ("version", "is_used"),
    [("v20.19.0", True), ("v24.0.1", True), ("v20.18.3", False), ("v18.20.4", False), ("", False)],
)
def test_node_of_the_system_is_used_if_new_enough(stage, version, is_used):
    stage.node(version)
    expected = build_ui.Node(stage.bin, (str(stage.bin / "npm"),))
    assert build_ui.maybe_system_node() == (expected if is_used else None)
