"""An expression for all names of properties but some."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from seesay.grammars.character_set import ALL, CharacterSet
from seesay.grammars.regex import escape_in_json, write_set

_END = ""


def match_other_names(names: Iterable[str]) -> str:
    """Return an expression, in the compiler's form, for the JSON spelling of all strings but `names`. Linear in their
    length."""
    root: dict[str, Any] = {}
    for name in names:
        node = root
        for char in name:
            node = node.setdefault(char, {})
        node[_END] = {}
    rest = f"(?:{write_set(ALL, in_json=True)})*"
    # From the leaves up, without recursion: names may be long.
    order, stack = [], [root]
    while stack:
        node = stack.pop()
        order.append(node)
        stack += [child for char, child in node.items() if char != _END]
    written: dict[int, str] = {}
    for node in reversed(order):
        chars = [char for char in node if char != _END]
        options = [] if _END in node else [""]
        options += [escape_in_json(char) + written.pop(id(node[char])) for char in chars]
        other = write_set(ALL - CharacterSet.chars("".join(chars)), in_json=True)
        options.append(f"{other}{rest}")
        written[id(node)] = f"(?:{'|'.join(options)})"
    return written[id(root)]
