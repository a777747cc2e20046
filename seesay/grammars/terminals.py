"""Whether cutting a text into the longest terminals finds every text of a grammar.

A terminal is a regular part of a rule. It could swallow the beginning of what comes behind it, or of another one that
was meant: then the terminals are not safe.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import combinations

from seesay.grammars.character_set import CharacterSet
from seesay.grammars.rules import Node, Rules

_NONE = CharacterSet.of([])
_MAX_NODES = 20_000
"""Larger grammars are not looked at."""


def are_safe(rules: Rules, terminals: Mapping[str, Node], shapes: Shapes) -> bool:
    """rules: with parts of the kind 'terminal', which have the names of `terminals`. Returns True for a grammar without
    rules, and for one that is too large to tell."""
    if not rules or sum(map(_count, [*rules.values(), *terminals.values()])) > _MAX_NODES:
        return True
    behind = _Neighbours(rules).find()
    for name, next_names in behind.items():
        node = terminals.get(name)
        if node is not None and any(shapes.extension(node) & shapes.first(terminals[other]) for other in next_names):
            return False
        for first, second in combinations(sorted(next_names), 2):
            if _compete(terminals[first], terminals[second], shapes):
                return False
    return True


def _count(node: Node) -> int:
    return 1 + sum(map(_count, node.parts))


def _compete(first: Node, second: Node, shapes: Shapes) -> bool:
    if not shapes.first(first) & shapes.first(second):
        return False
    texts = [_literal(first), _literal(second)]
    if texts[0] is None or texts[1] is None:
        return True
    shorter, longer = sorted(texts, key=lambda text: len(text or ""))
    return (longer or "").startswith(shorter or "")


def _literal(node: Node) -> str | None:
    """The only text of a terminal, if it is seen at once."""
    if node.kind == "chars" and len(node.chars.ranges) == 1 and node.chars.ranges[0][0] == node.chars.ranges[0][1]:
        return chr(node.chars.ranges[0][0])
    if node.kind != "sequence":
        return None
    texts = [_literal(part) for part in node.parts]
    return None if None in texts else "".join(text or "" for text in texts)


class Shapes:
    """The characters with which texts of regular parts begin, and may go on behind a complete text."""

    def __init__(self, regular: Rules) -> None:
        self._regular = regular
        self._known: dict[str, tuple[bool, CharacterSet, CharacterSet]] = {}

    def is_empty(self, node: Node) -> bool:
        """Return whether a part has the empty text."""
        return self._find(node)[0]

    def first(self, node: Node) -> CharacterSet:
        return self._find(node)[1]

    def extension(self, node: Node) -> CharacterSet:
        return self._find(node)[2]

    def _find(self, node: Node) -> tuple[bool, CharacterSet, CharacterSet]:
        """Return (whether a part has the empty text, the first characters, those that may follow a whole text)."""
        if node.kind == "chars":
            return False, node.chars, _NONE
        if node.kind == "regex":  # of which nothing is known
            return True, ~_NONE, ~_NONE
        if node.kind == "rule":
            if node.name not in self._known:
                self._known[node.name] = self._find(self._regular[node.name])
            return self._known[node.name]
        if node.kind == "repeat":
            is_empty, first, extension = self._find(node.parts[0])
            more = _NONE if node.most == node.least else first
            return is_empty or not node.least, first, extension | more
        return self._find_choice(node) if node.kind == "choice" else self._find_sequence(node)

    def _find_choice(self, node: Node) -> tuple[bool, CharacterSet, CharacterSet]:
        found = [self._find(part) for part in node.parts]
        is_empty, first, extension = any(one[0] for one in found), _NONE, _NONE
        for one in found:
            # Where two begin alike, one may be the beginning of the other.
            shared = first & one[1]
            extension = extension | one[2] | (~_NONE if shared else _NONE)
            first = first | one[1]
        return is_empty, first, extension | (first if is_empty else _NONE)

    def _find_sequence(self, node: Node) -> tuple[bool, CharacterSet, CharacterSet]:
        is_empty, first, extension = True, _NONE, _NONE
        for part in node.parts:
            one = self._find(part)
            extension = (extension | one[1] if one[0] else _NONE) | one[2]
            first = first | one[1] if is_empty else first
            is_empty = is_empty and one[0]
        return is_empty, first, extension


@dataclass(slots=True)
class _Neighbours:
    """Which terminals may come behind which; '' is the beginning of a text."""

    rules: Rules
    empty: set[str] = field(default_factory=set)
    first: dict[str, set[str]] = field(default_factory=dict)
    follow: dict[str, set[str]] = field(default_factory=dict)
    behind: dict[str, set[str]] = field(default_factory=dict)

    def find(self) -> Mapping[str, set[str]]:
        for name in self.rules:
            self.first[name], self.follow[name] = set(), set()
        while self._grows(self._grow_first) or self._grows(self._grow_follow):
            pass
        self.behind[""] = set(self.first[next(iter(self.rules))])
        return self.behind

    def _grows(self, grow: object) -> bool:
        before = self._size()
        assert callable(grow)
        grow()
        return self._size() > before

    def _size(self) -> int:
        return len(self.empty) + sum(sum(map(len, sets.values())) for sets in (self.first, self.follow, self.behind))

    def _grow_first(self) -> None:
        for name, node in self.rules.items():
            is_empty, first = self._look(node)
            self.first[name] |= first
            if is_empty:
                self.empty.add(name)

    def _grow_follow(self) -> None:
        for name, node in self.rules.items():
            self._spread(node, self.follow[name])

    def _look(self, node: Node) -> tuple[bool, set[str]]:
        """Return (whether a part may be empty, the terminals with which it begins)."""
        if node.kind == "terminal":
            return node.least == 0, {node.name}
        if node.kind == "rule":
            return node.name in self.empty, self.first[node.name]
        looked = [self._look(part) for part in node.parts]
        if node.kind == "choice":
            return any(one[0] for one in looked), set().union(*(one[1] for one in looked))
        if node.kind == "repeat":
            return looked[0][0] or not node.least, looked[0][1]
        return all(one[0] for one in looked), _begin(looked)

    def _spread(self, node: Node, follow: set[str]) -> None:
        """Note what comes behind the terminals of a part that has `follow` behind it."""
        if node.kind == "terminal":
            self.behind.setdefault(node.name, set()).update(follow)
        elif node.kind == "rule":
            self.follow[node.name] |= follow
        elif node.kind == "repeat":
            self._spread(node.parts[0], follow | (self._look(node.parts[0])[1] if node.most != 1 else set()))
        else:
            for part in reversed(node.parts):
                self._spread(part, follow)
                if node.kind == "sequence":
                    is_empty, first = self._look(part)
                    follow = first | (follow if is_empty else set())


def _begin(looked: Iterable[tuple[bool, set[str]]]) -> set[str]:
    found: set[str] = set()
    for is_empty, first in looked:
        found |= first
        if not is_empty:
            break
    return found
