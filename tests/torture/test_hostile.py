"""R-31, R-32 and R-34 to R-36 in forms short enough for every test run.

Trimmed: a round of announcements instead of hundreds, dozens of examples for each target instead of
tens of thousands (tests/unit/amqp has more of them), atheris for as many inputs as take seconds,
200 splits (tests/semantics has others), of the scanners sslyze and bandit, no stalls of many
seconds. That a match costs little is counted in tests/unit/routing. `make torture` runs the long
forms.
"""

import contextlib
from copy import deepcopy

import pytest

import leveret
from leveret.broker.access.patterns import check_pattern, pattern
from leveret.model.errors import PreconditionFailed
from tests.torture.process import BrokerProcess
from tests.torture.security import round_trips
from tests.torture.security.extremes import announce_much, open_all_channels
from tests.torture.security.fuzz import fuzz_decoders
from tests.torture.security.matching import BOMBS, HAYSTACK, taken_in_spite
from tests.torture.security.new_keys import ask_for_keys
from tests.torture.security.scans import (
    CHECKED,
    judge_sslyze,
    listen_everywhere,
    look_with_sslyze,
    make_certificate,
    read_sslyze,
)
from tests.torture.security.sources import look_with_bandit
from tests.torture.security.splits import split_sessions
from tests.torture.security.tls_peers import WRONG, speak_something_else

SEED = 20_261_116
pytestmark = pytest.mark.timeout(300)


async def test_r31_what_is_announced_too_large_is_refused_unread(tmp_path):
    outcome = await announce_much(tmp_path / "run", 10, SEED)
    assert outcome.safe, str(outcome)


@pytest.mark.parametrize("target", round_trips.TARGETS)
def test_r32_round_trips(target):
    round_trips.run_target(target, 30, SEED)


@pytest.mark.parametrize("name", round_trips.worst_inputs())
def test_r32_worst_tables_take_no_more_memory_than_they_may(name):
    assert not round_trips.too_large(name)


@pytest.mark.parametrize("name", round_trips.long_streams())
def test_r32_long_streams_take_no_more_memory_than_they_may(name):
    assert not round_trips.stream_too_large(name)


def test_r32_depth_is_limited_to_the_level():
    assert round_trips.wrong_depths() == []


async def test_r32_atheris_finds_nothing(tmp_path):
    pytest.importorskip("atheris", reason="is not built for this machine")
    executions, _, problems = await fuzz_decoders(tmp_path / "run", "runs", 60_000, SEED)
    assert not problems and executions >= 60_000


async def test_r34_splits_and_turns_have_no_effect(tmp_path):
    outcome = await split_sessions(tmp_path / "run", 200, SEED)
    assert outcome.safe, str(outcome)


@pytest.mark.parametrize("text", BOMBS)
def test_r35_expressions_that_would_explode_are_matched_or_refused(text):
    """Backtracking would take years: the time limit of the test is what fails then."""
    with contextlib.suppress(PreconditionFailed):
        check_pattern(text)
        pattern(text).search(HAYSTACK * 100)


def test_r35_what_needs_backtracking_is_refused():
    assert taken_in_spite() == []


async def test_r36_all_channels_open_and_open_again(tmp_path):
    outcome = await open_all_channels(tmp_path / "run", 1, SEED)
    assert outcome.safe, str(outcome)


async def test_r38_sslyze_finds_nothing_old_or_weak(tmp_path):
    cert, key = make_certificate(tmp_path)
    settings = leveret.in_process_settings(http_enabled=True, tls_cert=str(cert), tls_key=str(key))
    async with leveret.Broker(settings) as running:
        for place in (running.https_address, running.amqps_address):
            assert place is not None
            problems, _ = await look_with_sslyze(tmp_path, place)
            assert not problems
    reports = [read_sslyze(path) for path in tmp_path.glob("sslyze-*.json")]
    assert len(reports) == 2
    for name in CHECKED:
        failed = deepcopy(reports[0])
        failed[name] = {"status": "ERROR", "error_reason": "BUG_IN_SSLYZE", "result": None}
        assert judge_sslyze(failed) == [f"sslyze could not check {name}: ERROR BUG_IN_SSLYZE"]


async def test_r38_peers_of_another_protocol_and_new_keys(tmp_path):
    """Whoever is never closed is waited for in vain; errors in the log make the stop fail."""
    broker = BrokerProcess(tmp_path / "data", env={"LEVERET_HTTP_ENABLED": "true"})
    places = await listen_everywhere(broker, tmp_path)
    assert len(await speak_something_else(places)) == sum(map(len, WRONG.values()))
    assert await ask_for_keys(tmp_path, places["amqps"], 50) == 150
    await broker.stop()


async def test_r48_bandit_finds_nothing_grave(tmp_path):
    problems, _ = await look_with_bandit(tmp_path)
    assert not problems
