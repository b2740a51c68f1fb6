"""R-35: keys and patterns made to be slow: topic bindings and regular expressions from clients.

Each match is measured in CPU time, the first time, without caches, as a broker meets it. Patterns
that are bound or stored are also used, while a canary waits for its answers.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import re2

from leveret.bindings import Binding, Destination, DestinationKind, TopicMatcher
from leveret.broker.access.patterns import check_pattern, expand, pattern
from leveret.exchange import Exchange, ExchangeSpec
from leveret.model.errors import PreconditionFailed
from tests.torture.outcome import Outcome, Progress, silent
from tests.torture.security.patterns_in_use import PatternUse, use_patterns

MILLISECONDS = 5.0
EXPENSIVE_PATTERNS = (
    "(a+)+$", "(a|a)*$", "(a|aa)+$", "(.*a){20}", "^(([a-z])+.)+[A-Z]([a-z])+$", "(x+x+)+y",
    "([a-zA-Z]+)*$", "(.*)*$", ".*.*.*.*.*.*.*=$", "(a?){200}a{200}", "((a{1,30}){1,30})$",
    "(.*)" * 1000,
    # Linear but large: many states, or many active states.
    r"(\pL\pN?){300}$", r"(\pL\pN?\pL?){200}$", r"(\pL?){400}$", r"(?i)(\pL?){100}$",
    r"(\PL?\pL?){100}$", r"\pL" * 1_000, r"(?i)[\pL\pN]" * 8, r"^[\pL\pN_.-]+$",
    "(?i)" + "[a-€]" * 500, "(.?){1000}$", "(a?){1000}$", "(a?){650}b$", "(?:b?){0,986}$",
    r"(?i)(?:\B?){0,493}[^a]$",
    r"(?:\B+){677}c$", "((a?b?){30}){30}c$", "(a|b|ab|ba|aab|bba){1,300}$", "(?:a?b??){0,306}c$",
    "|".join("a" * number + "b" for number in range(1, 80)) + "|(?:a??){0,300}c$",
    "|".join(f"[^{letter}]{{30}}x" for letter in "bcdefgh"),
    "|".join(f"[{letter}a]a?{letter}" for letter in "bcdefghijklmnopqrstuvw" * 9),
)  # fmt: skip
TEXT = "a" * 254 + "!"
TEXTS = (
    TEXT, "ä" * 127, "ab1" * 85, "€" * 85, "ab1é€" * 28, "a.b-C_9é" * 28,
    "".join(random.Random(1).choices("ab", k=255)),
)  # fmt: skip
WORST_KEYS = (".".join("a" * 128), ".".join("aaab" * 32), ".".join(map(chr, range(48, 176)))[:180])


async def match_slow_patterns(
    directory: Path, patterns: int, seed: int, progress: Progress = silent
) -> Outcome:
    source = random.Random(seed)
    slowest, bound = 0.0, 0
    for number, family in enumerate(FAMILIES):
        took, taken = _slowest_topic(family(source), patterns)
        slowest, bound = max(slowest, took), max(bound, taken)
        progress(number + 1, len(FAMILIES))
    slowest_expression = max(
        _cold_milliseconds(text, name) for text in EXPENSIVE_PATTERNS for name in TEXTS
    )
    use = await use_patterns(directory, EXPENSIVE_PATTERNS, TEXT.replace("!", "-"))
    problems = use.problems + wrongly_accepted()
    late = use.late(MILLISECONDS)
    if max(slowest, slowest_expression) > MILLISECONDS:
        late.append(f"{max(slowest, slowest_expression):.1f} ms for one match")
    figures = _figures(patterns, bound, slowest, slowest_expression, use)
    return Outcome("R-35", "slow patterns", figures, tuple(problems), tuple(late))


def _figures(
    patterns: int, bound: int, slowest: float, slowest_expression: float, use: PatternUse
) -> str:
    return (
        f"{patterns} binding keys of each of {len(FAMILIES)} kinds, as slow as possible, bound "
        f"to one exchange, which accepts {bound} of a kind at most: {slowest:.1f} ms for the first "
        f"match of a key of 255 bytes; {len(EXPENSIVE_PATTERNS)} expressions, compiled and "
        f"searched for the first time: {slowest_expression:.1f} ms; {use}; a third # is refused"
    )


# Topics ------------------------------------------------------------------------------------------


def _words(source: random.Random, hashes: int) -> str:
    """Matches nearly all of a key of one repeated word, and fails as late as possible."""
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
    """Letters of the key behind each `#`, and other letters behind the second."""
    while True:
        first, second = (chr(source.randrange(48, 176)) for _ in range(2))
        yield f"#.{first}.{source.choice(('*.', ''))}#.{second}.{source.choice(('*', 'a'))}.!"


FAMILIES = (_endless(2), _endless(1), _endless(0), _letters)


def _slowest_topic(keys: Iterator[str], count: int) -> tuple[float, int]:
    """Milliseconds of the first match of the worst key, and the number of accepted bindings."""
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
    """Milliseconds from the request that stores a pattern to its first match."""
    re2.purge()
    pattern.cache_clear()
    began = time.thread_time()
    try:
        check_pattern(text)
        pattern(text).search(name)
    except PreconditionFailed:
        pass  # a quick refusal is fine
    return (time.thread_time() - began) * 1000


def wrongly_accepted() -> list[str]:
    """Patterns that should have been refused and were not."""
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
    ):  # needs a backtracking engine
        try:
            check_pattern(text)
            problems.append(f"the expression {text} was accepted")
        except PreconditionFailed:
            pass
    if pattern(expand("^{username}$", username="a.*(b")).search("aXX(b"):
        problems.append("a name became a pattern")
    return problems
