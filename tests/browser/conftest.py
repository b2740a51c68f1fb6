"""One Chromium, one broker with traffic and one sign-in for all browser tests.

They are of package scope, not of session scope: while Playwright runs, an event loop runs on this
thread, and no test of asyncio elsewhere could start its own.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, ViewportSize, expect, sync_playwright

from tests.browser.dashboard import NOWHERE, PATIENCE_SECONDS, Dashboard
from tests.browser.world import World, build
from tests.support.brokers import ROOT, running_leveret

PICTURES = ROOT / ".screenshots"
DESKTOP: ViewportSize = {"width": 1280, "height": 860}
PHONE: ViewportSize = {"width": 390, "height": 844}
# A name that resolves here although no DNS server knows it: what a rebinding attack arranges.
FOREIGN_HOST = "rebound.test"
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--force-prefers-reduced-motion",
    f"--host-resolver-rules=MAP {FOREIGN_HOST} 127.0.0.1",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium") or shutil.which("google-chrome")
    assert program, "no Chromium: `make setup` installs one"
    expect.set_options(timeout=PATIENCE_SECONDS * 1000)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=program, args=list(FLAGS), timeout=PATIENCE_SECONDS * 1000
        )
        yield chromium
        chromium.close()


@pytest.fixture(scope="package")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    data = tmp_path_factory.mktemp("browser-data")
    with running_leveret("--data-dir", str(data)) as target:
        url = f"http://127.0.0.1:{target.http_port}"
        login = ("guest", "guest")
        with httpx.Client(base_url=url, auth=login, timeout=PATIENCE_SECONDS) as client:
            built = build(target, client)
            yield built
            built.end()


def _new_tab(browser: Browser, world: World) -> Dashboard:
    context = browser.new_context(viewport=DESKTOP)
    context.set_default_timeout(PATIENCE_SECONDS * 1000)
    return Dashboard(context.new_page(), world)


# Starting a renderer takes a second, loading the page again a tenth of it: so there are two tabs.


@pytest.fixture(scope="package")
def only_tab(browser: Browser, world: World) -> Dashboard:
    dashboard = _new_tab(browser, world)
    dashboard.visit(world.url)
    dashboard.sign_in()
    expect(dashboard.heading("Overview")).to_be_visible()
    dashboard.watch.must_be_clean()
    return dashboard


@pytest.fixture
def tab(only_tab: Dashboard) -> Iterator[Dashboard]:
    """A signed-in tab on the overview; it must have behaved when the test ends."""
    only_tab.start_afresh()
    yield only_tab
    only_tab.leave()
    only_tab.watch.must_be_clean()


@pytest.fixture(scope="module")
def walker(only_tab: Dashboard) -> Iterator[Dashboard]:
    """The same tab for a whole module, which goes from page to page without loading it anew."""
    only_tab.start_afresh()
    yield only_tab
    only_tab.leave()


@pytest.fixture(scope="package")
def other_tab(browser: Browser, world: World) -> Dashboard:
    return _new_tab(browser, world)


@pytest.fixture
def stranger(other_tab: Dashboard) -> Iterator[Dashboard]:
    """A tab in which nobody has signed in."""
    url = other_tab.world.url
    context = other_tab.page.context
    context.clear_cookies()
    clear = {"origin": url, "storageTypes": "local_storage"}
    context.new_cdp_session(other_tab.page).send("Storage.clearDataForOrigin", clear)
    other_tab.watch.forget()
    other_tab.visit(url)
    yield other_tab
    other_tab.watch.must_be_clean()
    other_tab.page.goto(NOWHERE)
