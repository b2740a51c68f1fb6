"""Runs the shell blocks of a page line by line against a running broker.

- `leveret ...` runs in this process, as in the tests of the command line; with pipes, redirections
  or variables it runs in a shell.
- A command that runs until it is interrupted is interrupted after its first line of output.
- `leveret serve ...` starts and stops a broker process on free ports; with `&` the rest of the
  block uses it.
- `curl` is replaced by tests/docs/curl.py.
- `make` targets are looked up but not run (tests/docs/make_targets.py).
- For `pip install` the packages and extras are looked up; tests/packaging/test_first_steps.py runs
  these commands on request.
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
from tests.docs.blocks import ROOT
from tests.docs.curl import run_curl
from tests.docs.make_targets import check_make_command
from tests.support.brokers import running_leveret

TIMEOUT_SECONDS = 240
SHELL_WORDS = re.compile(r"[|&;<>$`*]")
FOLLOWS = re.compile(r"leveret log consume (?!.*--(count|idle) )")
RECEIVES = re.compile(r"python \S+ receive$")
STOPPED = (0, 128 + signal.SIGINT, -signal.SIGINT)
FREE_PORTS = ("--amqp-port", "0", "--http-port", "0")
FREE_TLS_PORTS = ("--set", "amqps_port=0", "--set", "https_port=0")


def lines_of(text: str) -> list[str]:
    """The commands without comments; a line that ends with a backslash continues."""
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
        self.background = contextlib.ExitStack()

    def _shims(self) -> Path:
        """A folder with `leveret`, `python` and `pytest` of this interpreter, for the PATH."""
        shims = self.folder / ".shims"
        shims.mkdir()
        for name, words in (("leveret", "-m leveret "), ("python", ""), ("pytest", "-m pytest ")):
            shim = shims / name
            shim.write_text(f'#!/bin/sh\nexec {sys.executable} {words}"$@"\n')
            shim.chmod(0o755)
        return shims

    def run_block(self, text: str) -> None:
        page_broker = dict(self.environment)
        with self.background:
            for line in lines_of(text):
                self.run(line)
        self.environment = page_broker

    def run(self, line: str) -> None:
        words = shlex.split(line)
        if words[:2] == ["leveret", "serve"]:
            self._serve(words[2:])
        elif words[0] == "make":
            check_make_command(words[1:])
        elif words[:2] == ["pip", "install"]:
            check_pip_install(words[2:])
        elif words[0] == "curl":
            run_curl(words[1:], self.environment["LEVERET_URL"], self.folder)
        elif FOLLOWS.match(line):
            self._interrupt_after_output(line)
        elif RECEIVES.match(line):
            self._run_in_background(line)
        elif words[0] == "leveret" and not SHELL_WORDS.search(line):
            self._in_process(words[1:])
        elif line != ". .venv/bin/activate":  # the tests run in it already
            self._in_shell(line)

    def _in_process(self, words: list[str]) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self.folder)
            for name in ("LEVERET_URL", "AMQP_URL"):
                patch.setenv(name, self.environment[name])
            assert run(words) == 0, f"leveret {shlex.join(words)}"

    def _in_shell(self, line: str) -> None:
        result = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", line],
            cwd=self.folder,
            env=self.environment,
            timeout=TIMEOUT_SECONDS,
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, f"{line}\n{result.stdout}{result.stderr}"

    def _interrupt_after_output(self, line: str) -> None:
        process = self._start(line)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=TIMEOUT_SECONDS)
        assert process.returncode in STOPPED, f"{line}: {process.returncode}"

    def _run_in_background(self, line: str) -> None:
        """Run a command of a second terminal: it must print again before the block ends."""
        process = self._start(line)

        def end() -> None:
            assert process.stdout is not None
            output = process.stdout.readline()
            process.terminate()
            process.communicate(timeout=TIMEOUT_SECONDS)
            assert output, line

        self.background.callback(end)

    def _start(self, line: str) -> subprocess.Popen[str]:
        """Start a command and wait for its first line of output."""
        # Processes started by a test run in the background would ignore SIGINT as it does.
        shell = ["env", "--default-signal=INT", "bash", "-euo", "pipefail", "-c"]
        process = subprocess.Popen(
            [*shell, f"exec {line}"],
            cwd=self.folder,
            env={**self.environment, "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline(), f"{line}: {process.wait(TIMEOUT_SECONDS)}"
        return process

    def _serve(self, words: list[str]) -> None:
        """Start `leveret serve` with these flags, on free ports and in folders of the test."""
        flags = [self._replace_path(word) for word in words if word != "&"]
        ports = FREE_PORTS + (FREE_TLS_PORTS if "tls_cert" in " ".join(words) else ())
        broker = running_leveret(*flags, *ports)
        if words[-1:] == ["&"]:
            target = self.background.enter_context(broker)
            self.environment["AMQP_URL"] = target.url
            self.environment["LEVERET_URL"] = f"http://127.0.0.1:{target.http_port}"
        else:
            with broker:
                pass

    def _replace_path(self, word: str) -> str:
        key, equals, value = word.rpartition("=")
        if value.endswith(".pem"):
            return f"{key}{equals}{self.folder / value}"
        return str(self.folder / "served") if word.startswith("/var/lib/") else word


def check_pip_install(words: list[str]) -> None:
    """Raise unless all packages are Leveret or its dependencies, and all extras exist."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    dependencies = [*project["dependencies"], *extras["dev"]]
    names = {canonicalize_name(Requirement(text).name) for text in dependencies} | {"leveret"}
    for word in words:
        if not word.startswith("-"):
            requirement = Requirement(re.sub(r"^\.(?=$|\[)", "leveret", word))
            assert canonicalize_name(requirement.name) in names, f"unknown package: {word}"
            assert requirement.extras <= set(extras), word
