"""Topic matching: a trie of words, so that a publish costs its key's words, not the bindings.

`*` is exactly one word (an empty word counts), `#` is any number of words, none included. The
empty key has no words: `#` matches it and `*` does not. At most two `#` words in a binding key,
which bounds the ways one key can match one binding. A place in the trie is visited once for each
place in the key at most, so a match costs no more than the product of the two lengths.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from bindings.binding import Binding, Destination
from leveret.model.errors import PreconditionFailed
from leveret.model.tables import Table

MAX_HASH_WORDS = 2


class _Node:
    __slots__ = ("bindings", "children")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.bindings: dict[Binding, None] = {}


def split_words(key: str) -> list[str]:
    return key.split(".") if key else []


class TopicMatcher:
    depends_on_key_alone = True
    ignores_key = False

    def __init__(self) -> None:
        self._root = _Node()

    def add(self, binding: Binding) -> None:
        words = split_words(binding.routing_key)
        if words.count("#") > MAX_HASH_WORDS:
            raise PreconditionFailed(
                f"binding key {binding.routing_key!r} has more than {MAX_HASH_WORDS} '#' words"
            )
        node = self._root
        for word in words:
            child = node.children.get(word)
            if child is None:
                child = node.children[word] = _Node()
            node = child
        node.bindings[binding] = None

    def remove(self, binding: Binding) -> None:
        path = [self._root]
        words = split_words(binding.routing_key)
        for word in words:
            path.append(path[-1].children[word])
        del path[-1].bindings[binding]
        for parent, word, node in zip(path[-2::-1], reversed(words), path[:0:-1], strict=True):
            if node.bindings or node.children:
                break
            del parent.children[word]

    def match(self, routing_key: str, headers: Table) -> Iterable[Destination]:
        return [
            binding.destination for node in self._nodes(routing_key) for binding in node.bindings
        ]

    def explain(self, routing_key: str, headers: Table) -> list[Binding]:
        return [binding for node in self._nodes(routing_key) for binding in node.bindings]

    def _nodes(self, routing_key: str) -> Iterator[_Node]:
        words = split_words(routing_key)
        last = len(words)
        stack, seen = [(self._root, 0)], set()
        entered: dict[_Node, int] = {}  # from this word on, what follows a '#' has been tried
        while stack:
            node, index = stack.pop()
            if index == last and node.bindings and id(node) not in seen:
                seen.add(id(node))
                yield node
            children = node.children
            if not children:
                continue
            if index < last:
                for word in {words[index], "*"}:
                    child = children.get(word)
                    # A literal '#' in a published key is only a word; the wildcard is below.
                    if child is not None and word != "#":
                        stack.append((child, index + 1))
            wild = children.get("#")
            if wild is not None:
                tried = entered.get(wild, last + 1)
                if index < tried:
                    entered[wild] = index
                    stack.extend((wild, skipped) for skipped in range(index, tried))
