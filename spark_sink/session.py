"""A Spark session for the export and the report: small, quiet, with the data source registered.

Problems of the machine are reported as one sentence before Spark starts: no PySpark, no Java, a
master that is not a valid one or does not answer.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import socket
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from leveret.spark_sink.errors import SourceError
from leveret.spark_sink.java import ensure_java
from leveret.spark_sink.workers import IMPORT_ROOT, prepare_workers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Result = TypeVar("Result")
_LOCAL = re.compile(r"local(\[(\d+|\*)(,\s*\d+)?\])?")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\d+,\s*\d+,\s*\d+\]")
_STANDALONE = re.compile(r"spark://[^/]+:\d+")
_RESOURCE_MANAGER = re.compile(r"(yarn|k8s://.+)")
_CONNECT_SECONDS = 5.0
NICENESS = 19
_MAX_NICENESS = 19
_NO_START = "Spark did not start ({}): set LEVERET_SPARK_LOG=warn to see its log."
_EXECUTOR_PACKAGES = (
    "spark_sink",
    "spark_sink/arrow",
    "spark_sink/arrow/tables",
    "model",
    "queues/log/files",
    "queues/storage",
)
_LOG4J_FILE = Path(__file__).resolve().with_name("log4j2.properties")

SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.session.timeZone": "UTC",
    # Spark's default is INT96, which other readers take for times without a time zone.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    "spark.sql.maxConcurrentOutputFileWriters": "64",
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile=file:{_LOG4J_FILE}",
}


def check_master(master: str) -> None:
    """Raise SourceError if `master` is not a master URL, or no standalone master answers."""
    if (
        _LOCAL.fullmatch(master)
        or _LOCAL_CLUSTER.fullmatch(master)
        or _RESOURCE_MANAGER.fullmatch(master)
    ):
        return
    if not _STANDALONE.fullmatch(master.split(",")[0]):
        raise SourceError(
            f"{master!r} is not a Spark master: use local[*], local-cluster[2,1,1024], "
            "spark://host:7077, yarn or k8s://…."
        )
    addresses = [address.rpartition(":") for address in master.removeprefix("spark://").split(",")]
    if not any(_answers(host, int(port)) for host, _, port in addresses):
        raise SourceError(
            f"No Spark master answers at {master}: start it, or use --master 'local[*]'."
        )


def _answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=_CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


@contextmanager
def session(
    name: str, master: str, settings: dict[str, str] | None = None
) -> Iterator[SparkSession]:
    """A session with the data source registered; it is stopped at the end in every case.

    Its processes run at a low priority, because a broker on the same machine must come first.
    """
    niceness = _niceness()
    lower_own_session(niceness)
    spark = start(name, master, settings, niceness)
    try:
        yield spark
    finally:
        spark.stop()


def start(
    name: str, master: str, settings: dict[str, str] | None = None, niceness: int = 0
) -> SparkSession:
    if importlib.util.find_spec("pyspark") is None:
        raise SourceError("PySpark is not installed: run `pip install 'leveret[spark]'`.")
    check_master(master)
    ensure_java()
    prepare_workers(local=_LOCAL.fullmatch(master) is not None)
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    from leveret.spark_sink import register

    builder = SparkSession.builder.appName(name).master(master)
    for key, value in (SETTINGS | _network(master) | (settings or {})).items():
        builder = builder.config(key, value)
    try:
        spark = _run_at_niceness(builder.getOrCreate, niceness)
    except PySparkException as error:
        raise SourceError(_NO_START.format(str(error).splitlines()[0])) from None
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    if not _LOCAL.fullmatch(master):
        spark.sparkContext.addPyFile(str(_executor_archive()))
    register(spark)
    return spark


def _niceness() -> int:
    text = os.environ.get("LEVERET_SPARK_NICE", str(NICENESS))
    if not text.isdecimal() or int(text) > _MAX_NICENESS:
        raise SourceError(
            f"LEVERET_SPARK_NICE must be a number from 0 to {_MAX_NICENESS}, not {text!r}."
        )
    return int(text)


def lower_own_session(niceness: int) -> None:
    """Lower the scheduling priority of this process's own session, if it leads one.

    Where Linux schedules whole sessions (autogroups), the niceness of a process has no effect on
    other sessions. A process started by cron or by a service manager leads its own session.
    """
    if niceness and os.getsid(0) == os.getpid():
        with suppress(OSError):
            Path("/proc/self/autogroup").write_text(str(niceness))


def _run_at_niceness(work: Callable[[], Result], niceness: int) -> Result:
    """Call `work` in a thread of this niceness, which the JVM inherits from that thread."""
    if not niceness:
        return work()

    def lower() -> None:
        with suppress(OSError):
            os.nice(niceness)

    with ThreadPoolExecutor(1, initializer=lower) as pool:
        return pool.submit(work).result()


def _network(master: str) -> dict[str, str]:
    """Settings that keep a session on one machine to the loopback interface."""
    if not master.startswith("local"):
        return {}
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    return {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}


def _executor_archive() -> Path:
    """The modules of Leveret that executors need, as an archive that Spark sends to them."""
    path = Path(tempfile.mkdtemp(prefix="leveret-")) / "leveret-spark.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for package in _EXECUTOR_PACKAGES:
            _add(archive, IMPORT_ROOT / "leveret" / package, IMPORT_ROOT)
        for name in ("leveret", "leveret/queues", "leveret/queues/log"):
            archive.writestr(f"{name}/__init__.py", "")
        pamqp = importlib.util.find_spec("pamqp")
        if pamqp is not None and pamqp.origin is not None:
            folder = Path(pamqp.origin).parent
            _add(archive, folder, folder.parent)
    return path


def _add(archive: zipfile.ZipFile, folder: Path, root: Path) -> None:
    for path in sorted(folder.glob("*.py")):
        archive.write(path, str(path.relative_to(root)))
