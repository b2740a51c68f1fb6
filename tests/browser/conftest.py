"""Fixtures: one Chromium, one broker with traffic and one signed-in tab for all browser tests.

They have package scope, not session scope: while Playwright runs, this thread has a running event
loop, so asyncio tests of other packages could not start their own.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, ViewportSize, expect, sync_playwright

from tests.browser.dashboard import BLANK_PAGE, TIMEOUT_SECONDS, Dashboard
from tests.browser.shop_broker import ShopBroker, build
from tests.support.brokers import ROOT, running_leveret

SCREENSHOTS = ROOT / ".screenshots"
DESKTOP: ViewportSize = {"width": 1280, "height": 860}
PHONE: ViewportSize = {"width": 390, "height": 844}
# Chromium resolves this name to this machine, as after a DNS rebinding attack.
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
    expect.set_options(timeout=TIMEOUT_SECONDS * 1000)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=program, args=list(FLAGS), timeout=TIMEOUT_SECONDS * 1000
        )
        yield chromium
        chromium.close()


@pytest.fixture(scope="package")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShopBroker]:
    data = tmp_path_factory.mktemp("browser-data")
    with running_leveret("--data-dir", str(data)) as target:
        url = f"http://127.0.0.1:{target.http_port}"
        login = ("guest", "guest")
        with httpx.Client(base_url=url, auth=login, timeout=TIMEOUT_SECONDS) as client:
            shop = build(target, client)
            yield shop
            shop.stop_clients()


def _new_tab(browser: Browser, broker: ShopBroker) -> Dashboard:
    context = browser.new_context(viewport=DESKTOP)
    context.set_default_timeout(TIMEOUT_SECONDS * 1000)
    return Dashboard(context.new_page(), broker)


# A new tab takes a second, loading the page again a tenth of it: so all tests share two tabs.


@pytest.fixture(scope="package")
def signed_in_tab(browser: Browser, broker: ShopBroker) -> Dashboard:
    dashboard = _new_tab(browser, broker)
    dashboard.visit(broker.url)
    dashboard.sign_in()
    expect(dashboard.heading("Overview")).to_be_visible()
    dashboard.monitor.assert_clean()
    return dashboard


@pytest.fixture
def tab(signed_in_tab: Dashboard) -> Iterator[Dashboard]:
    """A signed-in tab on the overview. Fails the test if the page did something forbidden."""
    signed_in_tab.load_overview()
    yield signed_in_tab
    signed_in_tab.leave()
    signed_in_tab.monitor.assert_clean()


@pytest.fixture(scope="module")
def shared_tab(signed_in_tab: Dashboard) -> Iterator[Dashboard]:
    """The signed-in tab for a module that opens page after page without a reload."""
    signed_in_tab.load_overview()
    yield signed_in_tab
    signed_in_tab.leave()


@pytest.fixture(scope="package")
def second_tab(browser: Browser, broker: ShopBroker) -> Dashboard:
    return _new_tab(browser, broker)


@pytest.fixture
def signed_out_tab(second_tab: Dashboard) -> Iterator[Dashboard]:
    """A tab without a session."""
    url = second_tab.broker.url
    context = second_tab.page.context
    context.clear_cookies()
    clear = {"origin": url, "storageTypes": "local_storage"}
    context.new_cdp_session(second_tab.page).send("Storage.clearDataForOrigin", clear)
    second_tab.monitor.reset()
    second_tab.visit(url)
    yield second_tab
    second_tab.monitor.assert_clean()
    second_tab.page.goto(BLANK_PAGE)
