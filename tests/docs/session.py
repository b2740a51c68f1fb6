"""Runs the shell blocks of a page, line by line, against a broker that is running.

`leveret ...` alone runs in this process, as the tests of the command line do; with pipes and the
like it runs in a shell. `leveret serve ...` starts and stops a real one, on free ports. Of `make`
only the way is asked (`make -n`), and of `pip install` whether there is such an extra: what they do
is done by every test run.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from leveret.cli import run
from tests.docs.blocks import ROOT
from tests.support.brokers import running_leveret

SECONDS = 60
SHELL_WORDS = re.compile(r"[|&;<>$`*]")


def lines_of(text: str) -> list[str]:
    """Commands, without comments; a backslash at its end continues a line."""
    joined = text.replace("\\\n", " ")
    lines = [re.sub(r"\s+#\s.*$", "", line).strip() for line in joined.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


class ShellSession:
    def __init__(self, folder: Path, url: str, http_url: str) -> None:
        self.folder = folder
        (folder / "examples").symlink_to(ROOT / "examples")
        self.environment = {
            **os.environ,
            "AMQP_URL": url,
            "LEVERET_URL": http_url,
            "PATH": f"{self._shims()}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "PYTHONWARNINGS": "error",
        }

    def _shims(self) -> Path:
        """`leveret` and `python` as a shell finds them: those of this interpreter."""
        shims = self.folder / ".shims"
        shims.mkdir()
        for name, words in (("leveret", "-m leveret "), ("python", ""), ("pytest", "-m pytest ")):
            shim = shims / name
            shim.write_text(f'#!/bin/sh\nexec {sys.executable} {words}"$@"\n')
            shim.chmod(0o755)
        return shims

    def run(self, line: str) -> None:
        words = shlex.split(line)
        if words[:2] == ["leveret", "serve"] and words[-1] != "&":
            self._serve(words[2:])
        elif words[0] == "make":
            subprocess.run(["make", "-n", *words[1:]], cwd=ROOT, check=True, capture_output=True)
        elif words[:2] == ["pip", "install"]:
            require_extra(words[-1])
        elif words[0] == "leveret" and not SHELL_WORDS.search(line):
            self._in_process(words[1:])
        else:
            self._in_shell(line)

    def _in_process(self, words: list[str]) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self.folder)
            for name in ("LEVERET_URL", "AMQP_URL"):
                patch.setenv(name, self.environment[name])
            assert run(words) == 0, f"leveret {shlex.join(words)}"

    def _in_shell(self, line: str) -> None:
        if not line.startswith("cd "):
            command = ["bash", "-euo", "pipefail", "-c", line]
            done = subprocess.run(
                command,
                cwd=self.folder,
                env=self.environment,
                timeout=SECONDS,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"

    def _serve(self, words: list[str]) -> None:
        """The same flags, but for ports and folders that may be taken or forbidden here."""
        place = str(self.folder / "served")
        kept = [place if word.startswith("/var/lib/") else word for word in words]
        with running_leveret(*kept, "--amqp-port", "0", "--http-port", "0"):
            pass


def require_extra(wanted: str) -> None:
    name = re.fullmatch(r"leveret(?:\[(?P<extra>[\w,]+)\])?", wanted)
    assert name is not None, f"pip installs {wanted}?"
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for extra in (name["extra"] or "").split(","):
        assert not extra or extra in known["optional-dependencies"]
