"""Reads an export back into Spark with the right types, whatever its format."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from leveret.spark_sink.arrow.schemas import CSV_TEXT_TYPES, schema_of, spark_ddl
from leveret.spark_sink.errors import SourceError
from leveret.spark_sink.manifest import Manifest, load_manifest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read_export(spark: SparkSession, directory: str | Path, table: str) -> DataFrame:
    """A table of an export, with the columns of the data source and `date` and `batch`.

    Partition columns are strings (a queue may be named 123), and names that were too long for a
    directory are restored. In CSV, bodies are base64 and maps and lists are JSON.
    """
    from pyspark.sql import functions as f

    state = require_export(Path(directory)).tables.get(table)
    if state is None:
        raise SourceError(
            f"{directory} has no table {table!r}: export it with `--table {table}` first."
        )
    ddl = spark_ddl(table) + ", `batch` string"
    partition_columns = schema_of(table).partition_columns
    if "date" in partition_columns:
        ddl += ", `date` string"
    if state.format == "csv":
        for kind in CSV_TEXT_TYPES:
            ddl = ddl.replace(f" {kind}", " string")
    reader = spark.read.schema(ddl)
    if state.format == "csv":
        reader = reader.option("header", "true").option("escape", '"')
    frame = reader.format(state.format).load(str(Path(directory) / table))
    if state.long_names:
        name = "log" if "log" in partition_columns else "queue"
        pairs = chain.from_iterable(state.long_names.items())
        full_names = f.create_map(*(f.lit(text) for text in pairs))
        frame = frame.withColumn(name, f.coalesce(full_names[f.col(name)], f.col(name)))
    return frame


def require_export(directory: Path) -> Manifest:
    manifest = load_manifest(directory)
    if manifest is None:
        raise SourceError(
            f"There is no export in {directory}: run `leveret export --to {directory}` first."
        )
    return manifest
