"""R-38: sslyze and testssl.sh look at the TLS ports, and peers misbehave on all ports."""

from __future__ import annotations

import json
import shutil
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import trustme

from tests.torture.outcome import Outcome, Progress, silent
from tests.torture.process import BrokerProcess
from tests.torture.security import tls_peers
from tests.torture.security.raw import log_in_seconds
from tests.torture.security.sources import run

Place = tuple[str, int]
TITLE = "TLS as scanners see it, and peers"
STALLED = 30
OLD = ("ssl_2_0", "ssl_3_0", "tls_1_0", "tls_1_1")
NEW = ("tls_1_2", "tls_1_3")
WEAK = {
    "heartbleed": ("is_vulnerable_to_heartbleed", False),
    "openssl_ccs_injection": ("is_vulnerable_to_ccs_injection", False),
    "robot": ("robot_result", "NOT_VULNERABLE"),
    "tls_compression": ("supports_compression", False),
    "session_renegotiation": ("is_vulnerable_to_client_renegotiation_dos", False),
}
"""Where sslyze says it, and the one answer, or its beginning, that is safe."""
CHECKED = (*(f"{name}_cipher_suites" for name in (*OLD, *NEW)), *WEAK)
BAD = ("MEDIUM", "HIGH", "CRITICAL")
OWNERS_CHOICE = ("cert_revocation", "cert_chain_of_trust")
"""What a certificate made a moment ago cannot have: where to ask whether it was revoked, and an
authority that testssl.sh knows."""


async def scan_tls(
    directory: Path, updates: int, _seed: int, progress: Progress = silent
) -> Outcome:
    """Both scanners, and beside them peers that stall, speak something else or want new keys."""
    broker = BrokerProcess(directory / "data", env={"LEVERET_HTTP_ENABLED": "true"})
    places = await listen_everywhere(broker, directory)
    broker.address, secure = places["amqp"], (places["amqps"], places["https"])
    problems, spoken = list[str](), ""
    for place in secure:
        found, spoken = await look_with_sslyze(directory, place)
        problems += found
    seen = await tls_peers.meet(broker, places, STALLED, updates, directory)
    more, judged = await _testssl(directory, *secure)
    problems += more
    if await log_in_seconds(broker.address) == float("inf"):
        problems.append("nobody could log in afterwards")
    await broker.stop()
    if seen.growth > tls_peers.GROWTH_MB:
        problems.append(f"{seen.growth:.1f} MB more")
    progress(updates, updates)
    figures = f"AMQPS and HTTPS: {spoken}; testssl.sh: {judged}; {seen}"
    return Outcome("R-38", TITLE, figures, tuple(problems), tuple(seen.late))


async def listen_everywhere(broker: BrokerProcess, directory: Path) -> dict[str, Place]:
    """Start it with all four ports."""
    cert, key = make_certificate(directory)
    broker.settings = (
        f"tls_cert={cert}", f"tls_key={key}", "amqps_port=0", "https_port=0", "http_port=0"
    )  # fmt: skip
    line = await broker.launch()
    return {name: _place(line, name) for name in ("amqp", "amqps", "http", "https")}


async def look_with_sslyze(directory: Path, place: Place) -> tuple[list[str], str]:
    """What is wrong with the TLS spoken there, and what it is."""
    where = "{}:{}".format(*place)
    report = directory / f"sslyze-{place[1]}.json"
    said = await run(sys.executable, "-m", "sslyze", f"--json_out={report}", where)
    found = read_sslyze(report)
    if found is None:
        return [f"sslyze ran nothing (is it installed?): {said[-300:]}"], "sslyze did not run"
    problems = [f"port {place[1]}: {problem}" for problem in judge_sslyze(found)]
    counts = {name: len(_accepted(found, name)) for name in NEW}
    return problems, (
        f"TLS 1.2 with {counts['tls_1_2']} ciphers, TLS 1.3 with {counts['tls_1_3']}, "
        f"{len(problems)} findings about older ones, Heartbleed, CCS injection, ROBOT, compression "
        "and client renegotiation"
    )


def _place(line: str, name: str) -> Place:
    host, _, port = line.split(f" {name}=")[1].split()[0].rpartition(":")
    return host, int(port)


async def _testssl(directory: Path, *places: Place) -> tuple[list[str], str]:
    """What it finds worse than "low" on the ports of AMQP and HTTP, and how much it looked at."""
    program = shutil.which("testssl") or shutil.which("testssl.sh")
    if program is None:
        return ["there is no testssl.sh"], "did not run"
    problems, counts = list[str](), Counter[str]()
    for number, (host, port) in enumerate(places):
        report = directory / f"testssl-{number}.json"
        said = await run(
            program, "--quiet", "--color", "0", "--warnings", "batch", "--nodns", "none",
            "--jsonfile", str(report), f"{host}:{port}",
        )  # fmt: skip
        findings = read_testssl(report)
        if not findings:
            problems.append(f"testssl.sh found out nothing about port {port}: {said[-300:]}")
        counts.update(one["severity"] for one in findings)
        problems += [
            f"testssl.sh: {one['id']} is {one['severity']}: {one['finding']}"
            for one in findings
            if one["severity"] in BAD and not one["id"].startswith(OWNERS_CHOICE)
        ]
    looked = counts.total() - counts["DEBUG"]
    return problems, f"{looked} findings on two ports, {len(problems)} above low"


def read_testssl(report: Path) -> list[dict[str, str]]:
    """An answer that is not whole is none."""
    try:
        findings: list[dict[str, str]] = json.loads(report.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return findings


def _folder(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def make_certificate(directory: Path) -> tuple[Path, Path]:
    _folder(directory)
    now, day = datetime.now(UTC), timedelta(days=1)
    names = ("localhost", "127.0.0.1")
    made = trustme.CA().issue_cert(*names, not_before=now - day, not_after=now + 90 * day)
    cert, key = directory / "cert.pem", directory / "key.pem"
    made.cert_chain_pems[0].write_to_path(cert)
    made.private_key_pem.write_to_path(key)
    return cert, key


def read_sslyze(report: Path) -> Any:
    """What it found out, by check; None when it did not get that far."""
    if not report.exists():
        return None
    scans = json.loads(report.read_text(encoding="utf-8"))["server_scan_results"]
    return scans[0]["scan_result"] if scans and scans[0]["scan_result"] else None


def judge_sslyze(found: Any) -> list[str]:
    """What is wrong; a check that did not come to its end is."""
    failed = [name for name in CHECKED if found[name]["status"] != "COMPLETED"]
    problems = [
        f"sslyze could not check {name}: {found[name]['status']} {found[name]['error_reason']}"
        for name in failed
    ]
    spoken = {
        name: bool(_accepted(found, name))
        for name in (*OLD, *NEW)
        if f"{name}_cipher_suites" not in failed
    }
    problems += [f"{name} is spoken" for name in OLD if spoken.get(name)]
    problems += [f"{name} is not spoken" for name in NEW if not spoken.get(name, True)]
    return problems + [
        f"{name} is possible" for name in WEAK if name not in failed and _is_weak(found, name)
    ]


def _accepted(found: Any, name: str) -> list[Any]:
    result = found[f"{name}_cipher_suites"]["result"] or {}
    accepted: list[Any] = result.get("accepted_cipher_suites", [])
    return accepted


def _is_weak(found: Any, name: str) -> bool:
    key, safe = WEAK[name]
    said = found[name]["result"][key]
    return not said.startswith(safe) if isinstance(safe, str) else said is not safe
