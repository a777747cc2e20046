"""Structural tags, xgrammar's form of answers with parts that follow grammars, as a grammar of llguidance."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from seesay.errors import ErrorCode, RequestError, show
from seesay.grammars.character_set import CharacterSet
from seesay.grammars.ebnf import read_ebnf
from seesay.grammars.lark import write_rules
from seesay.grammars.quoted_text import KEYWORD, find_text_grammar, read_quoted
from seesay.grammars.regex import escape_text, rewrite_regex
from seesay.grammars.rules import Node
from seesay.grammars.schemas.holding import write_held

MAX_DEPTH = 32
_JSON_PIECE = re.compile(r'"[^"\\]*"|[:,] |.', re.DOTALL)
_KEYS: Mapping[str, frozenset[str]] = {
    "any_text": frozenset({"excludes"}),
    "token": frozenset({"token"}),
    "token_triggered_tags": frozenset({"trigger_tokens", "tags", "at_least_one", "stop_after_first", "exclude_tokens"}),
    "const_string": frozenset({"value"}),
    "json_schema": frozenset({"json_schema", "style", "any_whitespace", "max_whitespace_cnt"}),
    "grammar": frozenset({"grammar"}),
    "regex": frozenset({"pattern"}),
    "sequence": frozenset({"elements"}),
    "or": frozenset({"elements"}),
    "tag": frozenset({"begin", "content", "end"}),
    "triggered_tags": frozenset({"triggers", "tags", "at_least_one", "stop_after_first", "excludes"}),
    "tags_with_separator": frozenset({"tags", "separator", "at_least_one", "stop_after_first"}),
    "optional": frozenset({"content"}),
    "plus": frozenset({"content"}),
    "star": frozenset({"content"}),
    "repeat": frozenset({"content", "min", "max"}),
}


def write_tag(tag: dict[str, Any]) -> tuple[str, list[str], tuple[str, ...]]:
    """Return (the name of the first rule, the definitions of all, what they do not hold). Raises `RequestError` that
    names what is not supported."""
    if "format" in tag:
        return _Writer().write(tag["format"], "format")
    structures, triggers = tag["structures"], tag["triggers"]
    if not isinstance(structures, list) or not all(isinstance(item, dict) for item in structures):
        raise _refuse("structures", f"must be a list of objects, got {show(structures)}")
    tags = [
        {
            "type": "tag",
            "begin": item.get("begin"),
            "content": {"type": "json_schema", "json_schema": item.get("schema", True)},
            "end": item.get("end"),
        }
        for item in structures
    ]
    return _Writer().write({"type": "triggered_tags", "triggers": triggers, "tags": tags}, "structures")


def _refuse(place: str, why: str) -> RequestError:
    return RequestError(ErrorCode.INVALID_REQUEST, f"response_format.{place[:200]} {why}", "response_format")


def _spell(text: str) -> Node:
    return Node("sequence", [Node("chars", chars=CharacterSet.chars(char)) for char in text])


def _join_heads(parts: list[Node]) -> list[Node]:
    """Put a text into the choice behind it: a terminal that ends at the choice could be swallowed by free text that may
    stand in its place, where one that goes on outlives that."""
    joined: list[Node] = []
    for part in parts:
        if part.kind == "choice" and joined and _is_spelled(joined[-1]):
            head = joined.pop().parts
            part = Node("choice", [_with_head(head, option) for option in part.parts])
        joined.append(part)
    return joined


def _is_spelled(node: Node) -> bool:
    return node.kind == "sequence" and all(part.kind == "chars" for part in node.parts)


def _with_head(head: list[Node], node: Node) -> Node:
    if node.kind == "choice":
        return Node("choice", [_with_head(head, option) for option in node.parts])
    if node.kind == "sequence" and node.parts and node.parts[0].kind in ("sequence", "choice"):
        return Node("sequence", [_with_head(head, node.parts[0]), *node.parts[1:]])
    return Node("sequence", [*head, *(node.parts if node.kind == "sequence" else [node])])


def _is_text(format: Any) -> bool:
    return isinstance(format, dict) and format.get("type") == "any_text"


class _Writer:
    """Makes a rule of each part that is no regular expression, and one tree of the whole."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._left_out: list[str] = []
        self._is_beside_json = False
        self._makers: Mapping[str, Callable[[dict[str, Any], str, int], Node]] = {
            "any_text": lambda format, place, _: self._make_text(_read_texts(format, "excludes", place)),
            "token": lambda format, place, _: self._make_token(format, place),
            "token_triggered_tags": self._make_token_triggered,
            "const_string": lambda format, place, _: self._spell(_read_text(format, "value", place)),
            "json_schema": lambda format, place, _: self._make_json(format, place),
            "grammar": lambda format, place, _: self._make_grammar(format, place),
            "regex": lambda format, place, _: _make_regex(format, place),
            "sequence": self._make_sequence,
            "or": self._make_or,
            "tag": lambda format, place, depth: self._make_tag(format, place, depth, ""),
            "triggered_tags": self._make_triggered,
            "tags_with_separator": self._make_separated,
            "optional": lambda format, place, depth: self._make_repeat(format, place, depth, 0, 1),
            "plus": lambda format, place, depth: self._make_repeat(format, place, depth, 1, None),
            "star": lambda format, place, depth: self._make_repeat(format, place, depth, 0, None),
            "repeat": lambda format, place, depth: self._make_repeat(
                format, place, depth, *_read_bounds(format, place)
            ),
        }

    def write(self, format: Any, place: str) -> tuple[str, list[str], tuple[str, ...]]:
        root, lines = write_rules({"root": self._make(format, place, 0)}, "m", is_checked=False)
        return root, [*lines, *self._lines], tuple(dict.fromkeys(self._left_out))

    def _add(self, definition: str, *, lazy: bool = False) -> Node:
        """Return a part that has a rule of its own."""
        name = f"x{len(self._lines)}"
        self._lines.append(f"{name}{'[lazy]' if lazy else ''}: {definition}")
        return Node("rule", name=name)

    def _make(self, format: Any, place: str, depth: int) -> Node:
        if not isinstance(format, dict):
            raise _refuse(place, f"must be an object, got {show(format)}")
        if depth > MAX_DEPTH:
            raise _refuse(place, f"is nested more than {MAX_DEPTH} levels deep")
        kind = format.get("type")
        if not isinstance(kind, str) or kind not in _KEYS:
            raise _refuse(f"{place}.type", f"must be one of {', '.join(_KEYS)}, got {show(kind)}")
        for key in format:
            if key != "type" and key not in _KEYS[kind]:
                raise _refuse(f"{place}.{str(key)[:60]}", f"is not supported with type {kind!r}")
        return self._makers[kind](format, place, depth)

    def _make_all(self, format: dict[str, Any], key: str, place: str, depth: int) -> list[Node]:
        parts = format.get(key)
        if not isinstance(parts, list) or not parts:
            raise _refuse(f"{place}.{key}", f"must be a non-empty list, got {show(parts)}")
        last = len(parts) - 1 if format["type"] == "sequence" else -1
        for i, part in enumerate(parts):
            if i < last and _is_text(part):
                raise _refuse(f"{place}.{key}[{i}]", "of type any_text must be the last one, or the content of a tag")
        return [self._make(part, f"{place}.{key}[{i}]", depth + 1) for i, part in enumerate(parts)]

    def _make_sequence(self, format: dict[str, Any], place: str, depth: int) -> Node:
        return Node("sequence", _join_heads(self._make_all(format, "elements", place, depth)))

    def _make_or(self, format: dict[str, Any], place: str, depth: int) -> Node:
        parts, before = format.get("elements"), self._is_beside_json
        if isinstance(parts, list):
            self._is_beside_json |= any(isinstance(part, dict) and part.get("type") == "json_schema" for part in parts)
        made = self._make_all(format, "elements", place, depth)
        self._is_beside_json = before
        return Node("choice", made)

    def _make_repeat(self, format: dict[str, Any], place: str, depth: int, least: int, most: int | None) -> Node:
        content = self._make(format.get("content"), f"{place}.content", depth + 1)
        return Node("repeat", [content], least=least, most=most)

    def _make_text(self, without: Sequence[str], end: str = "") -> Node:
        """Any text, up to the first `end` and with it; none of `without` is in it."""
        text = "/(?s:.*)/"
        if without:
            text = f"({text} & ~/(?s:.*)(?:{'|'.join(map(escape_text, without))})(?s:.*)/)"
        if not end and not without:
            return Node("regex", name="(?s:.*)")
        name = f"Y{len(self._lines)}"
        self._lines.append(f"{name}: {text}{f' /{escape_text(end)}/' if end else ''}")
        return self._add(name, lazy=bool(end))

    def _spell(self, text: str) -> Node:
        """A text; in the pieces of JSON where JSON may stand, too: a longer one would hide that."""
        if not self._is_beside_json or '"' not in text:
            return _spell(text)
        return Node("sequence", [self._add(f"/{escape_text(piece)}/") for piece in _JSON_PIECE.findall(text)])

    def _make_token(self, format: Any, place: str) -> Node:
        token_id = format.get("token") if isinstance(format, dict) and format.get("type") == "token" else None
        if isinstance(token_id, bool) or not isinstance(token_id, int) or token_id < 0:
            raise _refuse(place, "of type token must have the id of a token and nothing else")
        return self._add(f"<[{token_id}]>")

    def _make_json(self, format: dict[str, Any], place: str) -> Node:
        if "style" in format and format["style"] != "json":
            raise _refuse(f"{place}.style", f"must be 'json', got {show(format['style'])}")
        found = find_text_grammar(format.get("json_schema"))
        if found is not None:
            return self._make_quoted(*found, place)
        written, left_out = write_held(format.get("json_schema"))
        self._left_out += left_out
        return self._add(written)

    def _make_quoted(self, name: str, grammar: Mapping[str, Any], place: str) -> Node:
        """A JSON string whose text follows a grammar, or an object with one property that is such a string."""
        rules = read_quoted(grammar, f"response_format.{place[:200]}.{KEYWORD}")
        root, lines = write_rules(rules, f"g{len(self._lines)}")
        self._lines += lines
        before, behind = (f"{{{json.dumps(name, ensure_ascii=False)}: ", "}") if name else ("", "")
        return Node("sequence", [_spell(f'{before}"'), Node("rule", name=root), _spell(f'"{behind}')])

    def _make_grammar(self, format: dict[str, Any], place: str) -> Node:
        source = _read_text(format, "grammar", place)
        root, lines = write_rules(read_ebnf(source, f"response_format.{place[:200]}.grammar"), f"g{len(self._lines)}")
        self._lines += lines
        return Node("rule", name=root)

    def _make_tag(self, format: Any, place: str, depth: int, trigger: str) -> Node:
        """The tag behind the beginning of its text, `trigger`."""
        if not isinstance(format, dict) or format.get("type", "tag") != "tag":
            raise _refuse(place, f"must be a tag, got {show(format)}")
        begin, content = format.get("begin"), format.get("content")
        parts = [self._spell(begin.removeprefix(trigger)) if isinstance(begin, str) else self._make_token(begin, place)]
        ends = _read_ends(format, place)
        if isinstance(content, dict) and _is_text(content) and isinstance(ends, list) and all(ends):
            excludes = _read_texts(content, "excludes", f"{place}.content")
            options = [self._make_text(excludes, end) for end in ends]
            return Node("sequence", [*parts, Node("choice", options)])
        parts.append(self._make(content, f"{place}.content", depth + 1))
        return Node("sequence", [*parts, self._make_end(ends, place)])

    def _make_end(self, ends: list[str] | dict[str, Any], place: str) -> Node:
        if isinstance(ends, list):
            return Node("choice", [_spell(one) for one in ends])
        return self._make_token(ends, place)

    def _make_triggered(self, format: dict[str, Any], place: str, depth: int) -> Node:
        triggers = _read_texts(format, "triggers", place)
        if not triggers or not all(triggers):
            raise _refuse(f"{place}.triggers", f"must be a non-empty list of texts, got {show(format.get('triggers'))}")
        excludes = _read_texts(format, "excludes", place)
        tags: list[Node] = []
        for i, tag in enumerate(_read_tags(format, place)):
            begin = tag.get("begin")
            found = [one for one in triggers if isinstance(begin, str) and begin.startswith(one)]
            if not found:
                raise _refuse(f"{place}.tags[{i}].begin", f"must begin with one of the triggers, got {show(begin)}")
            head = self._make_text(excludes, min(found, key=len))
            rest = self._make_tag(tag, f"{place}.tags[{i}]", depth + 1, min(found, key=len))
            tags.append(Node("sequence", [head, rest]))
        return self._make_free(format, tags, self._make_text([*triggers, *excludes]))

    def _make_token_triggered(self, format: dict[str, Any], place: str, depth: int) -> Node:
        if format.get("exclude_tokens"):
            raise _refuse(f"{place}.exclude_tokens", "is not supported")
        text = self._make_text([])
        tags = [
            Node("sequence", [text, self._make_tag(tag, f"{place}.tags[{i}]", depth + 1, "")])
            for i, tag in enumerate(_read_tags(format, place))
        ]
        for i, tag in enumerate(_read_tags(format, place)):
            if not isinstance(tag.get("begin"), dict) or tag["begin"].get("token") not in format.get(
                "trigger_tokens", ()
            ):
                raise _refuse(f"{place}.tags[{i}].begin", "must be one of the trigger_tokens")
        return self._make_free(format, tags, text)

    def _make_free(self, format: dict[str, Any], tags: Sequence[Node], tail: Node) -> Node:
        """Text with tags in it; each of `tags` begins with the text before it."""
        tag = Node("choice", list(tags))
        at_least_one = bool(format.get("at_least_one"))
        if format.get("stop_after_first"):
            return tag if at_least_one else Node("choice", [tag, tail])
        return Node("sequence", [Node("repeat", [tag], least=int(at_least_one), most=None), tail])

    def _make_separated(self, format: dict[str, Any], place: str, depth: int) -> Node:
        separator = _spell(_read_text(format, "separator", place))
        options = [
            self._make_tag(tag, f"{place}.tags[{i}]", depth + 1, "") for i, tag in enumerate(_read_tags(format, place))
        ]
        tag = Node("choice", options)
        more = Node("repeat", [Node("sequence", [separator, tag])], least=0, most=None)
        whole = tag if format.get("stop_after_first") else Node("sequence", [tag, more])
        return whole if format.get("at_least_one") else Node("repeat", [whole], least=0, most=1)


def _make_regex(format: dict[str, Any], place: str) -> Node:
    pattern = format.get("pattern")
    if not isinstance(pattern, str):
        raise _refuse(place, "of type regex must have a pattern and nothing else")
    return Node("regex", name=rewrite_regex(pattern, f"response_format.{place}.pattern"))


def _read_tags(format: dict[str, Any], place: str) -> list[dict[str, Any]]:
    tags = format.get("tags")
    if not isinstance(tags, list) or not tags or not all(isinstance(tag, dict) for tag in tags):
        raise _refuse(f"{place}.tags", f"must be a non-empty list of tags, got {show(tags)}")
    return tags


def _read_text(format: dict[str, Any], key: str, place: str) -> str:
    value = format.get(key)
    if not isinstance(value, str):
        raise _refuse(f"{place}.{key}", f"must be a text, got {show(value)}")
    return value


def _read_texts(format: dict[str, Any], key: str, place: str) -> list[str]:
    value = format.get(key) or []
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise _refuse(f"{place}.{key}", f"must be a list of texts, got {show(value)}")
    return value


def _read_ends(format: dict[str, Any], place: str) -> list[str] | dict[str, Any]:
    """Return the texts that may end a tag, or the token that does."""
    end = format.get("end", "")
    if isinstance(end, dict):
        return end
    ends = end if isinstance(end, list) else [end]
    if not ends or not all(isinstance(text, str) for text in ends):
        raise _refuse(f"{place}.end", f"must be a text, texts or a token, got {show(end)}")
    return ends


def _read_bounds(format: dict[str, Any], place: str) -> tuple[int, int | None]:
    least, most = format.get("min", 0), format.get("max")
    most = None if most == -1 else most
    for value in (least, 0 if most is None else most):
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise _refuse(place, "of type repeat must have whole numbers as min and max")
    if most is not None and most < least:
        raise _refuse(place, "of type repeat must have a max that is not below its min")
    return least, most
