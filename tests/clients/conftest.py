"""The broker for clients in other languages."""

from __future__ import annotations

from tests.support.fixtures import broker, pytest_addoption

__all__ = ["broker", "pytest_addoption"]
