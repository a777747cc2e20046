"""An expression for all texts but some."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from seesay.grammars.character_set import LAST, CharacterSet
from seesay.grammars.regex import escape_text, write_set

_END = ""
_ANY = "(?s:.)"
_CHARS = CharacterSet.of([(1, LAST)])
"""Not U+0000: see `seesay.grammars.schemas.patterns`."""


@lru_cache(maxsize=4096)
def _match_others(chars: str) -> str:
    """Return an expression for one character that is none of `chars`."""
    return write_set(_CHARS - CharacterSet.chars(chars))


def _build_trie(texts: Iterable[str]) -> dict[str, Any]:
    """Return a tree of dictionaries with a character a level. A node at which a text ends has the key `_END`."""
    root: dict[str, Any] = {}
    for text in texts:
        node = root
        for char in text:
            node = node.setdefault(char, {})
        node[_END] = {}
    return root


def _list_nodes(root: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the nodes of a tree, each before those below it."""
    nodes, stack = [], [root]
    while stack:
        node = stack.pop()
        nodes.append(node)
        stack += [child for char, child in node.items() if char != _END]
    return nodes


def match_others(texts: Iterable[str]) -> str:
    """Return an expression that matches all texts but `texts` as a whole. Linear in their length."""
    root = _build_trie(texts)
    written: dict[int, str] = {}
    for node in reversed(_list_nodes(root)):  # from the leaves up, without recursion: texts may be long
        chars = [char for char in node if char != _END]
        options = [] if _END in node else [""]
        options += [escape_text(char) + written.pop(id(node[char])) for char in chars]
        options.append(f"{_match_others(''.join(chars))}{_ANY}*" if chars else f"{_ANY}+")
        written[id(node)] = f"(?:{'|'.join(options)})"
    return f"^{written[id(root)]}$"
