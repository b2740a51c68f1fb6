"""Keyboard, phone, themes; and what the page shows if the broker does not respond."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import expect

from tests.browser.conftest import DESKTOP, PHONE
from tests.browser.dashboard import Dashboard
from tests.browser.shop_broker import SHOP

FOCUSED = "document.activeElement.textContent.trim()"


def test_first_tab_skips_to_the_content(tab: Dashboard) -> None:
    tab.page.keyboard.press("Tab")
    assert tab.page.evaluate(FOCUSED) == "Skip to content"
    tab.page.keyboard.press("Enter")
    assert tab.page.evaluate("document.activeElement.id") == "main"


def test_menu_entries_are_reached_by_tab(tab: Dashboard) -> None:
    reached = []
    for _ in range(25):
        tab.page.keyboard.press("Tab")
        reached.append(tab.page.evaluate(FOCUSED))
    expected = ["Overview", "Queues", "Exchanges", "Connections", "Channels", "Logs", "History"]
    expected += ["Users", "Virtual hosts", "Policies", "Limits", "Definitions", "Settings"]
    assert [row for row in reached if row in expected] == expected
    expect(tab.page.locator(":focus-visible")).to_have_count(1)


def test_declare_sort_and_delete_a_queue_by_keyboard(tab: Dashboard) -> None:
    with tab.temporary_vhost("keyboard tests") as vhost:
        tab.select_vhost(vhost)
        keyboard = tab.page.keyboard
        tab.page.get_by_role("link", name="Declare queue").focus()
        keyboard.press("Enter")
        tab.page.get_by_label("Name required").focus()
        keyboard.type("typed")
        keyboard.press("Enter")
        expect(tab.heading("typed")).to_be_visible()
        assert tab.api.names("queues", vhost) == {"typed"}
        tab.open("queues")
        tab.test_id("queues").get_by_role("button", name="Ready").focus()
        keyboard.press("Enter")
        expect(tab.page.locator("th[aria-sort=descending]")).to_contain_text("Ready")
        tab.open("queues", vhost, "typed")
        tab.test_id("delete").focus()
        keyboard.press("Enter")
        expect(tab.test_id("confirm")).to_be_visible()
        # The safe button has the focus, and the focus cannot leave the dialog.
        assert tab.page.evaluate(FOCUSED) == "Cancel"
        for _ in range(4):
            keyboard.press("Tab")
            assert tab.page.evaluate("document.activeElement.closest('a.brand, nav')") is None
        keyboard.press("Escape")
        expect(tab.test_id("confirm")).to_have_count(0)
        assert tab.page.evaluate(FOCUSED) == "Delete"
        keyboard.press("Enter")
        expect(tab.test_id("confirm")).to_be_visible()
        keyboard.press("Tab")
        keyboard.press("Enter")
        expect(tab.heading("Queues")).to_be_visible()
        assert tab.api.names("queues", vhost) == set()


def test_theme_is_stored(tab: Dashboard) -> None:
    page = tab.page
    theme = page.locator("html")
    page.emulate_media(color_scheme="dark")
    expect(theme).to_have_attribute("data-theme", "dark")
    tab.test_id("theme").click()
    expect(theme).to_have_attribute("data-theme", "light")
    page.reload()
    expect(theme).to_have_attribute("data-theme", "light")
    page.emulate_media(color_scheme="light")
    tab.test_id("theme").click()
    expect(theme).to_have_attribute("data-theme", "dark")
    assert "dark" in str(tab.test_id("theme").get_attribute("aria-label"))
    tab.test_id("theme").click()
    expect(theme).to_have_attribute("data-theme", "light")


def test_menu_opens_and_closes_on_a_phone(tab: Dashboard) -> None:
    tab.page.set_viewport_size(PHONE)
    entry = tab.page.get_by_role("link", name="Queues", exact=True)
    expect(entry).not_to_be_in_viewport()
    tab.page.get_by_role("button", name="Menu").click()
    expect(entry).to_be_in_viewport()
    entry.click()
    expect(tab.heading("Queues")).to_be_visible()
    expect(entry).not_to_be_in_viewport()
    tab.page.get_by_role("link", name="welcome").click()
    expect(tab.heading("welcome")).to_be_visible()
    tab.test_id("purge").click()
    expect(tab.test_id("confirm-yes")).to_be_in_viewport()
    tab.press("Cancel")
    tab.page.set_viewport_size(DESKTOP)


def test_page_polls_without_the_stream(tab: Dashboard) -> None:
    tab.monitor.allow("stream")
    refused = {"status": 404, "content_type": "application/json", "body": "{}"}
    tab.page.route("**/api/stream**", lambda route: route.fulfill(**refused))
    tab.open("queues")
    expect(tab.test_id("live")).to_contain_text("Polling every 5 s")
    expect(tab.test_id("queues")).to_be_visible()
    tab.page.unroute_all()


def test_unreachable_broker_shows_an_error(tab: Dashboard) -> None:
    tab.monitor.allow("ERR_FAILED|failed")
    tab.open("queues", SHOP, "welcome")
    tab.test_id("purge").click()
    expect(tab.test_id("confirm")).to_be_visible()

    def refuse(route: Any) -> None:
        route.abort()

    tab.page.route("**/api/**", refuse)
    tab.test_id("confirm-yes").click()
    tab.expect_toast("does not respond. Is it running?")
    tab.page.unroute_all()
