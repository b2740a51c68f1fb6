"""Benchmarks of the road into Spark: tables to Parquet, and an export beside a busy broker."""
