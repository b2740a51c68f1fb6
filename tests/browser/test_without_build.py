"""Where no build of the UI is present a page says so, and the API works all the same."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from playwright.sync_api import expect

import http_admin.static
import leveret
from tests.browser.dashboard import NOWHERE, Dashboard


def test_the_page_says_what_is_missing(
    stranger: Dashboard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_admin.static, "ui", http_admin.static.Files(tmp_path))
    settings = leveret.in_process_settings(http_enabled=True)
    with leveret.ThreadedBroker(settings) as broker:
        stranger.visit(broker.http_url)
        expect(stranger.heading("Leveret is running, without its dashboard")).to_be_visible()
        expect(stranger.page.locator("main")).to_contain_text("make ui")
        answer = httpx.get(f"{broker.http_url}/api/overview", auth=("guest", "guest"), timeout=30)
        assert answer.json()["product_name"] == "Leveret"
        links = [one.get_attribute("href") for one in stranger.page.get_by_role("link").all()]
        for link in links:
            answer = httpx.get(f"{broker.http_url}{link}", auth=("guest", "guest"), timeout=30)
            assert answer.status_code == 200
        stranger.watch.collect()
        stranger.page.goto(NOWHERE)
