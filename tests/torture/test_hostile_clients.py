"""R-31, R-32 and R-34 to R-36, R-38 and R-48 in short forms for every test run.

Trimmed: one round of announced sizes in place of hundreds; dozens of examples for each target in
place of tens of thousands (tests/unit/amqp has more); atheris for a few seconds; 200 splits
(tests/semantics has others); of the scanners only sslyze and bandit; no stalls of many seconds. The
cost of a match is counted in tests/unit/routing. `make torture` runs the long forms.
"""

import contextlib
from copy import deepcopy

import pytest

import leveret
from leveret.broker.access.patterns import check_pattern, pattern
from leveret.model.errors import PreconditionFailed
from tests.torture.process import BrokerProcess
from tests.torture.security import round_trips
from tests.torture.security.channel_and_frame_limits import announce_large_sizes, open_all_channels
from tests.torture.security.fuzz import fuzz_decoders
from tests.torture.security.key_updates import ask_for_keys
from tests.torture.security.slow_patterns import EXPENSIVE_PATTERNS, TEXT, wrongly_accepted
from tests.torture.security.source_scans import scan_with_bandit
from tests.torture.security.splits import split_sessions
from tests.torture.security.tls_peers import OTHER_PROTOCOLS, send_other_protocols
from tests.torture.security.tls_scans import (
    CHECKED,
    judge_sslyze,
    listen_everywhere,
    make_certificate,
    read_sslyze,
    scan_with_sslyze,
)

SEED = 20_261_116
pytestmark = pytest.mark.timeout(300)


async def test_r31_too_large_announced_sizes_are_refused_unread(tmp_path):
    outcome = await announce_large_sizes(tmp_path / "run", 10, SEED)
    assert outcome.safe, str(outcome)


@pytest.mark.parametrize("target", round_trips.TARGETS)
def test_r32_round_trips(target):
    round_trips.run_target(target, 30, SEED)


@pytest.mark.parametrize("name", round_trips.worst_inputs())
def test_r32_worst_tables_stay_below_the_memory_limit(name):
    assert not round_trips.too_large(name)


@pytest.mark.parametrize("name", round_trips.long_streams())
def test_r32_long_streams_stay_below_the_memory_limit(name):
    assert not round_trips.stream_too_large(name)


def test_r32_nesting_depth_is_limited():
    assert round_trips.wrong_depths() == []


async def test_r32_atheris_finds_nothing(tmp_path):
    pytest.importorskip("atheris", reason="is not built for this machine")
    executions, _, problems = await fuzz_decoders(tmp_path / "run", "runs", 60_000, SEED)
    assert not problems and executions >= 60_000


async def test_r34_splitting_and_interleaving_have_no_effect(tmp_path):
    outcome = await split_sessions(tmp_path / "run", 200, SEED)
    assert outcome.safe, str(outcome)


@pytest.mark.parametrize("text", EXPENSIVE_PATTERNS)
def test_r35_exponential_patterns_are_matched_or_refused(text):
    """Backtracking would take years and exceed the time limit of the test."""
    with contextlib.suppress(PreconditionFailed):
        check_pattern(text)
        pattern(text).search(TEXT * 100)


def test_r35_patterns_that_need_backtracking_are_refused():
    assert wrongly_accepted() == []


async def test_r36_all_channels_open_and_reopen(tmp_path):
    outcome = await open_all_channels(tmp_path / "run", 1, SEED)
    assert outcome.safe, str(outcome)


async def test_r38_sslyze_finds_no_old_or_weak_tls(tmp_path):
    cert, key = make_certificate(tmp_path)
    settings = leveret.in_process_settings(http_enabled=True, tls_cert=str(cert), tls_key=str(key))
    async with leveret.Broker(settings) as running:
        for address in (running.https_address, running.amqps_address):
            assert address is not None
            problems, _ = await scan_with_sslyze(tmp_path, address)
            assert not problems
    reports = [read_sslyze(path) for path in tmp_path.glob("sslyze-*.json")]
    assert len(reports) == 2
    for name in CHECKED:
        failed = deepcopy(reports[0])
        failed[name] = {"status": "ERROR", "error_reason": "BUG_IN_SSLYZE", "result": None}
        assert judge_sslyze(failed) == [f"sslyze could not check {name}: ERROR BUG_IN_SSLYZE"]


async def test_r38_other_protocols_are_closed_and_key_updates_work(tmp_path):
    """A connection that is not closed makes the test time out; errors in the log fail the stop."""
    broker = BrokerProcess(tmp_path / "data", env={"LEVERET_HTTP_ENABLED": "true"})
    places = await listen_everywhere(broker, tmp_path)
    assert len(await send_other_protocols(places)) == sum(map(len, OTHER_PROTOCOLS.values()))
    assert await ask_for_keys(tmp_path, places["amqps"], 50) == 150
    await broker.stop()


async def test_r48_bandit_finds_nothing_of_high_severity(tmp_path):
    problems, _ = await scan_with_bandit(tmp_path)
    assert not problems
