"""R-48: bandit and semgrep scan the source, pip-audit looks up installed packages.

semgrep uses the project's own rules (semgrep_rules.yml). Each rule must find its own example before
its result for the source counts. If pip-audit cannot reach its index, a copy of an advisory
database can be used (ADVISORIES, advisories.py). Without either, nothing was checked, and the row
fails.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from tests.support.brokers import ROOT
from tests.torture.outcome import Outcome, Progress, silent
from tests.torture.security.advisories import Advisories, installed_here, oldest_allowed

TITLE = "bandit, semgrep and advisories"
SOURCES = ("leveret", "exchange", "queues", "bindings", "amqp_server", "http_admin", "spark_sink")
RULES = ROOT / "tests" / "torture" / "security" / "semgrep_rules.yml"
BUILT = ("node_modules", "dist")


async def scan_source(
    directory: Path, _rounds: int, _seed: int, progress: Progress = silent
) -> Outcome:
    problems, figures = list[str](), list[str]()
    folder = _folder(directory)
    for number, scan in enumerate((scan_with_bandit, _semgrep, _advisories)):
        new_problems, figure = await scan(folder)
        problems += new_problems
        figures.append(figure)
        progress(number + 1, 3)
    return Outcome("R-48", TITLE, "; ".join(figures), tuple(problems))


def _folder(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def _folders() -> list[str]:
    return [str(ROOT / name) for name in SOURCES]


async def scan_with_bandit(directory: Path) -> tuple[list[str], str]:
    report = directory / "bandit.json"
    ui = str(ROOT / "http_admin" / "ui")
    output = await run(
        sys.executable, "-m", "bandit", "-q", "-r", *_folders(), "-x", ui, "-f", "json",
        "-o", str(report),
    )  # fmt: skip
    answer = _load(report)
    if answer is None:
        return [f"bandit did not run (is it installed?): {output[-300:]}"], "bandit did not run"
    counts = Counter(result["issue_severity"] for result in answer["results"])
    problems = [
        f"bandit: {result['filename']}:{result['line_number']} {result['issue_text']}"
        for result in answer["results"]
        if result["issue_severity"] == "HIGH"
    ]
    medium = Counter(
        result["test_name"].replace("_", " ")
        for result in answer["results"]
        if result["issue_severity"] == "MEDIUM"
    )
    named = ", ".join(f"{count} {name}" for name, count in medium.most_common())
    return problems, (
        f"bandit: {counts['HIGH']} findings of high severity, {counts['MEDIUM']} of medium "
        f"({named}), {counts['LOW']} of low"
    )


async def _semgrep(directory: Path) -> tuple[list[str], str]:
    rules: list[dict[str, Any]] = yaml.safe_load(RULES.read_text(encoding="utf-8"))["rules"]
    examples = _write_examples(directory / "examples", rules)
    example_report, output = await _semgrep_finds(directory / "tried.json", str(examples))
    if example_report is None:
        return [f"semgrep did not run (is it installed?): {output[-300:]}"], "semgrep did not run"
    working_rules = {
        (_rule(result), Path(result["path"]).stem) for result in example_report["results"]
    }
    problems = [
        f"semgrep: {rule['id']} does not find its own example"
        for rule in rules
        if (rule["id"], rule["id"]) not in working_rules
    ]
    answer, output = await _semgrep_finds(directory / "semgrep.json", *_folders())
    if answer is None:
        return [*problems, f"semgrep failed: {output[-300:]}"], "semgrep did not run"
    counts = Counter(result["extra"]["severity"] for result in answer["results"])
    problems += [
        f"semgrep: {result['path']}:{result['start']['line']} {_rule(result)}"
        for result in answer["results"]
        if result["extra"]["severity"] == "ERROR"
    ]
    problems += [f"semgrep: {result.get('message', result)}" for result in answer["errors"]]
    return problems, (
        f"semgrep: {len(rules)} rules on {len(answer['paths']['scanned'])} files, "
        f"{counts['ERROR']} findings, {counts['WARNING']} warnings"
    )


def _write_examples(folder: Path, rules: list[dict[str, Any]]) -> Path:
    folder.mkdir()
    for rule in rules:
        metadata = rule["metadata"]
        name = f"{rule['id']}.{metadata.get('finds_in', 'py')}"
        (folder / name).write_text(metadata["finds"], encoding="utf-8")
    return folder


def _rule(result: dict[str, Any]) -> str:
    """The name of the rule, without the path that semgrep puts in front."""
    return str(result["check_id"]).rpartition(".")[2]


async def _semgrep_finds(report: Path, *paths: str) -> tuple[Any, str]:
    """semgrep has its own environment (`make torture`), because it needs other versions."""
    own = Path(sys.prefix) / "semgrep" / "bin" / "semgrep"
    program = str(own) if own.exists() else shutil.which("semgrep")
    if program is None:
        return None, "semgrep is not installed"
    output = await run(
        program, "scan", "--config", str(RULES), "--metrics=off", "--disable-version-check",
        "--no-git-ignore", *(word for name in BUILT for word in ("--exclude", name)),
        "--json", "--output", str(report), *paths,
    )  # fmt: skip
    return _load(report), output


async def _advisories(directory: Path) -> tuple[list[str], str]:
    """Results from the index of pip-audit, and from a copy of the database."""
    answer, output = await _pip_audit(directory)
    if answer is None and "No module named" in output:
        return [f"pip-audit did not run: {output[-300:]}"], "pip-audit did not run"
    packages = answer["dependencies"] if answer is not None else []
    problems, figure = judge_audit(packages)
    copy = os.environ.get("ADVISORIES")
    if copy is not None:
        new_problems, more = Advisories(Path(copy)).judge(installed_here(), oldest_allowed())
        return [*problems, *new_problems], f"{figure}; {more}"
    if not any(map(_is_known, packages)):
        problems.append(f"{figure}; ADVISORIES may name a copy of PyPA's advisory-database")
    return problems, figure


async def _pip_audit(directory: Path) -> tuple[Any, str]:
    report = directory / "pip-audit.json"
    output = await run(
        sys.executable, "-m", "pip_audit", "--local", "--skip-editable", "--format", "json",
        "--progress-spinner", "off", "--output", str(report),
    )  # fmt: skip
    return _load(report), output


def _is_known(package: dict[str, Any]) -> bool:
    return "skip_reason" not in package


def judge_audit(packages: list[dict[str, Any]]) -> tuple[list[str], str]:
    """Problems, and a summary that does not count packages unknown to the index."""
    known_packages = [package for package in packages if _is_known(package)]
    problems = [
        f"pip-audit: {package['name']} {package['version']} has {flaw['id']}"
        for package in known_packages
        for flaw in package["vulns"]
    ]
    if not known_packages:
        return [], "pip-audit cannot reach its index"
    return problems, (
        f"pip-audit: {len(known_packages)} of {len(packages)} packages looked up, "
        f"{len(problems)} known to be vulnerable"
    )


def _load(report: Path) -> Any:
    try:
        return json.loads(report.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


async def run(*command: str) -> str:
    """Run a program and return its output; results are read from its report."""
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    return (await process.communicate())[0].decode(errors="replace")
