"""The build of the web UI: runs only when needed, and again after an interrupted build.

Node and npm are fakes on the PATH: the tests check only when they are called.
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


class FakeSources:
    """A UI source tree, and a PATH with fake node and npm."""

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
def sources(tmp_path, monkeypatch):
    return FakeSources(tmp_path, monkeypatch)


INSTALL, BUILD = "ci --no-audit --no-fund", "run build"


def test_first_build_installs_and_builds(sources):
    assert build_ui.build(sources.ui) == "The web UI is built."
    assert sources.calls() == [INSTALL, BUILD]
    assert build_ui.is_current(sources.ui)


def test_second_build_does_nothing(sources):
    build_ui.build(sources.ui)
    sources.calls()
    assert build_ui.build(sources.ui) == "The web UI is up to date."
    assert sources.calls() == []


@pytest.mark.parametrize("name", ["src/main.tsx", "src/new.tsx", "index.html"])
def test_changed_source_is_built_without_install(sources, name):
    build_ui.build(sources.ui)
    sources.calls()
    sources.source(name, "2")
    build_ui.build(sources.ui)
    assert sources.calls() == [BUILD]


def test_changed_lock_file_is_installed_again(sources):
    build_ui.build(sources.ui)
    sources.calls()
    sources.source("package-lock.json", '{"lockfileVersion": 3}')
    build_ui.build(sources.ui)
    assert sources.calls() == [INSTALL, BUILD]


def test_failed_build_is_reported_and_repeated(sources):
    sources.source("src/broken", "")
    with pytest.raises(build_ui.BuildError, match=r"^`npm run build` in .* exit code 3\.$"):
        build_ui.build(sources.ui)
    (sources.ui / "src/broken").unlink()
    sources.calls()
    build_ui.build(sources.ui)
    assert sources.calls() == [BUILD]


def test_build_output_is_not_a_source(sources):
    before = build_ui.digest(sources.ui)
    build_ui.build(sources.ui)
    assert build_ui.digest(sources.ui) == before


def test_missing_sources_are_reported(tmp_path):
    assert "nothing to build" in build_ui.build(tmp_path)


@pytest.mark.parametrize(
    ("version", "is_used"),
    [("v20.19.0", True), ("v24.0.1", True), ("v20.18.3", False), ("v18.20.4", False), ("", False)],
)
def test_system_node_is_used_if_new_enough(sources, version, is_used):
    sources.node(version)
    expected = build_ui.Node(sources.bin, (str(sources.bin / "npm"),))
    assert build_ui.maybe_system_node() == (expected if is_used else None)
