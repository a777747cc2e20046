"""Grammars in Lark's form, read as rules.

A terminal matches texts of any length, as with Lark's dynamic lexer. What `%ignore` names may stand behind each
terminal that a rule names, and at the beginning. What is about parse trees (`->`, `?`, `!`, priorities) is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from seesay.errors import ErrorCode, RequestError
from seesay.grammars.character_set import CharacterSet
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


class _Reader:
    """Reads the definitions of a source."""

    def __init__(self, source: str, where: str) -> None:
        self._source, self._where = source, where
        self._rules: Rules = {}
        self._ignored: list[Node] = []
        self._pieces = list(self._split())
        self._next = 0

    def _split(self) -> Iterator[re.Match[str]]:
        at = 0
        while at < len(self._source):
            piece = _PIECE.match(self._source, at)
            if piece is None:
                raise self._fault("is not supported in Lark", at)
            at = piece.end()
            if piece["space"] is None and piece["alias"] is None:
                yield piece

    def _fault(self, why: str, at: int) -> RequestError:
        line = self._source.count("\n", 0, at) + 1
        return _refuse(self._where, f"line {line} {why}: {self._source[at : at + 20].splitlines()[:1]}")

    def read(self) -> Rules:
        while (piece := self._peek()) is not None:
            self._next += 1
            if piece["directive"] is not None:
                self._read_directive(piece)
            elif piece["define"] is None:
                raise self._fault("is not Lark, a rule begins with its name and a colon", piece.start())
            elif piece["attributes"] is not None:
                raise self._fault("has attributes, which are not supported", piece.start("attributes"))
            else:
                self._define(piece["define"], self._read_choice(0), piece.start())
        for name, node in self._rules.items():
            for other in list_rules(node):
                if other not in self._rules:
                    raise _refuse(self._where, f"the grammar has no rule {other[:60]!r}, which {name[:60]!r} names")
        return self._add_ignored() if self._ignored else {name: _bare(node) for name, node in self._rules.items()}

    def _define(self, name: str, node: Node, at: int) -> None:
        if name in self._rules:
            raise self._fault(f"defines {name[:60]!r} again", at)
        if len(self._rules) >= MAX_RULES:
            raise _refuse(self._where, f"the grammar has more than {MAX_RULES} rules")
        self._rules[name] = node

    def _add_ignored(self) -> Rules:
        """Return the rules with what is ignored behind each terminal."""
        choice = self._ignored[0] if len(self._ignored) == 1 else Node("choice", self._ignored)
        rules = {name: _bare(node) if _is_terminal(name) else self._spread(node) for name, node in self._rules.items()}
        rules[_IGNORED] = Node("repeat", [choice], least=0, most=None)
        if "start" in rules:
            rules["start"] = Node("sequence", [Node("rule", name=_IGNORED), rules["start"]])
        return rules

    def _spread(self, node: Node) -> Node:
        if node.kind == "terminal" or (node.kind == "rule" and _is_terminal(node.name)):
            inner = node.parts[0] if node.kind == "terminal" else node
            return Node("sequence", [inner, Node("rule", name=_IGNORED)])
        return replace(node, parts=list(map(self._spread, node.parts)))

    # --- directives ------------------------------------------------------------------------------------------------

    def _read_directive(self, piece: re.Match[str]) -> None:
        if piece["directive"] == "ignore":
            self._ignored.append(_bare(self._read_choice(0)))
        elif piece["directive"] == "import":
            self._read_import(piece)
        else:
            raise self._fault("is not supported in Lark", piece.start())

    def _read_import(self, piece: re.Match[str]) -> None:
        """`%import common.A`, `%import common.A -> B` or `%import common (A, B)`."""
        found = re.compile(
            rf"%import\s+common\s*(?:\.\s*(?P<one>{_NAME})(?:[ \t]*->[ \t]*(?P<new>{_NAME}))?|\((?P<all>[^)]*)\))"
        ).match(self._source, piece.start())
        if found is None:
            raise self._fault("imports what is not there: terminals can be imported from common", piece.start())
        while (rest := self._peek()) is not None and rest.start() < found.end():
            self._next += 1
        names = [found["one"]] if found["one"] else re.findall(_NAME, found["all"])
        for name in names:
            if name not in COMMON:
                raise self._fault(f"imports {name[:60]!r}, which common does not have", piece.start())
            self._define(found["new"] or name, read_regex(COMMON[name], self._where), piece.start())

    # --- expressions -----------------------------------------------------------------------------------------------

    def _peek(self) -> re.Match[str] | None:
        return self._pieces[self._next] if self._next < len(self._pieces) else None

    def _takes(self, sign: str) -> bool:
        piece = self._peek()
        if piece is None or piece["sign"] != sign:
            return False
        self._next += 1
        return True

    def _read_choice(self, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise _refuse(self._where, f"the grammar is nested more than {MAX_DEPTH} levels deep")
        options = [self._read_sequence(depth)]
        while self._takes("|"):
            options.append(self._read_sequence(depth))
        return options[0] if len(options) == 1 else Node("choice", options)

    def _read_sequence(self, depth: int) -> Node:
        parts: list[Node] = []
        while (piece := self._peek()) is not None and piece["define"] is None and piece["directive"] is None:
            if piece["sign"] in (")", "]", "|"):
                break
            self._next += 1
            parts.append(self._read_repeats(self._read_part(piece, depth)))
        return parts[0] if len(parts) == 1 else Node("sequence", parts)

    def _read_part(self, piece: re.Match[str], depth: int) -> Node:
        """Return an atom. Literals are of the kind 'terminal', around what they match, until `_spread`."""
        if piece["name"] is not None:
            return Node("rule", name=piece["name"])
        if piece["text"] is not None:
            return self._read_text(piece)
        if piece["regex"] is not None:
            if set(piece["flags"]) - set("isu"):
                raise self._fault("has a flag that is not supported, other than i, s and u", piece.start("flags"))
            what = f"{self._where}: the expression /{piece['regex'][:40]}/"
            return Node("terminal", [read_regex(piece["regex"], what, flags=piece["flags"])])
        for opening, closing in (("(", ")"), ("[", "]")):
            if piece["sign"] == opening:
                inner = self._read_choice(depth + 1)
                if not self._takes(closing):
                    raise self._fault(f"has a {opening} that is not closed", piece.start())
                return inner if opening == "(" else Node("repeat", [inner], least=0, most=1)
        raise self._fault("is not supported in Lark", piece.start())

    def _read_text(self, piece: re.Match[str]) -> Node:
        texts = [piece]
        if self._takes(".."):
            last = self._peek()
            if last is None or last["text"] is None:
                raise self._fault("has a range without an end", piece.start())
            self._next += 1
            texts.append(last)
        codes = [[self._read_char(char, text.start()) for char in _CHAR.findall(text["text"])] for text in texts]
        if len(texts) == 2:
            if any(len(ends) != 1 for ends in codes) or codes[0] > codes[1]:
                raise self._fault("has a range that is not from a character to a later one", piece.start())
            sets = [CharacterSet.of([(codes[0][0], codes[1][0])])]
        else:
            sets = [CharacterSet.of([(code, code)]) for code in codes[0]]
        if piece["fold"]:
            sets = list(map(add_other_case, sets))
        return Node("terminal", [Node("sequence", [Node("chars", chars=chars) for chars in sets])])

    def _read_char(self, char: str, at: int) -> int:
        if len(char) == 1:
            code = ord(char)
        elif len(char) > 2:
            code = int(char[2:], 16)
        elif char[1] in _ESCAPES:
            code = ord(_ESCAPES[char[1]])
        else:
            raise self._fault(f"has the escape {char}, which is not known", at)
        if not CharacterSet.of([(code, code)]) or code > 0x10FFFF:
            raise self._fault("has a code point that stands in no text", at)
        return code

    def _read_repeats(self, node: Node) -> Node:
        piece = self._peek()
        if piece is None:
            return node
        if piece["sign"] in _SIGNS:
            least, most = _SIGNS[piece["sign"]]
        elif piece["least"] is not None:
            least, most = int(piece["least"]), int(piece["most"] or piece["least"])
        elif piece["comma"] is not None:
            least = int(piece["low"] or 0)
            most = int(piece["high"]) if piece["high"] else None if piece["comma"] else least
        else:
            return node
        if max(least, most or 0) > _MAX_REPEAT or (most is not None and most < least):
            raise self._fault(f"has a repetition that is not one of up to {_MAX_REPEAT} times", piece.start())
        self._next += 1
        return Node("repeat", [node], least=least, most=most)


def _bare(node: Node) -> Node:
    """Return a part without the marks of literals."""
    if node.kind == "terminal":
        return node.parts[0]
    return replace(node, parts=list(map(_bare, node.parts)))
