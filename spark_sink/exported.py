"""Reading an export back into Spark, typed, whatever its format."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from spark_sink.errors import SourceError
from spark_sink.manifest import Manifest, load_manifest
from spark_sink.schemas import spark_ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read_export(spark: SparkSession, directory: str | Path, table: str) -> DataFrame:
    """A table of an export, with the columns of the data source and `date` and `batch`.

    Partition columns are texts (a queue may be called 123), and names that were too long for a
    directory are whole again. CSV keeps bodies as base64, maps and lists as JSON.
    """
    from pyspark.sql import functions as f

    state = require_export(Path(directory)).tables.get(table)
    if state is None:
        raise SourceError(
            f"{directory} has no table {table!r}: export it with `--table {table}` first."
        )
    ddl = spark_ddl(table) + ", `batch` string"
    if table != "queues":
        ddl += ", `date` string"
    if state.format == "csv":
        for kind in ("map<string,string>", "array<string>", "binary"):
            ddl = ddl.replace(f" {kind}", " string")
    reader = spark.read.schema(ddl)
    if state.format == "csv":
        reader = reader.option("header", "true").option("escape", '"')
    frame = reader.format(state.format).load(str(Path(directory) / table))
    if state.long_names:
        name = "log" if table == "logs" else "queue"
        pairs = chain.from_iterable(state.long_names.items())
        whole = f.create_map(*(f.lit(text) for text in pairs))
        frame = frame.withColumn(name, f.coalesce(whole[f.col(name)], f.col(name)))
    return frame


def require_export(directory: Path) -> Manifest:
    manifest = load_manifest(directory)
    if manifest is None:
        raise SourceError(
            f"There is no export in {directory}: run `leveret export --to {directory}` first."
        )
    return manifest
