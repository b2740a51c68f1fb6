"""Logs: partitions, groups, records, offset resets. History: the trace of one message."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pika
import pytest
from playwright.sync_api import expect

from tests.browser.dashboard import Dashboard, wait_until
from tests.browser.shop_broker import GROUP, LOG, SHOP


def test_log_shows_its_partitions_and_groups(tab: Dashboard) -> None:
    tab.open("logs")
    tab.test_id("logs").get_by_role("link", name=LOG).click()
    expect(tab.test_id("lane")).to_have_count(3)
    expect(tab.test_id("group")).to_contain_text(GROUP)
    lag = sum(row["lag"] for row in _group(tab, SHOP, LOG, GROUP)["partitions"])
    assert lag == 110
    expect(tab.page.locator("main")).to_contain_text("lag: 110 records")


def _group(tab: Dashboard, vhost: str, log: str, group: str) -> Any:
    matches = [row for row in tab.api.get("logs", vhost, log, "groups") if row["group"] == group]
    return matches[0]


def _committed(tab: Dashboard, vhost: str) -> list[int]:
    parts = _group(tab, vhost, "story", "readers")["partitions"]
    return [row["committed"] for row in sorted(parts, key=lambda row: row["partition"])]


@pytest.fixture
def read_log(tab: Dashboard) -> Iterator[str]:
    """A virtual host with a log whose only group has committed all records and has no members."""
    with tab.temporary_vhost("log tests") as vhost:
        connection = tab.broker.connect(vhost)
        channel = connection.channel()
        channel.confirm_delivery()
        arguments = {"x-queue-type": "stream", "x-partitions": 2}
        channel.queue_declare("story", durable=True, arguments=arguments)
        for number in range(40):
            channel.basic_publish("story", f"k{number}", b"x")
        channel.basic_qos(prefetch_count=10)
        consume_arguments = {"x-group": "readers", "x-stream-offset": "first"}
        for count, (method, _, _) in enumerate(
            channel.consume("story", arguments=consume_arguments), 1
        ):
            channel.basic_ack(method.delivery_tag)
            if count == 40:
                break
        connection.close()
        yield vhost


def test_offsets_are_reset_only_after_the_preview(tab: Dashboard, read_log: str) -> None:
    wait_until(lambda: sum(_committed(tab, read_log)) == 40, "the commits")
    before = _committed(tab, read_log)
    tab.open("logs", read_log, "story")
    tab.press("Reset offsets of readers")
    dialog = tab.test_id("offset-reset")
    dialog.get_by_label("Reset to").select_option("offset")
    dialog.get_by_label("Offset required").fill("5")
    tab.press("Preview", dialog)
    preview = tab.test_id("reset-preview")
    expect(preview).to_contain_text(f"reads {before[0] - 5} records again")
    assert _committed(tab, read_log) == before
    dialog.get_by_label("Reset to").select_option("first")
    expect(preview).to_have_count(0)
    tab.press("Preview", dialog)
    expect(preview).to_contain_text(f"reads {before[1]} records again")
    tab.test_id("reset-apply").click()
    tab.expect_toast("Offsets of readers reset")
    expect(dialog).to_have_count(0)
    assert _committed(tab, read_log) == [0, 0]
    expect(tab.page.locator("main")).to_contain_text("lag: 40 records")


def test_partition_lanes_have_a_legend(tab: Dashboard) -> None:
    tab.open("logs", SHOP, LOG)
    key = tab.test_id("lane-key")
    for words in ("closed segments", "active segment", f"committed by {GROUP}"):
        expect(key).to_contain_text(words)


def test_members_over_http_and_members_without_partition(tab: Dashboard, read_log: str) -> None:
    path = ("logs", read_log, "story", "groups", "many", "members")
    tags = [tab.api.post(*path, body={"session": 300})["member"] for _ in range(3)]
    tab.open("logs", read_log, "story")
    group = tab.test_id("group").filter(has_text="many")
    expect(group).to_contain_text("3 members, 1 waiting")
    expect(group).to_contain_text("commits on ack")
    expect(group.locator(".waiting")).to_contain_text(tags[2])
    expect(group).to_contain_text("over HTTP")
    for tag in tags:
        tab.api.delete(*path, tag)
    expect(group).to_contain_text("0 members")


def test_records_are_read_from_any_offset(tab: Dashboard, read_log: str) -> None:
    tab.open("logs", read_log, "story")
    card = tab.test_id("records")
    tab.press("Read records", card)
    expect(card.get_by_test_id("message").first).to_contain_text("k")
    total = card.get_by_test_id("message").count()
    card.get_by_label("Start at").select_option("offset")
    card.get_by_label("Offset required").fill("5")
    tab.press("Read records", card)
    expect(card.get_by_test_id("message")).to_have_count(total - 5)
    tab.press(f"Continue from offset {total}", card)
    expect(card).to_contain_text("No records after this offset.")


def test_delete_group(tab: Dashboard, read_log: str) -> None:
    tab.open("logs", read_log, "story")
    tab.press("Delete group readers")
    expect(tab.test_id("confirm")).to_contain_text("Its committed offsets will be lost")
    tab.test_id("confirm-yes").click()
    tab.expect_toast("Group readers deleted")
    expect(tab.test_id("group")).to_have_count(0)
    assert tab.api.get("logs", read_log, "story", "groups") == []


def test_queue_page_of_a_log(tab: Dashboard, read_log: str) -> None:
    tab.open("queues", read_log, "story")
    expect(tab.test_id("records-held")).to_contain_text("40")
    expect(tab.test_id("lane")).to_have_count(2)
    expect(tab.test_id("ready")).to_have_count(0)
    tab.test_id("to-log").click()
    expect(tab.test_id("group")).to_contain_text("readers")


def test_queue_page_of_a_partition_names_its_groups(tab: Dashboard, read_log: str) -> None:
    tab.open("queues", read_log, "story-1")
    card = tab.test_id("empty")
    expect(card).to_contain_text("Read by groups")
    expect(card).to_contain_text("share its partitions: readers")
    expect(card.get_by_role("link", name="story")).to_be_visible()
    tab.test_id("tab-messages").click()
    records = tab.test_id("records")
    expect(records.get_by_label("Partition")).to_have_value("1")
    tab.press("Read records", records)
    expect(records.get_by_test_id("message").first).to_be_visible()


def test_lag_of_one_record(tab: Dashboard, read_log: str) -> None:
    wait_until(lambda: sum(_committed(tab, read_log)) == 40, "the commits")
    record = {"value": "x", "key": "k", "partition": 0}
    tab.api.post("logs", read_log, "story", "publish", body={"records": [record]})
    tab.open("logs", read_log, "story")
    expect(tab.page.locator(".stat-note")).to_have_text("lag: 1 record")


def test_delete_log(tab: Dashboard, read_log: str) -> None:
    tab.open("queues", read_log, "story")
    tab.test_id("delete").click()
    tab.confirm("40 records, 2 partitions and the offsets of 1 group will be lost")
    expect(tab.heading("Queues")).to_be_visible()
    assert tab.api.get("logs", read_log) == []


def test_partition_links_to_its_log_and_cannot_be_deleted(tab: Dashboard, read_log: str) -> None:
    tab.open("queues", read_log, "story-1")
    expect(tab.test_id("to-log")).to_have_text("Partition of story")
    expect(tab.test_id("delete")).to_have_count(0)
    tab.test_id("to-log").click()
    expect(tab.test_id("lane")).to_have_count(2)


def test_log_named_like_a_partition_can_be_deleted(tab: Dashboard, read_log: str) -> None:
    log = {"durable": True, "arguments": {"x-queue-type": "stream"}}
    tab.api.put("queues", read_log, "year-2026", body=log)
    tab.open("queues", read_log, "year-2026")
    tab.test_id("delete").click()
    tab.confirm("The log, its bindings and 0 records will be lost")
    expect(tab.heading("Queues")).to_be_visible()
    assert not tab.api.has("queues", read_log, "year-2026")


def test_invalid_offset_shows_an_error(tab: Dashboard) -> None:
    before = _group(tab, SHOP, LOG, GROUP)["partitions"]
    tab.open("logs", SHOP, LOG)
    tab.press(f"Reset offsets of {GROUP}")
    dialog = tab.test_id("offset-reset")
    dialog.get_by_label("Reset to").select_option("offset")
    dialog.get_by_label("Offset required").fill("soon")
    tab.press("Preview", dialog)
    expect(dialog.get_by_test_id("error")).to_contain_text("whole number")
    assert _group(tab, SHOP, LOG, GROUP)["partitions"] == before


def test_timeline_of_one_message(tab: Dashboard) -> None:
    with tab.temporary_vhost("history tests") as vhost:
        _publish_requeue_and_ack(tab, vhost)
        tab.open("history")
        form = tab.test_id("trace-form")
        form.get_by_label("ID required").fill("message-1")
        tab.press("Trace", form)
        timeline = tab.test_id("timeline")
        expect(timeline).to_be_visible()
        events = [row["event"] for row in tab.api.get("trace", message_id="message-1")["events"]]
        assert events[0] == "published" and events[-1] == "acked" and "redelivered" in events
        expect(tab.test_id("trace-event")).to_have_count(len(events))
        for words in ("Published", "Acked", "traced"):
            expect(timeline).to_contain_text(words)
        expect(tab.test_id("queue-visits")).to_contain_text("acked")
        expect(tab.page.get_by_label("Message body").locator("pre")).to_have_text("body")
        assert "message_id=message-1" in tab.page.url


def _publish_requeue_and_ack(tab: Dashboard, vhost: str) -> None:
    """Publish a message, requeue its first delivery, acknowledge the second."""
    connection = tab.broker.connect(vhost, "tracer")
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("traced", durable=True)
    properties = pika.BasicProperties(message_id="message-1", delivery_mode=2)
    channel.basic_publish("", "traced", b"body", properties)
    for method, _, _ in channel.consume("traced"):
        if not method.redelivered:
            channel.basic_nack(method.delivery_tag, requeue=True)
        else:
            channel.basic_ack(method.delivery_tag)
            break
    connection.close()
    wait_until(lambda: _ended(tab), "the history of the message")


def _ended(tab: Dashboard) -> bool:
    response = tab.api.client.get("/api/trace", params={"message_id": "message-1"})
    return response.status_code == 200 and response.json()["events"][-1]["event"] == "acked"


def test_browsed_message_links_to_its_trace(tab: Dashboard) -> None:
    tab.open("queues", SHOP, "welcome", query="tab=messages")
    message = tab.test_id("browse").get_by_test_id("message").first
    message.locator("summary").click()
    message.get_by_role("link", name="Trace this message").click()
    expect(tab.test_id("timeline")).to_contain_text("welcome")


def test_unknown_message(tab: Dashboard) -> None:
    tab.monitor.allow("404")
    tab.open("history", query="message_id=never-published")
    expect(tab.test_id("empty")).to_contain_text("Not in the history")
