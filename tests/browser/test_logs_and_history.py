"""Logs: lanes, groups, moving offsets after a preview. History: one message's life."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pika
import pytest
from playwright.sync_api import expect

from tests.browser.dashboard import Dashboard, until
from tests.browser.world import GROUP, LOG, SHOP


def test_log_shows_its_partitions_and_groups(tab: Dashboard) -> None:
    tab.open("logs")
    tab.test_id("logs").get_by_role("link", name=LOG).click()
    expect(tab.test_id("lane")).to_have_count(3)
    expect(tab.test_id("group")).to_contain_text(GROUP)
    lag = sum(one["lag"] for one in _group(tab, SHOP, LOG, GROUP)["partitions"])
    assert lag == 110
    expect(tab.page.locator("main")).to_contain_text("110 records behind")


def _group(tab: Dashboard, vhost: str, log: str, group: str) -> Any:
    found = [one for one in tab.api.get("logs", vhost, log, "groups") if one["group"] == group]
    return found[0]


def _committed(tab: Dashboard, vhost: str) -> list[int]:
    parts = _group(tab, vhost, "story", "readers")["partitions"]
    return [one["committed"] for one in sorted(parts, key=lambda one: one["partition"])]


@pytest.fixture
def read_log(tab: Dashboard) -> Iterator[str]:
    """A virtual host with a log whose one group has read and committed all and gone."""
    with tab.own_vhost("log tests") as vhost:
        connection = tab.world.connect(vhost)
        channel = connection.channel()
        channel.confirm_delivery()
        arguments = {"x-queue-type": "stream", "x-partitions": 2}
        channel.queue_declare("story", durable=True, arguments=arguments)
        for number in range(40):
            channel.basic_publish("story", f"k{number}", b"x")
        channel.basic_qos(prefetch_count=10)
        ways = {"x-group": "readers", "x-stream-offset": "first"}
        for taken, (method, _, _) in enumerate(channel.consume("story", arguments=ways), 1):
            channel.basic_ack(method.delivery_tag)
            if taken == 40:
                break
        connection.close()
        yield vhost


def test_offsets_move_only_after_the_preview(tab: Dashboard, read_log: str) -> None:
    until(lambda: sum(_committed(tab, read_log)) == 40, "the commits")
    before = _committed(tab, read_log)
    tab.open("logs", read_log, "story")
    tab.press("Move offsets of readers")
    dialog = tab.test_id("offset-reset")
    dialog.get_by_label("Move to").select_option("offset")
    dialog.get_by_label("Offset required").fill("5")
    tab.press("Preview", dialog)
    preview = tab.test_id("reset-preview")
    expect(preview).to_contain_text(f"{before[0] - 5} records again")
    assert _committed(tab, read_log) == before
    dialog.get_by_label("Move to").select_option("first")
    expect(preview).to_have_count(0)
    tab.press("Preview", dialog)
    expect(preview).to_contain_text(f"{before[1]} records again")
    tab.test_id("reset-apply").click()
    tab.says("Offsets of readers are moved")
    expect(dialog).to_have_count(0)
    assert _committed(tab, read_log) == [0, 0]
    expect(tab.page.locator("main")).to_contain_text("40 records behind")


def test_lanes_say_what_they_show(tab: Dashboard) -> None:
    tab.open("logs", SHOP, LOG)
    key = tab.test_id("lane-key")
    for words in ("sealed segments", "segment being written", f"committed by {GROUP}"):
        expect(key).to_contain_text(words)


def test_members_wait_and_read_over_http(tab: Dashboard, read_log: str) -> None:
    where = ("logs", read_log, "story", "groups", "crowd", "members")
    tags = [tab.api.post(*where, body={"session": 300})["member"] for _ in range(3)]
    tab.open("logs", read_log, "story")
    crowd = tab.test_id("group").filter(has_text="crowd")
    expect(crowd).to_contain_text("3 members, 1 waiting")
    expect(crowd).to_contain_text("commits by ack")
    expect(crowd.locator(".waiting")).to_contain_text(tags[2])
    expect(crowd).to_contain_text("over HTTP")
    for tag in tags:
        tab.api.delete(*where, tag)
    expect(crowd).to_contain_text("0 members")


def test_records_are_read_from_any_place(tab: Dashboard, read_log: str) -> None:
    tab.open("logs", read_log, "story")
    card = tab.test_id("records")
    tab.press("Read records", card)
    expect(card.get_by_test_id("message").first).to_contain_text("k")
    total = card.get_by_test_id("message").count()
    card.get_by_label("From").select_option("offset")
    card.get_by_label("Offset required").fill("5")
    tab.press("Read records", card)
    expect(card.get_by_test_id("message")).to_have_count(total - 5)
    tab.press(f"Read on from {total}", card)
    expect(card).to_contain_text("There is nothing from there on.")


def test_a_group_is_forgotten_after_a_question(tab: Dashboard, read_log: str) -> None:
    tab.open("logs", read_log, "story")
    tab.press("Forget readers")
    expect(tab.test_id("confirm")).to_contain_text("begins anew")
    tab.test_id("confirm-yes").click()
    tab.says("Group readers is forgotten")
    expect(tab.test_id("group")).to_have_count(0)
    assert tab.api.get("logs", read_log, "story", "groups") == []


def test_the_queue_page_of_a_log_shows_what_the_log_has(tab: Dashboard, read_log: str) -> None:
    tab.open("queues", read_log, "story")
    expect(tab.test_id("records-held")).to_contain_text("40")
    expect(tab.test_id("lane")).to_have_count(2)
    expect(tab.test_id("ready")).to_have_count(0)
    tab.test_id("to-log").click()
    expect(tab.test_id("group")).to_contain_text("readers")


def test_a_partition_names_the_groups_that_read_it(tab: Dashboard, read_log: str) -> None:
    tab.open("queues", read_log, "story-1")
    card = tab.test_id("empty")
    expect(card).to_contain_text("Read by groups")
    expect(card).to_contain_text("share its partitions: readers")
    expect(card.get_by_role("link", name="story")).to_be_visible()
    tab.test_id("tab-messages").click()
    records = tab.test_id("records")
    expect(records.get_by_label("Of")).to_have_value("1")
    tab.press("Read records", records)
    expect(records.get_by_test_id("message").first).to_be_visible()


def test_one_record_behind_is_said_as_one(tab: Dashboard, read_log: str) -> None:
    until(lambda: sum(_committed(tab, read_log)) == 40, "the commits")
    record = {"value": "x", "key": "k", "partition": 0}
    tab.api.post("logs", read_log, "story", "publish", body={"records": [record]})
    tab.open("logs", read_log, "story")
    expect(tab.page.locator(".stat-note")).to_have_text("1 record behind")


def test_deleting_a_log_names_its_records(tab: Dashboard, read_log: str) -> None:
    tab.open("queues", read_log, "story")
    tab.test_id("delete").click()
    tab.confirm("40 records, 2 partitions and the offsets of 1 group will be lost")
    expect(tab.heading("Queues")).to_be_visible()
    assert tab.api.get("logs", read_log) == []


def test_a_partition_leads_to_its_log_and_is_not_deleted_alone(
    tab: Dashboard, read_log: str
) -> None:
    tab.open("queues", read_log, "story-1")
    expect(tab.test_id("to-log")).to_have_text("Partition of story")
    expect(tab.test_id("delete")).to_have_count(0)
    tab.test_id("to-log").click()
    expect(tab.test_id("lane")).to_have_count(2)


def test_a_log_named_like_a_partition_is_deleted(tab: Dashboard, read_log: str) -> None:
    log = {"durable": True, "arguments": {"x-queue-type": "stream"}}
    tab.api.put("queues", read_log, "year-2026", body=log)
    tab.open("queues", read_log, "year-2026")
    tab.test_id("delete").click()
    tab.confirm("The log, its bindings and 0 records will be lost")
    expect(tab.heading("Queues")).to_be_visible()
    assert not tab.api.has("queues", read_log, "year-2026")


def test_a_senseless_offset_is_refused_in_words(tab: Dashboard) -> None:
    before = _group(tab, SHOP, LOG, GROUP)["partitions"]
    tab.open("logs", SHOP, LOG)
    tab.press(f"Move offsets of {GROUP}")
    dialog = tab.test_id("offset-reset")
    dialog.get_by_label("Move to").select_option("offset")
    dialog.get_by_label("Offset required").fill("soon")
    tab.press("Preview", dialog)
    expect(dialog.get_by_test_id("error")).to_contain_text("whole number")
    assert _group(tab, SHOP, LOG, GROUP)["partitions"] == before


def test_timeline_of_one_message(tab: Dashboard) -> None:
    with tab.own_vhost("history tests") as vhost:
        _live_a_life(tab, vhost)
        tab.open("history")
        form = tab.test_id("trace-form")
        form.get_by_label("Id required").fill("life-1")
        tab.press("Trace", form)
        timeline = tab.test_id("timeline")
        expect(timeline).to_be_visible()
        events = [one["event"] for one in tab.api.get("trace", message_id="life-1")["events"]]
        assert events[0] == "published" and events[-1] == "acked" and "redelivered" in events
        expect(tab.test_id("trace-event")).to_have_count(len(events))
        for words in ("Published", "Acked", "biography"):
            expect(timeline).to_contain_text(words)
        expect(tab.test_id("legs")).to_contain_text("acked")
        expect(tab.page.get_by_label("Message body")).to_have_text("born")
        assert "message_id=life-1" in tab.page.url


def _live_a_life(tab: Dashboard, vhost: str) -> None:
    """Published, got and put back, delivered again, acknowledged."""
    connection = tab.world.connect(vhost, "biographer")
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("biography", durable=True)
    properties = pika.BasicProperties(message_id="life-1", delivery_mode=2)
    channel.basic_publish("", "biography", b"born", properties)
    for method, _, _ in channel.consume("biography"):
        if not method.redelivered:
            channel.basic_nack(method.delivery_tag, requeue=True)
        else:
            channel.basic_ack(method.delivery_tag)
            break
    connection.close()
    until(lambda: _ended(tab), "the history of the message")


def _ended(tab: Dashboard) -> bool:
    answer = tab.api.client.get("/api/trace", params={"message_id": "life-1"})
    return answer.status_code == 200 and answer.json()["events"][-1]["event"] == "acked"


def test_browsing_leads_to_the_trace(tab: Dashboard) -> None:
    tab.open("queues", SHOP, "welcome", query="tab=messages")
    message = tab.test_id("browse").get_by_test_id("message").first
    message.locator("summary").click()
    message.get_by_role("link", name="Trace this message").click()
    expect(tab.test_id("timeline")).to_contain_text("welcome")


def test_an_unknown_message_is_said_to_be_unknown(tab: Dashboard) -> None:
    tab.watch.expect("404")
    tab.open("history", query="message_id=never-published")
    expect(tab.test_id("empty")).to_contain_text("Not in the history")
