"""The dashboard's own checks: its types, and its unit tests under vitest."""

from __future__ import annotations

import gzip

import pytest

from tests.support.brokers import ROOT
from tools import build_ui

UI = ROOT / "http_admin" / "ui"


@pytest.fixture(scope="module")
def node() -> build_ui.Node:
    found = build_ui.maybe_system_node() or build_ui.maybe_packaged_node()
    assert found is not None, "no node: `make ui` fetches one"
    build_ui.install(UI, found)
    return found


@pytest.mark.parametrize("script", ["check", "test"])
def test_the_ui_passes_its_own(script: str, node: build_ui.Node) -> None:
    build_ui.npm(UI, node, "run", script)


def test_the_build_is_small() -> None:
    """What a browser loads, compressed, with room to spare for the next page."""
    assets = UI / "dist" / "assets"
    packed = sum(len(gzip.compress(path.read_bytes(), 9)) for path in assets.iterdir())
    assert 0 < packed < 300_000
