"""`leveret salvage` on directories of real brokers."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from pamqp import commands

from leveret.cli import run
from leveret.launch import RunningBroker, in_process_settings
from leveret.queues.storage.statements import PAGE_SIZE
from tests.contract.stores import copy_as_after_crash
from tests.docs.blocks import ROOT, blocks_of
from tests.support.brokers import running_leveret
from tests.support.polling import wait_until_async
from tests.torture.client import PROPERTIES, Client

RECORDS = 30


@pytest.fixture
async def source(tmp_path: Path) -> Path:
    """A stopped broker's directory: a queue, a log, and history."""
    data = tmp_path / "source"
    async with RunningBroker(in_process_settings(data_dir=data)) as running:
        client = await Client.connect(running.amqp_address)
        await client.declare("orders")
        await client.declare("clicks", arguments={"x-queue-type": "stream"})
        await client.call(commands.Confirm.Select(), commands.Confirm.SelectOk)
        for number in range(RECORDS):
            client.publish(
                "", "orders", b"order %d" % number + b"x" * 3000, PROPERTIES["persistent"]
            )
            client.publish("", "clicks", b"click %d" % number, PROPERTIES["persistent"])
        queues = running.broker.vhosts["/"].queues
        await wait_until_async(lambda: queues["clicks"].ready_count == RECORDS)
        client.close()
    return data


def files_of(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def page_with(data: Path, text: bytes) -> int:
    position = (data / "leveret.db").read_bytes().index(text)
    return position // PAGE_SIZE + 1


def destroy(data: Path, page: int) -> None:
    with (data / "leveret.db").open("r+b") as file:
        file.seek((page - 1) * PAGE_SIZE)
        file.write(bytes(PAGE_SIZE))


async def read_queue(running: RunningBroker, queue: str, count: int) -> list[bytes]:
    bodies: list[bytes] = []
    client = await Client.connect(
        running.amqp_address, on_delivery=lambda _tag, _redelivered, body: bodies.append(body)
    )
    arguments = {"x-stream-offset": "first"} if queue != "orders" else None
    await client.consume(queue, 100, arguments=arguments)
    await wait_until_async(lambda: len(bodies) == count)
    client.close()
    return bodies


async def test_readable_part_is_copied_and_the_rest_named(source: Path, tmp_path: Path, capsys):
    destroy(source, page_with(source, b"order 17"))
    before, target = files_of(source), tmp_path / "target"
    assert run(["salvage", str(source), str(target)]) == 0
    assert files_of(source) == before, "the source is not changed"
    printed = capsys.readouterr()
    assert "orders' has lost" in printed.out
    assert f"leveret serve --data-dir {target}" in printed.err
    async with RunningBroker(in_process_settings(data_dir=target)) as running:
        ready = running.broker.vhosts["/"].queues["orders"].ready_count
        assert RECORDS - 4 <= ready < RECORDS
        bodies = await read_queue(running, "orders", ready)
        assert not any(body.startswith(b"order 17x") for body in bodies)
        assert len(await read_queue(running, "clicks", RECORDS)) == RECORDS
        assert running.broker.store.lost
    assert len(list((target / "damaged").iterdir())) == 1, "the start has repaired nothing"


async def test_sound_directory_is_copied_without_losses(source: Path, tmp_path: Path, capsys):
    assert run(["salvage", str(source), str(tmp_path / "target")]) == 0
    assert "nothing is lost" in capsys.readouterr().out
    assert not (tmp_path / "target" / "damaged").exists()


async def test_first_page_is_made_again(source: Path, tmp_path: Path, capsys):
    destroy(source, 1)
    target = tmp_path / "target"
    assert run(["salvage", str(source), str(target)]) == 0
    assert "damaged: page 1" in capsys.readouterr().out
    async with RunningBroker(in_process_settings(data_dir=target)) as running:
        assert len(await read_queue(running, "orders", RECORDS)) == RECORDS


async def test_commands_of_the_operations_page_salvage_a_directory(source: Path, tmp_path: Path):
    destroy(source, 1)
    blocks = blocks_of(
        (ROOT / "docs" / "operations.md").read_text(encoding="utf-8"), "operations.md"
    )
    (block,) = [each for each in blocks if each.text.startswith("leveret salvage ")]
    target = str(tmp_path / "target")
    text = block.text.replace("/var/lib/leveret-new", target).replace(
        "/var/lib/leveret", str(source)
    )
    salvage, serve = [shlex.split(line) for line in text.splitlines()]
    assert run(salvage[1:]) == 0
    assert serve[1] == "serve"
    with running_leveret(*serve[2:]) as broker, broker.connect() as client:
        assert client.channel().declare("orders", passive=True).message_count == RECORDS


async def test_write_ahead_log_is_part_of_the_data(source: Path, tmp_path: Path):
    """As after kill -9: the database alone is an older state."""
    crashed = tmp_path / "crashed"
    async with RunningBroker(in_process_settings(data_dir=source)) as running:
        confirms: list[int] = []
        client = await Client.connect(
            running.amqp_address, on_confirm=lambda tag, _multiple, _ack: confirms.append(tag)
        )
        await client.call(commands.Confirm.Select(), commands.Confirm.SelectOk)
        client.publish("", "orders", b"the newest order", PROPERTIES["persistent"])
        await wait_until_async(lambda: confirms == [1])
        copy_as_after_crash(source, crashed)
        client.close()
    assert run(["salvage", str(crashed), str(tmp_path / "target")]) == 0
    async with RunningBroker(in_process_settings(data_dir=tmp_path / "target")) as running:
        bodies = await read_queue(running, "orders", RECORDS + 1)
        assert b"the newest order" in bodies


async def test_logs_without_a_database_are_kept(source: Path, tmp_path: Path, capsys):
    (source / "leveret.db").unlink()
    target = tmp_path / "target"
    assert run(["salvage", str(source), str(target)]) == 0
    assert "everything but the records of logs is lost" in capsys.readouterr().out
    settings = in_process_settings(data_dir=target, default_user="me", default_password="secret")
    async with RunningBroker(settings) as running:
        (name,) = running.broker.vhosts["/"].queues
        assert name.startswith("leveret.recovered.")
        assert list(running.broker.users.by_name) == ["me"]
        running.broker.users.by_name.clear()
        running.broker.settings = in_process_settings(data_dir=target)
        running.broker.make_default_user()
        assert len(await read_queue(running, name, RECORDS)) == RECORDS


async def test_running_source_is_refused(source: Path, tmp_path: Path, capsys):
    async with RunningBroker(in_process_settings(data_dir=source)):
        assert run(["salvage", str(source), str(tmp_path / "target")]) == 1
        assert "in use by a running broker; stop it first" in capsys.readouterr().err
    assert not (tmp_path / "target").exists()


def test_target_must_be_empty(tmp_path: Path, capsys):
    (tmp_path / "leveret.db").touch()
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "file").touch()
    assert run(["salvage", str(tmp_path), str(tmp_path / "target")]) == 1
    assert "is not empty" in capsys.readouterr().err
    assert run(["salvage", str(tmp_path), str(tmp_path / "inside")]) == 1
    assert "name a directory outside" in capsys.readouterr().err


def test_source_must_be_a_data_directory(tmp_path: Path, capsys):
    assert run(["salvage", str(tmp_path / "nothing"), str(tmp_path / "target")]) == 66
    assert "is not a data directory" in capsys.readouterr().err
