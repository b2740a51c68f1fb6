"""The web UI as a user operates it: helpers for what many tests do."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

from playwright.sync_api import Locator, Page, expect

from tests.browser.page_monitor import PageMonitor
from tests.browser.shop_broker import Api, ShopBroker

TIMEOUT_SECONDS = 90
BLANK_PAGE = "about:blank"


def wait_until(holds: Callable[[], bool], what: str = "the condition") -> None:
    """Poll a condition, because the API may show a change a moment after the page made it."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"{what} did not happen in {TIMEOUT_SECONDS} s"
        time.sleep(0.02)


class Dashboard:
    """One tab with a monitor for forbidden behaviour."""

    def __init__(self, page: Page, broker: ShopBroker) -> None:
        self.page = page
        self.broker = broker
        self.monitor = PageMonitor(page)
        self.monitor.start()

    @property
    def api(self) -> Api:
        return self.broker.api

    def open(self, *segments: str, query: str = "") -> None:
        """Open a page by its address, as in `open("queues", vhost, name)`."""
        path = "/".join(quote(segment, safe="") for segment in segments)
        address = f"#/{path}{'?' + query if query else ''}"
        self.page.evaluate("(address) => { location.hash = address }", address)

    def leave(self) -> None:
        """Leave the page, so that it sends no more requests, and reset the stored choices."""
        if self.page.url == BLANK_PAGE:
            return
        self.monitor.collect()
        self.page.evaluate(
            "['leveret.vhost', 'leveret.theme'].forEach((key) => localStorage.removeItem(key))"
        )
        self.page.goto(BLANK_PAGE)

    def visit(self, url: str) -> None:
        """Load the web UI of a broker."""
        self.monitor.origins.add(url)
        self.page.goto(url)

    def load_overview(self) -> None:
        self.monitor.reset()
        self.visit(self.broker.url)
        expect(self.heading("Overview")).to_be_visible()

    @contextlib.contextmanager
    def temporary_vhost(self, name: str) -> Iterator[str]:
        """A virtual host for one test; the page is left before it is deleted."""
        with self.api.vhost(name):
            try:
                yield name
            finally:
                self.leave()

    def select_vhost(self, vhost: str) -> None:
        """Show one virtual host only. The list of them is read again with every page."""
        self.open("queues")
        self.test_id("vhost").select_option(vhost)

    def test_id(self, name: str) -> Locator:
        return self.page.get_by_test_id(name)

    def heading(self, text: str) -> Locator:
        return self.page.get_by_role("heading", name=text, exact=True, level=1)

    def press(self, name: str, inside: Locator | None = None) -> None:
        parent = self.page if inside is None else inside
        parent.get_by_role("button", name=name, exact=True).click()

    def confirm(self, loss: str) -> None:
        """Confirm the dialog, which must say what is lost."""
        expect(self.test_id("confirm")).to_contain_text(loss)
        self.test_id("confirm-yes").click()
        expect(self.test_id("confirm")).to_have_count(0)

    def expect_toast(self, text: str) -> None:
        expect(self.test_id("toasts")).to_contain_text(text)

    def sign_in(self, name: str = "guest", password: str = "guest") -> None:
        self.page.get_by_label("User name").fill(name)
        self.page.get_by_label("Password").fill(password)
        self.page.keyboard.press("Enter")

    def screenshot(self, path: Path) -> None:
        path.parent.mkdir(exist_ok=True)
        self.page.screenshot(path=path, full_page=True, type="jpeg", quality=85)
