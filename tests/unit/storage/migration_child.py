"""Opens a store of schema 3, prints a line for each portion of its migration, and is killed."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from unittest.mock import patch

from leveret.queues.storage import migration_to_packs
from tests.contract.stores import Harness


def report(_progress: object, last: int, _count: int) -> None:
    sys.stdout.write(f"{last}\n")
    sys.stdout.flush()


async def main(directory: Path) -> None:
    await Harness(directory).close()


if __name__ == "__main__":
    with (
        patch.object(migration_to_packs, "PORTION_BYTES", 10_000),
        patch.object(migration_to_packs._Progress, "report", report),
    ):
        asyncio.run(main(Path(sys.argv[1])))
