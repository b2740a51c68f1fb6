"""The disk alarm and the lost records of a log, as the dashboard shows them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pika
from playwright.sync_api import expect

import leveret
from leveret.queues.log.files.segment import list_segments, log_path
from tests.browser.dashboard import BLANK_PAGE, Dashboard


def serve(data_dir: Path, **settings: Any) -> leveret.ThreadedBroker:
    return leveret.ThreadedBroker(
        leveret.in_process_settings(data_dir=data_dir, http_enabled=True, **settings)
    )


def lose_a_segment(data_dir: Path) -> None:
    """A log of several segments, of which one is missing at the next start."""
    with serve(data_dir) as broker:
        connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        channel = connection.channel()
        arguments = {"x-queue-type": "stream", "x-stream-max-segment-size-bytes": 500}
        channel.queue_declare("clicks", durable=True, arguments=arguments)
        channel.confirm_delivery()
        for _ in range(20):
            channel.basic_publish("", "clicks", bytes(100))
        connection.close()
    (directory,) = (data_dir / "logs").iterdir()
    log_path(directory, list_segments(directory)[1][0]).unlink()


def test_disk_alarm_and_lost_records_are_explained(
    signed_out_tab: Dashboard, tmp_path: Path
) -> None:
    lose_a_segment(tmp_path)
    tab = signed_out_tab
    tab.monitor.allow("503")  # the health check of the alarm
    with serve(tmp_path, disk_free_limit=1 << 49) as broker:
        tab.visit(broker.http_url)
        tab.sign_in("guest", "guest")
        expect(tab.page.locator("main")).to_contain_text("lower disk_free_limit")
        expect(tab.page.locator("main")).to_contain_text("Disk used by")
        tab.open("logs", "/", "clicks")
        expect(tab.page.get_by_role("alert")).to_contain_text("(missing segment)")
        tab.monitor.collect()
        tab.page.goto(BLANK_PAGE)
