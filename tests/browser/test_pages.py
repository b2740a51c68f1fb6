"""Every page, light and dark and at a phone's width: accessible, in its place, without an error.

Pictures of all of them are left in .screenshots/ for people to look at.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import DESKTOP, PHONE, PICTURES
from tests.browser.dashboard import Dashboard, until
from tests.browser.world import LOG, SHOP, TRACED
from tests.support.brokers import ROOT

AXE = ROOT / "http_admin" / "ui" / "node_modules" / "axe-core" / "axe.min.js"
SERIOUS = ("serious", "critical")
# Only colours differ between light and dark, so there the contrast alone is checked again.
IN_DARK = ["color-contrast"]
FITS = "document.documentElement.scrollWidth <= innerWidth"
# Tables that show a phone all they have, below each other: what they can do is in reach.
STACKED = "[...document.querySelectorAll('.table-wrap:has(.stacked)')]"
IN_REACH = STACKED + ".every((one) => one.scrollWidth <= one.clientWidth)"

# Name of the page, its address, and what shows that it is there with its data.
PAGES: dict[str, tuple[tuple[str, ...], str, str]] = {
    "overview": ((), "", "[data-testid=charts] canvas"),
    "queues": (("queues",), "", "[data-testid=queues] tbody tr"),
    "queue": (("queues", SHOP, "orders.eu"), "", "[data-testid=consumers] tbody tr"),
    "queue-messages": (("queues", SHOP, "welcome"), "tab=messages", "[data-testid=message]"),
    "queue-publish": (("queues", SHOP, "orders.eu"), "tab=publish", "[data-testid=publish]"),
    "queue-bindings": (("queues", SHOP, "welcome"), "tab=bindings", "[data-testid=bind]"),
    "new-queue": (("new-queue",), "", "[data-testid=declare-queue]"),
    "exchanges": (("exchanges",), "", "[data-testid=exchanges] tbody tr"),
    "exchange": (("exchanges", SHOP, "orders"), "", "[data-testid=routing-map] .node"),
    "exchange-bindings": (("exchanges", SHOP, "orders"), "tab=bindings", "[data-testid=bind]"),
    "exchange-publish": (("exchanges", SHOP, "orders"), "tab=publish", "[data-testid=publish]"),
    "new-exchange": (("new-exchange",), "", "[data-testid=declare-exchange]"),
    "routing": (("routing",), "", "[data-testid=routing-map] .node"),
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


def _findings(tab: Dashboard, rules: list[str] | None = None) -> list[Any]:
    """What axe finds serious; the rest is advice."""
    options: dict[str, Any] = {"resultTypes": ["violations"]}
    if rules:
        options["runOnly"] = {"type": "rule", "values": rules}
    if not tab.page.evaluate("'axe' in window"):
        tab.page.evaluate(AXE.read_text(encoding="utf-8") + "\n;0")
    found = tab.page.evaluate(
        """async (options) => (await axe.run(document, options)).violations.map((one) =>
          [one.impact, one.id, one.nodes.map((node) => node.html.slice(0, 200)).slice(0, 3)])""",
        options,
    )
    return [one for one in found if one[0] in SERIOUS]


def _inspect(tab: Dashboard, name: str) -> None:
    page = tab.page
    assert _findings(tab) == []
    tab.picture(PICTURES / f"{name}-light.jpg")
    page.emulate_media(color_scheme="dark")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    assert _findings(tab, IN_DARK) == []
    tab.picture(PICTURES / f"{name}-dark.jpg")
    page.emulate_media(color_scheme="light")
    page.set_viewport_size(PHONE)
    until(lambda: bool(page.evaluate(FITS)), "a layout as narrow as the screen")
    until(lambda: bool(page.evaluate(IN_REACH)), "a table as narrow as the screen")
    page.set_viewport_size(DESKTOP)


@pytest.fixture(scope="module", autouse=True)
def _in_the_shop(walker: Dashboard) -> None:
    walker.enter(SHOP)


@pytest.mark.parametrize("name", PAGES)
def test_page(walker: Dashboard, name: str) -> None:
    segments, query, sign = PAGES[name]
    walker.open(*segments, query=query)
    expect(walker.page.locator(sign).first).to_be_visible()
    assert walker.page.locator("h1").count() == 1
    if name == "queue-messages":
        walker.test_id("message").first.locator("summary").click()
    if name == "routing":
        walker.page.get_by_label("Message enters at").select_option("orders")
    if name in ("routing", "exchange"):
        walker.page.get_by_label("Routing key").fill("order.created.eu")
        walker.press("Show the way")
        expect(walker.test_id("dry-run-result")).to_be_visible()
    _inspect(walker, name)
    walker.watch.must_be_clean()


@pytest.mark.parametrize("name", ["queue", "user", "vhost", "settings"])
def test_pages_with_stacked_tables_are_known(walker: Dashboard, name: str) -> None:
    segments, query, sign = PAGES[name]
    walker.open(*segments, query=query)
    expect(walker.page.locator(sign).first).to_be_visible()
    assert walker.page.evaluate(STACKED + ".length") >= 1
    walker.watch.must_be_clean()


@pytest.mark.parametrize("section", ["connections", "channels"])
def test_page_of_a_client(walker: Dashboard, section: str) -> None:
    walker.open(section)
    walker.test_id(section).get_by_role("link").first.click()
    expect(walker.page.locator("main .stat").first).to_be_visible()
    _inspect(walker, section.rstrip("s"))
    walker.watch.must_be_clean()


def test_sign_in_page(stranger: Dashboard) -> None:
    expect(stranger.test_id("signin")).to_be_visible()
    _inspect(stranger, "sign-in")


def test_dialogs(walker: Dashboard) -> None:
    walker.open("queues", SHOP, "welcome")
    walker.test_id("purge").click()
    expect(walker.test_id("confirm")).to_be_visible()
    assert _findings(walker) == []
    walker.picture(PICTURES / "question-light.jpg")
    walker.press("Keep it")
    walker.open("logs", SHOP, LOG)
    walker.page.get_by_role("button", name="Move offsets").click()
    walker.press("Preview")
    expect(walker.test_id("reset-preview")).to_be_visible()
    assert _findings(walker) == []
    walker.picture(PICTURES / "offsets-light.jpg")
    walker.page.keyboard.press("Escape")
    walker.watch.must_be_clean()


def test_overview_warns_of_queues_nobody_empties(walker: Dashboard) -> None:
    walker.open()
    expect(walker.test_id("health")).to_contain_text("messages nobody takes")
    expect(walker.test_id("piles")).to_contain_text("welcome")
    waiting = walker.test_id("total-ready").inner_text()
    assert any(letter in "123456789" for letter in waiting)
    for label in ("1 min", "10 min", "1 h", "8 h"):
        walker.page.get_by_role("button", name=label).or_(
            walker.page.get_by_role("radio", name=label)
        ).first.click()
        expect(walker.test_id("charts").locator("canvas").first).to_be_visible()
    walker.watch.must_be_clean()


def test_axe_would_find_a_bad_page(walker: Dashboard) -> None:
    """A check that finds nothing must be able to find something."""
    walker.open("users")
    expect(walker.test_id("users")).to_be_visible()
    walker.page.evaluate(
        "document.querySelector('main').insertAdjacentHTML('beforeend', '<input><p class=faint>')"
    )
    assert "label" in {one[1] for one in _findings(walker)}
    walker.page.reload()


def test_pictures_are_not_committed() -> None:
    ignored = Path(ROOT / ".gitignore").read_text(encoding="utf-8")
    assert "/.screenshots/" in ignored.splitlines()
