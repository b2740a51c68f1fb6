"""R-38: sslyze and testssl.sh scan the TLS ports, and peers misbehave on all ports."""

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
from tests.torture.security.raw import login_seconds
from tests.torture.security.source_scans import run

Place = tuple[str, int]
TITLE = "TLS scanners and misbehaving peers"
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
"""The key in the result of sslyze, and the safe value or its prefix."""
CHECKED = (*(f"{name}_cipher_suites" for name in (*OLD, *NEW)), *WEAK)
BAD = ("MEDIUM", "HIGH", "CRITICAL")
IGNORED_FINDINGS = ("cert_revocation", "cert_chain_of_trust")
"""Findings about a new self-made certificate: no revocation service and an unknown authority."""


async def scan_tls(
    directory: Path, updates: int, _seed: int, progress: Progress = silent
) -> Outcome:
    """Run both scanners, and peers that stall, use another protocol or request new keys."""
    broker = BrokerProcess(directory / "data", env={"LEVERET_HTTP_ENABLED": "true"})
    places = await listen_everywhere(broker, directory)
    broker.address, secure = places["amqp"], (places["amqps"], places["https"])
    problems, supported = list[str](), ""
    for address in secure:
        findings, supported = await scan_with_sslyze(directory, address)
        problems += findings
    peer_results = await tls_peers.run_peers(broker, places, STALLED, updates, directory)
    more, judged = await _testssl(directory, *secure)
    problems += more
    if await login_seconds(broker.address) == float("inf"):
        problems.append("no login was possible afterwards")
    await broker.stop()
    if peer_results.growth > tls_peers.GROWTH_MB:
        problems.append(f"{peer_results.growth:.1f} MB more")
    progress(updates, updates)
    figures = f"AMQPS and HTTPS: {supported}; testssl.sh: {judged}; {peer_results}"
    return Outcome("R-38", TITLE, figures, tuple(problems), tuple(peer_results.late))


async def listen_everywhere(broker: BrokerProcess, directory: Path) -> dict[str, Place]:
    """Start the broker with all four ports."""
    cert, key = make_certificate(directory)
    broker.settings = (
        f"tls_cert={cert}", f"tls_key={key}", "amqps_port=0", "https_port=0", "http_port=0"
    )  # fmt: skip
    line = await broker.launch()
    return {name: _place(line, name) for name in ("amqp", "amqps", "http", "https")}


async def scan_with_sslyze(directory: Path, address: Place) -> tuple[list[str], str]:
    """Problems with TLS at this address, and a summary."""
    host_port = "{}:{}".format(*address)
    report = directory / f"sslyze-{address[1]}.json"
    output = await run(sys.executable, "-m", "sslyze", f"--json_out={report}", host_port)
    results = read_sslyze(report)
    if results is None:
        return [f"sslyze did not run (is it installed?): {output[-300:]}"], "sslyze did not run"
    problems = [f"port {address[1]}: {problem}" for problem in judge_sslyze(results)]
    counts = {name: len(_accepted(results, name)) for name in NEW}
    return problems, (
        f"TLS 1.2 with {counts['tls_1_2']} ciphers, TLS 1.3 with {counts['tls_1_3']}, "
        f"{len(problems)} findings about older ones, Heartbleed, CCS injection, ROBOT, compression "
        "and client renegotiation"
    )


def _place(line: str, name: str) -> Place:
    host, _, port = line.split(f" {name}=")[1].split()[0].rpartition(":")
    return host, int(port)


async def _testssl(directory: Path, *places: Place) -> tuple[list[str], str]:
    """Findings above "low" on the AMQP and HTTP ports, and the number of checks."""
    program = shutil.which("testssl") or shutil.which("testssl.sh")
    if program is None:
        return ["testssl.sh is not installed"], "did not run"
    problems, counts = list[str](), Counter[str]()
    for number, (host, port) in enumerate(places):
        report = directory / f"testssl-{number}.json"
        output = await run(
            program, "--quiet", "--color", "0", "--warnings", "batch", "--nodns", "none",
            "--jsonfile", str(report), f"{host}:{port}",
        )  # fmt: skip
        findings = read_testssl(report)
        if not findings:
            problems.append(f"testssl.sh did not report on port {port}: {output[-300:]}")
        counts.update(finding["severity"] for finding in findings)
        problems += [
            f"testssl.sh: {finding['id']} is {finding['severity']}: {finding['finding']}"
            for finding in findings
            if finding["severity"] in BAD and not finding["id"].startswith(IGNORED_FINDINGS)
        ]
    looked = counts.total() - counts["DEBUG"]
    return problems, f"{looked} findings on two ports, {len(problems)} above low"


def read_testssl(report: Path) -> list[dict[str, str]]:
    """The findings of a report; none if it is incomplete."""
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
    certificate = trustme.CA().issue_cert(*names, not_before=now - day, not_after=now + 90 * day)
    cert, key = directory / "cert.pem", directory / "key.pem"
    certificate.cert_chain_pems[0].write_to_path(cert)
    certificate.private_key_pem.write_to_path(key)
    return cert, key


def read_sslyze(report: Path) -> Any:
    """The results by check; None if the scan did not finish."""
    if not report.exists():
        return None
    scans = json.loads(report.read_text(encoding="utf-8"))["server_scan_results"]
    return scans[0]["scan_result"] if scans and scans[0]["scan_result"] else None


def judge_sslyze(results: Any) -> list[str]:
    """Problems, including checks that did not finish."""
    failed = [name for name in CHECKED if results[name]["status"] != "COMPLETED"]
    problems = [
        f"sslyze could not check {name}: {results[name]['status']} {results[name]['error_reason']}"
        for name in failed
    ]
    supported = {
        name: bool(_accepted(results, name))
        for name in (*OLD, *NEW)
        if f"{name}_cipher_suites" not in failed
    }
    problems += [f"{name} is supported" for name in OLD if supported.get(name)]
    problems += [f"{name} is not supported" for name in NEW if not supported.get(name, True)]
    return problems + [
        f"{name} is possible" for name in WEAK if name not in failed and _is_weak(results, name)
    ]


def _accepted(results: Any, name: str) -> list[Any]:
    result = results[f"{name}_cipher_suites"]["result"] or {}
    accepted: list[Any] = result.get("accepted_cipher_suites", [])
    return accepted


def _is_weak(results: Any, name: str) -> bool:
    key, safe = WEAK[name]
    answer = results[name]["result"][key]
    return not answer.startswith(safe) if isinstance(safe, str) else answer is not safe
