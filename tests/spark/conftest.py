"""One Spark session for all tests of this folder: it takes longer to start than they take."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spark_sink.session import SETTINGS, start
from tests.spark.generator import FakeBroker

# Compiling costs more than these few rows do: the quick compiler, and no generated code.
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
    """A history that a test fills by itself; those that share a filled one have their own."""
    broker = FakeBroker(tmp_path / "data")
    yield broker
    broker.close()


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    # As if the wheel were installed: Spark looks for `pyspark_*` modules in the workers' path.
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(AUTOLOAD), os.environ.get("PYTHONPATH")])
    )
    warehouse = {"spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse"))}
    session = start("tests", "local[2]", QUICK | warehouse)
    yield session
    session.stop()
