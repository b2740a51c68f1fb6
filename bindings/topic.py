"""Topic matching by a trie of words: the cost of a match depends on its key, not on the bindings.

`*` matches exactly one word (which may be empty), `#` any number of words, including none. The
empty key has no words: `#` matches it and `*` does not. A binding key has at most two `#` words.

A match visits a node of the trie at most once. Below a `#` it visits a node for all positions in
the key at the same time: they are the bits of a number. The number of nodes that one match can
visit is known from the shapes of the binding keys, so an exchange can refuse binding keys that
would make matching slow.
"""

from __future__ import annotations

from collections.abc import Collection

from leveret.bindings.binding import Binding, Destination
from leveret.model.errors import PreconditionFailed
from leveret.model.tables import Table

MAX_HASH_WORDS = 2
MAX_WORDS = 128  # in a key of 255 bytes
MAX_STEPS = 8_000  # some milliseconds; ordinary binding keys need hundreds
_ALIGNMENTS = (1, MAX_WORDS, MAX_WORDS * MAX_WORDS // 2)
"""In how many ways words can be aligned with a key, by the number of `#` words before them."""


class _Shape:
    """The wildcard positions of a binding key; keys that differ only in their words share it.

    The words of one shape match a key once per alignment, so a match visits at most `alignments`
    of the nodes that have this shape.
    """

    __slots__ = ("alignments", "hashes", "nodes", "shapes")

    def __init__(self, hashes: int, alignments: int) -> None:
        self.hashes = hashes
        self.alignments = alignments
        self.nodes = 0
        self.shapes: dict[str, _Shape] = {}

    def child(self, word: str) -> _Shape:
        kind = word if word in ("*", "#") else ""
        shape = self.shapes.get(kind)
        if shape is None:
            if word == "#":
                shape = _Shape(self.hashes + 1, self.alignments)
            else:
                shape = _Shape(self.hashes, _ALIGNMENTS[self.hashes])
            self.shapes[kind] = shape
        return shape


_NO_CHILDREN: dict[str, _Node] = {}
_NO_BINDINGS: dict[Binding, None] = {}
"""Of nodes without any: most nodes have either children or bindings, and there may be very many."""


class _Node:
    __slots__ = ("bindings", "children", "shape")

    def __init__(self, shape: _Shape) -> None:
        self.children = _NO_CHILDREN
        self.bindings = _NO_BINDINGS
        self.shape = shape


def split_words(key: str) -> list[str]:
    return key.split(".") if key else []


class TopicMatcher:
    """`steps`: how many nodes of the trie a match visits for the worst key."""

    depends_on_key_alone = True
    ignores_key = False
    max_steps = MAX_STEPS
    slow_reason = "binding keys with wildcards in too many different places"

    def __init__(self) -> None:
        self._root = _Node(_Shape(0, 1))
        self.steps = self.last_steps = 0

    def add(self, binding: Binding) -> None:
        words = split_words(binding.routing_key)
        if words.count("#") > MAX_HASH_WORDS:
            raise PreconditionFailed(
                f"binding key {binding.routing_key!r} has more than {MAX_HASH_WORDS} '#' words"
            )
        node = self._root
        for word in words:
            node = node.children.get(word) or self._add_node(node, word)
        if not node.bindings:
            node.bindings = {}
        node.bindings[binding] = None

    def _add_node(self, parent: _Node, word: str) -> _Node:
        shape = parent.shape.child(word)
        self.steps += shape.nodes < shape.alignments
        shape.nodes += 1
        if not parent.children:
            parent.children = {}
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
            self._remove_node(parent, word)

    def _remove_node(self, parent: _Node, word: str) -> None:
        shape = parent.children.pop(word).shape
        shape.nodes -= 1
        self.steps -= shape.nodes < shape.alignments
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
        end = len(words)
        matched: list[_Node] = []
        stack = [(self._root, 0)]
        hash_nodes: list[tuple[_Node, int]] = []
        steps = 0
        while stack:
            steps += 1
            node, index = stack.pop()
            if index == end and node.bindings:
                matched.append(node)
            children = node.children
            if not children:
                continue
            if index < end:
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
                hash_nodes.append((child, index))
        if hash_nodes:
            matched += [node for node, _ in hash_nodes if node.bindings]
            inner = [(node, index) for node, index in hash_nodes if node.children]
            steps += _match_below_hash(inner, words, matched)
        self.last_steps = steps
        return matched


def _match_below_hash(
    hash_nodes: list[tuple[_Node, int]], words: list[str], matched: list[_Node]
) -> int:
    """Continue below `#` nodes, from their word or from any later one; returns the steps taken.

    Bit n of `positions` means that word n may be next, bit `len(words)` that the key may end.
    """
    if not hash_nodes:
        return 0
    steps = len(words)
    end_bit = 1 << len(words)
    all_bits = end_bit << 1
    word_positions = _word_positions(words)
    stack = [(node, all_bits - (1 << index)) for node, index in hash_nodes]
    while stack:
        node, positions = stack.pop()
        children = node.children
        nexts = children if len(children) < 4 else _possible_words(children, positions, words)
        steps += 1 + len(nexts)
        for word in nexts:
            reached = (positions & word_positions.get(word, 0)) << 1
            if reached:
                child = children[word]
                if reached & end_bit and child.bindings:
                    matched.append(child)
                if child.children:
                    stack.append((child, reached))
        hash_child = children.get("#")
        if hash_child is not None:
            if hash_child.bindings:
                matched.append(hash_child)
            if hash_child.children:
                stack.append((hash_child, all_bits - (positions & -positions)))
    return steps


def _word_positions(words: list[str]) -> dict[str, int]:
    """The positions of each word as bits. `*` has all; a `#` in a published key is only a word."""
    positions: dict[str, int] = {}
    for index, word in enumerate(words):
        positions[word] = positions.get(word, 0) | 1 << index
    positions["*"] = (1 << len(words)) - 1
    positions.pop("#", None)
    return positions


def _possible_words(
    children: dict[str, _Node], positions: int, words: list[str]
) -> Collection[str]:
    """The children that can be next: at most as many as the key has words, of however many."""
    if len(children) <= positions.bit_count():
        return children
    nexts = {"*"}
    while positions:
        index = (positions & -positions).bit_length() - 1
        positions &= positions - 1
        if index < len(words):
            nexts.add(words[index])
    return children.keys() & nexts
