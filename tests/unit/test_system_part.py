"""tools/system-part: silent when a part is there, outspoken when it fetches one or cannot.

The system is a stand-in: a PATH with a few real tools and programs written for the occasion.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "tools" / "system-part"
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

    def apt_get(self, *, brings: str = "true") -> None:
        """An apt-get that notes how it was called; `brings` runs on an install."""
        self.program("apt-get", f'echo "$*" >> {self.log}\n[ "$1" = update ] || {{ {brings}\n}}')

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


def test_part_that_is_there_is_not_talked_about(system):
    system.program("java", JAVA_17)
    system.apt_get()
    ended = system.run("java")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    assert system.installs() == []


@pytest.mark.parametrize("before", [None, JAVA_8])
def test_missing_or_old_part_is_installed_and_said(system, tmp_path, before):
    if before is not None:
        system.program("java", before)
    new = tmp_path / "java"
    new.write_text(f"#!/bin/sh\n{JAVA_17}\n")
    system.apt_get(
        brings=f"rm -f {system.bin}/java; cp {new} {system.bin}/java; chmod 755 {system.bin}/java"
    )
    ended = system.run("java")
    assert ended.returncode == 0
    assert "installing the system package default-jre-headless" in ended.stdout
    assert system.installs() == ["default-jre-headless"]


def test_without_apt_get_it_says_what_to_install(system):
    ended = system.run("chromium")
    assert ended.returncode == 1
    assert "please install what Debian calls chromium" in ended.stderr


def test_user_without_sudo_is_told_the_command(system):
    system.program("id", "echo 1000")
    system.apt_get()
    ended = system.run("chromium")
    assert ended.returncode == 1
    assert "as root: apt-get install chromium" in ended.stderr
    assert system.installs() == []


def test_user_with_sudo_installs_through_it(system):
    system.program("id", "echo 1000")
    system.program("sudo", f'echo sudo >> {system.log}\nexec "$@"')
    system.apt_get(brings=f"cp {system.bin}/id {system.bin}/chromium")
    assert system.run("chromium").returncode == 0
    assert system.log.read_text().splitlines()[0] == "sudo"
    assert system.installs() == ["chromium"]


def test_failing_apt_get_shows_its_words_and_fails(system):
    system.apt_get(brings="echo no space left; exit 100")
    ended = system.run("chromium")
    assert ended.returncode == 1
    assert "no space left" in ended.stderr
    assert "could not install chromium" in ended.stderr


def test_install_that_brings_nothing_fails(system):
    system.apt_get()
    ended = system.run("chromium")
    assert ended.returncode == 1
    assert "still lack" in ended.stderr
