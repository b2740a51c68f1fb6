"""docs/queues.md documents every queue argument and exchange type."""

from pathlib import Path

import pytest

from leveret.exchange import known_kinds
from leveret.exchange.plugin_kinds import (
    CACHE_SIZE,
    CACHE_TTL,
    DELAY_HEADER,
    DELAYED_TYPE,
    HISTORY_LENGTH,
    KEY_HEADER,
    NO_STORE_HEADER,
)
from leveret.queues.options import _CHECKS

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
def test_name_is_documented(name):
    assert f"`{name}" in PAGE
