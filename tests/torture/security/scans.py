"""R-38: sslyze looks at the TLS port. R-48: bandit looks at the source."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import trustme

from tests.support.brokers import ROOT
from tests.torture.outcome import Outcome, Progress, silent
from tests.torture.process import BrokerProcess
from tests.torture.security import tls_peers
from tests.torture.security.raw import log_in_seconds

TITLE = "TLS as sslyze sees it, and peers"
STALLED = 30
SOURCES = ("leveret", "exchange", "queues", "bindings", "amqp_server", "http_admin", "spark_sink")
OLD = ("ssl_2_0", "ssl_3_0", "tls_1_0", "tls_1_1")
NEW = ("tls_1_2", "tls_1_3")
WEAK = ("heartbleed", "openssl_ccs_injection", "robot")


async def scan_tls(
    directory: Path, updates: int, _seed: int, progress: Progress = silent
) -> Outcome:
    """sslyze, and beside it peers that stall, speak something else or want new keys."""
    files = _certificate(directory)
    broker = BrokerProcess(directory / "data")
    broker.settings = (f"tls_cert={files[0]}", f"tls_key={files[1]}", "amqps_port=0")
    line = await broker.launch()
    port = line.split("amqps=")[1].split()[0].rpartition(":")[2]
    broker.address = ("127.0.0.1", int(line.split("amqp=")[1].split()[0].rpartition(":")[2]))
    report = directory / "sslyze.json"
    said = await _run("-m", "sslyze", f"--json_out={report}", f"127.0.0.1:{port}")
    seen = await tls_peers.meet(broker, ("127.0.0.1", int(port)), STALLED, updates)
    alive = await log_in_seconds(broker.address) < float("inf")
    await broker.stop()
    found = _load(report)
    if found is None:
        problem = f"sslyze ran nothing (is it installed?): {said[-300:]}"
        return Outcome("R-38", TITLE, "", (problem,))
    problems = [] if alive else ["nobody could log in afterwards"]
    accepted = {name: len(_accepted(found, name)) for name in (*OLD, *NEW)}
    problems += [f"{name} is spoken" for name in OLD if accepted[name]]
    problems += [f"{name} is not spoken" for name in NEW if not accepted[name]]
    problems += _weaknesses(found)
    if seen.growth > tls_peers.GROWTH_MB:
        problems.append(f"{seen.growth:.1f} MB more")
    progress(updates, updates)
    figures = (
        f"TLS 1.2 with {accepted['tls_1_2']} ciphers, TLS 1.3 with {accepted['tls_1_3']}, nothing "
        f"older; no Heartbleed, CCS injection, ROBOT, compression or client renegotiation; {seen}"
    )
    return Outcome("R-38", TITLE, figures, tuple(problems), tuple(seen.late))


def _folder(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def _certificate(directory: Path) -> tuple[Path, Path]:
    _folder(directory)
    made = trustme.CA().issue_cert("localhost", "127.0.0.1")
    cert, key = directory / "cert.pem", directory / "key.pem"
    made.cert_chain_pems[0].write_to_path(cert)
    made.private_key_pem.write_to_path(key)
    return cert, key


def _load(report: Path) -> Any:
    if not report.exists():
        return None
    scans = json.loads(report.read_text(encoding="utf-8"))["server_scan_results"]
    return scans[0]["scan_result"] if scans and scans[0]["scan_result"] else None


def _accepted(found: Any, name: str) -> list[Any]:
    result = found[f"{name}_cipher_suites"]["result"] or {}
    accepted: list[Any] = result.get("accepted_cipher_suites", [])
    return accepted


def _weaknesses(found: Any) -> list[str]:
    problems = []
    for name in WEAK:
        text = json.dumps(found[name]["result"] or {})
        if '"is_vulnerable_to_' in text and ": true" in text:
            problems.append(f"{name} is possible")
        if name == "robot" and "VULNERABLE" in text and "NOT_VULNERABLE" not in text:
            problems.append(f"{name} is possible")
    if (found["tls_compression"]["result"] or {}).get("supports_compression"):
        problems.append("compression is on")
    renegotiation = found["session_renegotiation"]["result"] or {}
    if renegotiation.get("is_vulnerable_to_client_renegotiation_dos"):
        problems.append("clients may renegotiate")
    return problems


async def scan_source(
    directory: Path, _rounds: int, _seed: int, progress: Progress = silent
) -> Outcome:
    report = _folder(directory) / "bandit.json"
    folders = [str(ROOT / name) for name in SOURCES]
    said = await _run(
        "-m", "bandit", "-q", "-r", *folders, "-x", str(ROOT / "http_admin" / "ui"),
        "-f", "json", "-o", str(report),
    )  # fmt: skip
    if not _exists(report):
        return Outcome("R-48", "bandit", "", (f"bandit ran nothing: {said[-300:]}",))
    found = _results(report)
    counts = dict.fromkeys(("HIGH", "MEDIUM", "LOW"), 0)
    for one in found:
        counts[one["issue_severity"]] += 1
    problems = tuple(
        f"{one['filename']}:{one['line_number']} {one['issue_text']}"
        for one in found
        if one["issue_severity"] == "HIGH"
    )
    progress(1, 1)
    figures = (
        f"{counts['HIGH']} findings of high severity, {counts['MEDIUM']} of medium (SQL made of "
        f"constants), {counts['LOW']} of low"
    )
    return Outcome("R-48", "bandit", figures, problems)


def _exists(path: Path) -> bool:
    return path.exists()


def _results(report: Path) -> list[Any]:
    found: list[Any] = json.loads(report.read_text(encoding="utf-8"))["results"]
    return found


async def _run(*arguments: str) -> str:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    return (await process.communicate())[0].decode(errors="replace")
