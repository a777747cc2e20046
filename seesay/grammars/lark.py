"""Rules in the form of llguidance, which is Lark's.

llguidance cuts a text into terminals, the longest first, and parses these. Regular rules and pieces of rules become
terminals; where these are not safe (`terminals.are_safe`), each is one character, which is slower and always right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from seesay.grammars.character_set import ALL
from seesay.grammars.regex import write_set
from seesay.grammars.rules import Node, Rules, find_regular, is_regular
from seesay.grammars.terminals import Shapes, are_safe


def write_rules(rules: Rules, prefix: str, *, is_checked: bool = True) -> tuple[str, list[str]]:
    """Return (the name of the first rule, the definitions of all). `prefix` begins their names; a rule that is not
    among them is defined elsewhere. is_checked: whether each terminal may have to be one character."""
    regular = find_regular(rules)
    lowered = _Lowered(rules, regular, prefix, is_split=False)
    if is_checked and not are_safe(lowered.rules, lowered.terminals, lowered.shapes):
        lowered = _Lowered(rules, {}, prefix, is_split=True)
    return lowered.root, lowered.write()


class _Lowered:
    """Rules over terminals. regular: the rules that are terminals. is_split: each terminal is one character.

    rules: the others. terminals: what each is made of.
    """

    def __init__(self, rules: Rules, regular: Rules, prefix: str, *, is_split: bool) -> None:
        self._regular, self._prefix, self._is_split = regular, prefix, is_split
        self._names = {
            name: f"{prefix}t{number}".upper() if name in regular else f"{prefix}r{number}"
            for number, name in enumerate(rules)
        }
        self._pieces: dict[str, str] = {}  # by what they are made of
        self.shapes = Shapes(regular)
        self.terminals: Rules = {}
        self.root = self._names[next(iter(rules))]
        self.rules = {self._names[name]: self._lower(node) for name, node in rules.items() if name not in regular}

    def write(self) -> list[str]:
        """Return the definitions."""
        lines = [f"{self._names[name]}: {self._write(node)}" for name, node in self._regular.items()]
        lines += [f"{name}: {text}" for text, name in self._pieces.items()]
        return lines + [f"{name}: {self._write(node)}" for name, node in self.rules.items()]

    def _lower(self, node: Node) -> Node:
        if self._is_terminal(node):
            return self._make_terminal(node)
        if node.kind == "rule":
            return replace(node, name=self._names.get(node.name, node.name))
        parts = self._join(node.parts) if node.kind == "sequence" else node.parts
        return replace(node, parts=[self._lower(part) for part in parts])

    def _is_terminal(self, node: Node) -> bool:
        if node.kind == "rule":
            return node.name in self._regular
        return node.kind in ("chars", "regex") or (not self._is_split and is_regular(node, self._regular))

    def _join(self, parts: Sequence[Node]) -> list[Node]:
        """Return the parts of a sequence, with neighbours that are regular and no rules of their own as one."""
        joined: list[list[Node]] = []
        was_plain = False
        for part in parts:
            is_plain = not self._is_split and is_regular(part, ())
            if is_plain and was_plain:
                joined[-1].append(part)
            else:
                joined.append([part])
            was_plain = is_plain
        return [group[0] if len(group) == 1 else Node("sequence", group) for group in joined]

    def _make_terminal(self, node: Node) -> Node:
        if node.kind == "rule":
            name, node = self._names[node.name], self._regular[node.name]
        else:
            text = self._write(node)
            name = self._pieces.setdefault(text, f"{self._prefix}p{len(self._pieces)}".upper())
        self.terminals[name] = node
        return Node("terminal", name=name, least=0 if self.shapes.is_empty(node) else 1)

    def _write(self, node: Node) -> str:
        if node.kind == "terminal":
            return node.name
        if node.kind == "rule":
            return self._names.get(node.name, node.name)
        if node.kind == "chars":
            return f"/{write_set(node.chars)}/" if node.chars != ALL else "/(?s:.)/"
        if node.kind == "regex":
            return f"/{node.name}/" if node.name else '""'
        if node.kind == "repeat":
            return write_repeat(f"({self._write(node.parts[0])})", node.least, node.most)
        if node.kind == "choice":
            return f"({' | '.join(map(self._write, node.parts))})"
        return _write_sequence(node.parts, self._write)


def _write_sequence(parts: Sequence[Node], write: Callable[[Node], str]) -> str:
    """Return the parts one behind the other, with neighbouring characters as one expression."""
    written: list[str] = []
    was_chars = False
    for part in parts:
        text = write(part)
        if was_chars and part.kind == "chars":
            written[-1] = f"{written[-1][:-1]}{text[1:]}"
        else:
            written.append(text)
        was_chars = part.kind == "chars"
    return f"({' '.join(written)})" if written else '""'


def write_repeat(inner: str, least: int, most: int | None) -> str:
    """Return a repetition."""
    if most == 0:
        return '""'
    signs = {(0, None): "*", (1, None): "+", (0, 1): "?", (1, 1): ""}
    return inner + signs.get((least, most), f"{{{least},{'' if most is None else most}}}")
