"""Names and bodies are shown as text on every page (R-44), never as HTML."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, unquote

import pytest
from playwright.sync_api import expect

from tests.browser import hostile
from tests.browser.dashboard import Dashboard
from tests.browser.shop_broker import ShopBroker
from tests.support.brokers import ROOT

# Opens addresses one by one; each must show its text inside its element, as text.
WALK = """
async (stops) => {
  const wrong = [];
  const pause = () => new Promise((done) => setTimeout(done, 10));
  for (const [address, selector, text] of stops) {
    if (location.hash !== address) {
      location.hash = address;
      await pause();
    }
    const end = performance.now() + 10000;
    const shown = () => [...document.querySelectorAll(selector)]
      .some((element) => element.textContent.includes(text));
    while (!shown() && performance.now() < end) await pause();
    if (!shown()) wrong.push(`${address}: ${selector} does not show ${text}`);
    const closed = document.querySelectorAll('details:not([open]) > summary');
    closed.forEach((one) => one.click());
    if (closed.length > 0) await pause();
  }
  return wrong;
}
"""


@pytest.fixture(scope="module", autouse=True)
def _hostile_objects(broker: ShopBroker, shared_tab: Dashboard) -> Iterator[None]:
    connections = hostile.build(broker)
    # Hundreds of pages are open for a moment each: they need no stream, except the lists.
    shared_tab.test_id("live").click()
    yield
    shared_tab.leave()
    for connection in connections:
        connection.close()
    hostile.remove(broker)


def _address(*segments: str, query: str = "") -> str:
    path = "/".join(quote(segment, safe="") for segment in segments)
    return f"#/{path}{'?' + query if query else ''}"


def _stops_of(payload: str, connection: str) -> list[tuple[str, str, str]]:
    queue, exchange = ("queues", payload, payload), ("exchanges", payload, payload)
    traced, named = (f"{key}={quote(payload, safe='')}" for key in ("message_id", "name"))
    return [
        (_address(*queue), "h1", payload),
        (_address(*queue), "[data-testid=consumers] tbody", payload),
        (_address(*queue, query="tab=messages"), "[data-testid=message] summary", payload),
        (_address(*queue, query="tab=messages"), "[data-testid=message] pre", payload),
        (_address(*queue, query="tab=publish"), "main", payload),
        (_address(*queue, query="tab=bindings"), "[data-testid=bindings-source]", payload),
        (_address("exchanges", query=named), "[data-testid=exchanges] tbody a", payload),
        (_address(*exchange), "[data-testid=topology-map]", payload[:15]),
        (_address(*exchange, query="tab=bindings"), "[data-testid=bindings-destination]", payload),
        (
            _address("exchanges", payload, hostile.DELAYED + payload, query="tab=scheduled"),
            "[data-testid=scheduled-message] pre",
            payload,
        ),
        (_address("connections", connection), "h1", payload),
        (_address("channels", f"{connection} (1)"), "[data-testid=consumers] tbody", payload),
        (_address("logs", payload, hostile.LOG + payload), "[data-testid=group]", payload),
        (_address("history", query=traced), "[data-testid=timeline]", payload),
        (_address("history", query=traced), "[data-testid=queue-visits] tbody", payload),
        (_address("history", query=traced), "main dl.facts dd", payload),
        (_address("history", query=traced), "main pre", payload),
        (_address("users", payload), "[data-testid=permissions]", payload),
        (_address("users", payload), ".page-sub", payload),
        (_address("vhosts", payload), "[data-testid=permissions]", payload),
        (_address(payload), "h1", "Page not found"),
    ]


def _connections(broker: ShopBroker) -> dict[str, str]:
    return {row["user_provided_name"]: row["name"] for row in broker.api.get("connections")}


LISTS = {
    "queues": "a", "exchanges": ".vhost-tag", "connections": "a", "channels": ".under",
    "logs": "a", "users": "a", "vhosts": "a",
}  # fmt: skip
"""The element of a row that shows the payload. There are too many exchanges for one page: their
names are checked one by one."""
OTHERS: dict[str, tuple[str, ...]] = {
    "policies": ("[data-testid=policies] tbody", "[data-testid=operator-policies] tbody"),
    "limits": ("[data-testid=vhost-limits] tbody", "[data-testid=user-limits] tbody"),
    "definitions": (
        "[data-testid=export-definitions] select",
        "[data-testid=import-definitions] select",
    ),
    "new-queue": ("[data-testid=declare-queue] select",),
    "new-exchange": ("[data-testid=declare-exchange] select",),
}
"""The elements of other pages that show every payload."""
NAMELESS = {
    "history": ("[data-testid=history-messages]", "Messages"),
    "settings": ("[data-testid=settings] tbody", "heartbeat"),
}
"""An element and a text that show that a page without payloads has its data."""
OF_ONE_VHOST = ("", "routing")
"""Pages that show one virtual host: see `test_pages_of_the_selected_vhost`."""


def test_every_page_is_checked() -> None:
    source = (ROOT / "http_admin" / "ui" / "src" / "app.tsx").read_text(encoding="utf-8")
    lists = set(re.findall(r"case '([^']*)':", source))
    assert lists == {*LISTS, *OTHERS, *NAMELESS, *OF_ONE_VHOST}
    things = set(re.findall(r"section === '([^']*)'", source))
    walked = {unquote(stop[0].split("/")[1]) for stop in _stops_of("x", "y")}
    assert len(things) == 7 and things <= walked


def _stops_of_lists() -> list[tuple[str, str, str]]:
    shown = {name: (f"[data-testid={name}] tbody {inside}",) for name, inside in LISTS.items()}
    stops = [
        (_address(page), selector, payload)
        for page, selectors in (shown | OTHERS).items()
        for selector in selectors
        for payload in hostile.PAYLOADS
    ]
    return stops + [(_address(page), *sign) for page, sign in NAMELESS.items()]


def test_lists_show_names_as_text(shared_tab: Dashboard) -> None:
    """Both for objects that exist and for those that are created while the page is open."""
    shared_tab.test_id("live").click()
    expect(shared_tab.test_id("live")).to_contain_text("Live")
    assert shared_tab.page.evaluate(WALK, _stops_of_lists()) == []
    shared_tab.open("queues", query=f"name={quote(hostile.UNCONSUMED)}")
    for payloads in (
        hostile.PAYLOADS[:1],
        hostile.PAYLOADS[1:],
    ):  # the latter while the list is open
        for payload in payloads:
            hostile.publish_unconsumed(shared_tab.api, payload)
        for payload in payloads:
            rows = shared_tab.test_id("queues").locator("tbody")
            expect(rows).to_contain_text(hostile.UNCONSUMED + payload)
    for payload in hostile.PAYLOADS:
        shared_tab.api.delete("queues", payload, hostile.UNCONSUMED + payload)
    shared_tab.test_id("live").click()
    expect(shared_tab.test_id("live")).to_contain_text("Paused")
    shared_tab.monitor.assert_clean()


@pytest.mark.parametrize("payload", hostile.PAYLOADS, ids=map(str, range(1, 16)))
def test_pages_of_one_object_show_its_name_as_text(shared_tab: Dashboard, payload: str) -> None:
    connection = _connections(shared_tab.broker)[payload]
    assert shared_tab.page.evaluate(WALK, _stops_of(payload, connection)) == []
    shared_tab.open("logs", payload, hostile.LOG + payload)
    shared_tab.press("Read records")
    expect(shared_tab.test_id("records").locator("summary")).to_contain_text(payload)
    shared_tab.monitor.assert_clean()


def test_pages_of_the_selected_vhost(shared_tab: Dashboard) -> None:
    for payload in hostile.PAYLOADS:
        hostile.publish_unconsumed(shared_tab.api, payload)
        shared_tab.open("routing")
        shared_tab.test_id("vhost").select_option(payload)
        expect(shared_tab.page.locator("main")).to_contain_text(f"All bindings in {payload}")
        expect(shared_tab.test_id("topology-map")).to_contain_text(payload[:15])
        shared_tab.open("")
        queue = hostile.UNCONSUMED + payload
        expect(shared_tab.test_id("longest-queues").locator("tbody")).to_contain_text(queue)
        expect(shared_tab.test_id("health")).to_contain_text(f"{queue}.")
        shared_tab.api.delete("queues", payload, hostile.UNCONSUMED + payload)
    shared_tab.test_id("vhost").select_option("")
    shared_tab.monitor.assert_clean()


def test_error_messages(shared_tab: Dashboard) -> None:
    shared_tab.monitor.allow("400")
    shared_tab.open("new-queue")
    form = shared_tab.test_id("declare-queue")
    form.get_by_label("Max messages").fill("5")
    for payload in hostile.PAYLOADS:
        form.get_by_label("Name required").fill(payload)
        form.get_by_label("Virtual host").select_option(payload)
        shared_tab.press("Declare queue", form)
        expect(form.get_by_test_id("error")).to_contain_text(f"for queue '{payload}'")
    shared_tab.monitor.assert_clean()
    shared_tab.monitor.reset()


def test_dialogs_and_toasts(shared_tab: Dashboard) -> None:
    names = [f"{payload} is deleted" for payload in hostile.PAYLOADS]
    for name in names:
        shared_tab.api.put("users", name, body={"password": "short", "tags": ""})
    shared_tab.open("users")
    for name in names:
        shared_tab.press(f"Delete {name}")
        shared_tab.confirm("The password")
        shared_tab.expect_toast(f"User {name} deleted.")
    assert not any(shared_tab.api.has("users", name) for name in names)
    shared_tab.monitor.assert_clean()


def test_monitor_detects_injected_html(shared_tab: Dashboard) -> None:
    """Proves that the monitor detects violations."""
    violations: list[Any] = shared_tab.monitor.violations
    shared_tab.page.evaluate(
        "document.querySelector('main').insertAdjacentHTML('beforeend', '<img src=x onerror=x()>')"
    )
    expect(shared_tab.page.locator("main img")).to_have_count(1)
    shared_tab.page.evaluate("alert('seen')")
    shared_tab.page.evaluate("fetch('http://127.0.0.1:9/').catch(() => 0)")
    shared_tab.monitor.collect()
    text = "\n".join(violations)
    for sign in ("element <img", "attribute onerror", "CSP", "dialog seen", "console"):
        assert sign in text, text
    shared_tab.monitor.reset()
