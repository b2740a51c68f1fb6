"""All torture runs by row, with the size of their long form."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.torture.acks import kill_after_acks
from tests.torture.bit_flips import flip_bits
from tests.torture.clock import set_clock
from tests.torture.consumer_groups import kill_members_and_broker
from tests.torture.crash_states import enumerate_states
from tests.torture.crashes import kill_under_load
from tests.torture.dead_letters import kill_while_dead_lettering
from tests.torture.definitions import kill_while_defining
from tests.torture.delayed_messages import kill_while_delaying
from tests.torture.disk_full import fill_disk
from tests.torture.exports import kill_exports
from tests.torture.faults import inject_faults
from tests.torture.log_damage import cut_tails, flip_sealed
from tests.torture.outcome import Outcome, Progress
from tests.torture.page_damage import damage_pages
from tests.torture.power_loss import fail_power
from tests.torture.security.channel_and_frame_limits import announce_large_sizes, open_all_channels
from tests.torture.security.conformance import check_conformance
from tests.torture.security.fuzz import fuzz_inside, fuzz_live
from tests.torture.security.half_open import cut_network
from tests.torture.security.loop_lag import measure_loop_lag
from tests.torture.security.many_connections import churn, hold_idle_connections
from tests.torture.security.many_names import create_many_names
from tests.torture.security.many_queues import hold_many_queues
from tests.torture.security.memory_alarm import flood_memory
from tests.torture.security.password_guessing import guess_passwords
from tests.torture.security.paused_broker import pause_broker
from tests.torture.security.revoked_permissions import revoke
from tests.torture.security.rows import ROWS
from tests.torture.security.slow_patterns import match_slow_patterns
from tests.torture.security.source_scans import scan_source
from tests.torture.security.splits import split_sessions
from tests.torture.security.tls_scans import scan_tls
from tests.torture.security.unauthenticated import hold_unauthenticated_connections
from tests.torture.slow_consumer import stall_consumers
from tests.torture.soak import soak
from tests.torture.startup import start_and_stop
from tests.torture.transactions import kill_during_commit

Run = Callable[[Path, int, int, Progress], Coroutine[Any, Any, Outcome]]


@dataclass(frozen=True, slots=True)
class Scenario:
    row: str
    title: str
    cycles: int
    unit: str
    run: Run


async def _dead_letter(directory: Path, cycles: int, seed: int, progress: Progress) -> Outcome:
    return await kill_while_dead_lettering(directory, cycles, seed, 50_000, progress)


async def _delay(directory: Path, cycles: int, seed: int, progress: Progress) -> Outcome:
    return await kill_while_delaying(directory, cycles, seed, 2_000, progress)


async def _damage_database(directory: Path, cycles: int, seed: int, progress: Progress) -> Outcome:
    """Flip that many bits, and damage every kind of page in every way."""
    flips = await flip_bits(directory / "bits", cycles, seed, progress)
    pages = await damage_pages(directory / "pages", 10_000, seed, 1_500, progress)
    figures = f"{flips.figures}; {pages.figures}"
    return Outcome(flips.row, flips.title, figures, flips.problems + pages.problems)


async def _start_and_stop(directory: Path, cycles: int, _seed: int, progress: Progress) -> Outcome:
    return await start_and_stop(directory, cycles * 1000, 5_000, progress)


async def _stall(directory: Path, cycles: int, _seed: int, progress: Progress) -> Outcome:
    return await stall_consumers(directory, cycles * 1000, 10, progress)


SCENARIOS = (
    Scenario("R-01", "kill -9 under load", 200, "kills", kill_under_load),
    Scenario("R-02", "power loss", 100, "failures in each of four modes", fail_power),
    Scenario("R-03", "crash states", 3_000, "states", enumerate_states),
    Scenario("R-04", "injected I/O errors", 400, "faults", inject_faults),
    Scenario("R-05", "kill -9 during tx.commit", 200, "kills", kill_during_commit),
    Scenario("R-06", "kill -9 while dead-lettering", 50, "kills", _dead_letter),
    Scenario("R-07", "kill -9 after acks", 200, "kills", kill_after_acks),
    Scenario(
        "R-08", "kill -9 while objects are declared and deleted", 200, "kills", kill_while_defining
    ),
    Scenario("R-09", "damaged end of a log", 20_000, "flipped bits, and every cut", cut_tails),
    Scenario("R-10", "damaged sealed segments of a log", 5_000, "flipped bits", flip_sealed),
    Scenario(
        "R-11", "damaged database", 1_000, "flipped bits, and every kind of page", _damage_database
    ),
    Scenario("R-12", "full disk", 20, "disks with the alarm and without", fill_disk),
    Scenario("R-13", "start and stop", 1_000, "thousand messages", _start_and_stop),
    Scenario("R-14", "consumers that do not read", 1_000, "thousand messages", _stall),
    Scenario("R-15", "publishers that never stop", 300, "seconds", flood_memory),
    Scenario("R-16", "idle connections", 10_000, "connections", hold_idle_connections),
    Scenario("R-17", "idle queues", 5_000, "queues", hold_many_queues),
    Scenario("R-18", "connections that are opened and closed", 50_000, "connections", churn),
    Scenario("R-19", "delay of the event loop under load", 600, "seconds", measure_loop_lag),
    Scenario("R-20", "broker stopped and continued", 20, "stops", pause_broker),
    Scenario("R-22", "clients that vanish", 20, "clients", cut_network),
    Scenario("R-23", "long soak", 3_600, "seconds", soak),
    Scenario(
        "R-30",
        "unauthenticated connections",
        2_000,
        "connections",
        hold_unauthenticated_connections,
    ),
    Scenario("R-31", "sizes announced and never sent", 200, "rounds", announce_large_sizes),
    Scenario("R-32", "fuzzed decoders", 1_800, "seconds", fuzz_inside),
    Scenario("R-33", "mutated sessions", 50_000, "sessions", fuzz_live),
    Scenario("R-34", "fragmented input", 5_000, "splits", split_sessions),
    Scenario("R-35", "slow patterns", 2_000, "patterns", match_slow_patterns),
    Scenario("R-36", "channels", 20, "rounds of all", open_all_channels),
    Scenario("R-37", "conformance", 5_000, "walks of each model", check_conformance),
    Scenario("R-38", "TLS scanners and misbehaving peers", 1_000, "key updates", scan_tls),
    Scenario("R-39", "guessed passwords", 1_200, "tries", guess_passwords),
    *(Scenario(suite.row, suite.title, size, unit, suite) for suite, size, unit in ROWS),
    Scenario("R-41", "revoked permissions", 200, "rounds of five", revoke),
    Scenario("R-48", "bandit, semgrep and advisories", 1, "scan", scan_source),
    Scenario(
        "R-49", "a flood of names", 100_000, "queues, and as many bindings", create_many_names
    ),
    Scenario("R-21", "clock jumps", 200, "settings of the clock", set_clock),
    Scenario("C-delay", "kill -9 with delayed messages", 100, "kills", _delay),
    Scenario("R-24", "exports killed and run again", 100, "exports", kill_exports),
    Scenario(
        "R-25", "consumer groups", 200, "kills of members and broker", kill_members_and_broker
    ),
)
