"""The distribution of tests over processes (tests/conftest.py), on a small tree of tests.

xdist silently ignores unknown options, so only a real run shows that the distribution works.
"""

import re
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"
MANY = "import pytest\n\n@pytest.mark.parametrize('n', range(4))\ndef test_it(n):\n    pass\n"
MARKED = "import pytest\n\n@pytest.mark.spark\ndef test_it():\n    pass\n"


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "tests").mkdir()
    shutil.copy(CONFTEST, tmp_path / "tests")
    (tmp_path / "pytest.ini").write_text("[pytest]\ntestpaths = tests\nmarkers =\n  spark:\n")
    return tmp_path


def write_test(tree: Path, name: str, text: str) -> None:
    path = tree / "tests" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


def run(tree: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "--import-mode=importlib", *options]
    return subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)


def test_folder_of_a_group_and_file_stay_in_one_process(tree):
    for name in ("spark/test_a.py", "spark/test_b.py", "test_c.py", "test_d.py", "test_e.py"):
        write_test(tree, name, MANY)
    result = run(tree, "-v", "-n", "2", "--no-loadscope-reorder")
    assert result.returncode == 0, result.stdout
    workers = defaultdict(set)
    runs = re.findall(r"\[(gw\d)\] .*PASSED tests/(spark|[\w.]+)", result.stdout)
    assert len(runs) == 20
    for worker, group in runs:
        workers[group].add(worker)
    assert all(len(used) == 1 for used in workers.values())
    assert len(set.union(*workers.values())) == 2


def test_marked_test_outside_its_folder_is_refused(tree):
    write_test(tree, "test_lost.py", MARKED)
    result = run(tree)
    assert result.returncode != 0
    assert "tests/test_lost.py::test_it is marked spark: move it to tests/spark/" in result.stderr
