"""One Chromium, one broker with traffic and one sign-in for all browser tests.

They are of package scope, not of session scope: while Playwright runs, an event loop runs on this
thread, and no test of asyncio elsewhere could start its own.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, ViewportSize, expect, sync_playwright

from tests.browser.dashboard import PATIENCE_SECONDS, Dashboard
from tests.browser.world import World, build
from tests.support.brokers import ROOT, running_leveret

PICTURES = ROOT / ".screenshots"
DESKTOP: ViewportSize = {"width": 1280, "height": 860}
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
        chromium = playwright.chromium.launch(executable_path=program, args=list(FLAGS))
        yield chromium
        chromium.close()


@pytest.fixture(scope="package")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    data = tmp_path_factory.mktemp("browser-data")
    with running_leveret("--data-dir", str(data)) as target:
        url = f"http://127.0.0.1:{target.http_port}"
        with httpx.Client(base_url=url, auth=("guest", "guest"), timeout=30) as client:
            built = build(target, client)
            yield built
            built.end()


@pytest.fixture(scope="package")
def signed_in(browser: Browser, world: World) -> Any:
    """The state of a browser in which somebody has signed in through the page."""
    context = browser.new_context()
    context.set_default_timeout(PATIENCE_SECONDS * 1000)
    dashboard = Dashboard(context.new_page(), world)
    dashboard.page.goto(world.url)
    dashboard.sign_in()
    expect(dashboard.heading("Overview")).to_be_visible()
    dashboard.watch.must_be_clean()
    state = context.storage_state()
    context.close()
    return state


MakeTab = Callable[..., Dashboard]


@pytest.fixture(scope="package")
def tabs(browser: Browser, world: World, signed_in: Any) -> Iterator[MakeTab]:
    """Makes tabs that share nothing with each other but, if wanted, the sign-in."""
    opened: list[BrowserContext] = []

    def make(is_signed_in: bool = True, **options: Any) -> Dashboard:
        state = signed_in if is_signed_in else None
        options = {"viewport": DESKTOP, "storage_state": state, **options}
        context = browser.new_context(**options)
        context.set_default_timeout(PATIENCE_SECONDS * 1000)
        opened.append(context)
        dashboard = Dashboard(context.new_page(), world)
        dashboard.page.goto(world.url)
        return dashboard

    yield make
    for context in opened:
        context.close()


@pytest.fixture(scope="package")
def only_tab(tabs: MakeTab) -> Dashboard:
    """Starting a renderer takes a second, loading the page again a tenth of it."""
    return tabs()


@pytest.fixture
def tab(only_tab: Dashboard) -> Iterator[Dashboard]:
    """A signed-in tab on the overview; it must have behaved when the test ends."""
    only_tab.start_afresh()
    yield only_tab
    only_tab.leave()
    only_tab.watch.must_be_clean()


@pytest.fixture
def stranger(tabs: MakeTab) -> Iterator[Dashboard]:
    """A tab in which nobody has signed in."""
    dashboard = tabs(is_signed_in=False)
    yield dashboard
    dashboard.watch.must_be_clean()
    dashboard.page.context.close()
