"""A Spark session for the export and the report: small, quiet, and ready for the data source.

Everything that can be wrong with the machine is said here in one sentence before Spark starts:
no PySpark, no Java, a master that is no master or does not answer.
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

from spark_sink.errors import SourceError
from spark_sink.java import ensure_java
from spark_sink.workers import ROOT, prepare_workers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Result = TypeVar("Result")
_LOCAL = re.compile(r"local(\[(\d+|\*)(,\s*\d+)?\])?")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\d+,\s*\d+,\s*\d+\]")
_STANDALONE = re.compile(r"spark://[^/]+:\d+")
_OTHER = re.compile(r"(yarn|k8s://.+)")
_ANSWER_SECONDS = 5.0
NICENESS = 19
_MOST_NICE = 19
_NO_START = "Spark did not start ({}): see what it says with LEVERET_SPARK_LOG=warn."
_SHIPPED = ("spark_sink", "leveret/model", "queues/log", "queues/storage")
_LOGGING = Path(__file__).resolve().with_name("log4j2.properties")

SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.session.timeZone": "UTC",
    # Spark's default is INT96, which other readers take for times without a zone.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    "spark.sql.maxConcurrentOutputFileWriters": "64",
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile=file:{_LOGGING}",
}


def check_master(master: str) -> None:
    """Raise SourceError when `master` cannot be one, or nobody answers there."""
    if _LOCAL.fullmatch(master) or _LOCAL_CLUSTER.fullmatch(master) or _OTHER.fullmatch(master):
        return
    if not _STANDALONE.fullmatch(master.split(",")[0]):
        raise SourceError(
            f"{master!r} is no Spark master: use local[*], local-cluster[2,1,1024], "
            "spark://host:7077, yarn or k8s://…."
        )
    places = [place.rpartition(":") for place in master.removeprefix("spark://").split(",")]
    if not any(_answers(host, int(port)) for host, _, port in places):
        raise SourceError(
            f"No Spark master answers at {master}: start it, or use --master 'local[*]'."
        )


def _answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=_ANSWER_SECONDS).close()
    except OSError:
        return False
    return True


@contextmanager
def session(
    name: str, master: str, settings: dict[str, str] | None = None
) -> Iterator[SparkSession]:
    """A session that knows the data source; stopped at the end, whatever happened.

    Its processes give way to others: what reads stored data can wait, a broker on the same machine
    cannot.
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

    import spark_sink

    builder = SparkSession.builder.appName(name).master(master)
    for key, value in (SETTINGS | _network(master) | (settings or {})).items():
        builder = builder.config(key, value)
    try:
        spark = _as_a_nice_thread(builder.getOrCreate, niceness)
    except PySparkException as error:
        raise SourceError(_NO_START.format(str(error).splitlines()[0])) from None
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    if not _LOCAL.fullmatch(master):
        spark.sparkContext.addPyFile(str(_shipped()))
    spark_sink.register(spark)
    return spark


def _niceness() -> int:
    given = os.environ.get("LEVERET_SPARK_NICE", str(NICENESS))
    if not given.isdecimal() or int(given) > _MOST_NICE:
        raise SourceError(f"LEVERET_SPARK_NICE is a number from 0 to {_MOST_NICE}, not {given!r}.")
    return int(given)


def lower_own_session(niceness: int) -> None:
    """Where Linux weighs whole sessions (autogroups), the niceness of a process says nothing to
    others. A session that is this program's alone, as cron's or a service's, is lowered, too."""
    if niceness and os.getsid(0) == os.getpid():
        with suppress(OSError):
            Path("/proc/self/autogroup").write_text(str(niceness))


def _as_a_nice_thread(work: Callable[[], Result], niceness: int) -> Result:
    """Linux counts niceness by thread: the JVM inherits it from the thread that starts it."""
    if not niceness:
        return work()

    def lower() -> None:
        with suppress(OSError):
            os.nice(niceness)

    with ThreadPoolExecutor(1, initializer=lower) as pool:
        return pool.submit(work).result()


def _network(master: str) -> dict[str, str]:
    """On one machine nothing needs to listen beyond loopback."""
    if not master.startswith("local"):
        return {}
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    return {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}


def _shipped() -> Path:
    """What executors need of Leveret, as an archive that Spark hands to them."""
    path = Path(tempfile.mkdtemp(prefix="leveret-")) / "leveret-spark.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for package in _SHIPPED:
            _add(archive, ROOT / package, ROOT)
        for name in ("leveret", "queues"):
            archive.writestr(f"{name}/__init__.py", "")
        found = importlib.util.find_spec("pamqp")
        if found is not None and found.origin is not None:
            folder = Path(found.origin).parent
            _add(archive, folder, folder.parent)
    return path


def _add(archive: zipfile.ZipFile, folder: Path, root: Path) -> None:
    for path in sorted(folder.glob("*.py")):
        archive.write(path, str(path.relative_to(root)))
