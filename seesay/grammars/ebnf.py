"""EBNF as llama.cpp and others write it (GBNF), read as rules. Its texts are valid Unicode."""

from __future__ import annotations

import re
from collections.abc import Iterator

from seesay.errors import ErrorCode, RequestError
from seesay.grammars.character_set import LAST, CharacterSet
from seesay.grammars.rules import Node, Rules, list_rules, settle

MAX_DEPTH = 64
_NAME = r"[A-Za-z_][\w.-]*"
_PIECE = re.compile(
    rf"(?P<space>(?:\s|\#[^\n]*)+)|(?P<function>Regex|TagDispatch)\s*\(|(?P<define>{_NAME})\s*::=|(?P<name>{_NAME})"
    r'|"(?P<text>(?:\\.|[^"\\])*)"|\[(?P<chars>(?:\\.|[^\]\\])*)\]'
    r"|\{\s*(?P<least>\d+)\s*(?P<comma>,?)\s*(?P<most>\d*)\s*\}|(?P<sign>[()|*+?.])",
    re.DOTALL,
)
_CHAR = re.compile(r"\\(?:x[0-9A-Fa-f]+|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|.)|[^\\]", re.DOTALL)
_ESCAPES = dict(zip("ntrabfve0\\\"'?-[]^/", map(ord, "\n\t\r\a\b\f\v\x1b\0\\\"'?-[]^/"), strict=True))
_SURROGATES = range(0xD800, 0xE000)


def read_ebnf(source: str, where: str) -> Rules:
    """Return the rules that the first one, 'root', needs. Raises `RequestError` that begins with `where` for a fault,
    and for a rule from which no text can be made."""
    return settle(_Parser(source, where).read(), "root", lambda why: _refuse(where, why), "the EBNF")


def _refuse(where: str, why: str) -> RequestError:
    return RequestError(ErrorCode.INVALID_REQUEST, f"{where}: {why}", "response_format")


class _Parser:
    """Reads the rules of a source."""

    def __init__(self, source: str, where: str) -> None:
        self._source, self._where, self._at = source, where, 0
        self._pieces = list(self._split())
        self._next = 0

    def _split(self) -> Iterator[re.Match[str]]:
        while self._at < len(self._source):
            piece = _PIECE.match(self._source, self._at)
            if piece is None:
                raise self._fault("is not EBNF", self._at)
            if piece["function"] is not None:
                why = f"{piece['function']}(…) is not supported: write rules, or send the expression as `regex` instead"
                raise _refuse(self._where, why)
            self._at = piece.end()
            if piece["space"] is None:
                yield piece

    def _fault(self, why: str, at: int) -> RequestError:
        line = self._source.count("\n", 0, at) + 1
        return _refuse(self._where, f"line {line} {why}: {self._source[at : at + 20].splitlines()[:1]}")

    def read(self) -> Rules:
        rules: Rules = {}
        while (piece := self._peek()) is not None:
            name = piece["define"]
            if name is None:
                raise self._fault("is not EBNF, a rule begins with its name and ::=", piece.start())
            if name in rules:
                raise self._fault(f"defines the rule {name[:60]!r} again", piece.start())
            self._next += 1
            rules[name] = self._read_choice(0)
        for node in rules.values():
            for other in list_rules(node):
                if other not in rules:
                    raise _refuse(self._where, f"the EBNF has no rule {other[:60]!r}")
        return rules

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
            raise _refuse(self._where, f"the EBNF is nested more than {MAX_DEPTH} levels deep")
        options = [self._read_sequence(depth)]
        while self._takes("|"):
            options.append(self._read_sequence(depth))
        return options[0] if len(options) == 1 else Node("choice", options)

    def _read_sequence(self, depth: int) -> Node:
        parts: list[Node] = []
        while (piece := self._peek()) is not None and piece["define"] is None:
            if piece["sign"] in (")", "|"):
                break
            self._next += 1
            parts.append(self._read_repeats(self._read_part(piece, depth)))
        return parts[0] if len(parts) == 1 else Node("sequence", parts)

    def _read_part(self, piece: re.Match[str], depth: int) -> Node:
        if piece["name"] is not None:
            return Node("rule", name=piece["name"])
        if piece["text"] is not None:
            codes = [self._check(_read(char)) for char in _CHAR.findall(piece["text"])]
            return Node("sequence", [Node("chars", chars=CharacterSet.of([(code, code)])) for code in codes])
        if piece["chars"] is not None:
            return Node("chars", chars=self._read_class(piece["chars"], piece.start()))
        if piece["sign"] == ".":
            return Node("chars")
        if piece["sign"] == "(":
            inner = self._read_choice(depth + 1)
            if not self._takes(")"):
                raise self._fault("has a parenthesis that is not closed", piece.start())
            return inner
        raise self._fault("has a repetition of nothing", piece.start())

    def _read_repeats(self, node: Node) -> Node:
        for _ in range(MAX_DEPTH):
            piece = self._peek()
            if piece is None:
                return node
            if piece["sign"] in ("*", "+", "?"):
                least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}[piece["sign"]]
            elif piece["least"] is not None:
                least = int(piece["least"])
                most = least if not piece["comma"] else int(piece["most"]) if piece["most"] else None
                if most is not None and most < least:
                    raise self._fault("has a repetition whose end is before its beginning", piece.start())
            else:
                return node
            self._next += 1
            node = Node("repeat", [node], least=least, most=most)
        raise _refuse(self._where, f"the EBNF is nested more than {MAX_DEPTH} levels deep")

    def _read_class(self, inner: str, at: int) -> CharacterSet:
        is_negated = inner.startswith("^")
        ranges = list(_find_ranges(_CHAR.findall(inner[is_negated:])))
        for ends in ranges:
            for code in ends:
                if not (is_negated and code in _SURROGATES):
                    self._check(code)
        if any(first > last for first, last in ranges):
            raise self._fault("has a range whose end is before its beginning", at)
        return ~CharacterSet.of(ranges) if is_negated else CharacterSet.of(ranges)

    def _check(self, code: int) -> int:
        if code < 0:
            raise _refuse(self._where, "the EBNF has an escape that is not known")
        if code in _SURROGATES:
            why = f"the grammar has the lone surrogate U+{code:04X}, which stands in no text: write \\U and 8 digits"
            raise _refuse(self._where, f"{why} for characters above U+FFFF")
        if code > LAST:
            raise _refuse(self._where, f"the grammar has a character above U+{LAST:X}, the last one")
        return code


def _find_ranges(chars: list[str]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last code point of each range; a character that stands alone is one."""
    i = 0
    while i < len(chars):
        last = i + 2 if i + 2 < len(chars) and chars[i + 1] == "-" else i
        yield _read(chars[i]), _read(chars[last])
        i = last + 1


def _read(char: str) -> int:
    """Return the code point of a character or an escape; -1 for an escape that is not known."""
    if len(char) == 1:
        return ord(char)
    return int(char[2:], 16) if len(char) > 2 else _ESCAPES.get(char[1], -1)
