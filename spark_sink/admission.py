"""How many rows of each partition a streaming batch admits: the option `max_rows`.

Partitions advance together, each in proportion to its backlog, as with Kafka's
`maxOffsetsPerTrigger`. If they were read one after the other, the first would carry the watermark
of a stream to its end, and Spark would drop the records of all others as late.
"""

from __future__ import annotations

from collections.abc import Mapping


def admit(backlogs: Mapping[str, int], max_rows: int) -> dict[str, int]:
    """The rows to admit by partition: at most `max_rows` in all, and at most each backlog.

    Every partition with a backlog gets one row, and what is left is shared in proportion to the
    rest of the backlogs. If there are more such partitions than rows, those with the largest
    backlogs get one row each. Equal arguments give equal results, in whatever order they come.
    """
    waiting = {key: backlog for key, backlog in backlogs.items() if backlog > 0}
    by_size = sorted(waiting, key=lambda key: (-waiting[key], key))
    if max_rows <= len(waiting):
        return dict.fromkeys(by_size[: max(max_rows, 0)], 1)
    rest = sum(waiting.values()) - len(waiting)
    spare = min(max_rows - len(waiting), rest)
    if not spare:
        return dict.fromkeys(by_size, 1)
    products = {key: spare * (waiting[key] - 1) for key in by_size}
    admitted = {key: 1 + product // rest for key, product in products.items()}
    rounded_off = spare + len(waiting) - sum(admitted.values())
    # The rows lost by rounding go to the partitions that lost the largest part of a row.
    for key in sorted(by_size, key=lambda key: -(products[key] % rest))[:rounded_off]:
        admitted[key] += 1
    return admitted
