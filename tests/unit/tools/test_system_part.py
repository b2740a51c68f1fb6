"""tools/system-part installs missing packages, and prints something only if one is missing.

The system is fake: a PATH with a few real tools and scripts written by the tests.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "tools" / "system-part"
REAL_TOOLS = ("sh", "sed", "head", "mktemp", "cat", "rm", "env", "cp", "chmod")
JAVA_17 = "echo 'openjdk version \"17.0.2\" 2022-01-18' >&2"
JAVA_8 = "echo 'openjdk version \"1.8.0_292\"' >&2"


class System:
    def __init__(self, folder: Path) -> None:
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.log = folder / "log"
        for name in REAL_TOOLS:
            real = shutil.which(name)
            assert real is not None
            (self.bin / name).symlink_to(real)
        self.program("id", "echo 0")

    def program(self, name: str, text: str) -> None:
        path = self.bin / name
        path.unlink(missing_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def apt_get(self, *, on_install: str = "true") -> None:
        """An apt-get that records its calls; `on_install` runs on an install."""
        self.program(
            "apt-get", f'echo "$*" >> {self.log}\n[ "$1" = update ] || {{ {on_install}\n}}'
        )

    def installs(self) -> list[str]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [line.split()[-1] for line in lines if line.startswith("install")]

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["/bin/sh", str(SCRIPT), *arguments],
            env={"PATH": str(self.bin)},
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture
def system(tmp_path):
    return System(tmp_path)


def test_installed_package_gives_no_output(system):
    system.program("java", JAVA_17)
    system.apt_get()
    result = system.run("java")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert system.installs() == []


@pytest.mark.parametrize("before", [None, JAVA_8])
def test_missing_or_old_package_is_installed_and_reported(system, tmp_path, before):
    if before is not None:
        system.program("java", before)
    new = tmp_path / "java"
    new.write_text(f"#!/bin/sh\n{JAVA_17}\n")
    java = f"{system.bin}/java"
    system.apt_get(on_install=f"rm -f {java}; cp {new} {java}; chmod 755 {java}")
    result = system.run("java")
    assert result.returncode == 0
    assert "installing the system package default-jre-headless" in result.stdout
    assert system.installs() == ["default-jre-headless"]


def test_missing_apt_get_names_the_package(system):
    result = system.run("chromium")
    assert result.returncode == 1
    assert "please install the package(s) that Debian calls chromium" in result.stderr


def test_user_without_sudo_gets_the_command(system):
    system.program("id", "echo 1000")
    system.apt_get()
    result = system.run("chromium")
    assert result.returncode == 1
    assert "as root: apt-get install chromium" in result.stderr
    assert system.installs() == []


def test_user_with_sudo_installs(system):
    system.program("id", "echo 1000")
    system.program("sudo", f'echo sudo >> {system.log}\nexec "$@"')
    system.apt_get(on_install=f"cp {system.bin}/id {system.bin}/chromium")
    assert system.run("chromium").returncode == 0
    assert system.log.read_text().splitlines()[0] == "sudo"
    assert system.installs() == ["chromium"]


def test_failing_apt_get_shows_its_output(system):
    system.apt_get(on_install="echo no space left; exit 100")
    result = system.run("chromium")
    assert result.returncode == 1
    assert "no space left" in result.stderr
    assert "could not install chromium" in result.stderr


def test_install_without_effect_fails(system):
    system.apt_get()
    result = system.run("chromium")
    assert result.returncode == 1
    assert "is installed but not found" in result.stderr
