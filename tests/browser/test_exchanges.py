"""Exchanges: declare, bind, publish, delete; routing tests highlight a path in the topology."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests.browser.dashboard import Dashboard, wait_until
from tests.browser.shop_broker import SHOP


@pytest.fixture
def vhost(tab: Dashboard) -> Iterator[str]:
    with tab.temporary_vhost("exchange tests") as name:
        tab.api.put("exchanges", name, "in", body={"type": "topic"})
        tab.api.put("queues", name, "here")
        tab.select_vhost(name)
        yield name


def test_declare(tab: Dashboard, vhost: str) -> None:
    tab.open("exchanges")
    tab.page.get_by_role("link", name="Declare exchange").click()
    form = tab.test_id("declare-exchange")
    form.get_by_label("Name required").fill("news")
    form.get_by_label("Type").select_option("headers")
    form.get_by_label("Alternate exchange").fill("in")
    form.get_by_label("Internal").check()
    tab.press("Declare exchange", form)
    expect(tab.heading("news")).to_be_visible()
    exchange = tab.api.get("exchanges", vhost, "news")
    assert (exchange["type"], exchange["internal"], exchange["durable"]) == ("headers", True, True)
    assert exchange["arguments"] == {"alternate-exchange": "in"}


def test_bind_to_a_queue_and_to_an_exchange_and_unbind(tab: Dashboard, vhost: str) -> None:
    tab.open("exchanges", vhost, "in", query="tab=bindings")
    form = tab.test_id("bind")
    form.get_by_label("Name of the queue").fill("here")
    form.get_by_label("Routing key").fill("a.*")
    tab.press("Bind", form)
    expect(tab.test_id("bindings-destination")).to_contain_text("a.*")
    form.get_by_label("Destination type").select_option("exchange")
    form.get_by_label("Name of the exchange").fill("amq.fanout")
    tab.press("Bind", form)
    expect(tab.test_id("bindings-destination").locator("tbody tr")).to_have_count(2)
    source = tab.api.get("exchanges", vhost, "in", "bindings", "source")
    assert {(row["destination"], row["routing_key"]) for row in source} == {
        ("here", "a.*"),
        ("amq.fanout", ""),
    }
    tab.press("Unbind here from in")
    tab.confirm("in will no longer route messages with routing key a.* to here")
    wait_until(lambda: len(tab.api.get("exchanges", vhost, "in", "bindings", "source")) == 1)
    expect(tab.test_id("bindings-destination")).not_to_contain_text("a.*")


def test_publish_shows_whether_it_was_routed(tab: Dashboard, vhost: str) -> None:
    tab.api.post("bindings", vhost, "e", "in", "q", "here", body={"routing_key": "a.#"})
    tab.open("exchanges", vhost, "in", query="tab=publish")
    form = tab.test_id("publish")
    form.get_by_label("Routing key").fill("b")
    form.get_by_label("Body").fill("lost")
    tab.press("Publish", form)
    expect(tab.test_id("publish-result")).to_contain_text("no binding matches")
    form.get_by_label("Routing key").fill("a.b")
    form.get_by_label("Body").fill("kept")
    tab.press("Publish", form)
    expect(tab.test_id("publish-result")).to_contain_text("routed to at least one queue")
    connection = tab.broker.connect(vhost)
    channel = connection.channel()
    method, _, body = channel.basic_get("here", auto_ack=True)
    assert (body, method.routing_key) == (b"kept", "a.b")
    assert channel.basic_get("here")[0] is None
    connection.close()


def test_scheduled_messages_of_a_delayed_exchange(tab: Dashboard, vhost: str) -> None:
    tab.open("new-exchange")
    form = tab.test_id("declare-exchange")
    form.get_by_label("Name required").fill("later")
    form.get_by_label("Type", exact=True).select_option("x-delayed-message")
    form.get_by_label("Routes like").select_option("fanout")
    tab.press("Declare exchange", form)
    expect(tab.heading("later")).to_be_visible()
    assert tab.api.get("exchanges", vhost, "later")["arguments"] == {"x-delayed-type": "fanout"}
    for text, delay in (("second", 7_200_000), ("first", 3_600_000)):
        properties = {"headers": {"x-delay": delay}}
        message = {"routing_key": "k", "payload": text, "payload_encoding": "string"}
        path = ("exchanges", vhost, "later", "publish")
        tab.api.post(*path, body=message | {"properties": properties})
    tab.test_id("tab-scheduled").click()
    scheduled = tab.test_id("scheduled-message")
    expect(scheduled).to_have_count(2)
    expect(scheduled.first).to_contain_text("first")
    scheduled.first.locator("summary").click()
    expect(scheduled.first).to_contain_text("header x-delay")
    tab.press("Delete this message", scheduled.first)
    tab.confirm("It will be dropped and never delivered")
    expect(scheduled).to_have_count(1)
    expect(scheduled).to_contain_text("second")
    assert tab.api.get("exchanges", vhost, "later")["messages_delayed"] == 1


def test_delete(tab: Dashboard, vhost: str) -> None:
    tab.api.post("bindings", vhost, "e", "in", "q", "here", body={"routing_key": "a"})
    tab.open("exchanges", vhost, "in")
    expect(tab.test_id("topology-map")).to_be_visible()
    tab.test_id("delete").click()
    tab.confirm("The exchange and 1 binding from it will be deleted")
    expect(tab.heading("Exchanges")).to_be_visible()
    assert "in" not in tab.api.names("exchanges", vhost)


def test_built_in_exchanges_cannot_be_deleted(tab: Dashboard) -> None:
    tab.open("exchanges", "/", "amq.topic")
    expect(tab.heading("amq.topic")).to_be_visible()
    expect(tab.test_id("delete")).to_have_count(0)
    tab.open("exchanges", "/", "")
    expect(tab.page.locator("main")).to_contain_text("whose name is the routing key")


def test_routing_test_highlights_the_path(tab: Dashboard) -> None:
    tab.select_vhost(SHOP)
    tab.open("routing")
    tab.page.get_by_label("Publish to").select_option("orders")
    tab.page.get_by_label("Routing key").fill("order.created.eu")
    tab.press("Test routing")
    reached = set(_route(tab, "order.created.eu")["queues"])
    assert reached == {"orders.eu", "orders.all", "welcome"}
    expect(tab.test_id("routing-test-result")).to_contain_text("Would reach 3 queues")
    highlighted = tab.page.locator(".node-queue.node-lit text")
    assert {text.strip() for text in highlighted.all_text_contents()} == reached
    assert tab.page.locator(".edge-lit").count() == 5
    assert tab.page.locator(".node-queue.node-dim").count() == 7
    tab.page.get_by_label("Routing key").fill("nothing")
    tab.press("Test routing")
    expect(tab.test_id("routing-test-result")).to_contain_text("Would reach 1 queue")


def _route(tab: Dashboard, key: str) -> dict[str, list[str]]:
    body = {"exchange": "orders", "routing_key": key, "headers": {}}
    result: dict[str, list[str]] = tab.api.post("route", SHOP, body=body)
    return result


def test_routing_test_by_headers_publishes_nothing(tab: Dashboard) -> None:
    before = tab.api.get("queues", SHOP, "acme")["messages"]
    tab.open("exchanges", SHOP, "tenants")
    form = tab.test_id("routing-test")
    tab.press("Test routing", form)
    expect(tab.test_id("routing-test-result")).to_contain_text("No queue would get this message")
    assert tab.page.locator(".edge-lit").count() == 0
    form.locator("summary").click()
    form.get_by_role("button", name="Add").click()
    form.get_by_label("Headers: name 1").fill("tenant")
    form.get_by_label("Headers: value 1").fill("acme")
    tab.press("Test routing", form)
    expect(tab.test_id("routing-test-result")).to_contain_text("Would reach 1 queue: acme")
    assert tab.page.locator(".edge-lit").count() == 1
    assert tab.api.get("queues", SHOP, "acme")["messages"] == before
