"""The published schemas of requests are as strict as the server: a body that one refuses, the other refuses too."""

from __future__ import annotations

from typing import Any

import httpx
import jsonschema
import pytest
from live_server import MODEL, make_data_url
from serving.test_refusals import BAD_FIELDS, CHAT, COMPLETIONS, MINIMAL, RESPONSES

URL = make_data_url()
MESSAGES, INTERACTIVE, EMBEDDINGS = "/v1/messages", "/v1/chat/interactive", "/v1/embeddings"
# What only the server knows: what it stores, and whether its model thinks.
NOT_IN_A_SCHEMA = {(RESPONSES, "previous_response_id"), (CHAT, "reasoning_effort"), (RESPONSES, "reasoning")}
CALL = {"id": "t", "type": "function", "function": {"name": "f", "arguments": "{}"}}
BAD_CALLS: tuple[Any, ...] = ([[[1]]], "abc", [1], [{}], {"a": 1}, [{**CALL, "odd": 1}])


def user(*content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(content) if content else "hi"}]}


def text(words: str = "hi", **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


def image(**more: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": URL, **more}}


def claude(**source: Any) -> dict[str, Any]:
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo=", **source}}


def calls(*, call: Any = "t", result: Any = "t") -> dict[str, Any]:
    """A tool that was called and answered, for Anthropic's API; None leaves an id out."""
    used = {"type": "tool_use", "name": "f", "input": {}} | ({} if call is None else {"id": call})
    answer = {"type": "tool_result", "content": "x"} | ({} if result is None else {"tool_use_id": result})
    turns = [("user", "a"), ("assistant", [used]), ("user", [answer])]
    return {"max_tokens": 1, "messages": [{"role": role, "content": content} for role, content in turns]}


def talk(*turns: dict[str, Any]) -> dict[str, Any]:
    return {"max_tokens": 1, "messages": [{"role": "user", "content": "hi"}, *turns]}


def answer(**more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "x", **more}


def tool(**more: Any) -> dict[str, Any]:
    return {"role": "tool", "content": "x", **more}


def video(**more: Any) -> dict[str, Any]:
    return {"type": "video_url", "video_url": {"url": URL, **more}}


BAD: list[tuple[str, dict[str, Any]]] = [
    *((path, {**MINIMAL[path], name: value}) for path, fields in BAD_FIELDS.items() for name, value in fields.items()
      if (path, name) not in NOT_IN_A_SCHEMA),
    (CHAT, {}),
    (CHAT, {**user(), "top_logprobs": 2}),
    (CHAT, {**user(), "stop": ["a"] * 257}),
    (CHAT, {**user(), "stop_token_ids": [1] * 257}),
    (CHAT, {**user(), "logit_bias": {"7": 101}}),
    (CHAT, {**user(), "metadata": {str(number): "x" for number in range(17)}}),
    (CHAT, {**user(), "stream": True, "stream_options": {"odd": 1}}),
    (CHAT, {"messages": [{"role": "robot", "content": "x"}]}),
    (CHAT, {"messages": [{"role": "user", "content": "x", "odd": 1}]}),
    (CHAT, {"messages": [{"role": "user", "content": 3}]}),
    (CHAT, user(text(odd=1))),
    (CHAT, user({"type": "odd"})),
    (CHAT, user({"type": "text"})),
    (CHAT, user({"type": "image_url"})),
    (CHAT, user(image(detail="odd"))),
    (CHAT, user(image(odd=1))),
    (CHAT, {**user(), "n": 129}),
    (CHAT, {**user(), "stop_token_ids": [1 << 20]}),
    (CHAT, {"messages": [{"role": "user", "content": None}]}),
    (CHAT, {"messages": [{"role": "user", "content": "x", "name": 5}]}),
    (CHAT, user({"type": "image_url", "image_url": URL})),
    (CHAT, user({"type": "video_url", "video_url": URL})),
    *((CHAT, user(image(**{name: value}))) for name in ("min_pixels", "max_pixels", "resized_height")
      for value in (-1, 0, "x", 1.5, 1 << 40)),
    *((CHAT, user(video(**{name: value}))) for name in ("fps", "num_frames", "max_frames") for value in (0, -1, "x")),
    *((CHAT, user(video(**{name: value}))) for name in ("nframes", "sample_fps", "video_start", "total_pixels")
      for value in (-1, "x")),
    (CHAT, user(video(fps=1, num_frames=2))),
    (CHAT, user(video(fps=1, nframes=2))),
    (CHAT, user(video(num_frames=2, nframes=2))),
    (CHAT, talk(answer(content=None))),
    (CHAT, talk(answer(content=None, tool_calls=[]))),
    *((CHAT, talk(answer(tool_calls=value))) for value in BAD_CALLS),
    *((CHAT, talk(answer(tool_calls=[{**CALL, name: value}]))) for name, value in (
        ("id", 3), ("id", ""), ("type", "odd"), ("function", {}), ("function", "f"),
        ("function", {"name": "f", "arguments": {}}), ("function", {"name": "f", "arguments": "{}", "odd": 1}))),
    *((CHAT, talk({"role": role, "content": "x", "tool_calls": [CALL]})) for role in ("user", "system", "developer")),
    (CHAT, talk({"role": "user", "content": "x", "tool_call_id": "t"})),
    (CHAT, talk(answer(tool_calls=[CALL], tool_call_id="t"))),
    (CHAT, talk(answer(tool_calls=[CALL]), tool(tool_call_id="t", tool_calls=[CALL]))),
    (CHAT, talk(tool())),
    (CHAT, talk(answer(tool_calls=[CALL]), tool())),
    (CHAT, talk(answer(tool_calls=[CALL]), tool(tool_call_id=3))),
    (CHAT, talk(answer(tool_calls=[CALL]), tool(tool_call_id="t", content=None))),
    (COMPLETIONS, {"prompt": [""]}),
    (COMPLETIONS, {"prompt": ["a", 3]}),
    (COMPLETIONS, {"prompt": [[1], []]}),
    (COMPLETIONS, {"prompt": [-1]}),
    (COMPLETIONS, {"prompt": [1.5]}),
    (RESPONSES, {"input": []}),
    (RESPONSES, {"input": [{"role": "robot", "content": "x"}]}),
    (RESPONSES, {"input": [{"role": "user", "content": "x", "odd": 1}]}),
    (RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}]}),
    (RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "x"}]}]}),
    (EMBEDDINGS, {"input": "x", **user()}),
    (EMBEDDINGS, {}),
    (INTERACTIVE, {"prompt": []}),
    (INTERACTIVE, {"prompt": "x", "session_id": -2}),
    (INTERACTIVE, {"prompt": "x", "n": 2}),
    (INTERACTIVE, {"prompt": ""}),
    (INTERACTIVE, {"prompt": "", "image_url": []}),
    (INTERACTIVE, {"prompt": "", "session_id": 3, "interactive_mode": True}),
    (INTERACTIVE, {"prompt": "x", "request_output_len": 0}),
    ("/generate", {"prompt": ""}),
    ("/generate", {"input_ids": [1 << 20]}),
    ("/detokenize", {"tokens": [5000]}),
    ("/generate", {}),
    ("/generate", {"prompt": "x", "input_ids": [1]}),
    ("/generate", {"input_ids": []}),
    ("/generate", {"prompt": "x", "max_tokens": 0}),
    ("/tokenize", {}),
    ("/tokenize", {"prompt": "x", **user()}),
    ("/tokenize", {"messages": []}),
    ("/detokenize", {"tokens": [-1]}),
    ("/detokenize", {}),
    (MESSAGES, user()),  # without max_tokens
    (MESSAGES, {**user(), "max_tokens": 1, "thinking": {"type": "enabled", "budget_tokens": 0}}),
    (MESSAGES, {**user(), "max_tokens": 1, "stop_sequences": [""]}),
    (MESSAGES, {"max_tokens": 1, "messages": []}),
    (MESSAGES, {"max_tokens": 1, "messages": [{"role": "system", "content": "x"}]}),
    (MESSAGES, {"max_tokens": 1, "messages": [{"role": "user", "content": ""}]}),
    (MESSAGES, {**user(text("")), "max_tokens": 1}),
    (MESSAGES, {**user({"type": "document"}), "max_tokens": 1}),
    (MESSAGES, {**user(text(odd=1)), "max_tokens": 1}),
    (MESSAGES, {**user(claude(media_type="image/tiff")), "max_tokens": 1}),
    (MESSAGES, {**user(claude(type="file", file_id="f")), "max_tokens": 1}),
    (MESSAGES, {"max_tokens": 1, "messages": [*user()["messages"], {"role": "assistant", "content": [claude()]}]}),
    (MESSAGES, {**user(), "max_tokens": 1, "system": [claude()]}),
    (MESSAGES, calls(call=None)),
    (MESSAGES, calls(result=None)),
    (MESSAGES, calls(call="", result="")),
]  # fmt: skip

GOOD: list[tuple[str, dict[str, Any]]] = [
    *MINIMAL.items(),
    (CHAT, {**user(text(), image(detail="low")), "max_tokens": 1, "tools": [], "tool_choice": "auto", "user": None}),
    (CHAT, {**user(), "max_tokens": 1, "stop": ["a", "b"], "logit_bias": {"7": -100}, "logprobs": True,
            "top_logprobs": 2, "stream": True, "stream_options": {"include_usage": True}, "metadata": {"a": "b"}}),
    (CHAT, {"max_tokens": 1, "messages": [
        {"role": "developer", "content": "x"}, {"role": "user", "content": [text()]},
        {"role": "assistant", "content": "x", "refusal": None, "annotations": [], "audio": None, "tool_calls": []},
        {"role": "user", "content": "y", "name": "me", "tool_calls": [], "tool_call_id": None}]}),
    (CHAT, talk(answer(content=None, tool_calls=[CALL]), tool(tool_call_id="t", content=[text()]))),
    (CHAT, talk(answer(tool_calls=[CALL]), tool(tool_call_id="t"), answer(), {"role": "user", "content": []})),
    (INTERACTIVE, {"prompt": "", "session_id": 3}),
    (INTERACTIVE, {"prompt": "", "session_id": 3, "request_output_len": 0}),
    (INTERACTIVE, {"prompt": "", "session_id": 3, "cancel": True}),
    (INTERACTIVE, {"prompt": "", "image_url": [URL], "request_output_len": 1}),
    (COMPLETIONS, {"prompt": [[1, 2], [3]], "max_tokens": 1, "suffix": ""}),
    (COMPLETIONS, {"prompt": "x", "max_tokens": 0, "echo": True}),
    (RESPONSES, {"max_output_tokens": 1, "text": {"format": {"type": "text"}}, "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "x"}, {"type": "input_image", "image_url": URL}]},
        {"type": "message", "role": "assistant", "id": "m", "status": "completed",
         "content": [{"type": "output_text", "text": "y", "annotations": [], "logprobs": []}]},
        {"role": "user", "content": "z"}]}),
    (EMBEDDINGS, user(text(), image())),
    (EMBEDDINGS, {"input": [[1, 2]], "messages": None}),
    (INTERACTIVE, {"prompt": user(text(), image())["messages"], "request_output_len": 1}),
    ("/generate", {"input_ids": [1, 2], "max_tokens": 1}),
    ("/tokenize", user(text(), image())),
    ("/detokenize", {"tokens": [1]}),
    (MESSAGES, {**user(text(cache_control={"type": "ephemeral"})), "max_tokens": 1, "system": [text(citations=[])]}),
    (MESSAGES, calls()),
    (MESSAGES, {"max_tokens": 1, "messages": [*user()["messages"], {"role": "assistant", "content": ""}]}),
]  # fmt: skip


@pytest.fixture(scope="module")
def schemas(server: Any) -> dict[str, Any]:
    """The schema of each route's body, with all that it refers to."""
    document = httpx.get(f"{server.url}/openapi.json", timeout=60).json()
    bodies = {
        path: item["post"]["requestBody"]["content"]["application/json"]["schema"]
        for path, item in document["paths"].items()
        if "application/json" in item.get("post", {}).get("requestBody", {}).get("content", {})
    }
    return {path: {**schema, "components": document["components"]} for path, schema in bodies.items()}


@pytest.mark.parametrize(("path", "body"), BAD, ids=[f"{path}-{number}" for number, (path, _) in enumerate(BAD)])
async def test_what_the_server_refuses(
    http: httpx.AsyncClient, schemas: dict[str, Any], path: str, body: dict[str, Any]
) -> None:
    assert (await http.post(path, json=body)).status_code == 400
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(body, schemas[path], jsonschema.Draft202012Validator)


@pytest.mark.parametrize(("path", "body"), GOOD, ids=[f"{path}-{number}" for number, (path, _) in enumerate(GOOD)])
async def test_what_the_server_takes(
    http: httpx.AsyncClient, schemas: dict[str, Any], path: str, body: dict[str, Any]
) -> None:
    response = await http.post(path, json=body)
    assert response.status_code == 200, response.text
    jsonschema.validate(body, schemas[path], jsonschema.Draft202012Validator)


@pytest.mark.parametrize(
    ("turns", "place"),
    [
        ([tool(tool_call_id="t")], "messages[1].tool_call_id"),
        ([answer(tool_calls=[CALL]), tool(tool_call_id="other")], "messages[2].tool_call_id"),
        ([answer(tool_calls=[CALL]), tool(tool_call_id="t"), tool(tool_call_id="t")], "messages[3].tool_call_id"),
        ([answer(tool_calls=[CALL])], "messages[1].tool_calls[0]"),
        ([answer(tool_calls=[CALL]), {"role": "user", "content": "x"}], "messages[1].tool_calls[0]"),
        ([answer(tool_calls=[CALL, CALL]), tool(tool_call_id="t")], "messages[1].tool_calls[1].id"),
        ([answer(tool_calls=[CALL, 3])], "messages[1].tool_calls[1]"),
        ([answer(tool_calls=[{**CALL, "function": {"name": 1, "arguments": ""}}])],
         "messages[1].tool_calls[0].function.name"),
        ([{"role": "user", "content": "x", "name": 5}], "messages[1].name"),
        ([{"role": "user", "content": "x", "tool_calls": [CALL]}], "messages[1].tool_calls"),
        ([answer(tool_call_id="t")], "messages[1].tool_call_id"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": URL}]}], "messages[1].content[0].image_url"),
    ],
)  # fmt: skip
async def test_a_bad_turn_is_located(http: httpx.AsyncClient, turns: list[Any], place: str) -> None:
    response = await http.post(CHAT, json=talk(*turns))
    assert response.status_code == 400 and response.json()["error"]["param"] == place, response.text


EXPECTED = {
    "/update_weights": 403,
    "/v1/load_lora_adapter": 403,
    "/v1/unload_lora_adapter": 403,
    "/v1/batches": 404,
}


async def test_the_example_of_each_request_works(http: httpx.AsyncClient, schemas: dict[str, Any]) -> None:
    """Swagger UI sends it when nothing was changed. Its own would have `-9223372036854776000` for a seed."""
    document = (await http.get("/openapi.json")).json()
    for path, schema in schemas.items():
        example = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["example"]
        without = ("/v1/batches", "/v1/conversations", "/abort_request", "/v1/load_lora", "/v1/unload_lora")
        names_model = not path.startswith(without)
        assert example.get("model") == (MODEL if names_model else None)
        jsonschema.validate(example, schema, jsonschema.Draft202012Validator)
        response = await http.post(path, json=example)
        # The app of this test has neither admin keys nor a folder of files, nor a conversation of that name.
        expected = 404 if "{" in path else EXPECTED.get(path, 200)
        assert response.status_code == expected, (path, response.text)


def test_every_object_is_closed(schemas: dict[str, Any]) -> None:
    """Unknown fields are refused wherever the server refuses them: in each object but those that anything may be in."""
    components = next(iter(schemas.values()))["components"]["schemas"]
    seen: set[str] = set()

    def walk(node: Any) -> None:
        if isinstance(node, dict):
            if isinstance(name := node.get("$ref"), str) and name not in seen:
                seen.add(name)
                walk(components[name.rpartition("/")[2]])
            for value in node.values():
                walk(value)
        elif isinstance(node, list):
            for value in node:
                walk(value)

    for schema in schemas.values():
        walk({"$ref": schema["$ref"]})
    assert len(seen) > 20
    for name in seen:
        assert components[name.rpartition("/")[2]].get("additionalProperties") is False, name


async def test_values_of_the_simple_document_have_one_type(http: httpx.AsyncClient, schemas: dict[str, Any]) -> None:
    """Java's and Go's generators write code for others that does not compile."""
    document = (await http.get("/openapi-simple.json")).json()
    whole = (await http.get("/openapi.json")).json()
    assert document["components"]["schemas"].keys() == whole["components"]["schemas"].keys()

    def check(node: Any, where: str) -> None:
        for key, value in enumerate(node) if isinstance(node, list) else node.items() if isinstance(node, dict) else ():
            check(value, f"{where}/{key}")
        if isinstance(node, dict) and not where.endswith("/properties"):
            parts = [part for key in ("anyOf", "oneOf") for part in node.get(key, ())]
            assert len([part for part in parts if part.get("type") != "null"]) <= 1, where
            assert isinstance(node.get("const", ""), str) and "default" not in node, where

    check(document["components"]["schemas"], "")
    for path in schemas:
        media = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        schema = media["schema"] | {"components": document["components"]}
        jsonschema.validate(media["example"], schema, jsonschema.Draft202012Validator)


async def test_generators_of_clients_can_read_the_document(http: httpx.AsyncClient) -> None:
    """Names that differ, and values of one type: `tools/generated_clients.py` tries the generators themselves."""
    document = (await http.get("/openapi.json")).json()
    models = document["components"]["schemas"]
    assert [name for name in models if not name.isalnum()] == []
    assert {name: model["title"] for name, model in models.items()} == {name: name for name in models}
    operations = [operation for item in document["paths"].values() for operation in item.values()]
    names = [operation["operationId"] for operation in operations]
    assert len(set(names)) == len(names) and "create_chat_completion" in names

    def check(node: Any, where: str) -> None:
        if isinstance(node, list):
            for index, item in enumerate(node):
                check(item, f"{where}[{index}]")
        if isinstance(node, dict):
            if isinstance(node.get("enum"), list) and "not" not in where.split("/"):
                assert len({type(value) for value in node["enum"]}) == 1, where
            if str(node.get("$ref", "")).startswith("#/components/schemas/"):
                assert node["$ref"].rpartition("/")[2] in models, where
            for key, value in node.items():
                check(value, f"{where}/{key}")

    check(document["components"], "")
