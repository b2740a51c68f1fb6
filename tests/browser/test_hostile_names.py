"""Names and bodies are text on every page (R-44): no dialog, no new element, no policy report."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, unquote

import pytest
from playwright.sync_api import expect

from tests.browser import hostile
from tests.browser.dashboard import Dashboard
from tests.browser.world import World
from tests.support.brokers import ROOT

# Goes to addresses one by one; each must show its text inside its element, as text.
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
def _hostile_world(world: World, walker: Dashboard) -> Iterator[None]:
    connections = hostile.build(world)
    # Hundreds of pages are seen for a moment each: no stream has to be opened for them, but for the
    # lists.
    walker.test_id("live").click()
    yield
    walker.leave()
    for connection in connections:
        connection.close()
    hostile.remove(world)


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
        (_address(*exchange), "[data-testid=routing-map]", payload[:15]),
        (_address(*exchange, query="tab=bindings"), "[data-testid=bindings-destination]", payload),
        (
            _address("exchanges", payload, hostile.LATE + payload, query="tab=scheduled"),
            "[data-testid=scheduled-message] pre",
            payload,
        ),
        (_address("connections", connection), "h1", payload),
        (_address("channels", f"{connection} (1)"), "[data-testid=consumers] tbody", payload),
        (_address("logs", payload, hostile.LOG + payload), "[data-testid=group]", payload),
        (_address("history", query=traced), "[data-testid=timeline]", payload),
        (_address("history", query=traced), "[data-testid=legs] tbody", payload),
        (_address("history", query=traced), "main dl.facts dd", payload),
        (_address("history", query=traced), "main pre", payload),
        (_address("users", payload), "[data-testid=permissions]", payload),
        (_address("users", payload), ".page-sub", payload),
        (_address("vhosts", payload), "[data-testid=permissions]", payload),
        (_address(payload), "h1", "No such page"),
    ]


def _connections(world: World) -> dict[str, str]:
    return {one["user_provided_name"]: one["name"] for one in world.api.get("connections")}


LISTS = {
    "queues": "a", "exchanges": ".vhost-tag", "connections": "a", "channels": ".under",
    "logs": "a", "users": "a", "vhosts": "a",
}  # fmt: skip
"""What a row shows the payload in: its name, or what stands beside it. Of exchanges there are too
many for one page: their names are looked for one by one."""
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
"""Where a page that is no list shows every payload."""
NAMELESS = {
    "history": ("[data-testid=history-messages]", "Messages"),
    "settings": ("[data-testid=settings] tbody", "heartbeat"),
}
"""What shows that a page without foreign names has its data."""
OF_ONE_VHOST = ("", "routing")
"""Seen in `test_chosen_vhost`: they show names of a few queues, or of one virtual host."""


def test_every_page_of_the_dashboard_is_walked() -> None:
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


def test_lists_show_names_as_text(walker: Dashboard) -> None:
    """With live updates: what is there, and what comes while the page is open."""
    walker.test_id("live").click()
    expect(walker.test_id("live")).to_contain_text("Live")
    assert walker.page.evaluate(WALK, _stops_of_lists()) == []
    walker.open("queues", query=f"name={quote(hostile.LEFT)}")
    for payloads in (hostile.PAYLOADS[:1], hostile.PAYLOADS[1:]):  # the latter when it is shown
        for payload in payloads:
            hostile.leave_a_message(walker.api, payload)
        for payload in payloads:
            rows = walker.test_id("queues").locator("tbody")
            expect(rows).to_contain_text(hostile.LEFT + payload)
    for payload in hostile.PAYLOADS:
        walker.api.delete("queues", payload, hostile.LEFT + payload)
    walker.test_id("live").click()
    expect(walker.test_id("live")).to_contain_text("Paused")
    walker.watch.must_be_clean()


@pytest.mark.parametrize("payload", hostile.PAYLOADS, ids=map(str, range(1, 16)))
def test_pages_of_one_thing_show_its_name_as_text(walker: Dashboard, payload: str) -> None:
    connection = _connections(walker.world)[payload]
    assert walker.page.evaluate(WALK, _stops_of(payload, connection)) == []
    walker.open("logs", payload, hostile.LOG + payload)
    walker.press("Read records")
    expect(walker.test_id("records").locator("summary")).to_contain_text(payload)
    walker.watch.must_be_clean()


def test_chosen_vhost(walker: Dashboard) -> None:
    for payload in hostile.PAYLOADS:
        hostile.leave_a_message(walker.api, payload)
        walker.open("routing")
        walker.test_id("vhost").select_option(payload)
        expect(walker.page.locator("main")).to_contain_text(f"Every binding in {payload}")
        expect(walker.test_id("routing-map")).to_contain_text(payload[:15])
        walker.open("")
        expect(walker.test_id("piles").locator("tbody")).to_contain_text(hostile.LEFT + payload)
        expect(walker.test_id("health")).to_contain_text(f"No consumer on {hostile.LEFT}{payload}.")
        walker.api.delete("queues", payload, hostile.LEFT + payload)
    walker.test_id("vhost").select_option("")
    walker.watch.must_be_clean()


def test_errors(walker: Dashboard) -> None:
    walker.watch.expect("400")
    walker.open("new-queue")
    form = walker.test_id("declare-queue")
    form.get_by_label("Most messages").fill("5")
    for payload in hostile.PAYLOADS:
        form.get_by_label("Name required").fill(payload)
        form.get_by_label("Virtual host").select_option(payload)
        walker.press("Declare queue", form)
        expect(form.get_by_test_id("error")).to_contain_text(f"for queue '{payload}'")
    walker.watch.must_be_clean()
    walker.watch.forget()


def test_questions_and_notices(walker: Dashboard) -> None:
    leaving = [f"{payload} leaves" for payload in hostile.PAYLOADS]
    for name in leaving:
        walker.api.put("users", name, body={"password": "short", "tags": ""})
    walker.open("users")
    for name in leaving:
        walker.press(f"Delete {name}")
        walker.confirm("Its password")
        walker.says(f"User {name} is deleted.")
    assert not any(walker.api.has("users", name) for name in leaving)
    walker.watch.must_be_clean()


def test_the_watch_would_see_a_break_in(walker: Dashboard) -> None:
    """A check that finds nothing must be able to find something."""
    notes: list[Any] = walker.watch.notes
    walker.page.evaluate(
        "document.querySelector('main').insertAdjacentHTML('beforeend', '<img src=x onerror=x()>')"
    )
    expect(walker.page.locator("main img")).to_have_count(1)
    walker.page.evaluate("alert('seen')")
    walker.page.evaluate("fetch('http://127.0.0.1:9/').catch(() => 0)")
    walker.watch.collect()
    text = "\n".join(notes)
    for sign in ("element <img", "attribute onerror", "CSP", "dialog seen", "console"):
        assert sign in text, text
    walker.watch.forget()
