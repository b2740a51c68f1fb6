"""R-35: keys and patterns made to take long: topic bindings, and every regular expression from
outside.

Judged in processor time, the least of three tries, because a busy machine is no slow pattern.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import httpx

from bindings import Binding, Destination, DestinationKind, TopicMatcher
from leveret.broker.access.patterns import check_pattern, expand, pattern
from leveret.model.errors import PreconditionFailed
from tests.torture.outcome import Outcome, Progress, silent
from tests.torture.process import BrokerProcess
from tests.torture.security.raw import log_in_seconds

MILLISECONDS = 5.0
BOMBS = (
    "(a+)+$", "(a|a)*$", "(a|aa)+$", "(.*a){20}", "^(([a-z])+.)+[A-Z]([a-z])+$", "(x+x+)+y",
    "([a-zA-Z]+)*$", "(.*)*$", ".*.*.*.*.*.*.*=$", "(a?){200}a{200}", "((a{1,30}){1,30})$",
    "(.*)" * 1000,
)  # fmt: skip
HAYSTACK = "a" * 254 + "!"


async def match_slowly(
    directory: Path, patterns: int, seed: int, progress: Progress = silent
) -> Outcome:
    source = random.Random(seed)
    slowest = _slowest_topic(source, patterns, progress)
    bomb = max(_milliseconds(_matches, text) for text in BOMBS)
    asked, problems = await _over_http(directory)
    problems += taken_in_spite()
    late = []
    if max(slowest, bomb) > MILLISECONDS:
        late.append(f"{max(slowest, bomb):.1f} ms for one match")
    figures = (
        f"{patterns} binding keys with two # against keys of 255 octets: {slowest:.1f} ms at most; "
        f"{len(BOMBS)} exponential expressions: {bomb:.1f} ms at most, and as filter, policy and "
        f"permission over HTTP ({asked} requests) they keep nobody waiting; a third # is refused"
    )
    return Outcome("R-35", "patterns that take long", figures, tuple(problems), tuple(late))


def _binding(key: str) -> Binding:
    return Binding.of("x", Destination(DestinationKind.QUEUE, "q"), key, {})


def _milliseconds(call: Callable[[str], object], text: str) -> float:
    best = float("inf")
    for _ in range(3):
        began = time.thread_time()
        call(text)
        best = min(best, time.thread_time() - began)
    return best * 1000


def _matches(text: str) -> bool:
    try:
        return pattern(text).search(HAYSTACK) is not None
    except Exception:  # noqa: BLE001 - refused as too large is as good
        return False


def _slowest_topic(source: random.Random, patterns: int, progress: Progress) -> float:
    """Of many patterns, each against a key that fits it nearly everywhere."""
    slowest, key = 0.0, ".".join("a" * 128)
    for number in range(patterns):
        words = [source.choice(("a", "*")) for _ in range(source.randrange(1, 120))]
        for _ in range(2):
            words.insert(source.randrange(len(words) + 1), "#")
        words += source.choice(([], ["b"]))
        matcher = TopicMatcher()
        matcher.add(_binding(".".join(words)))
        slowest = max(slowest, _milliseconds(partial(matcher.match, headers={}), key))
        progress(number + 1, patterns)
    return slowest


def taken_in_spite() -> list[str]:
    """What should have been refused and was not."""
    problems = []
    for key in ("#.a.#.a.#", "#.#.#"):
        try:
            TopicMatcher().add(_binding(key))
            problems.append(f"{key} was bound")
        except PreconditionFailed:
            pass
    for text in (
        "(",
        "(?=a)",
        r"(a)\1",
        "[z-a]",
    ):  # what a backtracking engine would be needed for
        try:
            check_pattern(text)
            problems.append(f"the expression {text} was taken")
        except PreconditionFailed:
            pass
    if pattern(expand("^{username}$", username="a.*(b")).search("aXX(b"):
        problems.append("a name became a pattern")
    return problems


async def _over_http(directory: Path) -> tuple[int, list[str]]:
    """Each bomb as a filter, a policy and a permission; names that are worst for them exist."""
    broker = BrokerProcess(
        directory, "--memory", "--http-port", "0", env={"LEVERET_HTTP_ENABLED": "true"}
    )
    await broker.start()
    problems, asked = list[str](), 0
    async with httpx.AsyncClient(
        base_url=f"http://{broker.http}", auth=("guest", "guest"), timeout=600, verify=False
    ) as api:
        await api.put(f"/api/queues/%2F/{'a' * 254}%21", json={})
        await api.put("/api/users/bomber", json={"password": "x", "tags": ""})
        for text in BOMBS:
            rights = {"configure": text, "write": text, "read": text}
            policy = {"pattern": text, "definition": {"max-length": 1}}
            query: dict[str, str | int] = {"page": 1, "use_regex": "true", "name": text}
            answers = [
                await api.get("/api/queues", params=query),
                await api.put("/api/policies/%2F/bomb", json=policy),
                await api.put("/api/permissions/%2F/bomber", json=rights),
            ]
            asked += len(answers)
            problems += [f"{text}: {one.status_code}" for one in answers if one.status_code >= 500]
            if await log_in_seconds(broker.address) == float("inf"):
                problems.append(f"{text} kept a client out")
    await broker.stop()
    return asked, problems
