"""docs/queues.md names every argument, policy key and exchange type there is."""

from pathlib import Path

import pytest

from exchange import known_kinds
from exchange.stations import (
    CACHE_SIZE,
    CACHE_TTL,
    DELAY_HEADER,
    DELAYED_TYPE,
    HISTORY_LENGTH,
    KEY_HEADER,
    NO_STORE_HEADER,
)
from queues.options import _CHECKS

PAGE = (Path(__file__).parents[2] / "docs" / "queues.md").read_text(encoding="utf-8")
NAMES = {
    *_CHECKS,
    *known_kinds(),
    *(CACHE_SIZE, CACHE_TTL, DELAY_HEADER, DELAYED_TYPE, HISTORY_LENGTH, KEY_HEADER),
    NO_STORE_HEADER,
    "x-queue-type",
    "hash-header",
    "hash-property",
    "alternate-exchange",
}


@pytest.mark.parametrize("name", sorted(NAMES))
def test_named(name):
    assert f"`{name}" in PAGE
