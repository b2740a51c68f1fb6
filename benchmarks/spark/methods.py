"""Three methods to write a data directory's tables to Parquet; each returns the number of rows.

`source`: Leveret's data source, which reads Arrow batches. `tuples`: a Python data source with the
same columns and splits that yields row tuples. `plain`: sqlite3 and pyarrow, without Spark.
"""

import shutil
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from benchmarks.spark.rows import Row, rows
from leveret.spark_sink.arrow.local import LocalSource
from leveret.spark_sink.arrow.schemas import arrow_schema, spark_ddl
from leveret.spark_sink.arrow.selection import Request, Selection, Split

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITION_ROWS = 50_000
_FETCH_ROWS = 10_000


def by_source(spark: "SparkSession", data_dir: Path, table: str, out: Path) -> int:
    reader = spark.read.format("leveret").option("table", table)
    return _write(reader.options(**_source_options(data_dir)).load(), out)


def by_tuples(spark: "SparkSession", data_dir: Path, table: str, out: Path) -> int:
    reader = spark.read.format(TupleSource.name()).option("table", table)
    return _write(reader.options(**_source_options(data_dir)).load(), out)


def by_pyarrow(data_dir: Path, table: str, out: Path) -> int:
    schema, count = arrow_schema(table), 0
    out.mkdir(parents=True)
    with pq.ParquetWriter(out / "part.parquet", schema, compression="snappy") as writer:
        for split in splits(data_dir, table):
            remaining = rows(data_dir, table, split)
            while chunk := list(islice(remaining, _FETCH_ROWS)):
                columns = [pa.array(values, field.type)
                           for values, field in zip(zip(*chunk, strict=True), schema,
                                                    strict=True)]  # fmt: skip
                writer.write_batch(pa.record_batch(columns, schema=schema))
                count += len(chunk)
    return count


METHODS = ("source", "tuples", "plain")


def write_with(method: str, spark: "SparkSession", data_dir: Path, table: str, out: Path) -> int:
    if method == "plain":
        return by_pyarrow(data_dir, table, out)
    return (by_source if method == "source" else by_tuples)(spark, data_dir, table, out)


def splits(data_dir: Path, table: str) -> list[Split]:
    """The splits of the data source, so that all methods divide the work alike."""
    parts: list[Split] = []
    with LocalSource(data_dir) as source:
        for key, span in source.ranges(Selection()).of(table).items():
            request = Request.of_range(table, key, span, (), Selection())
            parts += source.splits(request, PARTITION_ROWS)
    return parts


class TupleSource(DataSource):
    """A straightforward data source: `read` yields a tuple per row."""

    @classmethod
    def name(cls) -> str:
        return "leveret-tuples"

    def schema(self) -> str:
        return spark_ddl(self.options["table"])

    def reader(self, schema: StructType) -> DataSourceReader:
        return TupleReader(Path(self.options["data_dir"]), self.options["table"])


class TuplePartition(InputPartition):
    def __init__(self, split: Split) -> None:
        super().__init__(split)
        self.split = split


class TupleReader(DataSourceReader):
    def __init__(self, data_dir: Path, table: str) -> None:
        self._data_dir = data_dir
        self._table = table

    def partitions(self) -> Sequence[InputPartition]:
        return [TuplePartition(split) for split in splits(self._data_dir, self._table)]

    def read(self, partition: InputPartition) -> Iterator[Row]:
        assert isinstance(partition, TuplePartition)
        return rows(self._data_dir, self._table, partition.split)


def _source_options(data_dir: Path) -> dict[str, str]:
    return {"data_dir": str(data_dir), "partition_rows": str(PARTITION_ROWS)}


def _write(frame: "DataFrame", out: Path) -> int:
    frame.write.parquet(str(out))
    return sum(pq.read_metadata(path).num_rows for path in out.glob("*.parquet"))


def remove(out: Path) -> None:
    shutil.rmtree(out, ignore_errors=True)
