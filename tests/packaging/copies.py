"""Runs a script that works on a copy of this machine (copy.sh); as root.

Its processes, mounts and names are its own and go with it, however it ends.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support.brokers import ROOT

HERE = Path(__file__).parent
SPACES = ("--mount", "--pid", "--fork", "--kill-child", "--uts", "--ipc")
SECONDS = 900


def on_a_copy(
    script: str, folder: Path, *words: str, spaces: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """`folder` is shared with the copy, where it is /opt/shared; the checkout is where it is."""
    return subprocess.run(
        ["unshare", *SPACES, *spaces, "bash", HERE / script, folder, ROOT, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
