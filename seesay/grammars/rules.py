"""The rules of a grammar as trees, and what can be said about them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from seesay.grammars.character_set import ALL, CharacterSet


@dataclass(slots=True)
class Node:
    """A part of a rule. kind: 'chars' (one character of `chars`), 'rule' (of `name`), 'sequence', 'choice', 'repeat' of
    its only part from `least` to `most` times (None: any), 'regex' (the expression is `name`), or 'terminal' (of
    `name`; empty too where `least` is 0)."""

    kind: str
    parts: list[Node] = field(default_factory=list)
    chars: CharacterSet = ALL
    name: str = ""
    least: int = 1
    most: int | None = 1


Rules = dict[str, Node]


def list_rules(node: Node) -> Iterator[str]:
    """Yield the rules that a part names."""
    if node.kind == "rule":
        yield node.name
    for part in node.parts:
        yield from list_rules(part)


def find_reached(rules: Rules, root: str) -> Rules:
    """Return the rules that the root needs, itself first."""
    found = {root: rules[root]}
    queue = [root]
    for name in queue:
        for other in list_rules(rules[name]):
            if other not in found:
                found[other] = rules[other]
                queue.append(other)
    return found


def find_users(rules: Rules) -> dict[str, list[str]]:
    """Return by rule those that name it."""
    users: dict[str, list[str]] = {}
    for name, node in rules.items():
        for other in dict.fromkeys(list_rules(node)):
            users.setdefault(other, []).append(name)
    return users


def find_alive(rules: Rules) -> set[str]:
    """Return the rules from which a text can be made."""
    alive: set[str] = set()
    users = find_users(rules)
    queue = [name for name, node in rules.items() if is_alive(node, alive)]
    while queue:
        name = queue.pop()
        if name not in alive:
            alive.add(name)
            queue += [user for user in users.get(name, ()) if user not in alive and is_alive(rules[user], alive)]
    return alive


def is_alive(node: Node, alive: set[str]) -> bool:
    """Return whether a text can be made of a part, by means of rules that are alive."""
    if node.kind == "rule":
        return node.name in alive
    if node.kind == "chars":
        return bool(node.chars)
    if node.kind == "repeat" and node.least == 0:
        return True
    made = (is_alive(part, alive) for part in node.parts)
    return any(made) if node.kind == "choice" else all(made)


def prune(node: Node, alive: set[str]) -> Node:
    """Return a part that is alive without those of its parts that are not."""
    parts = [prune(part, alive) for part in node.parts if is_alive(part, alive)]
    return Node("sequence") if node.kind == "repeat" and not parts else replace(node, parts=parts)


def find_regular(rules: Rules) -> Rules:
    """Return the rules that are regular expressions: none of them needs itself."""
    waiting = {name: set(list_rules(node)) for name, node in rules.items()}
    users = find_users(rules)
    ready = [name for name, needs in waiting.items() if not needs]
    regular: Rules = {}
    while ready:
        name = ready.pop()
        regular[name] = rules[name]
        for user in users.get(name, ()):
            waiting[user].discard(name)
            if not waiting[user]:
                ready.append(user)
    return regular


def is_regular(node: Node, regular: Iterable[str]) -> bool:
    """Return whether a part names regular rules alone."""
    return all(name in regular for name in list_rules(node))


def settle(rules: Rules, root: str, refuse: Callable[[str], Exception], what: str) -> Rules:
    """Return the rules that the root needs, itself first, without alternatives from which no text can be made. Raises
    what `refuse` makes of a reason where there is no root, or a rule has no other alternatives."""
    if root not in rules:
        raise refuse(f"{what} has no rule {root!r}")
    rules = find_reached(rules, root)
    alive = find_alive(rules)
    dead = next((name for name in rules if name not in alive), None)
    if dead is not None:
        why = "because each of its alternatives needs such a rule again, or a character of an empty set"
        raise refuse(f"from the rule {dead[:60]!r} no text can be made, {why}: add an alternative that ends")
    return {name: prune(node, alive) for name, node in rules.items()}
