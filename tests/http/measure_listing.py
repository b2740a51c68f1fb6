"""Measures listing many queues: `python -m tests.http.measure_listing [queues]`.

Prints the median and the slowest of twenty requests per query. Every page should take less than
300 ms.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time

import httpx

import leveret
from leveret.queues.spec import QueueSpec

QUERIES = (
    "page=1",
    "page=10&page_size=500",
    "page=1&name=7",
    "page=1&use_regex=true&name=q-.*9$",
    "page=1&sort=messages&sort_reverse=true",
    "page=1&sort=message_stats.publish_details.rate&sort_reverse=true",
    "page=1&sort=message_bytes",
    "columns=name,vhost,messages",
    "",
)
REPEATS = 20


async def main(count: int) -> None:
    settings = leveret.in_process_settings(http_enabled=True)
    async with leveret.Broker(settings) as running:
        await running.http_ready()
        vhost = running.broker.vhosts["/"]
        for number in range(count):
            vhost.declare_queue(QueueSpec(f"q-{number}", True, False, False, {}))
        running.broker.metrics.sample()
        async with httpx.AsyncClient(base_url=running.http_url, auth=("guest", "guest")) as client:
            for query in QUERIES:
                await _measure(client, f"/api/queues?{query}")
            await _measure(client, "/metrics")
            await _measure(client, "/metrics/per-object")
            await _measure(client, "/api/overview")


async def _measure(client: httpx.AsyncClient, path: str) -> None:
    took, size = [], 0
    for _ in range(REPEATS):
        started = time.perf_counter()
        answer = await client.get(path)
        took.append((time.perf_counter() - started) * 1000)
        answer.raise_for_status()
        size = len(answer.content)
    print(f"{statistics.median(took):7.1f} ms  {max(took):7.1f} ms  {size:9d} bytes  {path}")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 5_000))
