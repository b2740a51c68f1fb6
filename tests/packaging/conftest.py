"""The sdist of this checkout and the wheel that is built from it."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile

import pytest

from leveret.model import form
from tests.support.brokers import ROOT

TIMEOUT_SECONDS = 480
# `make test` does not wait for the compiler.
collect_ignore = [] if form.current() == form.COMPILED else ["test_compiled_wheel.py"]


def hatch(folder, target, output, **environment):
    result = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(output)],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    (built,) = output.iterdir()
    return built


@pytest.fixture(scope="session")
def sdist(tmp_path_factory):
    return hatch(ROOT, "sdist", tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="session")
def wheel(sdist, tmp_path_factory):
    source = tmp_path_factory.mktemp("source")
    with tarfile.open(sdist) as archive:
        archive.extractall(source, filter="data")
    (unpacked,) = source.iterdir()
    return hatch(unpacked, "wheel", tmp_path_factory.mktemp("wheel"), PATH="/nowhere")
