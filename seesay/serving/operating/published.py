"""The OpenAPI document of a server. It has the limits of its model and settings, and an example for each request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from seesay.serving.anthropic.protocol import MessageStreamEvent
from seesay.serving.openai.answer_models import ChatCompletionChunk
from seesay.serving.openai.responses.responses_protocol import ResponseEvent
from seesay.serving.openai.transcriptions import TranscriptEvent
from seesay.serving.requests.fields import MAX_TOKEN_IDS
from seesay.serving.requests.state import ServerState

_STREAMED_MODELS = (ChatCompletionChunk, ResponseEvent, MessageStreamEvent, TranscriptEvent)
_REFS = "#/components/schemas/"
_TURNS = [{"role": "user", "content": "Calculate 3 + 4."}]
_EXAMPLES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": _TURNS, "max_tokens": 64},
    "/v1/completions": {"prompt": "Calculate 3 + 4.", "max_tokens": 16},
    "/v1/responses/input_tokens": {"input": "Calculate 3 + 4."},
    "/v1/responses": {"input": "Calculate 3 + 4.", "max_output_tokens": 64},
    "/v1/conversations": {"items": _TURNS},
    "/v1/conversations/{conversation_id}": {"metadata": {"topic": "sums"}},
    "/v1/conversations/{conversation_id}/items": {"items": _TURNS},
    "/v1/embeddings": {"input": ["a red circle", "a blue square"]},
    "/v1/rerank": {"query": "a red circle", "documents": ["a blue square", "a circle that is red"]},
    "/v1/score": {"text_1": "a red circle", "text_2": ["a blue square", "a circle that is red"]},
    "/v1/batches": {
        "input_file_id": "file-0123456789abcdef01234567",
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    },
    "/v1/messages": {"messages": _TURNS, "max_tokens": 64},
    "/v1/messages/count_tokens": {"messages": _TURNS},
    "/v1/chat/interactive": {"prompt": "Calculate 3 + 4.", "request_output_len": 64},
    "/generate": {"prompt": "Calculate 3 + 4.", "max_tokens": 16},
    "/tokenize": {"prompt": "Calculate 3 + 4."},
    "/abort_request": {"rid": "my-request"},
    "/detokenize": {"tokens": [1, 2, 3]},
    "/api/chat": {"messages": _TURNS, "stream": False},
    "/api/generate": {"prompt": "Calculate 3 + 4.", "stream": False},
    "/api/show": {},
    "/update_weights": {"folder": "step-200"},
    "/v1/load_lora_adapter": {"lora_name": "polite", "lora_path": "polite"},
    "/v1/unload_lora_adapter": {"lora_name": "polite"},
}
_WITHOUT_MODEL = frozenset(
    [
        "/v1/batches",
        "/v1/conversations",
        "/v1/conversations/{conversation_id}",
        "/v1/conversations/{conversation_id}/items",
        "/abort_request",
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
    ]
)


def publish_schemas(app: FastAPI, state: ServerState) -> None:
    """Make `app` publish its OpenAPI document at /openapi.json."""

    def make_schema() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
            components = schema.setdefault("components", {}).setdefault("schemas", {})
            _describe_streams(components)
            for path, item in schema["paths"].items():
                for operation in item.values():
                    operation["responses"].pop("422", None)  # invalid bodies get 400 here
                    if media := operation.get("requestBody", {}).get("content", {}).get("application/json"):
                        named = {} if path in _WITHOUT_MODEL else {"model": state.model_name}
                        media["example"] = named | _EXAMPLES[path]
            for name in ("HTTPValidationError", "ValidationError"):
                components.pop(name, None)
            _limit(components, state)
            schema = _name_apart(schema)
            _name_operations(schema)
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = make_schema  # type: ignore[method-assign]


def _describe_streams(components: dict[str, object]) -> None:
    """Add the models of streamed events. FastAPI does not find them by itself."""
    for model in _STREAMED_MODELS:
        described = model.model_json_schema(ref_template="#/components/schemas/{model}")
        for name, definition in described.pop("$defs", {}).items():
            components.setdefault(name, definition)
        components[model.__name__] = described


def _name_apart(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the document with names and titles of models that differ, as generators of clients need them: models of
    the same name get the name of their module or API in front."""
    components = schema["components"]["schemas"]
    names = {old: _make_name(old) for old in components}
    renamed: dict[str, Any] = _replace_refs(schema, {f"{_REFS}{old}": f"{_REFS}{new}" for old, new in names.items()})
    renamed["components"]["schemas"] = {
        names[old]: {**model, "title": names[old]} for old, model in renamed["components"]["schemas"].items()
    }
    return renamed


def _name_operations(schema: dict[str, Any]) -> None:
    """Name each operation as its function, or with its API in front where several have that name: generated clients
    call their functions so."""
    operations = [operation for item in schema["paths"].values() for operation in item.values()]
    names = [_as_name(operation["summary"]) for operation in operations]
    longer = [f"{_as_name(operation['tags'][0])}_{name}" for operation, name in zip(operations, names)]
    for operation, name, long in zip(operations, names, longer):
        if names.count(name) == 1:
            operation["operationId"] = name
        elif longer.count(long) == 1:
            operation["operationId"] = long


def _as_name(text: str) -> str:
    return text.lower().replace(" ", "_")


def _make_name(key: str) -> str:
    *modules, name = key.replace("-", "").split("__")
    place = modules[-2] if modules[-1:] == ["protocol"] else "".join(modules[-1:])
    return (place.title() + name).replace("_", "")


def _replace_refs(node: Any, names: Mapping[str, str]) -> Any:
    """Return a copy of a part of the document with other references."""
    if isinstance(node, list):
        return [_replace_refs(item, names) for item in node]
    if isinstance(node, dict):
        return {key: _replace_refs(value, names) for key, value in node.items()}
    return names.get(node, node) if isinstance(node, str) else node


def _limit(node: object, state: ServerState) -> None:
    """Replace the general limits of token ids and of `n` by those of the model and the settings."""
    if isinstance(node, list):
        for item in node:
            _limit(item, state)
    if not isinstance(node, dict):
        return
    if node.get("exclusiveMaximum") == MAX_TOKEN_IDS:
        node["exclusiveMaximum"] = state.engine.vocab_size
    for option in node.get("properties", {}).get("n", {}).get("anyOf", ()):
        if option.get("type") == "integer":
            option["maximum"] = state.settings.max_choices
    for value in node.values():
        _limit(value, state)
