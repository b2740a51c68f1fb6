"""Which form of the hot path runs: compiled modules of exactly these sources, or the sources."""

import os
import shutil
import subprocess
import sys
from importlib.machinery import ExtensionFileLoader, SourceFileLoader
from pathlib import Path

import pytest

from leveret.amqp_server import wire
from leveret.model import form
from tests.support.brokers import ROOT

SAMPLE = Path("amqp_server") / f"wire{form.SUFFIX}"
PRINT_FORM = "import leveret; from leveret.model import form; print(form.current())"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A clone with few modules, and an empty file as its compiled form."""
    (tmp_path / "amqp_server").mkdir()
    (tmp_path / "amqp_server" / "__init__.py").touch()
    (tmp_path / "amqp_server" / "wire.py").write_text("FORM = 'source'\n")
    package = tmp_path / "leveret"
    (package / "model").mkdir(parents=True)
    (package / "amqp_server").symlink_to(Path("..") / "amqp_server")
    (package / "__init__.py").write_text("from leveret.model import form\nform.install()\n")
    for name in ("__init__.py", "form.py"):
        shutil.copy(ROOT / "leveret" / "model" / name, package / "model")
    (tmp_path / form.BUILDS).mkdir(parents=True)
    compiled = form.build_folder(tmp_path) / "leveret" / SAMPLE
    compiled.parent.mkdir(parents=True)
    compiled.touch()
    return tmp_path


def run(project: Path, code: str, forced: str | None = None) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYTHONPATH": str(project)}
    environment.pop(form.VARIABLE, None)
    if forced is not None:
        environment[form.VARIABLE] = forced
    command = [sys.executable, "-S", "-c", code]
    return subprocess.run(
        command, cwd=project, env=environment, capture_output=True, text=True, check=False
    )


def test_build_is_used_for_the_same_sources_only(project):
    assert run(project, PRINT_FORM).stdout.strip() == form.COMPILED
    source = project / "amqp_server" / "wire.py"
    status = source.stat()
    before = source.read_text()
    source.write_text(before.replace("source", "change"))
    os.utime(source, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert run(project, PRINT_FORM).stdout.strip() == form.PURE
    source.write_text(before)
    assert run(project, PRINT_FORM).stdout.strip() == form.COMPILED


def test_new_module_makes_a_build_stale(project):
    (project / "amqp_server" / "another.py").touch()
    assert run(project, PRINT_FORM).stdout.strip() == form.PURE


def test_clone_without_builds_is_pure(project):
    shutil.rmtree(project / "build")
    assert run(project, PRINT_FORM).stdout.strip() == form.PURE
    refused = run(project, PRINT_FORM, "1")
    assert refused.returncode == 1
    assert "LEVERET_COMPILED is 1, but there are no compiled modules" in refused.stderr


@pytest.mark.parametrize("place", ["build", "wheel"])
def test_sources_can_be_forced(project, place):
    """The compiled form of this test is an empty file: importing it would fail."""
    if place == "wheel":
        (project / SAMPLE).touch()
    code = f"{PRINT_FORM}; from leveret.amqp_server import wire; print(wire.FORM)"
    done = run(project, code, "0")
    assert done.stdout.splitlines() == [form.PURE, "source"], done.stderr
    assert run(project, code, "1").returncode == 1


def test_other_values_are_refused(project):
    assert "it must be 0, 1 or empty" in run(project, PRINT_FORM, "yes").stderr


def test_this_process_runs_the_form_that_it_tells():
    expected = ExtensionFileLoader if form.current() == form.COMPILED else SourceFileLoader
    assert isinstance(wire.__loader__, expected)
    if os.environ.get(form.VARIABLE):
        assert form.current() == {"0": form.PURE, "1": form.COMPILED}[os.environ[form.VARIABLE]]
