"""Topic matching: a trie of words, so that a publish costs its key's words, not the bindings.

`*` is exactly one word (an empty word counts), `#` is any number of words, none included. The
empty key has no words: `#` matches it and `*` does not. At most two `#` words in a binding key.

A place in the trie is visited once in a match at most. Below a `#` it is visited for all places in
the key at a time: they are the bits of a number. How many places one match can visit is known from
the shapes of the binding keys, so that an exchange can refuse what would make matching slow.
"""

from __future__ import annotations

from collections.abc import Collection

from bindings.binding import Binding, Destination
from leveret.model.errors import PreconditionFailed
from leveret.model.tables import Table

MAX_HASH_WORDS = 2
MOST_WORDS = 128  # of a key of 255 octets
MOST_STEPS = 8_000  # some milliseconds; binding keys that people write make hundreds
_WAYS = (1, MOST_WORDS, MOST_WORDS * MOST_WORDS // 2)
"""To lay words beside a key when so many `#` stand before them."""


class _Shape:
    """What binding keys have in common that differ in words only, not in where wildcards are.

    Words fit a key in one way for each way to lay them beside it, so of all the places in the trie
    that have this shape a match visits at most `ways`.
    """

    __slots__ = ("hashes", "nodes", "shapes", "ways")

    def __init__(self, hashes: int, ways: int) -> None:
        self.hashes = hashes
        self.ways = ways
        self.nodes = 0
        self.shapes: dict[str, _Shape] = {}

    def below(self, word: str) -> _Shape:
        kind = word if word in ("*", "#") else ""
        shape = self.shapes.get(kind)
        if shape is None:
            if word == "#":
                shape = _Shape(self.hashes + 1, self.ways)
            else:
                shape = _Shape(self.hashes, _WAYS[self.hashes])
            self.shapes[kind] = shape
        return shape


class _Node:
    __slots__ = ("bindings", "children", "shape")

    def __init__(self, shape: _Shape) -> None:
        self.children: dict[str, _Node] = {}
        self.bindings: dict[Binding, None] = {}
        self.shape = shape


def split_words(key: str) -> list[str]:
    return key.split(".") if key else []


class TopicMatcher:
    """`steps`: so many places in the trie the worst key makes a match visit."""

    depends_on_key_alone = True
    ignores_key = False
    most_steps = MOST_STEPS
    slow_by = "binding keys with wildcards in too many different places"

    def __init__(self) -> None:
        self._root = _Node(_Shape(0, 1))
        self.steps = self.looked = 0

    def add(self, binding: Binding) -> None:
        words = split_words(binding.routing_key)
        if words.count("#") > MAX_HASH_WORDS:
            raise PreconditionFailed(
                f"binding key {binding.routing_key!r} has more than {MAX_HASH_WORDS} '#' words"
            )
        node = self._root
        for word in words:
            node = node.children.get(word) or self._grow(node, word)
        node.bindings[binding] = None

    def _grow(self, parent: _Node, word: str) -> _Node:
        shape = parent.shape.below(word)
        self.steps += shape.nodes < shape.ways
        shape.nodes += 1
        node = parent.children[word] = _Node(shape)
        return node

    def remove(self, binding: Binding) -> None:
        path = [self._root]
        words = split_words(binding.routing_key)
        for word in words:
            path.append(path[-1].children[word])
        del path[-1].bindings[binding]
        for parent, word, node in zip(path[-2::-1], reversed(words), path[:0:-1], strict=True):
            if node.bindings or node.children:
                break
            self._cut(parent, word)

    def _cut(self, parent: _Node, word: str) -> None:
        shape = parent.children.pop(word).shape
        shape.nodes -= 1
        self.steps -= shape.nodes < shape.ways
        if not shape.nodes:
            del parent.shape.shapes[word if word in ("*", "#") else ""]

    def match(self, routing_key: str, headers: Table) -> Collection[Destination]:
        return [
            binding.destination for node in self._nodes(routing_key) for binding in node.bindings
        ]

    def explain(self, routing_key: str, headers: Table) -> list[Binding]:
        return [binding for node in self._nodes(routing_key) for binding in node.bindings]

    def _nodes(self, routing_key: str) -> list[_Node]:
        words = split_words(routing_key)
        last = len(words)
        found: list[_Node] = []
        stack = [(self._root, 0)]
        behind: list[tuple[_Node, int]] = []
        looked = 0
        while stack:
            looked += 1
            node, index = stack.pop()
            if index == last and node.bindings:
                found.append(node)
            children = node.children
            if not children:
                continue
            if index < last:
                # A '*' or '#' in a published key is only a word; the wildcards are below.
                word = words[index]
                child = children.get(word)
                if child is not None and word != "#" and word != "*":
                    stack.append((child, index + 1))
                child = children.get("*")
                if child is not None:
                    stack.append((child, index + 1))
            child = children.get("#")
            if child is not None:
                behind.append((child, index))
        if behind:
            found += [node for node, _ in behind if node.bindings]
            looked += _follow([one for one in behind if one[0].children], words, found)
        self.looked = looked
        return found


def _follow(behind: list[tuple[_Node, int]], words: list[str], found: list[_Node]) -> int:
    """Go on below a `#`, from a word on or from any later one; how much was looked at.

    Bit n of `places` says that word n may be the next, bit `len(words)` that the key may be over.
    """
    if not behind:
        return 0
    looked = len(words)
    over = 1 << len(words)
    beyond = over << 1
    at = _places(words)
    stack = [(node, beyond - (1 << index)) for node, index in behind]
    while stack:
        node, places = stack.pop()
        children = node.children
        nexts = children if len(children) < 4 else _some(children, places, words)
        looked += 1 + len(nexts)
        for word in nexts:
            reached = (places & at.get(word, 0)) << 1
            if reached:
                child = children[word]
                if reached & over and child.bindings:
                    found.append(child)
                if child.children:
                    stack.append((child, reached))
        wild = children.get("#")
        if wild is not None:
            if wild.bindings:
                found.append(wild)
            if wild.children:
                stack.append((wild, beyond - (places & -places)))
    return looked


def _places(words: list[str]) -> dict[str, int]:
    """Where each word is, as bits. `*` is everywhere; a `#` in a published key is only a word."""
    at: dict[str, int] = {}
    for index, word in enumerate(words):
        at[word] = at.get(word, 0) | 1 << index
    at["*"] = (1 << len(words)) - 1
    at.pop("#", None)
    return at


def _some(children: dict[str, _Node], places: int, words: list[str]) -> Collection[str]:
    """Those of very many children that can be next: no more are looked at than there are words."""
    if len(children) <= places.bit_count():
        return children
    nexts = {"*"}
    while places:
        index = (places & -places).bit_length() - 1
        places &= places - 1
        if index < len(words):
            nexts.add(words[index])
    return children.keys() & nexts
