"""Every command and program in README and docs is run."""

from __future__ import annotations

import subprocess
import sys
from itertools import groupby, islice
from pathlib import Path

import pika
import pytest

from leveret.config import ConfigError, load_settings
from leveret.testing import LeveretBroker
from tests.docs.blocks import COMMAND, PAGES, ROOT, Block, RunMode, all_blocks, blocks_of
from tests.docs.session import TIMEOUT_SECONDS, ShellSession, check_pip_install, lines_of

BLOCKS = all_blocks()
pytestmark = pytest.mark.timeout(600)  # one test runs all commands of a page, each in a process


def blocks_with(mode: RunMode) -> list[Block]:
    return [block for block in BLOCKS if block.mode is mode]


def by_page(mode: RunMode) -> list[tuple[str, list[Block]]]:
    groups = groupby(blocks_with(mode), lambda block: block.page)
    return [(page, list(blocks)) for page, blocks in groups]


def run_python(*words: str, cwd: Path) -> tuple[str, str]:
    result = subprocess.run(
        [sys.executable, "-W", "error", *words],
        cwd=cwd,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(cwd)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout, result.stderr


@pytest.mark.parametrize("block", blocks_with(RunMode.PROGRAM), ids=str)
def test_program_prints_something_and_no_warning(block, tmp_path):
    out, err = run_python("-c", block.text, cwd=tmp_path)
    assert out and not err


@pytest.mark.parametrize("page", by_page(RunMode.SESSION), ids=lambda page: page[0])
def test_shell_commands_of_a_page_run_in_order(page, tmp_path):
    """One broker serves all commands of the page."""
    with LeveretBroker(data_dir=tmp_path / "data", http_enabled=True) as broker:
        session = ShellSession(tmp_path, broker.url, broker.http_url)
        for block in page[1]:
            session.run_block(block.text)


def test_saved_blocks_pass_in_one_pytest_run(tmp_path):
    """As in a project that has copied all of them."""
    names = [block.detail for block in blocks_with(RunMode.SAVED)]
    assert len(names) == len(set(names))
    for block in blocks_with(RunMode.SAVED):
        (tmp_path / block.detail).write_text(block.text)
    loops = "asyncio_default_fixture_loop_scope=function"
    options = ["-q", "-p", "no:cacheprovider", "-W", "error", "--strict-markers", "-o", loops]
    output, _ = run_python("-m", "pytest", *options, cwd=tmp_path)
    assert " passed" in output and "skipped" not in output


@pytest.mark.parametrize("block", blocks_with(RunMode.FRAGMENT), ids=str)
def test_fragment_runs(block):
    """Each fragment has its own broker; `handle` is a callback that acks."""
    with LeveretBroker() as broker:
        connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        names = {
            "connection": connection,
            "channel": connection.channel(),
            "url": broker.url,
            "handle": lambda channel, method, _, body: channel.basic_ack(method.delivery_tag),
        }
        exec(compile(block.text, str(block), "exec"), names)
        connection.close()


def test_read_process_write():
    """Runs the endless loop of docs/log-mode.md for two records."""
    page = (ROOT / "docs/log-mode.md").read_text(encoding="utf-8")
    (block,) = [block for block in blocks_of(page, "") if "tx_select" in block.text]
    with LeveretBroker() as broker:
        connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        channel = connection.channel()
        for name in ("orders", "invoices"):
            log = {"x-queue-type": "stream", "x-partitions": 2}
            channel.queue_declare(name, durable=True, arguments=log)
        for number in (b"1", b"2"):
            channel.basic_publish("orders", "ann", number)
        worker = connection.channel()
        consume = worker.consume
        worker.consume = lambda *words, **more: islice(consume(*words, **more), 2)
        exec(block.text, {"channel": worker, "invoice_for": lambda order: b"invoice " + order})
        worker.cancel()
        channel.basic_qos(prefetch_count=10)
        reader = {"x-group": "check", "x-stream-offset": "first"}
        written = [body for _, _, body in islice(channel.consume("invoices", arguments=reader), 2)]
        connection.close()
    assert written == [b"invoice 1", b"invoice 2"]


@pytest.mark.parametrize("block", blocks_with(RunMode.ELSEWHERE), ids=str)
def test_block_tested_elsewhere_is_read_by_an_existing_test(block):
    file, _, name = block.detail.partition("::")
    text = (ROOT / file).read_text(encoding="utf-8")
    assert name and f"def {name}(" in text
    assert Path(block.page).name in text, f"{file} does not read {block.page}"


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language == "toml"], ids=str)
def test_settings_file_is_accepted(block, tmp_path):
    file = tmp_path / "leveret.toml"
    file.write_text(block.text)
    load_settings(toml_path=file)


def test_error_for_a_misspelt_key_is_the_documented_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings, message = [block for block in BLOCKS if block.page == "docs/configuration.md"][:2]
    Path("leveret.toml").write_text(settings.text.replace("message_size", "mesage_size"))
    with pytest.raises(ConfigError) as caught:
        load_settings(toml_path=Path("leveret.toml"))
    assert str(caught.value) == message.text.strip()


def test_no_block_without_a_language_has_a_command():
    blocks = [str(block) for block in BLOCKS if not block.language and COMMAND.search(block.text)]
    assert not blocks, f"mark them as sh: {blocks}"


def test_pages_were_found():
    assert {"README.md", "docs/testing.md"} <= {str(page.relative_to(ROOT)) for page in PAGES}
    assert {mode for mode in RunMode if blocks_with(mode)} >= {
        RunMode.PROGRAM,
        RunMode.SESSION,
        RunMode.SAVED,
    }


# The harness itself -------------------------------------------------------------------------------


PAGE = """# A page
```sh
leveret status  # a comment
leveret publish -k a \\
    b
```
<!-- test: save as test_x.py -->
```python
x
```

<!-- test: elsewhere tests/x.py::test_y -->
```sh
sleep 1000
```
```
leveret hidden
```
"""


def test_blocks_are_found_with_their_run_modes():
    blocks = blocks_of(PAGE, "p")
    assert [(block.mode, block.detail) for block in blocks] == [
        (RunMode.SESSION, ""),
        (RunMode.SAVED, "test_x.py"),
        (RunMode.ELSEWHERE, "tests/x.py::test_y"),
        (RunMode.NOT_CODE, ""),
    ]
    assert lines_of(blocks[0].text) == ["leveret status", "leveret publish -k a      b"]
    assert blocks[0].line == 2
    assert COMMAND.search(blocks[3].text)


def test_unknown_test_comment_is_refused():
    with pytest.raises(ValueError, match="unknown test comment: 'perhaps'"):
        blocks_of("<!-- test: perhaps -->\n```sh\nx\n```\n", "p")


@pytest.mark.parametrize("line", ["leveret no_such_command", "false", "make no-such-target"])
def test_failing_command_is_reported(line, tmp_path):
    session = ShellSession(tmp_path, "amqp://127.0.0.1:1/", "http://127.0.0.1:1")
    with pytest.raises((AssertionError, subprocess.CalledProcessError)):
        session.run(line)


def test_unknown_package_or_extra_is_reported():
    check_pip_install(["leveret[spark]", "pika"])
    check_pip_install(["--editable", ".[spark]"])
    for requirement in ("leveret[sparks]", ".[sparks]", "piko"):
        with pytest.raises(AssertionError):
            check_pip_install([requirement])
