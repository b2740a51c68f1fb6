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
    location.hash = address;
    const end = performance.now() + 10000;
    const shown = () => [...document.querySelectorAll(selector)]
      .some((element) => element.textContent.includes(text));
    while (!shown() && performance.now() < end) await pause();
    if (!shown()) wrong.push(`${address}: ${selector} does not show ${text}`);
    document.querySelectorAll('details:not([open]) > summary').forEach((one) => one.click());
    await pause();
  }
  return wrong;
}
"""


@pytest.fixture(scope="module", autouse=True)
def _hostile_world(world: World, walker: Dashboard) -> Iterator[None]:
    connections = hostile.build(world)
    # Hundreds of pages are seen for a moment each: no stream has to be opened for them.
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
    traced = f"message_id={quote(payload, safe='')}"
    return [
        (_address(*queue), "h1", payload),
        (_address(*queue), "[data-testid=consumers] tbody", payload),
        (_address(*queue, query="tab=messages"), "[data-testid=message] summary", payload),
        (_address(*queue, query="tab=messages"), "[data-testid=message] pre", payload),
        (_address(*queue, query="tab=publish"), "main", payload),
        (_address(*queue, query="tab=bindings"), "[data-testid=bindings-source]", payload),
        (_address(*exchange), "[data-testid=routing-map]", payload[:15]),
        (_address(*exchange, query="tab=bindings"), "[data-testid=bindings-destination]", payload),
        (_address("connections", connection), "h1", payload),
        (_address("channels", f"{connection} (1)"), "[data-testid=consumers] tbody", payload),
        (_address("logs", payload, hostile.LOG + payload), "[data-testid=group]", payload),
        (_address("history", query=traced), "[data-testid=timeline]", payload),
        (_address("users", payload), "[data-testid=permissions]", payload),
        (_address("users", payload), ".page-sub", payload),
        (_address("vhosts", payload), "[data-testid=permissions]", payload),
        (_address(payload), "h1", "No such page"),
    ]


def _connections(world: World) -> dict[str, str]:
    return {one["user_provided_name"]: one["name"] for one in world.api.get("connections")}


LISTS = ("queues", "exchanges", "connections", "channels", "logs", "users", "vhosts")
OTHERS = ("", "history", "policies", "limits", "definitions", "settings", "routing", "new-queue",
          "new-exchange")  # fmt: skip


def test_every_page_of_the_dashboard_is_walked() -> None:
    source = (ROOT / "http_admin" / "ui" / "src" / "app.tsx").read_text(encoding="utf-8")
    lists = set(re.findall(r"case '([^']*)':", source))
    assert lists == {*LISTS, *OTHERS}
    things = set(re.findall(r"section === '([^']*)'", source))
    walked = {unquote(stop[0].split("/")[1]) for stop in _stops_of("x", "y")}
    assert len(things) == 7 and things <= walked


def test_lists_show_names_as_text(walker: Dashboard) -> None:
    stops = [
        (_address(name), f"[data-testid={name}] tbody", payload)
        for name in LISTS
        for payload in hostile.PAYLOADS
        if name != "channels"
    ]
    stops += [(_address("channels"), "[data-testid=channels]", hostile.PAYLOADS[0])]
    for page in OTHERS:
        stops += [(_address(page), "body", payload) for payload in hostile.PAYLOADS]
    assert walker.page.evaluate(WALK, stops) == []
    walker.watch.must_be_clean()


@pytest.mark.parametrize("payload", hostile.PAYLOADS, ids=map(str, range(1, 16)))
def test_pages_of_one_thing_show_its_name_as_text(walker: Dashboard, payload: str) -> None:
    connection = _connections(walker.world)[payload]
    assert walker.page.evaluate(WALK, _stops_of(payload, connection)) == []
    walker.watch.must_be_clean()


def test_chosen_vhost(walker: Dashboard) -> None:
    walker.open("routing")
    for payload in hostile.PAYLOADS:
        walker.test_id("vhost").select_option(payload)
        expect(walker.page.locator("main")).to_contain_text(f"Every binding in {payload}")
        expect(walker.test_id("routing-map")).to_be_visible()
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
