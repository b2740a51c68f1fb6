"""One Spark session's share of the measuring: `python -m benchmarks.spark.job …`, JSON comes out.

A process of its own per number of cores, because a JVM has one session's settings for life. Every
way of every table runs once to warm up and then in turns, so that whatever else the machine does
falls on all of them.
"""

import argparse
import json
import sys
import time
from pathlib import Path

from benchmarks.spark.ways import TupleSource, remove, written_by
from spark_sink.session import session


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("data_dir", type=Path)
    parser.add_argument("scratch", type=Path)
    parser.add_argument("--cores", type=int, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--tables", required=True)
    parser.add_argument("--ways", required=True)
    given = parser.parse_args()
    found: dict[str, dict[str, list[float]]] = {}
    with session("benchmark", f"local[{given.cores}]") as spark:
        spark.dataSource.register(TupleSource)
        for table in given.tables.split(","):
            counts: set[int] = set()
            rates: dict[str, list[float]] = {way: [] for way in given.ways.split(",")}
            for number in range(given.rounds + 1):
                for way in rates if number % 2 else reversed(rates):
                    out = given.scratch / f"{table}-{way}"
                    remove(out)
                    began = time.monotonic()
                    count = written_by(way, spark, given.data_dir, table, out)
                    taken = time.monotonic() - began
                    remove(out)
                    counts.add(count)
                    if number:
                        rates[way].append(count / taken)
            if len(counts) != 1:
                print(f"{table}: the ways wrote different numbers of rows: {counts}")
                return 1
            found[table] = rates | {"rows": [float(counts.pop())]}
    json.dump(found, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
