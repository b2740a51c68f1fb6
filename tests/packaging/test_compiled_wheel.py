"""The platform wheel has compiled modules beside their sources, and either form runs from it."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from importlib.machinery import EXTENSION_SUFFIXES

import pytest

from leveret.model import form
from tests.packaging.conftest import hatch
from tests.support.brokers import ROOT
from tools.compile_modules import MODULES

CODE = """
import leveret
from leveret.amqp_server import wire
from leveret.model import form
with leveret.ThreadedBroker():
    print(form.current(), wire.__file__)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return hatch(ROOT, "wheel", tmp_path_factory.mktemp("wheel"), LEVERET_BUILD_COMPILED="1")


def test_wheel_has_a_compiled_module_beside_each_source(wheel):
    assert not wheel.name.endswith("-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    for module in MODULES:
        assert f"leveret/{module}" in names
        assert f"leveret/{module.removesuffix('.py')}{EXTENSION_SUFFIXES[0]}" in names


@pytest.mark.parametrize(("forced", "expected"), [("", form.COMPILED), ("0", form.PURE)])
def test_both_forms_run(wheel, tmp_path, forced, expected):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), form.VARIABLE: forced}
    command = [sys.executable, "-c", CODE]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    suffix = EXTENSION_SUFFIXES[0] if expected == form.COMPILED else ".py"
    wire = tmp_path / "leveret" / "amqp_server" / f"wire{suffix}"
    assert done.stdout.split("\n")[0] == f"{expected} {wire}", done.stderr
