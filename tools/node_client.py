"""Install amqplib in tests/clients/node for the Node client test, unless it is installed."""

from __future__ import annotations

import sys
from pathlib import Path

from tools.build_ui import (
    BuildError,
    fetch_node,
    install,
    maybe_packaged_node,
    maybe_system_node,
    needs_node_from_pypi,
)


def main() -> int:
    try:
        if needs_node_from_pypi():
            fetch_node()
        node = maybe_system_node() or maybe_packaged_node()
        if node is None:
            raise BuildError("node is not installed.")
        install(Path(__file__).resolve().parents[1] / "tests" / "clients" / "node", node)
    except BuildError as error:
        print(f"cannot install the Node client: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
