"""The data directory is renamed while the broker runs."""

from __future__ import annotations

import logging
from pathlib import Path

import httpx
import pytest

from leveret.launch import RunningBroker, in_process_settings
from tests.torture.client import PROPERTIES, Client


async def test_renamed_directory_is_one_line_and_nothing_is_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    old, new = tmp_path / "old", tmp_path / "new"
    async with RunningBroker(in_process_settings(data_dir=old, http_enabled=True)) as running:
        client = await Client.connect(running.amqp_address)
        await client.declare("orders")
        client.publish("", "orders", b"hello", PROPERTIES["persistent"])
        await client.sync()
        await running.http_ready()
        caplog.clear()
        old.rename(new)
        for _ in range(3):
            running.broker.resource_monitor.check()
            await running.broker.resource_monitor.history_retention.apply_if_due()
        records = [record for record in caplog.records if record.levelno >= logging.WARNING]
        assert len(records) == 1
        assert f"the data directory {old} is gone: rename it back" in records[0].getMessage()
        assert running.broker.alarms.reason
        async with httpx.AsyncClient(auth=("guest", "guest"), timeout=60) as http:
            assert (await http.get(f"{running.http_url}/api/nodes")).status_code == 200
        client.close()
        new.rename(old)
        running.broker.resource_monitor.check()
        assert not running.broker.alarms.reason
        old.rename(new)
    async with RunningBroker(in_process_settings(data_dir=new)) as running:
        assert running.broker.vhosts["/"].queues["orders"].ready_count == 1
