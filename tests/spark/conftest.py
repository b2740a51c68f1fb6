"""One Spark session for all tests of this folder: it takes longer to start than they take."""

from __future__ import annotations

import pytest

from spark_sink.session import start


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    warehouse = tmp_path_factory.mktemp("warehouse")
    session = start(
        "tests", "local[2]", {"spark.sql.warehouse.dir": str(warehouse),
                              "spark.sql.shuffle.partitions": "2"}
    )  # fmt: skip
    yield session
    session.stop()
