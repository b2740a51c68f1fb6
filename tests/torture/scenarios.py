"""All torture runs by name, with the size of their long form."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.torture.acks import kill_after_acks
from tests.torture.clock import set_the_clock
from tests.torture.crash_states import enumerate_states
from tests.torture.crashes import kill_under_load
from tests.torture.dead_letters import kill_among_the_dying
from tests.torture.definitions import kill_while_defining
from tests.torture.disk_full import fill_the_disk
from tests.torture.exports import kill_exports
from tests.torture.faults import inject_faults
from tests.torture.groups import kill_members_and_broker
from tests.torture.logs import cut_tails, flip_sealed
from tests.torture.outcome import Outcome, Progress
from tests.torture.power_loss import cut_the_power
from tests.torture.rot import flip_bits
from tests.torture.schedule import kill_among_the_delayed
from tests.torture.security.conformance import conform
from tests.torture.security.crowd import churn, stay_idle
from tests.torture.security.extremes import announce_much, open_all_channels
from tests.torture.security.flood import flood_memory
from tests.torture.security.fuzz import fuzz_inside, fuzz_live
from tests.torture.security.guessing import guess_passwords
from tests.torture.security.half_open import vanish
from tests.torture.security.health import keep_in_time
from tests.torture.security.many_queues import keep_queues
from tests.torture.security.matching import match_slowly
from tests.torture.security.names import flood_names
from tests.torture.security.revoking import revoke
from tests.torture.security.rows import ROWS
from tests.torture.security.scans import scan_tls
from tests.torture.security.sources import scan_source
from tests.torture.security.splits import split_sessions
from tests.torture.security.stopping import stop_and_go_on
from tests.torture.security.strangers import keep_silent
from tests.torture.slow_consumer import stall_a_consumer
from tests.torture.soak import soak
from tests.torture.startup import start_and_stop
from tests.torture.transactions import kill_in_commit

Run = Callable[[Path, int, int, Progress], Coroutine[Any, Any, Outcome]]


@dataclass(frozen=True, slots=True)
class Scenario:
    row: str
    title: str
    cycles: int
    unit: str
    run: Run


async def _die(directory: Path, cycles: int, seed: int, progress: Progress) -> Outcome:
    return await kill_among_the_dying(directory, cycles, seed, 50_000, progress)


async def _delay(directory: Path, cycles: int, seed: int, progress: Progress) -> Outcome:
    return await kill_among_the_delayed(directory, cycles, seed, 2_000, progress)


async def _start_and_stop(directory: Path, cycles: int, _seed: int, progress: Progress) -> Outcome:
    return await start_and_stop(directory, cycles * 1000, 5_000, progress)


async def _stall(directory: Path, cycles: int, _seed: int, progress: Progress) -> Outcome:
    return await stall_a_consumer(directory, cycles * 1000, 10, progress)


SCENARIOS = (
    Scenario("R-01", "kill -9 under load", 200, "kills", kill_under_load),
    Scenario("R-02", "power loss", 100, "failures in each of four modes", cut_the_power),
    Scenario("R-03", "crash states", 3_000, "states", enumerate_states),
    Scenario("R-04", "injected I/O errors", 400, "faults", inject_faults),
    Scenario("R-05", "kill -9 during tx.commit", 200, "kills", kill_in_commit),
    Scenario("R-06", "kill -9 while dead-lettering", 50, "kills", _die),
    Scenario("R-07", "kill -9 after acks", 200, "kills", kill_after_acks),
    Scenario("R-08", "kill -9 while defining", 200, "kills", kill_while_defining),
    Scenario("R-09", "log tail", 20_000, "flips, and every cut", cut_tails),
    Scenario("R-10", "log rot", 5_000, "flipped bits", flip_sealed),
    Scenario("R-11", "rot", 1_000, "flipped bits", flip_bits),
    Scenario("R-12", "disk full", 20, "disks with the alarm and without", fill_the_disk),
    Scenario("R-13", "start and stop", 1_000, "thousand messages", _start_and_stop),
    Scenario("R-14", "consumers that do not read", 1_000, "thousand messages", _stall),
    Scenario("R-15", "publishers that never stop", 300, "seconds", flood_memory),
    Scenario("R-16", "idle connections", 10_000, "connections", stay_idle),
    Scenario("R-17", "idle queues", 5_000, "queues", keep_queues),
    Scenario("R-18", "connections that come and go", 50_000, "connections", churn),
    Scenario("R-19", "the loop under load", 600, "seconds", keep_in_time),
    Scenario("R-20", "stopped and continued", 20, "stops", stop_and_go_on),
    Scenario("R-22", "clients that vanish", 20, "clients", vanish),
    Scenario("R-23", "long soak", 3_600, "seconds", soak),
    Scenario("R-30", "strangers", 2_000, "connections", keep_silent),
    Scenario("R-31", "announced and never sent", 200, "rounds", announce_much),
    Scenario("R-32", "fuzzed decoders", 1_800, "seconds", fuzz_inside),
    Scenario("R-33", "mutated sessions", 50_000, "sessions", fuzz_live),
    Scenario("R-34", "fragments", 5_000, "splits", split_sessions),
    Scenario("R-35", "patterns that take long", 2_000, "patterns", match_slowly),
    Scenario("R-36", "channels", 20, "rounds of all", open_all_channels),
    Scenario("R-37", "conformance", 5_000, "walks of each model", conform),
    Scenario("R-38", "TLS as scanners see it, and peers", 1_000, "key updates", scan_tls),
    Scenario("R-39", "guessed passwords", 1_200, "tries", guess_passwords),
    *(Scenario(suite.row, suite.title, size, unit, suite) for suite, size, unit in ROWS),
    Scenario("R-41", "rights taken away", 200, "rounds of five", revoke),
    Scenario("R-48", "bandit, semgrep and advisories", 1, "scan", scan_source),
    Scenario("R-49", "a flood of names", 100_000, "queues, and as many bindings", flood_names),
    Scenario("R-21", "clock jumps", 200, "settings of the clock", set_the_clock),
    Scenario("C-delay", "kill -9 among delayed messages", 100, "kills", _delay),
    Scenario("R-24", "exports killed and run again", 100, "exports", kill_exports),
    Scenario(
        "R-25", "consumer groups", 200, "kills of members and broker", kill_members_and_broker
    ),
)
