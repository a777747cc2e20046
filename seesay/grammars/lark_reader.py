"""Grammars in Lark's form, read as rules.

A terminal matches texts of any length, as with Lark's dynamic lexer. What `%ignore` names may stand behind each
terminal that a rule names, and at the beginning. What is about parse trees (`->`, `?`, `!`, priorities) is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from seesay.errors import ErrorCode, RequestError
from seesay.grammars.character_set import LAST, CharacterSet
from seesay.grammars.lark_common import COMMON
from seesay.grammars.regex import add_other_case, read_regex
from seesay.grammars.rules import Node, Rules, list_rules, settle

MAX_DEPTH = 64
MAX_RULES = 5000
_MAX_REPEAT = 10_000
_IGNORED = "%ignore"
_NAME = r"_?[A-Za-z][A-Za-z0-9_-]*"
_PIECE = re.compile(
    r"(?P<space>(?:\s|//[^\n]*|\#[^\n]*)+)"
    rf"|[?!]*(?P<define>{_NAME})(?:\.[+-]?\d+)?\s*(?P<attributes>\[[^\]\n]*\])?\s*:(?!:)"
    rf"|->\s*(?P<alias>{_NAME})|(?P<name>{_NAME})|%(?P<directive>[a-z]+)"
    r'|"(?P<text>(?:\\.|[^"\\\n])*)"(?P<fold>i?)|/(?P<regex>(?:\\.|[^/\\\n])+)/(?P<flags>[imslux]*)'
    r"|~\s*(?P<least>\d+)(?:\s*\.\.\s*(?P<most>\d+))?|\{\s*(?P<low>\d*)\s*(?P<comma>,?)\s*(?P<high>\d*)\s*\}"
    r"|(?P<sign>\.\.|[()|*+?\[\].,])",
    re.DOTALL,
)
_CHAR = re.compile(r"\\(?:x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|.)|[^\\]", re.DOTALL)
_ESCAPES = dict(zip("ntrbf\\\"'/", "\n\t\r\b\f\\\"'/", strict=True))
_SIGNS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}


def read_lark(source: str, where: str) -> Rules:
    """Return the rules that the first one, 'start', needs. Raises `RequestError` that begins with `where` for a fault,
    for what is not supported, and for a rule from which no text can be made."""
    reader = _Reader(source, where)
    return settle(reader.read(), "start", lambda why: _refuse(where, why), "the grammar")


def _refuse(where: str, why: str) -> RequestError:
    return RequestError(ErrorCode.INVALID_REQUEST, f"{where}: {why}", "response_format")


def _is_terminal(name: str) -> bool:
    return name == name.upper()


class _Pieces:
    """The pieces of a source, in order. `next` is the index of the one that is read next."""

    def __init__(self, source: str, where: str) -> None:
        self.source, self.where, self.next = source, where, 0
        self._all = list(self._split())

    def _split(self) -> Iterator[re.Match[str]]:
        at = 0
        while at < len(self.source):
            piece = _PIECE.match(self.source, at)
            if piece is None:
                raise self.fault("is not supported in Lark", at)
            at = piece.end()
            if piece["space"] is None and piece["alias"] is None:
                yield piece

    def fault(self, why: str, at: int) -> RequestError:
        line = self.source.count("\n", 0, at) + 1
        return _refuse(self.where, f"line {line} {why}: {self.source[at : at + 20].splitlines()[:1]}")

    def peek(self) -> re.Match[str] | None:
        return self._all[self.next] if self.next < len(self._all) else None

    def takes(self, sign: str) -> bool:
        piece = self.peek()
        if piece is None or piece["sign"] != sign:
            return False
        self.next += 1
        return True


class _Reader:
    """Reads the definitions of a source."""

    def __init__(self, source: str, where: str) -> None:
        self._where = where
        self._rules: Rules = {}
        self._ignored: list[Node] = []
        self._pieces = _Pieces(source, where)

    def read(self) -> Rules:
        while (piece := self._pieces.peek()) is not None:
            self._pieces.next += 1
            if piece["directive"] is not None:
                self._read_directive(piece)
            elif piece["define"] is None:
                raise self._pieces.fault("is not Lark, a rule begins with its name and a colon", piece.start())
            elif piece["attributes"] is not None:
                raise self._pieces.fault("has attributes, which are not supported", piece.start("attributes"))
            else:
                self._define(piece["define"], self._read_choice(0), piece.start())
        for name, node in self._rules.items():
            for other in list_rules(node):
                if other not in self._rules:
                    raise _refuse(self._where, f"the grammar has no rule {other[:60]!r}, which {name[:60]!r} names")
        return self._add_ignored() if self._ignored else {name: _bare(node) for name, node in self._rules.items()}

    def _define(self, name: str, node: Node, at: int) -> None:
        if name in self._rules:
            raise self._pieces.fault(f"defines {name[:60]!r} again", at)
        if len(self._rules) >= MAX_RULES:
            raise _refuse(self._where, f"the grammar has more than {MAX_RULES} rules")
        self._rules[name] = node

    def _add_ignored(self) -> Rules:
        """Return the rules with what is ignored behind each terminal."""
        choice = self._ignored[0] if len(self._ignored) == 1 else Node("choice", self._ignored)
        rules = {name: _bare(node) if _is_terminal(name) else _spread(node) for name, node in self._rules.items()}
        rules[_IGNORED] = Node("repeat", [choice], least=0, most=None)
        if "start" in rules:
            rules["start"] = Node("sequence", [Node("rule", name=_IGNORED), rules["start"]])
        return rules

    # --- directives ------------------------------------------------------------------------------------------------

    def _read_directive(self, piece: re.Match[str]) -> None:
        if piece["directive"] == "ignore":
            self._ignored.append(_bare(self._read_choice(0)))
        elif piece["directive"] == "import":
            self._read_import(piece)
        else:
            raise self._pieces.fault("is not supported in Lark", piece.start())

    def _read_import(self, piece: re.Match[str]) -> None:
        """`%import common.A`, `%import common.A -> B` or `%import common (A, B)`."""
        found = re.compile(
            rf"%import\s+common\s*(?:\.\s*(?P<one>{_NAME})(?:[ \t]*->[ \t]*(?P<new>{_NAME}))?|\((?P<all>[^)]*)\))"
        ).match(self._pieces.source, piece.start())
        if found is None:
            raise self._pieces.fault("imports what is not there: terminals can be imported from common", piece.start())
        while (rest := self._pieces.peek()) is not None and rest.start() < found.end():
            self._pieces.next += 1
        names = [found["one"]] if found["one"] else re.findall(_NAME, found["all"])
        for name in names:
            if name not in COMMON:
                raise self._pieces.fault(f"imports {name[:60]!r}, which common does not have", piece.start())
            self._define(found["new"] or name, read_regex(COMMON[name], self._where), piece.start())

    # --- expressions -----------------------------------------------------------------------------------------------

    def _read_choice(self, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise _refuse(self._where, f"the grammar is nested more than {MAX_DEPTH} levels deep")
        options = [self._read_sequence(depth)]
        while self._pieces.takes("|"):
            options.append(self._read_sequence(depth))
        return options[0] if len(options) == 1 else Node("choice", options)

    def _read_sequence(self, depth: int) -> Node:
        parts: list[Node] = []
        while (piece := self._pieces.peek()) is not None and piece["define"] is None and piece["directive"] is None:
            if piece["sign"] in (")", "]", "|"):
                break
            self._pieces.next += 1
            parts.append(self._read_repeats(self._read_part(piece, depth)))
        return parts[0] if len(parts) == 1 else Node("sequence", parts)

    def _read_part(self, piece: re.Match[str], depth: int) -> Node:
        """Return an atom. Literals are of the kind 'terminal', around what they match, until `_spread` or `_bare`."""
        if piece["name"] is not None:
            return Node("rule", name=piece["name"])
        if piece["text"] is not None:
            return self._read_text(piece)
        if piece["regex"] is not None:
            if set(piece["flags"]) - set("isu"):
                raise self._pieces.fault("has a flag that is not i, s or u", piece.start("flags"))
            what = f"{self._where}: the expression /{piece['regex'][:40]}/"
            return Node("terminal", [read_regex(piece["regex"], what, flags=piece["flags"])])
        for opening, closing in (("(", ")"), ("[", "]")):
            if piece["sign"] == opening:
                inner = self._read_choice(depth + 1)
                if not self._pieces.takes(closing):
                    raise self._pieces.fault(f"has a {opening} that is not closed", piece.start())
                return inner if opening == "(" else Node("repeat", [inner], least=0, most=1)
        raise self._pieces.fault("is not supported in Lark", piece.start())

    def _read_text(self, piece: re.Match[str]) -> Node:
        first = self._read_chars(piece)
        if self._pieces.takes(".."):
            last = self._pieces.peek()
            codes = self._read_chars(last) if last is not None and last["text"] is not None else []
            self._pieces.next += 1
            if len(first) != 1 or len(codes) != 1 or first > codes:
                raise self._pieces.fault("has a range that is not from a character to a later one", piece.start())
            sets = [CharacterSet.of([(first[0], codes[0])])]
        else:
            sets = [CharacterSet.of([(code, code)]) for code in first]
        if piece["fold"]:
            sets = list(map(add_other_case, sets))
        return Node("terminal", [Node("sequence", [Node("chars", chars=chars) for chars in sets])])

    def _read_chars(self, piece: re.Match[str]) -> list[int]:
        """Return the code points of a string."""
        codes = list(map(_read_char, _CHAR.findall(piece["text"])))
        if not all(0 <= code <= LAST and CharacterSet.of([(code, code)]) for code in codes):
            why = "has an escape that is not known, or a code point that stands in no text"
            raise self._pieces.fault(why, piece.start())
        return codes

    def _read_repeats(self, node: Node) -> Node:
        piece = self._pieces.peek()
        counts = None if piece is None else _read_counts(piece)
        if piece is None or counts is None:
            return node
        least, most = counts
        if max(least, most or 0) > _MAX_REPEAT or (most is not None and most < least):
            raise self._pieces.fault(f"has a repetition that is not one of up to {_MAX_REPEAT} times", piece.start())
        self._pieces.next += 1
        return Node("repeat", [node], least=least, most=most)


def _read_counts(piece: re.Match[str]) -> tuple[int, int | None] | None:
    """Return how often what is before a piece may come; None for a piece that does not say."""
    if piece["sign"] in _SIGNS:
        return _SIGNS[piece["sign"]]
    if piece["least"] is not None:
        return int(piece["least"]), int(piece["most"] or piece["least"])
    if piece["comma"] is None:
        return None
    least = int(piece["low"] or 0)
    return least, int(piece["high"]) if piece["high"] else None if piece["comma"] else least


def _read_char(char: str) -> int:
    """Return the code point of a character or an escape; -1 for an escape that is not known."""
    if len(char) == 1:
        return ord(char)
    return int(char[2:], 16) if len(char) > 2 else ord(_ESCAPES[char[1]]) if char[1] in _ESCAPES else -1


def _spread(node: Node) -> Node:
    """Return a part with what is ignored behind each terminal."""
    if node.kind == "terminal" or (node.kind == "rule" and _is_terminal(node.name)):
        inner = node.parts[0] if node.kind == "terminal" else node
        return Node("sequence", [inner, Node("rule", name=_IGNORED)])
    return replace(node, parts=list(map(_spread, node.parts)))


def _bare(node: Node) -> Node:
    """Return a part without the marks of literals."""
    if node.kind == "terminal":
        return node.parts[0]
    return replace(node, parts=list(map(_bare, node.parts)))
