"""Write the result of `make coverage` into CONTRIBUTING.md, between two comments."""

from __future__ import annotations

import json
import re
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "CONTRIBUTING.md"
SENTENCE = re.compile(r"(?<=<!-- coverage -->\n).*?(?=<!-- end of coverage -->)", re.DOTALL)


def sentence(totals: dict[str, Any], day: str) -> str:
    lines = 100 * totals["covered_lines"] / totals["num_statements"]
    branches = 100 * totals["covered_branches"] / totals["num_branches"]
    return (
        f"On {day} the tests covered {lines:.1f} % of {totals['num_statements']:,} statements and\n"
        f"{branches:.1f} % of {totals['num_branches']:,} branches.\n"
    )


def main() -> int:
    totals = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["totals"]
    text = sentence(totals, datetime.now(UTC).date().isoformat())
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(SENTENCE.sub(lambda _: text, page), encoding="utf-8")
    print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
