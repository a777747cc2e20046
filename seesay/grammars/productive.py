"""Rules of a grammar from which no text can be made, because each of their alternatives needs such a rule again, and
such definitions of a schema.

The compiler takes them, and an answer that comes to one has no next token, or no end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

_PIECE = re.compile(
    r"""(?P<text>"(?:\\.|[^"\\])*")|(?P<chars>\[(?:\\.|[^\]\\])*\])|(?P<ahead>\(=)|(?P<name>[A-Za-z_][\w.-]*)"""
    r"""|\{\s*(?P<least>\d+)[^}]*\}|(?P<sign>[()|*+?])|(?P<space>\s+)""",
    re.DOTALL,
)
DEAD_RULE = (
    "from the rule {name!r} no text can be made, because each of its alternatives needs such a rule again, or a "
    "character of an empty set: add an alternative that ends"
)
_EMPTY_SETS = frozenset(["[]", r"[^\0-\U0010ffff]"])
Product = list[tuple[str, bool]]
"""Elements of a sequence: the name of a rule ('' for a set without characters), and whether it may come no times."""


def explain_dead_rule(kind: str, source: str) -> str:
    """Return what is wrong with a program that has such a rule, or ''. Raises what xgrammar raises for a fault."""
    sources = [source] if kind == "ebnf" else _find_grammars(json.loads(source)) if kind == "structural_tag" else ()
    for grammar in sources:
        if (name := find_dead_rule(grammar)) is not None:
            return DEAD_RULE.format(name=name[:60])
    return ""


def find_dead_rule(source: str) -> str | None:
    """Return the name of a rule that an answer may come to and from which no text can be made, or None. `source` is
    EBNF. Raises what xgrammar raises for a fault in it."""
    import xgrammar

    rules = {}
    for line in str(xgrammar.Grammar.from_ebnf(source)).splitlines():
        name, found, body = line.partition(" ::= ")
        if found:
            rules[name] = list(_read_body(body))
    alive = _find_alive(rules)
    reached = [name for name in _reach(rules, "root") if name not in alive]
    written = [name for name in reached if re.search(rf"(?m)^\s*{re.escape(name)}\s*::=", source)]
    return next(iter([*written, *reached]), None)


def find_dead_definition(schema: Any) -> str | None:
    """Return the name of one of a schema's `$defs` that no finite value fits, or None. `schema` is in the compiler's
    form (`seesay.grammars.json_schema`): its references name `$defs`."""
    if not isinstance(schema, dict) or not (definitions := schema.get("$defs")):
        return None
    rules: dict[str, list[Product]] = {}

    def add(part: Any) -> str:
        name = str(len(rules))
        rules[name] = []
        rules[name] = [[(other, False) for other in product] for product in list_products(part)]
        return name

    def list_products(part: Any) -> list[list[str]]:
        if not isinstance(part, dict):
            return [[]]
        if "$ref" in part:
            return [[part["$ref"]]]
        if "anyOf" in part:
            return [[add(option)] for option in part["anyOf"]]
        if "enum" in part or "const" in part:
            return [[]]
        needed = [part["properties"][name] for name in part.get("required", ())]
        least = part.get("minItems", 0)
        prefix = part.get("prefixItems", [])
        needed += prefix[:least] + ([part["items"]] if least > len(prefix) else [])
        return [[add(one) for one in needed]]

    for name, part in definitions.items():
        rules[f"#/$defs/{name}"] = [[(add(part), False)]]
    alive = _find_alive(rules)
    return next((name for name in definitions if f"#/$defs/{name}" not in alive), None)


def _find_grammars(format: Any) -> Iterator[str]:
    """Yield the EBNF sources in a structural tag."""
    if isinstance(format, dict):
        if format.get("type") == "grammar" and isinstance(format.get("grammar"), str):
            yield format["grammar"]
        for value in format.values():
            yield from _find_grammars(value)
    elif isinstance(format, list):
        for value in format:
            yield from _find_grammars(value)


def _read_body(body: str) -> Iterator[Product]:
    """Yield the alternatives of a rule in the compiler's spelling, in which only they and sequences are nested. A rule
    with anything else can make text."""
    product: Product = []
    end = is_ahead = 0
    while end < len(body):
        piece = _PIECE.match(body, end)
        if piece is None:
            yield []
            return
        end = piece.end()
        kind = piece.lastgroup
        text = piece.group(kind or 0)
        if kind == "ahead":
            is_ahead = 1
        elif is_ahead:
            is_ahead += {"(": 1, ")": -1}.get(text, 0)
        elif text == "|":
            yield product
            product = []
        elif kind == "name":
            if body[end : end + 1] == "(":  # of a function
                yield []
                return
            product.append((text, False))
        elif kind == "chars" and text in _EMPTY_SETS:
            product.append(("", False))
        elif kind == "least" and product and int(text) == 0:
            product[-1] = product[-1][0], True
    yield product


def _find_alive(rules: dict[str, list[Product]]) -> set[str]:
    """Return the rules from which a text can be made. Linear in the size of the grammar."""
    needed_by: dict[str, list[tuple[str, int]]] = {}
    num_missing: dict[tuple[str, int], int] = {}
    ready: list[str] = []
    for name, products in rules.items():
        for index, product in enumerate(products):
            needs = {other for other, may_lack in product if not may_lack}
            num_missing[name, index] = len(needs)
            if not needs:
                ready.append(name)
            for other in needs:
                needed_by.setdefault(other, []).append((name, index))
    alive: set[str] = set()
    while ready:
        name = ready.pop()
        if name in alive:
            continue
        alive.add(name)
        for key in needed_by.get(name, ()):
            num_missing[key] -= 1
            if not num_missing[key]:
                ready.append(key[0])
    return alive


def _reach(rules: dict[str, list[Product]], root: str) -> Iterator[str]:
    """Yield the rules that the root needs, itself first."""
    seen, queue = {root}, [root]
    for name in queue:
        if name in rules:
            yield name
        for product in rules.get(name, ()):
            for other, _ in product:
                if other not in seen:
                    seen.add(other)
                    queue.append(other)
