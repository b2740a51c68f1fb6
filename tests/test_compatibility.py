"""docs/compatibility.md agrees with the code: methods, arguments, endpoints and cases."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import httpx
from pamqp import commands

from leveret.amqp_server import channel, connection, handshake, topology_methods
from leveret.exchange import known_kinds
from leveret.launch import ThreadedBroker, in_process_settings
from leveret.model.compatibility import RABBITMQ_VERSION
from leveret.move.amqp_client import AmqpClient, AmqpUrl
from tools.http_reference import description

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "compatibility.md"
ROOMS = ("amqp_server", "bindings", "exchange", "queues", "leveret/broker")
CASES = [f"C-{number:02}" for number in range(1, 147)]
# These tests treat the brokers differently for reasons of the test: a limit, a user, a count.
NO_DIFFERENCE = {"C-02", "C-16", "C-18"}
# Names that are not arguments: a component of parameters.
NOT_ARGUMENTS = {"x-import", "x-clock"}
COMPATIBLE_WITH = re.compile(r"compatible\s+with\s+RabbitMQ\s+([0-9][0-9.]*[0-9])")
NAME = re.compile(r"`([^`]+)`")


def tables(heading: str) -> list[list[str]]:
    """The cells of all table rows below a heading, without header rows."""
    text = PAGE.read_text(encoding="utf-8")
    part = re.split(r"^## ", text.split(f"\n## {heading}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)
    lines = part[0].splitlines()
    headers = {index - 1 for index, line in enumerate(lines) if line.startswith("|---")}
    rows = [
        line for index, line in enumerate(lines) if line.startswith("|") and index not in headers
    ]
    return [
        [cell.strip() for cell in row.strip("|").split(" |")]
        for row in rows
        if not row.startswith("|---")
    ]


def wire_name(method: type) -> str:
    kind, _, verb = str(getattr(method, "name")).partition(".")  # noqa: B009 - pamqp has no types
    return f"{kind.lower()}.{re.sub(r'(?<!^)(?=[A-Z])', '-', verb).lower()}"


def handled_methods() -> set[str]:
    """The methods that a client may send and the broker handles."""
    known: set[type] = {
        *connection._CONNECTION_HANDLERS,
        *channel._HANDLERS,
        *topology_methods._HANDLERS,
        commands.Queue.Declare,
        commands.Basic.Publish,
        commands.Channel.Open,
        commands.Channel.Close,
        commands.Channel.CloseOk,
    }
    return {wire_name(method) for method in known}


def test_every_method_is_on_the_page():
    support = {row[0].strip("`"): row[1] for row in tables("Methods")}
    assert list(support) == [wire_name(method) for method in commands.INDEX_MAPPING.values()]
    assert set(support.values()) <= {"yes", "no", "different"}
    assert not {name for name in handled_methods() if support[name] == "no"}


def test_supported_methods_are_handled_or_sent():
    sources = "".join(path.read_text() for path in (ROOT / "amqp_server").glob("*.py"))
    sent_as_bytes = {"basic.deliver", "basic.get-ok", "basic.return"}
    for row in tables("Methods"):
        name = row[0].strip("`")
        kind, verb = (part.title().replace("-", "") for part in name.split("."))
        is_sent = re.search(rf"\b{kind}\.?{verb}\(", sources) or name in sent_as_bytes
        assert row[1] == "no" or is_sent or name in handled_methods(), name


def test_exactly_the_supported_endpoints_are_served():
    served: dict[str, set[str]] = defaultdict(set)
    for path, methods in description()["paths"].items():
        for kind in ("e", "q") if "{kind}" in path else ("",):
            shape = re.sub(r"{[^}]*}", "{}", path.replace("{kind}", kind))
            served[shape] |= {method.upper() for method in methods}
    rows = tables("Endpoints")
    assert len(rows) > 80
    for path, methods, support, _ in rows:
        served_methods = served[re.sub(r"{[^}]*}", "{}", path.strip("`"))]
        assert support in {"yes", "no", "different"}
        if support == "no":
            assert not served_methods, path
        else:
            assert set(methods.split(", ")) <= served_methods, path


def test_capabilities_are_on_the_page():
    assert [row[0].strip("`") for row in tables("Capabilities")] == list(handshake.CAPABILITIES)


def test_exchange_types_are_on_the_page():
    rows = [row for row in tables("Exchange types") if row[1] == "yes"]
    assert sorted(name for row in rows for name in NAME.findall(row[0])) == known_kinds()


def named_in_code() -> set[str]:
    """Every string of the form x-… in the code of the rooms."""
    names: set[str] = set()
    for room in ROOMS:
        for path in (ROOT / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    names |= set(re.findall(r"^x-[a-z-]*[a-z]$", node.value))
    return names - set(known_kinds()) - NOT_ARGUMENTS


def test_every_argument_and_header_is_on_the_page():
    support = {
        name: row[2] for row in tables("Arguments and headers") for name in NAME.findall(row[0])
    }
    in_code = named_in_code() | {"x-message-deduplication"}
    families = {name.removesuffix("-*") for name in support}
    assert in_code - families == set()
    others = {"alternate-exchange", "hash-header", "hash-property", "CC", "BCC"}
    used = {name.removesuffix("-*") for name, value in support.items() if value != "ignored"}
    assert not used - in_code - others
    assert set(support.values()) <= {"yes", "different", "own", "ignored"}


def functions_by_case() -> dict[str, list[ast.FunctionDef]]:
    functions = defaultdict(list)
    for path in sorted((ROOT / "tests" / "semantics").glob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and (
                match := re.match(r"test_c(\d{3})_", node.name)
            ):
                functions[f"C-{int(match[1]):02}"].append(node)
    return functions


def test_every_case_is_on_the_page_and_has_a_test():
    assert [row[0] for row in tables("Cases")] == CASES
    assert sorted(functions_by_case()) == sorted(CASES)


def test_differences_from_rabbitmq_are_documented():
    documented = {row[0] for row in tables("Cases") if row[4]}
    different = {
        case
        for case, functions in functions_by_case().items()
        for function in functions
        if any(argument.arg == "expected" for argument in function.args.args)
    }
    assert documented == different - NO_DIFFERENCE


def test_one_version_of_rabbitmq_is_named_everywhere():
    """Sentences with "compatible with RabbitMQ X", and where tools look for the version."""
    pages = [
        ROOT / "README.md",
        *(ROOT / "docs").rglob("*.md"),
        *ROOT.glob("http_admin/ui/src/**/*.tsx"),
    ]
    named = {
        (page.name, version)
        for page in pages
        for version in COMPATIBLE_WITH.findall(page.read_text(encoding="utf-8"))
    }
    assert {version for _, version in named} == {RABBITMQ_VERSION}
    assert {name for name, _ in named} >= {"README.md", "compatibility.md"}
    with ThreadedBroker(in_process_settings(http_enabled=True)) as broker:
        api = httpx.Client(base_url=broker.http_url, auth=("guest", "guest"), timeout=60)
        with api:
            overview, definitions = (
                api.get("/api/overview").json(),
                api.get("/api/definitions").json(),
            )
            announced = {
                overview["rabbitmq_version"],
                overview["management_version"],
                definitions["rabbit_version"],
                definitions["rabbitmq_version"],
                api.get("/api/version").json(),
            }
            announced |= set(re.findall(r'rabbitmq_version="([^"]*)"', api.get("/metrics").text))
        client = AmqpClient(AmqpUrl.parse(broker.url), 60)
        announced |= set(COMPATIBLE_WITH.findall(client.server_properties["information"]))
        client.close()
    assert announced == {RABBITMQ_VERSION}
