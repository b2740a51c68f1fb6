"""One Spark session for all tests of this folder, because starting one takes long."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from leveret.spark_sink.session import SETTINGS, start
from tests.spark.generator import FakeBroker

# For so few rows compiling costs more than running: use the quick compiler, generate no code.
QUICK = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.driver.extraJavaOptions": (
        SETTINGS["spark.driver.extraJavaOptions"] + " -XX:TieredStopAtLevel=1"
    ),
}


AUTOLOAD = Path(__file__).parents[2] / "spark_sink" / "autoload"


@pytest.fixture
def broker(tmp_path):
    """An empty history for the test to fill."""
    broker = FakeBroker(tmp_path / "data")
    yield broker
    broker.close()


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    # As in an installed wheel: Spark looks for `pyspark_*` modules on the workers' path.
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(AUTOLOAD), os.environ.get("PYTHONPATH")])
    )
    warehouse = {"spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse"))}
    session = start("tests", "local[2]", QUICK | warehouse)
    yield session
    session.stop()
