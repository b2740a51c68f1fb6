"""Copy the main figures from docs/performance.md into README.md, so that the two agree.

`make readme` writes them; `--check` (and a test) only compares them.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROWS = (
    "transient, auto-ack, 1→1, 100 B",
    "transient, confirms, ack each",
    "fanout 1→10, deliveries",
    "topic, 10,000 bindings",
    "latency at 2,000 msg/s, p99",
    "persistent, confirms, ack each",
    "persistent, confirms, 4→4→4",
    "backlog, persistent: drain",
    "publish one, wait for confirm, p50",
    "log: publish with confirms",
    "log: replay from first",
    "start until it accepts",
    "resident when idle",
)
FIGURES = re.compile(r"(?<=<!-- figures -->\n).*?(?=<!-- end of figures -->)", re.DOTALL)


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def figures(page: str) -> str:
    """Return four columns of the rows listed in ROWS, from the table of results."""
    table_of_results = page.partition("<!-- end of results -->")[0]
    lines = [line for line in table_of_results.splitlines() if line.startswith("|")]
    head = next(line for line in lines if cells(line)[0] == "workload")
    rows = {cells(line)[0]: cells(line) for line in lines}
    missing = [name for name in ROWS if name not in rows]
    if missing:
        raise SystemExit(f"docs/performance.md has no row {', '.join(map(repr, missing))}.")
    table = [cells(head)[:4], ["---", "--:", "--:", "--:"], *(rows[name][:4] for name in ROWS)]
    return "".join(f"| {' | '.join(row)} |\n" for row in table)


def main() -> int:
    readme = ROOT / "README.md"
    text = readme.read_text(encoding="utf-8")
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    new = FIGURES.sub(lambda _: figures(page), text)
    if "--check" in sys.argv:
        return int(new != text)
    readme.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
