"""The web UI's own checks: types, lint, unit tests and the size of its build."""

from __future__ import annotations

import gzip

import pytest

from tests.support.brokers import ROOT
from tools import build_ui, generate_api_types

UI = ROOT / "http_admin" / "ui"
MAX_COMPRESSED_BYTES = 300_000


@pytest.fixture(scope="module")
def node() -> build_ui.Node:
    installed = build_ui.maybe_system_node() or build_ui.maybe_packaged_node()
    assert installed is not None, "no node: `make ui` fetches one"
    build_ui.install(UI, installed)
    return installed


@pytest.mark.parametrize("script", ["check", "lint", "test"])
def test_npm_script_passes(script: str, node: build_ui.Node) -> None:
    build_ui.npm(UI, node, "run", script)


@pytest.mark.usefixtures("node")
def test_api_types_are_up_to_date() -> None:
    """If this fails, run `python tools/generate_api_types.py`."""
    generate_api_types.generate("--check")


def test_build_is_small() -> None:
    """The limit is on everything a browser loads, compressed."""
    assets = UI / "dist" / "assets"
    compressed = sum(len(gzip.compress(path.read_bytes(), 9)) for path in assets.iterdir())
    assert 0 < compressed < MAX_COMPRESSED_BYTES
