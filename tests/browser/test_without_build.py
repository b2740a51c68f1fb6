"""Without a build of the UI a page says so, and the API works."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from playwright.sync_api import expect

import leveret
from leveret.http_admin import static
from tests.browser.dashboard import BLANK_PAGE, Dashboard


def test_page_without_a_build(
    signed_out_tab: Dashboard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(static, "ui", static.Files(tmp_path))
    settings = leveret.in_process_settings(http_enabled=True)
    with leveret.ThreadedBroker(settings) as broker:
        signed_out_tab.visit(broker.http_url)
        expect(signed_out_tab.heading("Leveret is running, without its dashboard")).to_be_visible()
        expect(signed_out_tab.page.locator("main")).to_contain_text("make ui")
        answer = httpx.get(f"{broker.http_url}/api/overview", auth=("guest", "guest"), timeout=30)
        assert answer.json()["product_name"] == "Leveret"
        links = [row.get_attribute("href") for row in signed_out_tab.page.get_by_role("link").all()]
        for link in links:
            answer = httpx.get(f"{broker.http_url}{link}", auth=("guest", "guest"), timeout=30)
            assert answer.status_code == 200
        signed_out_tab.monitor.collect()
        signed_out_tab.page.goto(BLANK_PAGE)
