"""R-35: keys and patterns made to take long: topic bindings, and every regular expression from
outside.

One match is judged in processor time, the first time it is made, with nothing remembered: that is
how it meets a broker. What is bound or stored is used, too, while a canary waits for its answers.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import re2

from bindings import Binding, Destination, DestinationKind, TopicMatcher
from exchange import Exchange, ExchangeSpec
from leveret.broker.access.patterns import check_pattern, expand, pattern
from leveret.model.errors import PreconditionFailed
from tests.torture.outcome import Outcome, Progress, silent
from tests.torture.security.patterns_in_use import Use, use_patterns

MILLISECONDS = 5.0
BOMBS = (
    "(a+)+$", "(a|a)*$", "(a|aa)+$", "(.*a){20}", "^(([a-z])+.)+[A-Z]([a-z])+$", "(x+x+)+y",
    "([a-zA-Z]+)*$", "(.*)*$", ".*.*.*.*.*.*.*=$", "(a?){200}a{200}", "((a{1,30}){1,30})$",
    "(.*)" * 1000,
    # Linear, and large: more states than there should be, or many to be in at a time.
    r"(\pL\pN?){300}$", r"(\pL\pN?\pL?){200}$", r"(\pL?){400}$", r"(?i)(\pL?){100}$",
    r"(\PL?\pL?){100}$", r"\pL" * 1_000, r"(?i)[\pL\pN]" * 8, r"^[\pL\pN_.-]+$",
    "(?i)" + "[a-€]" * 500, "(.?){1000}$", "(a?){1000}$", "(a?){650}b$", "(?:b?){0,986}$",
    r"(?i)(?:\B?){0,493}[^a]$",
    r"(?:\B+){677}c$", "((a?b?){30}){30}c$", "(a|b|ab|ba|aab|bba){1,300}$", "(?:a?b??){0,306}c$",
    "|".join("a" * number + "b" for number in range(1, 80)) + "|(?:a??){0,300}c$",
    "|".join(f"[^{letter}]{{30}}x" for letter in "bcdefgh"),
    "|".join(f"[{letter}a]a?{letter}" for letter in "bcdefghijklmnopqrstuvw" * 9),
)  # fmt: skip
HAYSTACK = "a" * 254 + "!"
HAYSTACKS = (
    HAYSTACK, "ä" * 127, "ab1" * 85, "€" * 85, "ab1é€" * 28, "a.b-C_9é" * 28,
    "".join(random.Random(1).choices("ab", k=255)),
)  # fmt: skip
WORST_KEYS = (".".join("a" * 128), ".".join("aaab" * 32), ".".join(map(chr, range(48, 176)))[:180])


async def match_slowly(
    directory: Path, patterns: int, seed: int, progress: Progress = silent
) -> Outcome:
    source = random.Random(seed)
    slowest, bound = 0.0, 0
    for number, family in enumerate(FAMILIES):
        took, taken = _slowest_topic(family(source), patterns)
        slowest, bound = max(slowest, took), max(bound, taken)
        progress(number + 1, len(FAMILIES))
    bomb = max(_cold_milliseconds(text, name) for text in BOMBS for name in HAYSTACKS)
    use = await use_patterns(directory, BOMBS, HAYSTACK.replace("!", "-"))
    problems = use.problems + taken_in_spite()
    late = use.late(MILLISECONDS)
    if max(slowest, bomb) > MILLISECONDS:
        late.append(f"{max(slowest, bomb):.1f} ms for one match")
    figures = _figures(patterns, bound, slowest, bomb, use)
    return Outcome("R-35", "patterns that take long", figures, tuple(problems), tuple(late))


def _figures(patterns: int, bound: int, slowest: float, bomb: float, use: Use) -> str:
    return (
        f"{patterns} binding keys of each of {len(FAMILIES)} kinds, as bad as they can be, offered "
        f"to one exchange, which takes {bound} of a kind at most: {slowest:.1f} ms for the first "
        f"match of a key of 255 octets; {len(BOMBS)} expressions, read and searched for the first "
        f"time: {bomb:.1f} ms; {use}; a third # is refused"
    )


# Topics ------------------------------------------------------------------------------------------


def _words(source: random.Random, hashes: int) -> str:
    """Fits a key of one word nearly everywhere, as late as possible not."""
    words = [source.choice("a*") for _ in range(126 - hashes)]
    for _ in range(hashes):
        words.insert(source.randrange(40), "#")
    return ".".join([*words, "b"])


def _endless(hashes: int) -> Callable[[random.Random], Iterator[str]]:
    def keys(source: random.Random) -> Iterator[str]:
        while True:
            yield _words(source, hashes)

    return keys


def _letters(source: random.Random) -> Iterator[str]:
    """All words of the key behind each `#`, and something else behind the second."""
    while True:
        one, two = (chr(source.randrange(48, 176)) for _ in range(2))
        yield f"#.{one}.{source.choice(('*.', ''))}#.{two}.{source.choice(('*', 'a'))}.!"


FAMILIES = (_endless(2), _endless(1), _endless(0), _letters)


def _slowest_topic(keys: Iterator[str], count: int) -> tuple[float, int]:
    """Milliseconds for the first match of the worst key, and how many bindings were taken."""
    exchange = Exchange(ExchangeSpec("x", "topic"))
    for number in range(count):
        try:
            exchange.bind(_binding(next(keys), f"q{number}"))
        except PreconditionFailed:
            continue
    slowest = 0.0
    for key in WORST_KEYS:
        began = time.thread_time()
        exchange.matcher.match(key, {})
        slowest = max(slowest, time.thread_time() - began)
    return slowest * 1000, len(exchange.bindings)


def _binding(key: str, queue: str = "q") -> Binding:
    return Binding.of("x", Destination(DestinationKind.QUEUE, queue), key, {})


# Expressions -------------------------------------------------------------------------------------


def _cold_milliseconds(text: str, name: str) -> float:
    """From the request that stores a pattern to the first name it is asked about."""
    re2.purge()
    pattern.cache_clear()
    began = time.thread_time()
    try:
        check_pattern(text)
        pattern(text).search(name)
    except PreconditionFailed:
        pass  # as good, if it is quick
    return (time.thread_time() - began) * 1000


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
