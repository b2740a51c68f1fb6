"""The plugin as pytest loads it into other people's runs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.brokers import ROOT

OWN = """
import sys

HEAVY = {"asyncio", "leveret.launch", "leveret.testing", "pamqp", "uvloop"}
LOADED = HEAVY & set(sys.modules)


def test_nothing_of_the_broker_is_loaded_until_a_test_asks():
    assert LOADED <= {"asyncio"}, LOADED


def test_asking_loads_it(leveret_url):
    assert "leveret.launch" in sys.modules
    assert leveret_url.startswith("amqp://guest:guest@127.0.0.1:")
"""


def run(folder, *options):
    (folder / "pytest.ini").write_text("[pytest]\n")  # or settings further up would count
    own = ["-q", "-p", "no:cacheprovider", "-p", "no:asyncio", "-W", "error", "--strict-markers"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *own, *options],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout


def test_it_costs_nothing_until_it_is_used(tmp_path):
    (tmp_path / "test_own.py").write_text(OWN)
    code, said = run(tmp_path)
    assert code == 0, said
    assert "2 passed" in said


def test_it_can_be_switched_off(tmp_path):
    (tmp_path / "test_own.py").write_text("def test_it(leveret_url): ...\n")
    code, said = run(tmp_path, "-p", "no:leveret")
    assert code == 1
    assert "fixture 'leveret_url' not found" in said


@pytest.mark.leveret(max_message_size=10)
class TestSettings:
    @pytest.fixture
    def leveret_settings(self):
        return {"max_message_size": 5, "product": "Fixture"}

    def test_a_marker_is_stronger_than_the_fixture(self, leveret_broker):
        settings = leveret_broker.running.settings
        assert (settings.max_message_size, settings.product) == (10, "Fixture")
