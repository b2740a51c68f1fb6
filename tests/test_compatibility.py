"""docs/compatibility.md says what the code does: methods, arguments, endpoints and cases."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

from pamqp import commands

from amqp_server import channel, declare, login, session
from exchange import known_kinds
from tools.http_reference import description

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "compatibility.md"
ROOMS = ("amqp_server", "bindings", "exchange", "queues", "leveret/broker")
CASES = [f"C-{number:02}" for number in range(1, 147)]
# Here the two are told apart for the sake of the test: a limit, who asks, how many examples.
NO_DIFFERENCE = {"C-02", "C-16", "C-18"}
# Names of other things: a component of parameters.
NO_ARGUMENTS = {"x-clock"}
NAME = re.compile(r"`([^`]+)`")


def tables(heading: str) -> list[list[str]]:
    """The cells of all table rows below a heading, without the heads of the tables."""
    text = PAGE.read_text(encoding="utf-8")
    part = re.split(r"^## ", text.split(f"\n## {heading}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)
    lines = part[0].splitlines()
    heads = {at - 1 for at, line in enumerate(lines) if line.startswith("|---")}
    rows = [line for at, line in enumerate(lines) if line.startswith("|") and at not in heads]
    return [
        [cell.strip() for cell in row.strip("|").split(" |")]
        for row in rows
        if not row.startswith("|---")
    ]


def wire_name(method: type) -> str:
    kind, _, verb = str(getattr(method, "name")).partition(".")  # noqa: B009 - pamqp has no types
    return f"{kind.lower()}.{re.sub(r'(?<!^)(?=[A-Z])', '-', verb).lower()}"


def handled_methods() -> set[str]:
    """What a client may send and somebody here understands."""
    known: set[type] = {
        *session._CONNECTION_HANDLERS,
        *channel._HANDLERS,
        *declare._HANDLERS,
        commands.Queue.Declare,
        commands.Basic.Publish,
        commands.Channel.Open,
        commands.Channel.Close,
        commands.Channel.CloseOk,
    }
    return {wire_name(method) for method in known}


def test_every_method_is_on_the_page():
    said = {row[0].strip("`"): row[1] for row in tables("Methods")}
    assert list(said) == [wire_name(method) for method in commands.INDEX_MAPPING.values()]
    assert set(said.values()) <= {"yes", "no", "different"}
    assert not {name for name in handled_methods() if said[name] == "no"}


def test_what_works_is_handled_or_sent():
    sources = "".join(path.read_text() for path in (ROOT / "amqp_server").glob("*.py"))
    written_as_octets = {"basic.deliver", "basic.get-ok", "basic.return"}
    for row in tables("Methods"):
        name = row[0].strip("`")
        kind, verb = (part.title().replace("-", "") for part in name.split("."))
        is_sent = re.search(rf"\b{kind}\.?{verb}\(", sources) or name in written_as_octets
        assert row[1] == "no" or is_sent or name in handled_methods(), name


def test_endpoints_that_work_are_there_and_the_others_are_not():
    served: dict[str, set[str]] = defaultdict(set)
    for path, methods in description()["paths"].items():
        for kind in ("e", "q") if "{kind}" in path else ("",):
            shape = re.sub(r"{[^}]*}", "{}", path.replace("{kind}", kind))
            served[shape] |= {method.upper() for method in methods}
    rows = tables("Endpoints")
    assert len(rows) > 80
    for path, methods, answer, _ in rows:
        here = served[re.sub(r"{[^}]*}", "{}", path.strip("`"))]
        assert answer in {"yes", "no", "different"}
        assert set(methods.split(", ")) <= here if answer != "no" else not here, path


def test_capabilities():
    assert [row[0].strip("`") for row in tables("Capabilities")] == list(login.CAPABILITIES)


def test_exchange_types():
    rows = [row for row in tables("Exchange types") if row[1] == "yes"]
    assert sorted(name for row in rows for name in NAME.findall(row[0])) == known_kinds()


def named_in_code() -> set[str]:
    """Every string of the form x-…, as it stands in the rooms' code."""
    found: set[str] = set()
    for room in ROOMS:
        for path in (ROOT / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found |= set(re.findall(r"^x-[a-z-]*[a-z]$", node.value))
    return found - set(known_kinds()) - NO_ARGUMENTS


def test_every_argument_and_header_is_on_the_page():
    said = {
        name: row[2] for row in tables("Arguments and headers") for name in NAME.findall(row[0])
    }
    in_code = named_in_code() | {"x-message-deduplication"}
    families = {name.removesuffix("-*") for name in said}
    assert in_code - families == set()
    others = {"alternate-exchange", "hash-header", "hash-property", "CC", "BCC"}
    works = {name.removesuffix("-*") for name, how in said.items() if how != "ignored"}
    assert not works - in_code - others
    assert set(said.values()) <= {"yes", "different", "own", "ignored"}


def cases_tested() -> dict[str, list[ast.FunctionDef]]:
    found = defaultdict(list)
    for path in sorted((ROOT / "tests" / "semantics").glob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and (
                named := re.match(r"test_c(\d{3})_", node.name)
            ):
                found[f"C-{int(named[1]):02}"].append(node)
    return found


def test_every_case_is_on_the_page_and_has_a_test():
    assert [row[0] for row in tables("Cases")] == CASES
    assert sorted(cases_tested()) == sorted(CASES)


def test_differences_from_rabbitmq_are_told():
    told = {row[0] for row in tables("Cases") if row[4]}
    expecting = {
        case
        for case, functions in cases_tested().items()
        for function in functions
        if any(argument.arg == "expected" for argument in function.args.args)
    }
    assert told == expecting - NO_DIFFERENCE
