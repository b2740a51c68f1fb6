"""Runs a script on a copy of this machine (copy.sh); needs root.

The script has its own namespaces, so its processes and mounts are gone when it ends.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support.brokers import ROOT

HERE = Path(__file__).parent
NAMESPACES = ("--mount", "--pid", "--fork", "--kill-child", "--uts", "--ipc")
TIMEOUT_SECONDS = 900


def run_on_copy(
    script: str, folder: Path, *words: str, namespaces: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """`folder` is /opt/shared in the copy; the checkout has the same path as here."""
    return subprocess.run(
        ["unshare", *NAMESPACES, *namespaces, "bash", HERE / script, folder, ROOT, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_SECONDS,
    )
