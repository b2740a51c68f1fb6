"""Runs the shell blocks of a page, line by line, against a broker that is running.

`leveret ...` alone runs in this process, as the tests of the command line do; with pipes and the
like it runs in a shell. What runs until it is interrupted is, once it has shown something.
`leveret serve ...` starts and stops a real one, on free ports; with `&` the rest of the block
speaks to it. `curl` is played by tests/docs/curl.py. Of `make` only the way is asked
(tests/docs/made.py), and of `pip install` whether we know the packages and extras: it is run by
tests/packaging/test_first_steps.py, on request.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from leveret.cli import run
from tests.docs import curl
from tests.docs.blocks import ROOT
from tests.docs.made import require_makeable
from tests.support.brokers import running_leveret

SECONDS = 240
SHELL_WORDS = re.compile(r"[|&;<>$`*]")
FOLLOWS = re.compile(r"leveret log consume (?!.*--(count|idle) )")
RECEIVES = re.compile(r"python \S+ receive$")
STOPPED = (0, 128 + signal.SIGINT, -signal.SIGINT)
FREE_PORTS = ("--amqp-port", "0", "--http-port", "0")
FREE_TLS_PORTS = ("--set", "amqps_port=0", "--set", "https_port=0")


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
        self.started = contextlib.ExitStack()

    def _shims(self) -> Path:
        """`leveret` and `python` as a shell finds them: those of this interpreter."""
        shims = self.folder / ".shims"
        shims.mkdir()
        for name, words in (("leveret", "-m leveret "), ("python", ""), ("pytest", "-m pytest ")):
            shim = shims / name
            shim.write_text(f'#!/bin/sh\nexec {sys.executable} {words}"$@"\n')
            shim.chmod(0o755)
        return shims

    def run_block(self, text: str) -> None:
        page_broker = dict(self.environment)
        with self.started:
            for line in lines_of(text):
                self.run(line)
        self.environment = page_broker

    def run(self, line: str) -> None:
        words = shlex.split(line)
        if words[:2] == ["leveret", "serve"]:
            self._serve(words[2:])
        elif words[0] == "make":
            require_makeable(words[1:])
        elif words[:2] == ["pip", "install"]:
            require_known(words[2:])
        elif words[0] == "curl":
            curl.play(words[1:], self.environment["LEVERET_URL"], self.folder)
        elif FOLLOWS.match(line):
            self._until_it_shows_something(line)
        elif RECEIVES.match(line):
            self._beside_the_others(line)
        elif words[0] == "leveret" and not SHELL_WORDS.search(line):
            self._in_process(words[1:])
        elif line != ". .venv/bin/activate":  # which is what runs the tests
            self._in_shell(line)

    def _in_process(self, words: list[str]) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self.folder)
            for name in ("LEVERET_URL", "AMQP_URL"):
                patch.setenv(name, self.environment[name])
            assert run(words) == 0, f"leveret {shlex.join(words)}"

    def _in_shell(self, line: str) -> None:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", line],
            cwd=self.folder,
            env=self.environment,
            timeout=SECONDS,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"

    def _until_it_shows_something(self, line: str) -> None:
        process = self._start(line)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=SECONDS)
        assert process.returncode in STOPPED, f"{line}: {process.returncode}"

    def _beside_the_others(self, line: str) -> None:
        """The other terminal: it shows something at once, and more before the block is over."""
        process = self._start(line)

        def end() -> None:
            assert process.stdout is not None
            shown = process.stdout.readline()
            process.terminate()
            process.communicate(timeout=SECONDS)
            assert shown, line

        self.started.callback(end)

    def _start(self, line: str) -> subprocess.Popen[str]:
        """Has shown its first line when this returns."""
        # A test run in the background ignores interrupts, and so would what it starts.
        shell = ["env", "--default-signal=INT", "bash", "-euo", "pipefail", "-c"]
        process = subprocess.Popen(
            [*shell, f"exec {line}"],
            cwd=self.folder,
            env={**self.environment, "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline(), f"{line}: {process.wait(SECONDS)}"
        return process

    def _serve(self, words: list[str]) -> None:
        """The same flags, but for ports and folders that may be taken or forbidden here."""
        kept = [self._place(word) for word in words if word != "&"]
        ports = FREE_PORTS + (FREE_TLS_PORTS if "tls_cert" in " ".join(words) else ())
        broker = running_leveret(*kept, *ports)
        if words[-1:] == ["&"]:
            target = self.started.enter_context(broker)
            self.environment["AMQP_URL"] = target.url
            self.environment["LEVERET_URL"] = f"http://127.0.0.1:{target.http_port}"
        else:
            with broker:
                pass

    def _place(self, word: str) -> str:
        key, equals, value = word.rpartition("=")
        if value.endswith(".pem"):
            return f"{key}{equals}{self.folder / value}"
        return str(self.folder / "served") if word.startswith("/var/lib/") else word


def require_known(words: list[str]) -> None:
    """What is installed is a dependency of ours, or Leveret with an extra that exists."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    ours = [*project["dependencies"], *extras["dev"]]
    names = {canonicalize_name(Requirement(text).name) for text in ours} | {"leveret"}
    for word in words:
        if not word.startswith("-"):
            wanted = Requirement(re.sub(r"^\.(?=$|\[)", "leveret", word))
            assert canonicalize_name(wanted.name) in names, f"pip installs {word}?"
            assert wanted.extras <= set(extras), word
