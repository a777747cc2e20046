"""Every route and field by which a client asks for a grammar: the answer follows it, or 400 names what is wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import jsonschema
import openai
import pytest
from live_server import MODEL, LiveServer, make_data_url, serve
from pydantic import BaseModel

from seesay.config import EngineConfig
from seesay.engine.front.engine import AsyncEngine

SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}, "ok": {"type": "boolean"}},
    "required": ["n", "ok"],
    "additionalProperties": False,
}
REGEX, EBNF, CHOICE = "[ab]{3}", "root ::= [ab] [ab] [ab]", ["aba", "bbb"]
TAG = {"format": {"type": "regex", "pattern": REGEX}}
OLD_TAG = {"structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}], "triggers": ["<f>"]}
JSON_FIELDS: list[dict[str, Any]] = [
    {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": json.dumps(SCHEMA)}}},
    {"response_format": {"type": "json_object", "schema": SCHEMA}},
    {"guided_json": SCHEMA}, {"guided_json": json.dumps(SCHEMA)}, {"json_schema": json.dumps(SCHEMA)},
    {"structured_outputs": {"json": SCHEMA}},
]  # fmt: skip
TEXT_FIELDS: list[dict[str, Any]] = [
    {"response_format": {"type": "regex_schema", "regex_schema": REGEX}}, {"guided_regex": REGEX}, {"regex": REGEX},
    {"guided_choice": CHOICE}, {"choice": CHOICE}, {"guided_grammar": EBNF}, {"ebnf": EBNF}, {"grammar": EBNF},
    {"structured_outputs": {"regex": REGEX, "json": None}}, {"structured_outputs": {"choice": CHOICE}},
    {"structured_outputs": {"grammar": EBNF}}, {"structured_outputs": {"structural_tag": json.dumps(TAG)}},
    {"structural_tag": TAG}, {"structural_tag": json.dumps({"type": "structural_tag", **TAG})},
    {"response_format": {"type": "structural_tag", **TAG}},
]  # fmt: skip
MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def live(tiny_checkpoint: Callable[[str], Path]) -> Iterator[LiveServer]:
    config = EngineConfig(session_len=512, device_type="cpu", block_size=16, async_scheduling=True)
    with AsyncEngine(str(tiny_checkpoint("qwen2_5_vl")), backend_config=config) as engine, serve(engine) as server:
        yield server


def post(live: LiveServer, path: str, body: dict[str, Any], status: int = 200) -> Any:
    answer = httpx.post(live.url + path, json=body, timeout=120)
    assert answer.status_code == status, answer.text
    return answer.json()


def is_valid(text: str, *, is_json: bool) -> bool:
    if is_json:
        jsonschema.validate(json.loads(text), SCHEMA)
        return True
    return re.fullmatch(REGEX, text) is not None


@pytest.mark.parametrize("fields", [*JSON_FIELDS, *TEXT_FIELDS], ids=lambda fields: json.dumps(fields)[:60])
def test_every_field(live: LiveServer, fields: dict[str, Any]) -> None:
    is_json = fields in JSON_FIELDS
    chat = post(live, "/v1/chat/completions", {"messages": MESSAGES, "n": 2, "seed": 1, **fields})
    for choice in chat["choices"]:
        assert is_valid(choice["message"]["content"], is_json=is_json) and choice["finish_reason"] == "stop"


@pytest.mark.parametrize("fields", [JSON_FIELDS[0], TEXT_FIELDS[1]], ids=["json", "regex"])
def test_every_route(live: LiveServer, fields: dict[str, Any]) -> None:
    is_json = fields in JSON_FIELDS
    texts = [
        post(live, "/v1/completions", {"prompt": "hi", "max_tokens": 90, **fields})["choices"][0]["text"],
        post(live, "/generate", {"prompt": "hi", "temperature": 1.0, "max_tokens": 90, **fields})["text"],
        post(live, "/v1/chat/interactive", {"prompt": "hi", **fields})["text"],
    ]
    form = {"type": "json_schema", "name": "x", "schema": SCHEMA, "strict": True}
    form = form if is_json else {"type": "regex", "regex": REGEX}
    response = post(live, "/v1/responses", {"input": "hi", "text": {"format": form}})
    assert response["text"]["format"] == form
    texts.append(response["output"][0]["content"][0]["text"])
    for place in ({"output_format": form}, {"output_config": {"format": form}}):
        form.pop("strict", None), form.pop("name", None)
        body = {"messages": MESSAGES, "max_tokens": 90, **place}
        texts.append(post(live, "/v1/messages", body)["content"][0]["text"])
    assert [text for text in texts if not is_valid(text, is_json=is_json)] == []


def test_forced_tokens_are_counted(live: LiveServer) -> None:
    def count() -> float:
        text = httpx.get(live.url + "/metrics").text
        return float(re.findall(r"^seesay_jumped_tokens_total (\S+)$", text, re.MULTILINE)[0])

    before, sentence = count(), "there is one choice"
    body = {"prompt": "hi", "guided_choice": [sentence], "max_tokens": 90, "stream": True}
    body["stream_options"] = {"include_usage": True}
    events = httpx.post(live.url + "/v1/completions", json=body, timeout=120).text.split("data: ")
    chunks = [json.loads(event) for event in events if event.startswith("{")]
    assert "".join(choice["text"] for chunk in chunks for choice in chunk["choices"]) == sentence
    num_tokens = chunks[-1]["usage"]["completion_tokens"]
    assert num_tokens / 2 < count() - before < num_tokens


class Seen(BaseModel):
    n: int
    ok: bool
    kind: str | None = None


def test_the_clients_own_helpers(live: LiveServer) -> None:
    parts = [{"type": "image_url", "image_url": {"url": make_data_url(seed=1)}}, {"type": "text", "text": "what?"}]
    messages: Any = [{"role": "user", "content": parts}]
    limits = {"temperature": 1.0, "seed": 3, "max_tokens": 300}
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="x", max_retries=0) as client:
        parsed = client.chat.completions.parse(model=MODEL, messages=messages, response_format=Small, **limits)  # type: ignore[arg-type]
        assert isinstance(parsed.choices[0].message.parsed, Small)
        with client.chat.completions.stream(model=MODEL, messages=messages, response_format=Small, **limits) as stream:  # type: ignore[arg-type]
            assert isinstance(stream.get_final_completion().choices[0].message.parsed, Small)
        response = client.responses.parse(model=MODEL, input="hi", text_format=Small, max_output_tokens=300)
        assert isinstance(response.output_parsed, Small)
        extra = client.chat.completions.create(model=MODEL, messages=messages, extra_body={"guided_choice": CHOICE})
        assert extra.choices[0].message.content in CHOICE
    with anthropic.Anthropic(base_url=live.url, api_key="x", max_retries=0) as claude:
        answer = claude.messages.create(
            model=MODEL, max_tokens=90, messages=[{"role": "user", "content": "hi"}],
            extra_body={"output_format": {"type": "json_schema", "schema": SCHEMA}},
        )  # fmt: skip
        assert answer.content[0].type == "text" and is_valid(answer.content[0].text, is_json=True)


class Small(BaseModel):
    n: bool
    kind: bool | None


@pytest.mark.parametrize(
    ("fields", "param", "named"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type", "'xml'"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "response_format", "schema"),
        (
            {"guided_json": {"type": "array", "uniqueItems": True}},
            "guided_json",
            "^guided_json: schema at .: uniqueItems",
        ),
        ({"json_schema": "{"}, "json_schema", "^json_schema must be JSON"),
        ({"guided_json": "{"}, "guided_json", "^guided_json must be JSON"),
        ({"guided_regex": "(?=a)b"}, "guided_regex", "^guided_regex: .*lookahead"),
        ({"guided_regex": ""}, "guided_regex", "^guided_regex must be a non-empty string, got ''"),
        ({"ebnf": "root ::= ["}, "ebnf", "^ebnf: .*EBNF"),
        ({"grammar": "root ::= root"}, "grammar", "^grammar: .*the rule 'root'"),
        ({"guided_grammar": 'root ::= "a" | x\nx ::= "b" x'}, "guided_grammar", "^guided_grammar: .*the rule 'x'"),
        ({"choice": []}, "choice", "^choice must be a list of non-empty strings, got an empty list"),
        ({"choice": ["a", ""]}, "choice", r"^choice\[1\] must be a non-empty string, got ''"),
        ({"regex": "a", "choice": ["b"]}, "choice", "cannot be combined"),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs", "json and regex"),
        ({"structured_outputs": {"odd": 1}}, "structured_outputs.odd", "odd"),
        ({"structured_outputs": {"regex": "(?=a)"}}, "structured_outputs.regex", "^structured_outputs.regex: .*ahead"),
        ({"structured_outputs": {"json": "{", "regex": None}}, "structured_outputs.json", "must be JSON"),
        ({"structural_tag": {"format": {"type": "odd"}}}, "structural_tag", "^structural_tag.format.type must be one"),
        ({"structural_tag": OLD_TAG | {"triggers": 3}}, "structural_tag", "^structural_tag"),
        ({"regex": "a", "ignore_eos": True}, "ignore_eos", "ignore_eos"),
    ],
    ids=str,
)
def test_what_is_wrong_is_400_before_admission(
    live: LiveServer, fields: dict[str, Any], param: str, named: str
) -> None:
    for is_streamed in (False, True):
        body = {"messages": MESSAGES, "stream": is_streamed, **fields}
        answer = httpx.post(f"{live.url}/v1/chat/completions", json=body, timeout=120)
        text = answer.text if answer.status_code == 400 else answer.text.split("data: ")[-1]
        error = json.loads(text)["error"]
        assert error["param"].startswith(param) and re.search(named, error["message"]), error
        assert answer.status_code == 400 or (is_streamed and error["code"] == "invalid_request")


def test_other_apis_name_their_own_fields(live: LiveServer) -> None:
    def post(path: str, body: dict[str, Any]) -> Any:
        return live.post(path, body).json()["error"]

    bad = {"type": "json_schema", "name": "x", "schema": {"uniqueItems": True}}
    error = post("/v1/responses", {"input": "hi", "text": {"format": bad}})
    assert error["param"] == "text.format" and error["message"].startswith("text.format: schema at $: uniqueItems")
    error = post("/v1/responses", {"input": "hi", "text": {"format": {"type": "odd"}}})
    assert error["param"] == "text.format.type" and error["message"].startswith("text.format.type must be one of")
    claude = {"messages": MESSAGES, "max_tokens": 4}
    for field in ("output_format", "output_config.format"):
        form = {"type": "json_schema", "schema": {"uniqueItems": True}}
        given = {"output_format": form} if field == "output_format" else {"output_config": {"format": form}}
        assert post("/v1/messages", {**claude, **given})["message"].startswith(f"{field}: schema at $: uniqueItems")
    for field in ("min_tokens", "min_new_tokens"):
        body = {"messages": MESSAGES, "guided_choice": ["a"], field: 90, "bad_words": ["b"]}
        error = post("/v1/chat/completions", body)
        assert error["param"] == field and error["message"].startswith(
            "the answer that guided_choice allows ends after"
        )
        assert error["message"].endswith(f"lower {field}; or let guided_choice allow a longer answer")


def test_a_tag_begins_a_schema_within_free_text(live: LiveServer) -> None:
    form = {"type": "structural_tag", **OLD_TAG}
    body = {"messages": MESSAGES, "response_format": form, "max_tokens": 40, "seed": 2}
    assert isinstance(post(live, "/v1/chat/completions", body)["choices"][0]["message"]["content"], str)
