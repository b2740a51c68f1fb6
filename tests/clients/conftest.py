"""The broker that programs of other languages talk to."""

from __future__ import annotations

from tests.support.fixtures import broker, pytest_addoption

__all__ = ["broker", "pytest_addoption"]
