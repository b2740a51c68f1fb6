"""The measurements in one Spark session: `python -m benchmarks.spark.job …`, which prints JSON.

Each number of cores needs its own process, because the settings of a JVM's session cannot change.
Every method runs once per table to warm up, and then the methods alternate, so that other activity
of the machine affects all of them.
"""

import argparse
import json
import sys
import time
from pathlib import Path

from benchmarks.spark.methods import TupleSource, remove, write_with
from leveret.spark_sink.session import session


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("data_dir", type=Path)
    parser.add_argument("scratch", type=Path)
    parser.add_argument("--cores", type=int, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--tables", required=True)
    parser.add_argument("--methods", required=True)
    options = parser.parse_args()
    results: dict[str, dict[str, list[float]]] = {}
    with session("benchmark", f"local[{options.cores}]") as spark:
        spark.dataSource.register(TupleSource)
        for table in options.tables.split(","):
            counts: set[int] = set()
            rates: dict[str, list[float]] = {method: [] for method in options.methods.split(",")}
            for number in range(options.rounds + 1):
                for method in rates if number % 2 else reversed(rates):
                    out = options.scratch / f"{table}-{method}"
                    remove(out)
                    began = time.monotonic()
                    count = write_with(method, spark, options.data_dir, table, out)
                    elapsed = time.monotonic() - began
                    remove(out)
                    counts.add(count)
                    if number:
                        rates[method].append(count / elapsed)
            if len(counts) != 1:
                print(f"{table}: the methods wrote different numbers of rows: {counts}")
                return 1
            results[table] = rates | {"rows": [float(counts.pop())]}
    json.dump(results, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
