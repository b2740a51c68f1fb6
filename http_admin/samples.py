"""RabbitMQ's query parameters `*_age` and `*_incr`: which samples a response includes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Query

MAX_AGE_SECONDS = 8 * 3600


@dataclass(frozen=True, slots=True)
class SampleRange:
    """Samples of the last `age` seconds, one for every `step` seconds."""

    age: int
    step: int


async def sample_range(
    lengths_age: Annotated[int | None, Query(ge=1)] = None,
    lengths_incr: Annotated[int | None, Query(ge=1)] = None,
    msg_rates_age: Annotated[int | None, Query(ge=1)] = None,
    msg_rates_incr: Annotated[int | None, Query(ge=1)] = None,
) -> SampleRange | None:
    age, step = msg_rates_age or lengths_age, msg_rates_incr or lengths_incr
    return SampleRange(min(age, MAX_AGE_SECONDS), step) if age and step else None


Samples = Annotated[SampleRange | None, Depends(sample_range)]
