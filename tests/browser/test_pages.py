"""Every page in light, in dark and on a phone: accessible, not too wide, without errors.

Screenshots of all pages are left in .screenshots/.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import DESKTOP, PHONE, SCREENSHOTS
from tests.browser.dashboard import Dashboard, wait_until
from tests.browser.shop_broker import LOG, SHOP, TRACED
from tests.support.brokers import ROOT

AXE = ROOT / "http_admin" / "ui" / "node_modules" / "axe-core" / "axe.min.js"
SERIOUS = ("serious", "critical")
# Only colours differ between light and dark, so only the contrast is checked again.
IN_DARK = ["color-contrast"]
FITS = "document.documentElement.scrollWidth <= innerWidth"
# Tables that show all fields on a phone, one below the other, must not scroll sideways.
STACKED = "[...document.querySelectorAll('.table-wrap:has(.stacked)')]"
STACKED_FIT = STACKED + ".every((one) => one.scrollWidth <= one.clientWidth)"

# Name of the page, its address, and an element that shows that it has its data.
PAGES: dict[str, tuple[tuple[str, ...], str, str]] = {
    "overview": ((), "", "[data-testid=charts] canvas"),
    "queues": (("queues",), "", "[data-testid=queues] tbody tr"),
    "queue": (("queues", SHOP, "orders.eu"), "", "[data-testid=consumers] tbody tr"),
    "queue-messages": (("queues", SHOP, "welcome"), "tab=messages", "[data-testid=message]"),
    "queue-publish": (("queues", SHOP, "orders.eu"), "tab=publish", "[data-testid=publish]"),
    "queue-bindings": (("queues", SHOP, "welcome"), "tab=bindings", "[data-testid=bind]"),
    "new-queue": (("new-queue",), "", "[data-testid=declare-queue]"),
    "exchanges": (("exchanges",), "", "[data-testid=exchanges] tbody tr"),
    "exchange": (("exchanges", SHOP, "orders"), "", "[data-testid=topology-map] .node"),
    "exchange-bindings": (("exchanges", SHOP, "orders"), "tab=bindings", "[data-testid=bind]"),
    "exchange-publish": (("exchanges", SHOP, "orders"), "tab=publish", "[data-testid=publish]"),
    "new-exchange": (("new-exchange",), "", "[data-testid=declare-exchange]"),
    "routing": (("routing",), "", "[data-testid=topology-map] .node"),
    "connections": (("connections",), "", "[data-testid=connections] tbody tr"),
    "channels": (("channels",), "", "[data-testid=channels] tbody tr"),
    "logs": (("logs",), "", "[data-testid=logs] tbody tr"),
    "log": (("logs", SHOP, LOG), "", "[data-testid=group]"),
    "history": (("history",), f"message_id={TRACED}", "[data-testid=timeline] li"),
    "users": (("users",), "", "[data-testid=users] tbody tr"),
    "user": (("users", "anna"), "", "[data-testid=permissions] tbody tr"),
    "vhosts": (("vhosts",), "", "[data-testid=vhosts] tbody tr"),
    "vhost": (("vhosts", SHOP), "", "[data-testid=permissions] tbody tr"),
    "policies": (("policies",), "", "[data-testid=policies] tbody tr"),
    "limits": (("limits",), "", "[data-testid=add-user-limits]"),
    "definitions": (("definitions",), "", "[data-testid=import-definitions]"),
    "settings": (("settings",), "", "[data-testid=settings] tbody tr"),
    "not-found": (("no-such-page",), "", "main h1"),
}


def _violations(tab: Dashboard, rules: list[str] | None = None) -> list[Any]:
    """The violations that axe calls serious or critical."""
    options: dict[str, Any] = {"resultTypes": ["violations"]}
    if rules:
        options["runOnly"] = {"type": "rule", "values": rules}
    if not tab.page.evaluate("'axe' in window"):
        tab.page.evaluate(AXE.read_text(encoding="utf-8") + "\n;0")
    violations = tab.page.evaluate(
        """async (options) => (await axe.run(document, options)).violations.map((one) =>
          [one.impact, one.id, one.nodes.map((node) => node.html.slice(0, 200)).slice(0, 3)])""",
        options,
    )
    return [row for row in violations if row[0] in SERIOUS]


def _inspect(tab: Dashboard, name: str) -> None:
    page = tab.page
    assert _violations(tab) == []
    tab.screenshot(SCREENSHOTS / f"{name}-light.jpg")
    page.emulate_media(color_scheme="dark")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    assert _violations(tab, IN_DARK) == []
    tab.screenshot(SCREENSHOTS / f"{name}-dark.jpg")
    page.emulate_media(color_scheme="light")
    page.set_viewport_size(PHONE)
    wait_until(lambda: bool(page.evaluate(FITS)), "a layout as narrow as the screen")
    wait_until(lambda: bool(page.evaluate(STACKED_FIT)), "a table as narrow as the screen")
    page.set_viewport_size(DESKTOP)


@pytest.fixture(scope="module", autouse=True)
def _select_shop(shared_tab: Dashboard) -> None:
    shared_tab.select_vhost(SHOP)


@pytest.mark.parametrize("name", PAGES)
def test_page(shared_tab: Dashboard, name: str) -> None:
    segments, query, sign = PAGES[name]
    shared_tab.open(*segments, query=query)
    expect(shared_tab.page.locator(sign).first).to_be_visible()
    assert shared_tab.page.locator("h1").count() == 1
    if name == "queue-messages":
        shared_tab.test_id("message").first.locator("summary").click()
    if name == "routing":
        shared_tab.page.get_by_label("Publish to").select_option("orders")
    if name in ("routing", "exchange"):
        shared_tab.page.get_by_label("Routing key").fill("order.created.eu")
        shared_tab.press("Test routing")
        expect(shared_tab.test_id("routing-test-result")).to_be_visible()
    _inspect(shared_tab, name)
    shared_tab.monitor.assert_clean()


@pytest.mark.parametrize("name", ["queue", "user", "vhost", "settings"])
def test_pages_with_stacked_tables(shared_tab: Dashboard, name: str) -> None:
    segments, query, sign = PAGES[name]
    shared_tab.open(*segments, query=query)
    expect(shared_tab.page.locator(sign).first).to_be_visible()
    assert shared_tab.page.evaluate(STACKED + ".length") >= 1
    shared_tab.monitor.assert_clean()


@pytest.mark.parametrize("section", ["connections", "channels"])
def test_page_of_connection_and_channel(shared_tab: Dashboard, section: str) -> None:
    shared_tab.open(section)
    shared_tab.test_id(section).get_by_role("link").first.click()
    expect(shared_tab.page.locator("main .stat").first).to_be_visible()
    _inspect(shared_tab, section.rstrip("s"))
    shared_tab.monitor.assert_clean()


def test_sign_in_page(signed_out_tab: Dashboard) -> None:
    expect(signed_out_tab.test_id("signin")).to_be_visible()
    _inspect(signed_out_tab, "sign-in")


def test_dialogs(shared_tab: Dashboard) -> None:
    shared_tab.open("queues", SHOP, "welcome")
    shared_tab.test_id("purge").click()
    expect(shared_tab.test_id("confirm")).to_be_visible()
    assert _violations(shared_tab) == []
    shared_tab.screenshot(SCREENSHOTS / "confirm-light.jpg")
    shared_tab.press("Cancel")
    shared_tab.open("logs", SHOP, LOG)
    shared_tab.page.get_by_role("button", name="Reset offsets").click()
    shared_tab.press("Preview")
    expect(shared_tab.test_id("reset-preview")).to_be_visible()
    assert _violations(shared_tab) == []
    shared_tab.screenshot(SCREENSHOTS / "offsets-light.jpg")
    shared_tab.page.keyboard.press("Escape")
    shared_tab.monitor.assert_clean()


def test_overview_warns_of_queues_without_consumers(shared_tab: Dashboard) -> None:
    shared_tab.open()
    expect(shared_tab.test_id("health")).to_contain_text("messages but no consumer")
    expect(shared_tab.test_id("longest-queues")).to_contain_text("welcome")
    ready = shared_tab.test_id("total-ready").inner_text()
    assert any(letter in "123456789" for letter in ready)
    for label in ("1 min", "10 min", "1 h", "8 h"):
        shared_tab.page.get_by_role("button", name=label).or_(
            shared_tab.page.get_by_role("radio", name=label)
        ).first.click()
        expect(shared_tab.test_id("charts").locator("canvas").first).to_be_visible()
    shared_tab.monitor.assert_clean()


def test_axe_detects_a_missing_label(shared_tab: Dashboard) -> None:
    """Proves that the check detects violations."""
    shared_tab.open("users")
    expect(shared_tab.test_id("users")).to_be_visible()
    shared_tab.page.evaluate(
        "document.querySelector('main').insertAdjacentHTML('beforeend', '<input><p class=faint>')"
    )
    assert "label" in {row[1] for row in _violations(shared_tab)}
    shared_tab.page.reload()


def test_screenshots_are_not_committed() -> None:
    ignored = Path(ROOT / ".gitignore").read_text(encoding="utf-8")
    assert "/.screenshots/" in ignored.splitlines()
