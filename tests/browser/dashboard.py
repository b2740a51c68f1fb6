"""The dashboard as a person uses it: short words for what the tests do again and again."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

from playwright.sync_api import Locator, Page, expect

from tests.browser.watch import Watch
from tests.browser.world import Api, World

PATIENCE_SECONDS = 90
NOWHERE = "about:blank"


def until(holds: Callable[[], bool], what: str = "the effect") -> None:
    """Poll until it holds; what the page did may reach the broker's answers a moment later."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(0.02)


class Dashboard:
    """One tab, watched."""

    def __init__(self, page: Page, world: World) -> None:
        self.page = page
        self.world = world
        self.watch = Watch(page)
        self.watch.start()

    @property
    def api(self) -> Api:
        return self.world.api

    def open(self, *segments: str, query: str = "") -> None:
        """Go to a page by its address; `open("queues", vhost, name)`."""
        path = "/".join(quote(segment, safe="") for segment in segments)
        address = f"#/{path}{'?' + query if query else ''}"
        self.page.evaluate("(address) => { location.hash = address }", address)

    def leave(self) -> None:
        """Close the page, so that it asks for nothing more; its choices are forgotten."""
        if self.page.url == NOWHERE:
            return
        self.watch.collect()
        self.page.evaluate(
            "['leveret.vhost', 'leveret.theme'].forEach((key) => localStorage.removeItem(key))"
        )
        self.page.goto(NOWHERE)

    def visit(self, url: str) -> None:
        """Load the dashboard of a broker."""
        self.watch.origins.add(url)
        self.page.goto(url)

    def start_afresh(self) -> None:
        self.watch.forget()
        self.visit(self.world.url)
        expect(self.heading("Overview")).to_be_visible()

    @contextlib.contextmanager
    def own_vhost(self, name: str) -> Iterator[str]:
        """A virtual host to change things in; the page is left before it goes."""
        with self.api.vhost(name):
            try:
                yield name
            finally:
                self.leave()

    def enter(self, vhost: str) -> None:
        """Look at one virtual host only; the list of them is read anew with every page."""
        self.open("queues")
        self.test_id("vhost").select_option(vhost)

    def test_id(self, name: str) -> Locator:
        return self.page.get_by_test_id(name)

    def heading(self, text: str) -> Locator:
        return self.page.get_by_role("heading", name=text, exact=True, level=1)

    def press(self, name: str, inside: Locator | None = None) -> None:
        where = self.page if inside is None else inside
        where.get_by_role("button", name=name, exact=True).click()

    def confirm(self, says: str) -> None:
        """Answer the one question before a loss, which must name the loss."""
        expect(self.test_id("confirm")).to_contain_text(says)
        self.test_id("confirm-yes").click()
        expect(self.test_id("confirm")).to_have_count(0)

    def says(self, text: str) -> None:
        expect(self.test_id("toasts")).to_contain_text(text)

    def sign_in(self, name: str = "guest", password: str = "guest") -> None:
        self.page.get_by_label("User name").fill(name)
        self.page.get_by_label("Password").fill(password)
        self.page.keyboard.press("Enter")

    def picture(self, path: Path) -> None:
        path.parent.mkdir(exist_ok=True)
        self.page.screenshot(path=path, full_page=True, type="jpeg", quality=85)
