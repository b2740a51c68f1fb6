"""Storage tests open hundreds of real databases; almost none needs a real fsync."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.stores import memory_disk


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=memory_disk()) as directory:
        yield Path(directory)
