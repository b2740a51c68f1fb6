"""Queues: declare, bind, publish, browse, get, purge, delete. AMQP clients see every effect."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests.browser.dashboard import Dashboard, wait_until
from tests.browser.shop_broker import LOG, SHOP

QUEUE = "work, to do"


@pytest.fixture
def vhost(tab: Dashboard) -> Iterator[str]:
    """A selected virtual host with one empty queue."""
    with tab.temporary_vhost("queue tests") as name:
        tab.api.put("queues", name, QUEUE, body={"durable": True})
        tab.select_vhost(name)
        yield name


def _publish(tab: Dashboard, vhost: str, *bodies: str) -> None:
    for body in bodies:
        message = {"properties": {}, "routing_key": QUEUE, "payload": body}
        message["payload_encoding"] = "string"
        assert tab.api.post("exchanges", vhost, "amq.default", "publish", body=message)["routed"]


def _ready(tab: Dashboard, vhost: str) -> int:
    """The number of ready messages, as a client sees it."""
    connection = tab.broker.connect(vhost)
    declared = connection.channel().queue_declare(QUEUE, passive=True)
    connection.close()
    return int(declared.method.message_count)


def test_empty_lists_explain_the_next_step(tab: Dashboard) -> None:
    with tab.temporary_vhost("empty tests") as name:
        tab.select_vhost(name)
        tab.open("queues")
        expect(tab.test_id("empty")).to_contain_text("No queues yet")
        snippet = tab.page.locator("pre").inner_text()
        url = f"amqp://guest:guest@127.0.0.1:{tab.broker.target.port}/empty%20tests"
        assert url in snippet and "pika" in snippet
        tab.open("exchanges")
        tab.open("routing")
        expect(tab.test_id("empty")).to_contain_text("No bindings yet")
        tab.open("logs")
        expect(tab.test_id("empty")).to_contain_text("No logs yet")
        tab.open("connections")
        expect(tab.test_id("empty")).to_contain_text("No connections")
        tab.open("channels")
        expect(tab.test_id("empty")).to_contain_text("No open channels")


def test_missing_name_is_focused_and_visible(tab: Dashboard) -> None:
    """The browser scrolls to the field, which must not be covered by the top bar."""
    tab.open("new-queue")
    form = tab.test_id("declare-queue")
    tab.press("Declare queue", form)
    name = form.get_by_label("Name required")
    expect(name).to_be_focused()
    field, bar = name.bounding_box(), tab.page.locator(".topbar").bounding_box()
    assert field and bar and field["y"] >= bar["y"] + bar["height"]


def test_program_for_a_log_reads_from_the_first_record(tab: Dashboard, vhost: str) -> None:
    log = {"durable": True, "arguments": {"x-queue-type": "stream"}}
    tab.api.put("queues", vhost, "clicks", body=log)
    tab.open("queues", vhost, "clicks")
    expect(tab.page.locator("pre")).to_contain_text('arguments={"x-stream-offset": "first"}')


def test_log_is_listed_with_its_partitions(tab: Dashboard) -> None:
    """The records are in the partitions, so the list shows no zero for the log."""
    tab.select_vhost(SHOP)
    tab.open("queues")
    row = tab.test_id("queues").locator("tbody tr", has_text="log, 3 partitions")
    expect(row.get_by_role("link", name=LOG, exact=True)).to_be_visible()
    row.get_by_role("link", name="log", exact=True).click()
    expect(tab.page.get_by_role("heading", name=LOG)).to_be_visible()


def test_declare_with_arguments(tab: Dashboard, vhost: str) -> None:
    tab.open("queues")
    tab.page.get_by_role("link", name="Declare queue").click()
    form = tab.test_id("declare-queue")
    form.get_by_label("Name required").fill("limited")
    form.get_by_label("Max messages").fill("many")
    tab.press("Declare queue", form)
    expect(form.get_by_test_id("error")).to_contain_text("whole number")
    form.get_by_label("Max messages").fill("1000")
    form.get_by_label("When full").select_option("reject-publish")
    form.get_by_label("Single active consumer").check()
    form.get_by_label("Dead-letter strategy").select_option("at-least-once")
    form.get_by_label("Deduplicate").check()
    form.get_by_label("Cache size").fill("500")
    form.get_by_label("Cache TTL").fill("60000")
    tab.press("Declare queue", form)
    expect(tab.heading("limited")).to_be_visible()
    tab.expect_toast("Queue limited created")
    queue = tab.api.get("queues", vhost, "limited")
    assert queue["durable"] and queue["arguments"] == {
        "x-max-length": 1000,
        "x-overflow": "reject-publish",
        "x-single-active-consumer": True,
        "x-dead-letter-strategy": "at-least-once",
        "x-message-deduplication": True,
        "x-cache-size": 500,
        "x-cache-ttl": 60_000,
    }


def test_classic_queue_in_a_vhost_with_another_default(tab: Dashboard, vhost: str) -> None:
    tab.api.put("vhosts", vhost, body={"default_queue_type": "quorum", "tags": "blue,green"})
    tab.open("vhosts", vhost)
    expect(tab.test_id("properties")).to_contain_text("Quorum")
    expect(tab.test_id("properties").locator(".badge")).to_have_text(["blue", "green"])
    tab.page.reload()
    tab.open("new-queue")
    form = tab.test_id("declare-queue")
    form.get_by_label("Name required").fill("plain")
    tab.press("Declare queue", form)
    expect(tab.heading("plain")).to_be_visible()
    assert tab.api.get("queues", vhost, "plain")["type"] == "classic"


def test_effective_policy_is_shown(tab: Dashboard, vhost: str) -> None:
    ours = {"pattern": "^work", "definition": {"max-length": 900, "overflow": "reject-publish"}}
    tab.api.put("policies", vhost, "ours", body=ours)
    theirs = {"pattern": ".*", "definition": {"max-length": 70}}
    tab.api.put("operator-policies", vhost, "theirs", body=theirs)
    tab.open("queues", vhost, QUEUE)
    card = tab.test_id("policy")
    expect(card).to_contain_text("ours")
    expect(card).to_contain_text("theirs")
    expect(card.locator("dd", has_text="reject-publish")).to_be_visible()
    expect(card.locator("dd").get_by_text("70", exact=True)).to_be_visible()
    tab.api.delete("policies", vhost, "ours")
    expect(card).not_to_contain_text("ours")
    expect(card.locator("dd").get_by_text("70", exact=True)).to_be_visible()


def test_declare_log(tab: Dashboard, vhost: str) -> None:
    tab.open("logs")
    tab.page.get_by_role("link", name="Declare log").click()
    form = tab.test_id("declare-queue")
    expect(form.get_by_role("radio", name="Log")).to_be_checked()
    form.get_by_label("Name required").fill("story")
    form.get_by_label("Partitions").fill("2")
    tab.press("Declare queue", form)
    expect(tab.test_id("lane")).to_have_count(2)
    assert [row["name"] for row in tab.api.get("logs", vhost)] == ["story"]


def test_declare_with_inequivalent_arguments_shows_an_error(tab: Dashboard, vhost: str) -> None:
    tab.monitor.allow("400")
    tab.open("new-queue")
    form = tab.test_id("declare-queue")
    form.get_by_label("Name required").fill(QUEUE)
    form.get_by_label("Max messages").fill("5")
    tab.press("Declare queue", form)
    expect(form.get_by_test_id("error")).to_contain_text("Inequivalent arg 'x-max-length'")


def test_bind_and_unbind(tab: Dashboard, vhost: str) -> None:
    tab.open("queues", vhost, QUEUE, query="tab=bindings")
    form = tab.test_id("bind")
    form.get_by_label("Exchange").fill("amq.topic")
    form.get_by_label("Routing key").fill("a.#")
    tab.press("Bind", form)
    expect(tab.test_id("bindings-source")).to_contain_text("a.#")
    keys = [row["routing_key"] for row in tab.api.get("queues", vhost, QUEUE, "bindings")]
    assert sorted(keys) == ["a.#", QUEUE]
    tab.press(f"Unbind {QUEUE} from amq.topic")
    tab.confirm("amq.topic will no longer route messages with routing key a.#")
    wait_until(lambda: len(tab.api.get("queues", vhost, QUEUE, "bindings")) == 1)
    expect(tab.test_id("bindings-source")).to_have_count(0)


def test_publish_reaches_a_client(tab: Dashboard, vhost: str) -> None:
    tab.open("queues", vhost, QUEUE, query="tab=publish")
    form = tab.test_id("publish")
    form.get_by_label("Body").fill('{"a": "ü"}')
    form.get_by_role("button", name="Add").click()
    form.get_by_label("Headers: name 1").fill("tenant")
    form.get_by_label("Headers: value 1").fill("acme")
    form.get_by_text("More properties").click()
    form.get_by_label("Message ID").fill("from-the-page")
    form.get_by_label("Priority").fill("7")
    tab.press("Publish", form)
    expect(tab.test_id("publish-result")).to_contain_text("routed to at least one queue")
    connection = tab.broker.connect(vhost)
    _, properties, body = connection.channel().basic_get(QUEUE, auto_ack=True)
    connection.close()
    assert body.decode() == '{"a": "ü"}'
    assert properties.headers == {"tenant": "acme"}
    assert (properties.message_id, properties.priority) == ("from-the-page", 7)
    assert properties.delivery_mode == 2


def test_browse_changes_nothing(tab: Dashboard, vhost: str) -> None:
    _publish(tab, vhost, '{"n": 1}', "plain text")
    tab.open("queues", vhost, QUEUE, query="tab=messages")
    messages = tab.test_id("browse").get_by_test_id("message")
    expect(messages).to_have_count(2)
    messages.first.locator("summary").click()
    expect(messages.first.locator("pre")).to_have_text('{\n  "n": 1\n}')
    tab.press("Refresh", tab.test_id("browse"))
    expect(messages).to_have_count(2)
    connection = tab.broker.connect(vhost)
    method, _, body = connection.channel().basic_get(QUEUE, auto_ack=False)
    connection.close()
    assert body == b'{"n": 1}' and not method.redelivered


@pytest.mark.parametrize(
    ("mode", "question", "remaining"),
    [
        ("ack_requeue_true", None, 2),
        ("ack_requeue_false", "removed permanently", 0),
        ("reject_requeue_false", "removed permanently", 0),
    ],
)
def test_get(tab: Dashboard, vhost: str, mode: str, question: str | None, remaining: int) -> None:
    _publish(tab, vhost, "one", "two")
    tab.open("queues", vhost, QUEUE, query="tab=messages")
    card = tab.test_id("get")
    card.get_by_label("Count").fill("5")
    card.get_by_label("Afterwards").select_option(mode)
    tab.press("Get messages", card)
    if question:
        tab.confirm(question)
    expect(card.get_by_test_id("message")).to_have_count(2)
    assert _ready(tab, vhost) == remaining


def test_reject_names_the_dead_letter_exchange_of_a_policy(tab: Dashboard, vhost: str) -> None:
    policy = {"pattern": "^work", "definition": {"dead-letter-exchange": "amq.fanout"}}
    tab.api.put("policies", vhost, "dead-letter", body=policy)
    _publish(tab, vhost, "one")
    tab.open("queues", vhost, QUEUE, query="tab=messages")
    card = tab.test_id("get")
    card.get_by_label("Afterwards").select_option("reject_requeue_false")
    tab.press("Get messages", card)
    tab.confirm("sent to the dead-letter exchange amq.fanout")
    expect(card.get_by_test_id("message")).to_have_count(1)


def test_get_mode_is_described_and_not_cut_off(tab: Dashboard, vhost: str) -> None:
    tab.open("queues", vhost, QUEUE, query="tab=messages")
    choice = tab.test_id("get").get_by_label("Afterwards")
    expect(choice).to_have_accessible_description("Requeued messages are marked as redelivered.")
    # The width that the longest option needs must not exceed the width that the field has.
    needed = "(one) => { const copy = one.cloneNode(true);"
    needed += " copy.style.width = 'auto'; one.after(copy); const width = copy.offsetWidth;"
    needed += " copy.remove(); return width }"
    assert choice.evaluate(needed) <= choice.evaluate("(one) => one.offsetWidth")


def test_get_waits_for_a_message(tab: Dashboard, vhost: str) -> None:
    tab.open("queues", vhost, QUEUE, query="tab=messages")
    card = tab.test_id("get")
    card.get_by_label("Wait for a message").fill("20")
    with tab.page.expect_request("**/get"):
        tab.press("Get messages", card)
    _publish(tab, vhost, "late")
    expect(card.get_by_test_id("message")).to_contain_text("late")


def test_purge_asks_and_says_what_is_lost(tab: Dashboard, vhost: str) -> None:
    _publish(tab, vhost, "one", "two", "three")
    tab.open("queues", vhost, QUEUE)
    tab.test_id("purge").click()
    expect(tab.test_id("confirm")).to_contain_text("3 ready messages will be lost")
    tab.press("Cancel")
    assert _ready(tab, vhost) == 3
    tab.test_id("purge").click()
    tab.confirm("3 ready messages will be lost")
    tab.expect_toast("purged")
    assert _ready(tab, vhost) == 0
    expect(tab.test_id("ready")).to_contain_text("0")


def test_delete(tab: Dashboard, vhost: str) -> None:
    _publish(tab, vhost, "one")
    tab.open("queues", vhost, QUEUE)
    tab.test_id("delete").click()
    tab.confirm("The queue, its bindings and 1 message will be lost")
    expect(tab.heading("Queues")).to_be_visible()
    assert QUEUE not in tab.api.names("queues", vhost)
    expect(tab.test_id("empty")).to_be_visible()


def test_missing_queue_shows_an_error(tab: Dashboard, vhost: str) -> None:
    tab.monitor.allow("404")
    tab.open("queues", vhost, "never there")
    expect(tab.test_id("error")).to_contain_text(
        "Queue “never there” does not exist in “queue tests”."
    )


def test_sorting_and_filter_are_kept_in_the_address(tab: Dashboard) -> None:
    tab.select_vhost(SHOP)
    tab.open("queues")
    rows = tab.test_id("queues").locator("tbody tr")
    expect(rows.first).to_contain_text("acme")
    tab.test_id("queues").get_by_role("button", name="Name").click()
    expect(rows.first).to_contain_text("welcome")
    tab.test_id("filter").fill("orders.")
    expect(rows).to_have_count(3)
    expect(tab.test_id("pager-status")).to_contain_text("1–3 of 3 queues")
    assert "name=orders." in tab.page.url and "desc=1" in tab.page.url
    tab.page.reload()
    expect(rows).to_have_count(3)
    expect(rows.first).to_contain_text("orders.us")
    tab.test_id("filter").fill("no such queue")
    expect(tab.test_id("pager-status")).to_have_text("No queues match")


def test_consumers_and_rates_of_a_busy_queue(tab: Dashboard) -> None:
    tab.open("queues", SHOP, "orders.eu")
    expect(tab.test_id("consumers")).to_contain_text("worker on orders.eu")
    expect(tab.page.get_by_role("link", name="shorten")).to_be_visible()
    expect(tab.page.locator("main")).to_contain_text("x-dead-letter-exchange")
