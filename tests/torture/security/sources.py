"""R-48: bandit and semgrep look at the source, pip-audit asks which installed packages are known to
be vulnerable.

semgrep has rules of the project's own (semgrep_rules.yml): each must find the code it brings along
before its silence about the source counts. Where pip-audit finds nobody to ask, a copy of an
advisory database can be (ADVISORIES, advisories.py). Without one nothing was found out, which is
not the same as nothing found, and the row fails.
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
    for number, scan in enumerate((look_with_bandit, _semgrep, _advisories)):
        found, figure = await scan(folder)
        problems += found
        figures.append(figure)
        progress(number + 1, 3)
    return Outcome("R-48", TITLE, "; ".join(figures), tuple(problems))


def _folder(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def _folders() -> list[str]:
    return [str(ROOT / name) for name in SOURCES]


async def look_with_bandit(directory: Path) -> tuple[list[str], str]:
    report = directory / "bandit.json"
    ui = str(ROOT / "http_admin" / "ui")
    said = await run(
        sys.executable, "-m", "bandit", "-q", "-r", *_folders(), "-x", ui, "-f", "json",
        "-o", str(report),
    )  # fmt: skip
    answer = _load(report)
    if answer is None:
        return [f"bandit ran nothing (is it installed?): {said[-300:]}"], "bandit did not run"
    counts = Counter(one["issue_severity"] for one in answer["results"])
    problems = [
        f"bandit: {one['filename']}:{one['line_number']} {one['issue_text']}"
        for one in answer["results"]
        if one["issue_severity"] == "HIGH"
    ]
    medium = Counter(
        one["test_name"].replace("_", " ")
        for one in answer["results"]
        if one["issue_severity"] == "MEDIUM"
    )
    named = ", ".join(f"{count} {name}" for name, count in medium.most_common())
    return problems, (
        f"bandit: {counts['HIGH']} findings of high severity, {counts['MEDIUM']} of medium "
        f"({named}), {counts['LOW']} of low"
    )


async def _semgrep(directory: Path) -> tuple[list[str], str]:
    rules: list[dict[str, Any]] = yaml.safe_load(RULES.read_text(encoding="utf-8"))["rules"]
    examples = _write_examples(directory / "examples", rules)
    tried, said = await _semgrep_finds(directory / "tried.json", str(examples))
    if tried is None:
        return [f"semgrep ran nothing (is it installed?): {said[-300:]}"], "semgrep did not run"
    awake = {(_rule(one), Path(one["path"]).stem) for one in tried["results"]}
    problems = [
        f"semgrep: {rule['id']} does not find its own example"
        for rule in rules
        if (rule["id"], rule["id"]) not in awake
    ]
    answer, said = await _semgrep_finds(directory / "semgrep.json", *_folders())
    if answer is None:
        return [*problems, f"semgrep gave up: {said[-300:]}"], "semgrep did not run"
    counts = Counter(one["extra"]["severity"] for one in answer["results"])
    problems += [
        f"semgrep: {one['path']}:{one['start']['line']} {_rule(one)}"
        for one in answer["results"]
        if one["extra"]["severity"] == "ERROR"
    ]
    problems += [f"semgrep: {one.get('message', one)}" for one in answer["errors"]]
    return problems, (
        f"semgrep: {len(rules)} rules on {len(answer['paths']['scanned'])} files, "
        f"{counts['ERROR']} findings, {counts['WARNING']} warnings"
    )


def _write_examples(folder: Path, rules: list[dict[str, Any]]) -> Path:
    folder.mkdir()
    for rule in rules:
        about = rule["metadata"]
        name = f"{rule['id']}.{about.get('finds_in', 'py')}"
        (folder / name).write_text(about["finds"], encoding="utf-8")
    return folder


def _rule(found: dict[str, Any]) -> str:
    """Its name, which semgrep puts the path of the file before."""
    return str(found["check_id"]).rpartition(".")[2]


async def _semgrep_finds(report: Path, *where: str) -> tuple[Any, str]:
    """It has an environment of its own (`make torture`): it would change what others need."""
    own = Path(sys.prefix) / "semgrep" / "bin" / "semgrep"
    program = str(own) if own.exists() else shutil.which("semgrep")
    if program is None:
        return None, "there is no semgrep"
    said = await run(
        program, "scan", "--config", str(RULES), "--metrics=off", "--disable-version-check",
        "--no-git-ignore", *(word for name in BUILT for word in ("--exclude", name)),
        "--json", "--output", str(report), *where,
    )  # fmt: skip
    return _load(report), said


async def _advisories(directory: Path) -> tuple[list[str], str]:
    """Of whoever can be asked: the index that pip-audit knows, and a copy."""
    answer, said = await _pip_audit(directory)
    if answer is None and "No module named" in said:
        return [f"pip-audit ran nothing: {said[-300:]}"], "pip-audit did not run"
    packages = answer["dependencies"] if answer is not None else []
    problems, figure = judge_audit(packages)
    copy = os.environ.get("ADVISORIES")
    if copy is not None:
        found, more = Advisories(Path(copy)).judge(installed_here(), oldest_allowed())
        return [*problems, *found], f"{figure}; {more}"
    if not any(map(_is_known, packages)):
        problems.append(f"{figure}; ADVISORIES may name a copy of PyPA's advisory-database")
    return problems, figure


async def _pip_audit(directory: Path) -> tuple[Any, str]:
    report = directory / "pip-audit.json"
    said = await run(
        sys.executable, "-m", "pip_audit", "--local", "--skip-editable", "--format", "json",
        "--progress-spinner", "off", "--output", str(report),
    )  # fmt: skip
    return _load(report), said


def _is_known(package: dict[str, Any]) -> bool:
    return "skip_reason" not in package


def judge_audit(packages: list[dict[str, Any]]) -> tuple[list[str], str]:
    """A package that the feed does not answer about is passed over by pip-audit, not by us."""
    asked = [one for one in packages if _is_known(one)]
    problems = [
        f"pip-audit: {one['name']} {one['version']} has {flaw['id']}"
        for one in asked
        for flaw in one["vulns"]
    ]
    if not asked:
        return [], "pip-audit finds nobody who would tell it of advisories"
    return problems, (
        f"pip-audit: {len(asked)} of {len(packages)} packages asked about, "
        f"{len(problems)} known to be vulnerable"
    )


def _load(report: Path) -> Any:
    try:
        return json.loads(report.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


async def run(*command: str) -> str:
    """What it said; whether it liked what it found is read from its report."""
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    return (await process.communicate())[0].decode(errors="replace")
