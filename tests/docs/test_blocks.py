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
from tests.docs.blocks import COMMAND, PAGES, ROOT, Block, Fate, all_blocks, blocks_of
from tests.docs.session import SECONDS, ShellSession, lines_of, require_known

BLOCKS = all_blocks()
pytestmark = pytest.mark.timeout(600)  # a page is one test, and each of its commands a process


def chosen(fate: Fate) -> list[Block]:
    return [block for block in BLOCKS if block.fate is fate]


def by_page(fate: Fate) -> list[tuple[str, list[Block]]]:
    return [(page, list(found)) for page, found in groupby(chosen(fate), lambda one: one.page)]


def run_python(*words: str, cwd: Path) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, "-W", "error", *words],
        cwd=cwd,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(cwd)},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, done.stderr


@pytest.mark.parametrize("block", chosen(Fate.PROGRAM), ids=str)
def test_program(block, tmp_path):
    """It ends well, shows something and warns of nothing."""
    out, err = run_python("-c", block.text, cwd=tmp_path)
    assert out and not err


@pytest.mark.parametrize("page", by_page(Fate.SESSION), ids=lambda page: page[0])
def test_session(page, tmp_path):
    """The commands of a page, one after the other, with one broker for all of them."""
    with LeveretBroker(data_dir=tmp_path / "data", http_enabled=True) as broker:
        session = ShellSession(tmp_path, broker.url, broker.http_url)
        for block in page[1]:
            session.run_block(block.text)


def test_saved(tmp_path):
    """All of them in one run of pytest, as a project that had taken them would have."""
    names = [block.detail for block in chosen(Fate.SAVED)]
    assert len(names) == len(set(names))
    for block in chosen(Fate.SAVED):
        (tmp_path / block.detail).write_text(block.text)
    loops = "asyncio_default_fixture_loop_scope=function"
    options = ["-q", "-p", "no:cacheprovider", "-W", "error", "--strict-markers", "-o", loops]
    said, _ = run_python("-m", "pytest", *options, cwd=tmp_path)
    assert " passed" in said and "skipped" not in said


@pytest.mark.parametrize("block", chosen(Fate.FRAGMENT), ids=str)
def test_fragment(block):
    """Each has a broker of its own; `handle` is a callback that acknowledges."""
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
    """The fragment of docs/log-mode.md that goes on for ever, for two records."""
    page = (ROOT / "docs/log-mode.md").read_text(encoding="utf-8")
    (block,) = [one for one in blocks_of(page, "") if "tx_select" in one.text]
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


@pytest.mark.parametrize("block", chosen(Fate.ELSEWHERE), ids=str)
def test_elsewhere(block):
    """There is such a test, and it takes what it runs from the page."""
    file, _, name = block.detail.partition("::")
    text = (ROOT / file).read_text(encoding="utf-8")
    assert name and f"def {name}(" in text
    assert Path(block.page).name in text, f"{file} does not read {block.page}"


@pytest.mark.parametrize("block", [one for one in BLOCKS if one.language == "toml"], ids=str)
def test_settings_file(block, tmp_path):
    file = tmp_path / "leveret.toml"
    file.write_text(block.text)
    load_settings(toml_path=file)


def test_a_misspelt_key_is_told_as_the_page_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings, said = [one for one in BLOCKS if one.page == "docs/configuration.md"][:2]
    Path("leveret.toml").write_text(settings.text.replace("message_size", "mesage_size"))
    with pytest.raises(ConfigError) as wrong:
        load_settings(toml_path=Path("leveret.toml"))
    assert str(wrong.value) == said.text.strip()


def test_no_command_hides_in_a_block_without_a_language():
    hidden = [str(one) for one in BLOCKS if not one.language and COMMAND.search(one.text)]
    assert not hidden, f"mark them as sh: {hidden}"


def test_pages_were_found():
    assert {"README.md", "docs/testing.md"} <= {str(page.relative_to(ROOT)) for page in PAGES}
    assert {fate for fate in Fate if chosen(fate)} >= {Fate.PROGRAM, Fate.SESSION, Fate.SAVED}


# The harness itself -------------------------------------------------------------------------------


PAGE = """# A page
```sh
leveret status  # how it is
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


def test_blocks_are_found_with_their_fates():
    found = blocks_of(PAGE, "p")
    assert [(one.fate, one.detail) for one in found] == [
        (Fate.SESSION, ""),
        (Fate.SAVED, "test_x.py"),
        (Fate.ELSEWHERE, "tests/x.py::test_y"),
        (Fate.NOTHING, ""),
    ]
    assert lines_of(found[0].text) == ["leveret status", "leveret publish -k a      b"]
    assert found[0].line == 2
    assert COMMAND.search(found[3].text)


def test_an_unknown_mark_is_refused():
    with pytest.raises(ValueError, match="no such mark: 'perhaps'"):
        blocks_of("<!-- test: perhaps -->\n```sh\nx\n```\n", "p")


@pytest.mark.parametrize("line", ["leveret no_such_command", "false", "make no-such-target"])
def test_a_command_that_fails_is_found(line, tmp_path):
    session = ShellSession(tmp_path, "amqp://127.0.0.1:1/", "http://127.0.0.1:1")
    with pytest.raises((AssertionError, subprocess.CalledProcessError)):
        session.run(line)


def test_a_package_or_an_extra_that_does_not_exist_is_found():
    require_known(["leveret[spark]", "pika"])
    require_known(["--editable", ".[spark]"])
    for wrong in ("leveret[sparks]", ".[sparks]", "piko"):
        with pytest.raises(AssertionError):
            require_known([wrong])
