"""The OpenAPI document for generators of clients in Java, Go and other languages without unions of types."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from seesay.serving.docs_page import SIMPLE_DOCUMENT


def add_simple_document(app: FastAPI) -> None:
    """Serve what `app` publishes in the simple form, too."""

    async def show(_: Request) -> Response:
        return JSONResponse(simplify_document(app.openapi()))

    app.add_route(SIMPLE_DOCUMENT, show, include_in_schema=False)


def simplify_document(document: dict[str, Any]) -> dict[str, Any]:
    """Return the document with one type per value: what may be of several, or is always null, may be anything. It has
    no defaults, so clients send only what was set. A body that the document allows is allowed by the simple one, too.
    Each operation has one tag, since Go's generator writes it once per tag."""
    simple: dict[str, Any] = _simplify(document)
    for item in simple["paths"].values():
        for operation in item.values():
            operation["tags"] = operation["tags"][:1]
    return simple


def _simplify(node: Any, *, is_schema: bool = True) -> Any:
    if isinstance(node, list):
        return [item if item == {"type": "null"} else _simplify(item) for item in node]
    if not isinstance(node, dict):
        return node
    simple = {key: _simplify(value, is_schema=key not in ("properties", "responses")) for key, value in node.items()}
    for key in _find_left_out(node) if is_schema else ():
        simple.pop(key, None)
    return simple


def _find_left_out(node: dict[str, Any]) -> Iterator[str]:
    """Yield the keywords that a schema loses."""
    yield "default"
    if _is_mixed(node):
        yield from ("type", "anyOf", "oneOf", "discriminator")
    if any("if" in part for part in _parts_of(node, "allOf")):
        yield "allOf"
    if not isinstance(node.get("const", ""), str):
        yield "const"
    if not all(isinstance(value, str) for value in node.get("enum", ())):
        yield "enum"


def _is_mixed(node: dict[str, Any]) -> bool:
    """Whether values of a schema have several types, or none but null."""
    parts = [part for key in ("anyOf", "oneOf") for part in _parts_of(node, key)]
    named = [part for part in parts if part.get("type") != "null"]
    return node.get("type") == "null" or len(named) > 1 or any(not {"type", "$ref"} & part.keys() for part in named)


def _parts_of(node: dict[str, Any], key: str) -> list[dict[str, Any]]:
    parts = node.get(key)
    return [part for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
