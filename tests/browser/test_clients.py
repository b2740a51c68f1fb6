"""Connections and channels: lists, pages, live updates, and closing a connection."""

from __future__ import annotations

import re

import pika.exceptions
import pytest
from playwright.sync_api import expect

from tests.browser.dashboard import Dashboard, wait_until
from tests.browser.shop_broker import SHOP


def _is_closed(connection: pika.BlockingConnection) -> bool:
    try:
        connection.process_data_events(0)
    except pika.exceptions.AMQPConnectionError:
        return True
    return False


def _listed(tab: Dashboard, name: str) -> bool:
    return any(row["user_provided_name"] == name for row in tab.api.get("connections"))


def test_client_is_listed_with_its_name_and_channels(tab: Dashboard) -> None:
    tab.open("connections")
    tab.test_id("filter").fill("")
    table = tab.test_id("connections")
    for name in ("shop-web", "worker", "log-reader"):
        expect(table).to_contain_text(name)
    table.get_by_role("link", name="worker").click()
    expect(tab.heading("worker")).to_be_visible()
    tab.test_id("connection-channels").get_by_role("link").first.click()
    expect(tab.test_id("consumers")).to_contain_text("worker on orders.eu")
    expect(tab.page.locator("main")).to_contain_text("Prefetch")


@pytest.mark.parametrize("place", ["list", "connection", "channel"])
def test_close_connection(tab: Dashboard, place: str) -> None:
    name = f"victim from the {place}"
    connection = tab.broker.connect(SHOP, name)
    channel = connection.channel()
    channel.queue_declare("", exclusive=True)
    wait_until(lambda: _listed(tab, name), "the connection")
    tab.open("connections")
    if place == "list":
        tab.press(f"Close {name}")
    else:
        tab.test_id("connections").get_by_role("link", name=name).click()
        if place == "channel":
            tab.test_id("connection-channels").get_by_role("link").first.click()
            expect(tab.test_id("connection-channels")).to_have_count(0)
        tab.press("Close connection")
    tab.confirm(f"{name} will be disconnected, with 1 channel")
    tab.expect_toast("Connection closed")
    wait_until(lambda: _is_closed(connection), "the end of the connection")
    assert not _listed(tab, name)
    if place == "list":
        expect(tab.test_id("connections")).not_to_contain_text(name)


def test_new_client_appears_without_a_reload(tab: Dashboard) -> None:
    tab.select_vhost(SHOP)
    tab.open("connections")
    expect(tab.test_id("connections")).to_contain_text("worker")
    expect(tab.test_id("live")).to_contain_text("Live")
    connection = tab.broker.connect(SHOP, "newcomer")
    expect(tab.test_id("connections")).to_contain_text("newcomer")
    connection.close()
    expect(tab.test_id("connections")).not_to_contain_text("newcomer")


def test_rates_of_clients_and_vhost(tab: Dashboard) -> None:
    """The shop's publisher never pauses, so after two samples no rate is zero."""
    busy = re.compile(r"[1-9][\d.,]*\s?(B|KiB|MiB)/s")
    tab.select_vhost(SHOP)
    tab.open("connections")
    row = tab.test_id("connections").get_by_role("row").filter(has_text="shop-web")
    expect(row).to_have_text(busy)
    row.get_by_role("link").click()
    shown = re.compile(r"From client " + busy.pattern)
    expect(tab.test_id("charts")).to_contain_text(shown)
    channel = tab.test_id("connection-channels").get_by_role("row").nth(1)
    expect(channel).to_have_text(re.compile(r"[1-9][\d.]*/s"))
    tab.open("vhosts", SHOP)
    expect(tab.test_id("charts")).to_contain_text(re.compile(r"Published [1-9][\d.]*/s"))


def test_pause_stops_updates(tab: Dashboard) -> None:
    tab.open("connections")
    expect(tab.test_id("connections")).to_contain_text("worker")
    tab.test_id("live").click()
    expect(tab.test_id("live")).to_contain_text("Paused")
    connection = tab.broker.connect(SHOP, "unseen")
    wait_until(lambda: _listed(tab, "unseen"))
    expect(tab.test_id("connections")).not_to_contain_text("unseen")
    tab.test_id("live").click()
    expect(tab.test_id("connections")).to_contain_text("unseen")
    connection.close()
