"""Request bodies that may hurt a server: each field of each route, grown to a size in every odd way."""

from __future__ import annotations

import base64
import io
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

_HOLE = '"@hole@"'


def _repeat(opening: bytes, item: bytes, closing: bytes) -> Callable[[int], bytes]:
    return lambda size: opening + item * ((size - len(opening) - len(closing)) // len(item)) + closing


def _members(size: int) -> bytes:
    return b"{" + b",".join(b'"%08d":0' % index for index in range(size // 13)) + b"}"


def _nest(size: int) -> bytes:
    return b"[" * (size // 2) + b"]" * (size // 2)


SHAPES: dict[str, Callable[[int], bytes]] = {
    "text": _repeat(b'"', b"how many red circles? ", b'"'),
    "one word": _repeat(b'"', b"a", b'"'),
    "wide text": _repeat(b'"', b"how many red circles? ", '😀"'.encode()),
    "escapes": _repeat(b'"', b'\\"', b'"'),
    "base64 URL": _repeat(b'"data:image/png;base64,', b"aaaa", b'"'),
    "percent URL": _repeat(b'"data:image/png,', b"%41", b'"'),
    "numbers": _repeat(b"[", b"3,", b"3]"),
    "large numbers": _repeat(b"[", b"1" * 4000 + b",", b"3]"),
    "floats": _repeat(b"[", b"1.5e-300,", b"3.5]"),
    "texts": _repeat(b"[", b'"a",', b'"a"]'),
    "lists": _repeat(b"[", b"[],", b"[]]"),
    "objects": _repeat(b"[", b"{},", b"{}]"),
    "members": _members,
    "nesting": _nest,
    "long key": _repeat(b'{"', b"a", b'":0}'),
    "long text within": _repeat(b'{"x":"', b"how many red circles? ", b'"}'),
    "floats within": _repeat(b'{"x":[', b"1.5e-300,", b"3.5]}"),
}
_TEXT_SHAPES = ("text", "one word", "wide text", "escapes", "numbers", "lists")
_URL_SHAPES = ("base64 URL", "percent URL")
_LIST_SHAPES = ("text", "numbers", "large numbers", "floats", "texts", "lists", "objects", "nesting")
_OBJECT_SHAPES = ("members", "long key", "long text within", "floats within", "lists", "nesting", "text")
_NAME_SHAPES = ("one word", "floats", "members")


@dataclass(frozen=True)
class Case:
    """A way to make a body for `path`. `make(size)` has about so many bytes."""

    path: str
    field: str
    shape: str
    make: Callable[[int], bytes]


def find_cases(openapi: Mapping[str, Any]) -> Iterator[Case]:
    """Every text, list and object field of every route, in each shape that is odd for its type."""
    schemas = openapi["components"]["schemas"]
    for path, operations in openapi["paths"].items():
        content = operations.get("post", {}).get("requestBody", {}).get("content", {})
        if "application/json" in content:
            schema = Schema(content["application/json"]["schema"], schemas)
            minimal = {**schema.example(), **schema.shortest_answer()}
            for field in schema.fields():
                body = _answer_call(field.fill(minimal))
                for shape in dict.fromkeys(itertools.chain.from_iterable(field.kinds)):
                    yield Case(path, field.name, shape, _filling(body, SHAPES[shape]))
                if field.item is not None:
                    item = json.dumps(field.item).encode()
                    yield Case(path, field.name, "valid items", _filling(body, _repeat(b"[", item + b",", item + b"]")))


def _filling(body: Any, shape: Callable[[int], bytes]) -> Callable[[int], bytes]:
    head, _, tail = json.dumps(body).partition(_HOLE)
    return lambda size: head.encode() + shape(max(16, size - len(head) - len(tail))) + tail.encode()


class Field(NamedTuple):
    """A place in a body. `kinds`: the shapes per type it may have; `item`: a valid entry of a list; `fill`: puts a hole
    there into an example of what it stands in."""

    name: str
    kinds: list[tuple[str, ...]]
    item: Any
    fill: Callable[[Any], Any]


@dataclass(frozen=True)
class Schema:
    """A JSON schema, with the named ones it refers to."""

    schema: Mapping[str, Any]
    named: Mapping[str, Any]

    def options(self) -> list[Schema]:
        """The alternatives, references resolved."""
        schema = self.schema
        while "$ref" in schema:
            schema = self.named[schema["$ref"].rpartition("/")[2]]
        found = schema.get("anyOf") or schema.get("oneOf")
        if found:
            return [option for one in found for option in self.inner(one).options()]
        return [self.inner(schema)]

    def inner(self, schema: Mapping[str, Any]) -> Schema:
        return Schema(schema, self.named)

    def example(self) -> Any:
        """A small value of the first alternative that is not null: the required fields alone."""
        schema = next((one.schema for one in self.options() if one.schema.get("type") != "null"), {})
        if "const" in schema or "enum" in schema:
            return schema.get("const", schema.get("enum", [None])[0])
        match schema.get("type"):
            case "object":
                properties = schema.get("properties", {})
                example = {name: self.inner(properties[name]).example() for name in schema.get("required", ())}
                if "role" in properties and "content" in properties:
                    roles = self.inner(properties["role"]).values()
                    example |= {"role": "user" if "user" in roles else roles[0], "content": "hi"}
                return example
            case "array":
                return [self.inner(schema.get("items", {})).example()]
            case "integer" | "number":
                return 3
            case "boolean":
                return False
            case _:
                return "hi"

    def values(self) -> list[Any]:
        """The values that it allows, where it lists them."""
        listed = [option.schema.get("enum", [option.schema.get("const")]) for option in self.options()]
        return [value for values in listed for value in values if value is not None]

    def shortest_answer(self) -> dict[str, int]:
        """The field that limits the answer, if there is one: what is refused is of interest, not what is answered."""
        names = ("max_tokens", "max_output_tokens", "request_output_len")
        properties = [option.schema.get("properties", {}) for option in self.options()]
        return {name: 1 for name in names if any(name in one for one in properties)}

    def fields(self, name: str = "") -> Iterator[Field]:
        """Every text, list and object in it."""
        kinds: list[tuple[str, ...]] = []
        item: Any = None
        for option in self.options():
            match option.schema.get("type"):
                case "string" if "const" not in option.schema and "enum" not in option.schema:
                    kinds.append(_TEXT_SHAPES + (_URL_SHAPES if "url" in name.rpartition(".")[2] else ()))
                case "string":
                    kinds.append(_NAME_SHAPES)
                case "array":
                    kinds.append(_LIST_SHAPES)
                    item = self.inner(option.schema.get("items", {})).example()
                case "object":
                    kinds.append(_OBJECT_SHAPES)
        if kinds and name:
            yield Field(name, kinds, item, _dig_hole)
        for option in self.options():
            yield from option._fields_inside(name)

    def _fields_inside(self, name: str) -> Iterator[Field]:
        if self.schema.get("type") == "array":
            items = self.inner(self.schema.get("items", {}))
            for field in items.fields(f"{name}[]"):
                yield field._replace(fill=partial(_fill_list, field.fill))
        elif self.schema.get("type") == "object":
            for key, schema in self.schema.get("properties", {}).items():
                value = self.inner(schema)
                for field in value.fields(f"{name}.{key}" if name else key):
                    yield field._replace(fill=partial(_fill_object, field.fill, key, self.example()))


def _answer_call(body: dict[str, Any]) -> dict[str, Any]:
    """The body, with the call to its result of a tool, or the result of its call."""
    call = {"role": "assistant", "content": [{"type": "tool_use", "id": "hi", "name": "hi", "input": {}}]}
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "hi"}]}
    match body.get("messages"):
        case [{"content": [{"type": "tool_result"}]}] as messages:
            return {**body, "messages": [{"role": "user", "content": "hi"}, call, *messages]}
        case [{"content": [{"type": "tool_use"}]}] as messages:
            return {**body, "messages": [{"role": "user", "content": "hi"}, *messages, result]}
    return body


def _dig_hole(_: Any) -> Any:
    return json.loads(_HOLE)


def _fill_list(fill: Callable[[Any], Any], _: Any) -> Any:
    return [fill(None)]


def _fill_object(fill: Callable[[Any], Any], key: str, example: Any, outer: Any) -> Any:
    """`outer`, or else `example`, which is of the very alternative that has the field, with the field filled."""
    return {**(example if outer is None else outer), key: fill(None)}


def picture_cases() -> Iterator[Case]:
    """Bodies as large as the others that are nothing but one picture, which is answered."""

    def make(size: int, wrap: Callable[[str], Any]) -> bytes:
        side = int((size * 0.75 / 3) ** 0.5)
        noise = np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8)
        file = io.BytesIO()
        Image.fromarray(noise).save(file, "PNG", compress_level=0)
        return json.dumps(wrap(base64.b64encode(file.getvalue()).decode())).encode()

    def chat(data: str) -> Any:
        url = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
        return {"messages": [{"role": "user", "content": [url]}], "max_tokens": 1}

    def message(data: str) -> Any:
        source = {"type": "base64", "media_type": "image/png", "data": data}
        return {"messages": [{"role": "user", "content": [{"type": "image", "source": source}]}], "max_tokens": 1}

    for path, wrap in (("/v1/chat/completions", chat), ("/v1/messages", message)):
        yield Case(path, "messages", "one picture", partial(make, wrap=wrap))
