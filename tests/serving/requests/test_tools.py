"""Tools in chat completions, Responses and Anthropic's API: the built-in model under grammars, several rounds, by the
clients of OpenAI and Anthropic, streamed and not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import anthropic
import httpx
import openai
import openai_schemas as schemas
import pytest
from live_server import MODEL, LiveServer, make_data_url, read_events, serve
from pydantic import BaseModel
from templates.tool_templates import HERMES

from seesay.config import EngineConfig
from seesay.engine.front.engine import AsyncEngine
from seesay.grammars.schemas.json_program import write_json
from seesay.serving.requests.left_out import HEADER as LEFT_OUT
from seesay.serving.requests.tools import make_function, read_arguments

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
SCHEMA = {
    "type": "object",
    "properties": {"side": {"enum": ["left", "right"]}, "far": {"type": "boolean"}},
    "required": ["side", "far"],
    "additionalProperties": False,
}
FUNCTION = {"name": "look", "description": "Looks to a side.", "parameters": SCHEMA}
TOOL = {"type": "function", "function": FUNCTION}
OTHER = {"type": "function", "function": {"name": "wait"}}
CLAUDE = {"name": "look", "description": "Looks to a side.", "input_schema": SCHEMA}
NAMED = {"type": "function", "function": {"name": "look"}}
HI: Any = [{"role": "user", "content": "Is it there?"}]


class Look(BaseModel):
    side: Literal["left", "right"]
    far: bool


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """The built-in model with the chat template of Hermes."""
    template = Path(tmp_path_factory.mktemp("templates")) / "hermes.jinja"
    template.write_text(HERMES)
    config = EngineConfig(session_len=2048, device_type="cpu")
    engine = AsyncEngine("seesay-demo", backend_config=config, chat_template_config=str(template))
    with engine, serve(engine) as server:
        yield server


@pytest.fixture
def client(live: LiveServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="x", max_retries=0) as client:
        yield client


@pytest.fixture
def claude(live: LiveServer) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=live.url, api_key="x", max_retries=0) as client:
        yield client


def post(live: LiveServer, path: str, body: dict[str, Any], status: int = 200) -> Any:
    answer = live.post(path, body)
    assert answer.status_code == status, answer.text
    return answer.json()


def join_calls(events: list[dict[str, Any]], index: int = 0) -> list[dict[str, Any]]:
    """The calls of a choice of a stream, by their deltas."""
    calls: list[dict[str, Any]] = []
    for event in events:
        for choice in event["choices"]:
            for delta in choice["delta"].get("tool_calls", ()) if choice["index"] == index else ():
                if delta["index"] == len(calls):
                    assert delta["type"] == "function" and delta["id"] and delta["function"]["arguments"] == ""
                    calls.append({"id": delta["id"], **delta["function"]})
                else:
                    assert delta["index"] == len(calls) - 1 and set(delta) == {"index", "function"}
                    calls[-1]["arguments"] += delta["function"]["arguments"]
    return calls


# --- chat completions ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("choice", ["required", NAMED], ids=["any", "named"])
def test_a_forced_call(live: LiveServer, choice: Any) -> None:
    body = {"messages": HI, "tools": [OTHER, TOOL] if choice != "required" else [TOOL], "tool_choice": choice,
            "parallel_tool_calls": False, "temperature": 0}  # fmt: skip
    whole = post(live, CHAT, body)
    schemas.check(whole, schemas.CHAT_COMPLETION)
    [found] = whole["choices"]
    assert found["finish_reason"] == "tool_calls" and found["message"]["content"] is None
    [call] = found["message"]["tool_calls"]
    assert call["type"] == "function" and call["id"].startswith("call_") and call["function"]["name"] == "look"
    Look.model_validate_json(call["function"]["arguments"])
    events = read_events(live.post(CHAT, {**body, "stream": True}).text)
    for event in events:
        schemas.check(event, schemas.CHAT_CHUNK)
    [streamed] = join_calls(events)
    assert streamed["arguments"] == call["function"]["arguments"]
    assert sum("tool_calls" in event["choices"][0]["delta"] for event in events) > 3  # as they arrive
    assert [event["choices"][0]["finish_reason"] for event in events][-1] == "tool_calls"


@pytest.mark.parametrize("stream", [False, True])
def test_tools_beside_a_format_give_calls_alone_or_an_answer_in_the_format(live: LiveServer, stream: bool) -> None:
    """The choice is the model's where no call is forced: the bias towards the first token of one decides here."""
    marker = "<tool_call>"
    [first] = live.post("/tokenize", {"prompt": marker[:1], "add_special_tokens": False}).json()["tokens"][:1]
    number = {"type": "json_schema", "json_schema": {"name": "number", "schema": {"enum": [7]}}}
    body = {"messages": HI, "tools": [TOOL], "parallel_tool_calls": False, "temperature": 0, "stream": stream}
    forms: list[tuple[dict[str, Any], str]] = [
        ({"response_format": number}, "7"),
        ({"choice": ["yes"]}, "yes"),
        ({"regex": "[y]es"}, "yes"),
        ({"grammar": 'root ::= "yes"'}, "yes"),
    ]
    for form, expected in forms:
        for wants_call, extra in ((False, {"logit_bias": {first: -100}}), (True, {"logit_bias": {first: 100}})):
            answer = live.post(CHAT, {**body, **form, **extra, "max_tokens": 200})
            if stream:
                events = read_events(answer.text)
                calls = join_calls(events)
                text = "".join(event["choices"][0]["delta"].get("content") or "" for event in events)
                reason = events[-1]["choices"][0]["finish_reason"]
            else:
                [choice] = answer.json()["choices"]
                calls = [call["function"] for call in choice["message"].get("tool_calls") or ()]
                text, reason = choice["message"]["content"] or "", choice["finish_reason"]
            if wants_call:
                assert text == "" and reason == "tool_calls"
                Look.model_validate_json(calls[0]["arguments"])
            else:
                assert (text, calls, reason) == (expected, [], "stop")
    if not stream:
        forced = post(live, CHAT, {**body, "response_format": number, "tool_choice": NAMED})
        assert forced["choices"][0]["finish_reason"] == "tool_calls"


def test_tools_beside_a_format_in_responses_and_messages(live: LiveServer) -> None:
    tool = {"type": "function", **FUNCTION}
    form = {"type": "json_schema", "name": "number", "schema": {"enum": [7]}}
    asked = {"input": "Is it there?", "tools": [tool], "text": {"format": form}, "max_output_tokens": 200}
    forced = post(live, RESPONSES, {**asked, "tool_choice": "required", "parallel_tool_calls": False})
    assert [item["type"] for item in forced["output"]] == ["function_call"]
    for item in post(live, RESPONSES, asked)["output"]:
        assert item["type"] == "function_call" or item["content"][0]["text"] == "7"
    given = {"messages": HI, "tools": [CLAUDE], "max_tokens": 200, "output_format": {"type": "json_schema", **form}}
    del given["output_format"]["name"]
    for block in post(live, MESSAGES, given)["content"]:
        assert block["type"] == "tool_use" or block["text"] == "7"


@pytest.mark.parametrize(
    ("parameters", "is_followed"),
    [(SCHEMA, True), ({**SCHEMA, "not": {}}, False), ({"anyOf": [SCHEMA], "type": "object"}, False)],
)
def test_a_forced_call_of_a_function_that_is_not_strict_follows_its_schema_where_it_can(
    live: LiveServer, parameters: dict[str, Any], is_followed: bool
) -> None:
    tool = {"type": "function", "function": {**FUNCTION, "parameters": parameters, "strict": False}}
    body = {"messages": HI, "tools": [tool], "tool_choice": NAMED, "temperature": 0, "max_tokens": 99}
    body["parallel_tool_calls"] = False
    [choice] = post(live, CHAT, body)["choices"]
    arguments = choice["message"]["tool_calls"][0]["function"]["arguments"]
    assert arguments.startswith("{")
    if is_followed:
        Look.model_validate_json(arguments)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("strict", "choice", "named"),
    [
        (None, "auto", "uniqueItems at tools[1].{}parameters.properties.a"),
        (False, "required", "uniqueItems at tools[1].{}parameters.properties.a"),
        (False, "auto", "schema at tools[0].{0}parameters, schema at tools[1].{0}parameters"),
    ],
)
def test_what_the_schemas_of_tools_do_not_hold_is_named(
    live: LiveServer, strict: bool | None, choice: str, named: str, stream: bool
) -> None:
    """Beside a function whose schema is held; where nothing has to be held, no schema is."""
    unique = {"type": "array", "uniqueItems": True, "items": {"type": "string"}}
    schema = {"type": "object", "properties": {"a": unique}}
    functions: list[dict[str, Any]] = [
        {"name": "held", "strict": strict},
        {"name": "partly", "parameters": schema, "strict": strict},
    ]
    tools = [{"type": "function", "function": function} for function in functions]
    body: dict[str, Any] = {"messages": HI, "max_tokens": 1, "tools": tools, "tool_choice": choice, "stream": stream}
    chat = live.post(CHAT, body)
    assert chat.status_code == 200 and chat.headers[LEFT_OUT] == named.format("function."), chat.text
    body = {"input": "hi", "max_output_tokens": 1, "tools": [{"type": "function", **one} for one in functions]}
    response = live.post(RESPONSES, {**body, "tool_choice": choice, "stream": stream})
    assert response.status_code == 200 and response.headers[LEFT_OUT] == named.format(""), response.text


def test_a_lenient_schema_holds_what_it_can(live: LiveServer) -> None:
    parameters = {**SCHEMA, "not": {"properties": {"far": {"pattern": "x"}}}}
    tool = {"type": "function", "function": {**FUNCTION, "parameters": parameters, "strict": False}}
    body = {"messages": HI, "tools": [tool], "tool_choice": NAMED, "parallel_tool_calls": False, "max_tokens": 200}
    answer = live.post(CHAT, body)
    Look.model_validate_json(answer.json()["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"])
    assert answer.headers[LEFT_OUT] == "not at tools[0].function.parameters"


def test_several_answers_with_calls(live: LiveServer) -> None:
    body = {"messages": HI, "tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False, "n": 2,
            "seed": 5, "temperature": 1, "logprobs": True, "return_token_ids": True}  # fmt: skip
    whole = post(live, CHAT, body)["choices"]
    events = read_events(live.post(CHAT, {**body, "stream": True}).text)
    for index, choice in enumerate(whole):
        [call], [streamed] = choice["message"]["tool_calls"], join_calls(events, index)
        Look.model_validate_json(call["function"]["arguments"])
        assert call["function"]["arguments"] == streamed["arguments"] and call["id"] != streamed["id"]
        mine = [event["choices"][0] for event in events if event["choices"][0]["index"] == index]
        assert [i for part in mine for i in part.get("token_ids") or ()] == choice["token_ids"]
        tokens = [entry["token"] for part in mine if part["logprobs"] for entry in part["logprobs"]["content"]]
        assert tokens == [entry["token"] for entry in choice["logprobs"]["content"]]
        assert len(tokens) == len(choice["token_ids"])


def test_several_calls_of_one_answer(live: LiveServer) -> None:
    body = {"messages": HI, "tools": [TOOL], "tool_choice": "required", "temperature": 1, "max_tokens": 200, "n": 8}
    events = read_events(live.post(CHAT, {**body, "seed": 0, "stream": True}).text)
    num_whole = 0
    for choice in post(live, CHAT, {**body, "seed": 0})["choices"]:
        calls = choice["message"]["tool_calls"]
        if choice["finish_reason"] == "tool_calls" and len(calls) > 1:
            num_whole += 1
            assert len({call["id"] for call in calls}) == len(calls)
            for call in calls:
                Look.model_validate_json(call["function"]["arguments"])
            streamed = join_calls(events, choice["index"])
            assert [c["arguments"] for c in streamed] == [c["function"]["arguments"] for c in calls]
    assert num_whole, "no answer has several calls"


def test_the_model_may_answer_without_a_call(live: LiveServer) -> None:
    body = {"messages": HI, "tools": [TOOL], "temperature": 0, "max_tokens": 30}
    auto, none, plain = (
        post(live, CHAT, {**body, **more})
        for more in ({"tool_choice": "auto"}, {"tool_choice": "none"}, {"tools": None})
    )
    for answer in (auto, none):
        [choice] = answer["choices"]
        assert choice["message"]["content"] and "tool_calls" not in choice["message"]
        assert choice["finish_reason"] in ("stop", "length")
    assert auto["usage"]["prompt_tokens"] > none["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"]
    assert none["choices"][0]["message"] == plain["choices"][0]["message"]


def test_a_call_that_is_cut_off(live: LiveServer) -> None:
    body = {"messages": HI, "tools": [TOOL], "tool_choice": "required", "temperature": 0, "max_tokens": 40}
    whole = post(live, CHAT, body)["choices"][0]
    assert whole["finish_reason"] == "length"
    arguments = whole["message"]["tool_calls"][-1]["function"]["arguments"]
    with pytest.raises(json.JSONDecodeError):
        json.loads(arguments)
    claude = {"messages": HI, "tools": [CLAUDE], "tool_choice": {"type": "any"}, "temperature": 0, "max_tokens": 40}
    message = post(live, MESSAGES, claude)
    assert message["stop_reason"] == "max_tokens" and message["content"][-1]["type"] == "tool_use"
    response = {"input": "Is it there?", "tools": [{"type": "function", **FUNCTION}], "tool_choice": "required"}
    output = post(live, RESPONSES, {**response, "temperature": 0, "max_output_tokens": 40})
    assert output["status"] == "incomplete" and output["output"][-1]["status"] == "incomplete"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("limit", [1, 3])
def test_a_forced_call_that_is_cut_before_its_name_ends_has_no_text(live: LiveServer, limit: int, stream: bool) -> None:
    tool = {**FUNCTION, "name": "look_at_every_side_there_is"}
    body = {"messages": HI, "tools": [{"type": "function", "function": tool}], "tool_choice": "required",
            "max_tokens": limit, "stream": stream}  # fmt: skip
    answer = live.post(CHAT, body)
    if stream:
        choices = [choice for event in read_events(answer.text) for choice in event["choices"]]
        assert not any(choice["delta"].get("content") or choice["delta"].get("tool_calls") for choice in choices)
    else:
        choices = answer.json()["choices"]
        assert choices[0]["message"]["content"] == "" and "tool_calls" not in choices[0]["message"]
    assert choices[-1]["finish_reason"] == "length"
    body = {"input": "hi", "tools": [{"type": "function", **tool}], "tool_choice": "required", "stream": stream,
            "max_output_tokens": limit}  # fmt: skip
    answer = live.post(RESPONSES, body)
    last = read_events(answer.text)[-1]["response"] if stream else answer.json()
    [message] = last["output"]
    assert last["status"] == "incomplete" and message["content"][0]["text"] == "" and "<tool" not in answer.text
    claude = {"name": tool["name"], "input_schema": SCHEMA}
    body = {"messages": HI, "tools": [claude], "tool_choice": {"type": "any"}, "max_tokens": limit, "stream": stream}
    answer = live.post(MESSAGES, body)
    assert "<tool" not in answer.text and '"max_tokens"' in answer.text
    assert stream or answer.json()["content"] == []


@pytest.mark.parametrize(
    ("parameters", "names_none"),
    [
        (None, True), ({}, True), ({"type": "object"}, True), ({"type": "object", "properties": {}}, True),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "title": "F", "description": "None.",
          "type": "object", "required": [], "additionalProperties": False}, True),
        ({"type": "object", "additionalProperties": True}, False), ({"additionalProperties": {}}, False),
        ({"type": "object", "required": ["a"]}, False), ({"type": "object", "patternProperties": {"a": {}}}, False),
    ],
    ids=str,
)  # fmt: skip
def test_a_function_without_parameters_takes_an_empty_object(parameters: Any, names_none: bool) -> None:
    schema = make_function("f", None, parameters, None, place="tools[0]").parameters
    assert schema["type"] == "object" and ("properties" in schema) == names_none
    assert not names_none or '"additionalProperties":false' in write_json(json.dumps(schema))[0]


@pytest.mark.parametrize("parameters", [{}, {"type": "object"}], ids=str)
def test_a_forced_call_without_parameters(live: LiveServer, parameters: dict[str, Any]) -> None:
    tool = {"type": "function", "function": {**FUNCTION, "parameters": parameters}}
    hi = [{"role": "user", "content": 'Call look with {"side": "left", "far": true}'}]
    body = {"messages": hi, "tools": [tool], "tool_choice": NAMED, "temperature": 1, "seed": 1, "max_tokens": 99}
    for choice in post(live, CHAT, {**body, "n": 4})["choices"]:
        assert choice["message"]["tool_calls"][0]["function"]["arguments"] == "{}"


def test_allowed_tools(live: LiveServer) -> None:
    names = [{"type": "function", "function": {"name": "look"}}]
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": names}}
    answer = post(live, CHAT, {"messages": HI, "tools": [OTHER, TOOL], "tool_choice": choice, "max_tokens": 300})
    calls = answer["choices"][0]["message"]["tool_calls"]
    assert {call["function"]["name"] for call in calls} == {"look"}


def test_rounds_with_openais_client(client: openai.OpenAI) -> None:
    tools: Any = [openai.pydantic_function_tool(Look, name="look")]
    messages: list[Any] = list(HI)
    limits: Any = {"model": MODEL, "tools": tools, "parallel_tool_calls": False, "temperature": 0, "max_tokens": 100}
    for is_streamed in (False, True):
        if is_streamed:
            with client.chat.completions.stream(messages=messages, tool_choice="required", **limits) as stream:
                kinds = {event.type for event in stream}
                message = stream.get_final_completion().choices[0].message
            assert "tool_calls.function.arguments.done" in kinds
        else:
            message = (
                client.chat.completions.parse(messages=messages, tool_choice="required", **limits).choices[0].message
            )
        assert message.tool_calls
        [call] = message.tool_calls
        assert isinstance(call.function.parsed_arguments, Look)
        seen = [{"type": "image_url", "image_url": {"url": make_data_url()}}, {"type": "text", "text": "this"}]
        messages += [message, {"role": "tool", "tool_call_id": call.id, "content": seen}]
    answer = client.chat.completions.create(messages=messages, **limits)
    assert answer.choices[0].message.content and answer.choices[0].finish_reason in ("stop", "length")
    details: Any = answer.usage and answer.usage.prompt_tokens_details
    assert details.vision_tokens > 0


# --- Responses -------------------------------------------------------------------------------------------------------


def test_rounds_with_responses(client: openai.OpenAI) -> None:
    tools: Any = [{"type": "function", **FUNCTION, "strict": True}]
    limits: Any = {
        "model": MODEL,
        "tools": tools,
        "parallel_tool_calls": False,
        "temperature": 0,
        "max_output_tokens": 99,
    }
    first = client.responses.create(input="Is it there?", tool_choice="required", **limits)
    [call] = first.output
    assert call.type == "function_call" and call.status == "completed" and first.status == "completed"
    Look.model_validate_json(call.arguments)
    seen = [{"type": "input_image", "image_url": make_data_url()}, {"type": "input_text", "text": "x"}]
    results: list[Any] = [
        {"type": "function_call_output", "call_id": call.call_id, "output": "nothing"},
        {"type": "function_call_output", "call_id": call.call_id, "output": seen},
    ]
    stored = [client.responses.create(input=[result], previous_response_id=first.id, **limits) for result in results]
    sent: list[Any] = [{"role": "user", "content": "Is it there?"}, *first.output, results[0]]
    again = client.responses.create(input=sent, **limits)
    assert again.output_text == stored[0].output_text
    assert again.usage is not None and stored[0].usage is not None
    assert again.usage.input_tokens == stored[0].usage.input_tokens
    with client.responses.stream(input=sent, tool_choice={"type": "function", "name": "look"}, **limits) as stream:
        events = list(stream)
        final = stream.get_final_response()
    [item] = final.output
    assert item.type == "function_call"
    deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert "".join(deltas) == item.arguments and len(deltas) > 3
    kinds = [event.type for event in events if "arguments.delta" not in event.type]
    assert kinds == [
        "response.created", "response.in_progress", "response.output_item.added",
        "response.function_call_arguments.done", "response.output_item.done", "response.completed",
    ]  # fmt: skip
    assert final.parallel_tool_calls is False and final.tools[0].type == "function"


def test_responses_have_the_documented_form(live: LiveServer) -> None:
    body = {"input": "Is it there?", "tools": [{"type": "function", **FUNCTION}], "tool_choice": "required",
            "parallel_tool_calls": False}  # fmt: skip
    schemas.check(post(live, RESPONSES, body), schemas.RESPONSE)


# --- Anthropic -------------------------------------------------------------------------------------------------------


def test_rounds_with_anthropics_tool_runner(claude: anthropic.Anthropic) -> None:
    looked: list[tuple[str, bool]] = []

    @anthropic.beta_tool
    def look(side: Literal["left", "right"], far: bool) -> Any:
        """Looks to a side.

        Args:
            side: The side.
            far: Whether to look far.
        """
        looked.append((side, far))
        data = make_data_url().partition(",")[2]
        source = {"type": "base64", "media_type": "image/png", "data": data}
        return [{"type": "text", "text": "this"}, {"type": "image", "source": source}]

    for is_streamed in (False, True):
        looked.clear()
        runner: Any = claude.beta.messages.tool_runner(
            model=MODEL, max_tokens=150, tools=[look], messages=HI, max_iterations=2, stream=is_streamed,
            tool_choice={"type": "tool", "name": "look"}, extra_body={"temperature": 0},
        )  # fmt: skip
        kinds: list[set[str]] = []
        for step in runner:
            kinds.append({event.type for event in step} if is_streamed else set())
        assert len(kinds) == 2 and looked
        assert not is_streamed or "input_json" in kinds[0], kinds


def test_an_error_of_a_tool_reaches_the_prompt(live: LiveServer) -> None:
    def count(**fields: Any) -> int:
        call = {"type": "tool_use", "id": "c", "name": "look", "input": {}}
        result = {"type": "tool_result", "tool_use_id": "c", **fields}
        turns = [*HI, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
        return post(live, f"{MESSAGES}/count_tokens", {"messages": turns, "tools": [CLAUDE]})["input_tokens"]  # type: ignore[no-any-return]

    text = [{"type": "text", "text": "too dark"}]
    assert count(content="too dark", is_error=True) == count(content="Error: too dark") != count(content="too dark")
    assert count(content=text, is_error=True) == count(content="Error: too dark", is_error=False)
    assert count(is_error=True) == count(content="Error") != count()
    picture = {"type": "image", "source": {"type": "url", "url": make_data_url()}}
    assert count(content=[picture], is_error=True) == count(content=[{"type": "text", "text": "Error"}, picture])


def test_blocks_of_anthropic(claude: anthropic.Anthropic) -> None:
    limits: Any = {"model": MODEL, "max_tokens": 150, "tools": [CLAUDE], "extra_body": {"temperature": 0}}
    choice: Any = {"type": "any", "disable_parallel_tool_use": True}
    whole = claude.messages.create(messages=HI, tool_choice=choice, **limits)
    with claude.messages.stream(messages=HI, tool_choice=choice, **limits) as stream:
        streamed = stream.get_final_message()
    messages: Any = (whole, streamed)
    for message in messages:
        [block] = message.content
        assert message.stop_reason == "tool_use" and block.type == "tool_use" and block.id.startswith("toolu_")
        Look.model_validate(block.input)
    result = {"type": "tool_result", "tool_use_id": messages[0].content[0].id, "content": "nothing"}
    messages = [*HI, {"role": "assistant", "content": whole.content}, {"role": "user", "content": [result]}]
    answer = claude.messages.create(messages=messages, **limits)
    assert answer.stop_reason in ("end_turn", "max_tokens") and answer.content[0].type == "text"
    count = claude.messages.count_tokens(model=MODEL, messages=messages, tools=[CLAUDE]).input_tokens  # type: ignore[list-item]
    assert count == answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0)


# --- refusals --------------------------------------------------------------------------------------------------------


def nest(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def chat(**function: Any) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": {"name": "f", **function}}]}


def history(arguments: str) -> dict[str, Any]:
    """A conversation with two calls, of which the second has these arguments."""
    calls = [
        {"id": name, "type": "function", "function": {"name": "look", "arguments": text}}
        for name, text in (("a", ""), ("b", arguments))
    ]
    results = [{"role": "tool", "tool_call_id": name, "content": "x"} for name in "ab"]
    return {"messages": [*HI, {"role": "assistant", "tool_calls": calls}, *results]}


REFUSED_SCHEMA = {"not": {"pattern": "a"}}
"""No grammar holds it."""
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (CHAT, {"tools": {}}, "tools"),
    (CHAT, {"tools": [3]}, "tools[0]"),
    (CHAT, {"tools": [{"type": "odd", "custom": {"name": "f"}}]}, "tools[0].type"),
    (CHAT, {"tools": [{"type": "function"}]}, "tools[0].function"),
    (CHAT, {"tools": [{"type": "function", "function": {"name": "f"}, "odd": 1}]}, "tools[0].odd"),
    (CHAT, chat(name="two words"), "tools[0].function.name"),
    (CHAT, chat(name="f" * 129), "tools[0].function.name"),
    (CHAT, chat(name=""), "tools[0].function.name"),
    (CHAT, chat(odd=1), "tools[0].function.odd"),
    (CHAT, chat(description=3), "tools[0].function.description"),
    (CHAT, chat(strict="yes"), "tools[0].function.strict"),
    (CHAT, chat(parameters=[]), "tools[0].function.parameters"),
    (CHAT, chat(parameters={"type": "array"}), "tools[0].function.parameters.type"),
    (CHAT, chat(parameters=nest(20)) | {"tools": [TOOL, *chat(parameters=nest(26))["tools"]]},
     "tools[1].function.parameters"),
    (CHAT, chat(parameters={"type": "object", "properties": {str(i): {"type": "null"} for i in range(10_000)}}),
     "tools[0].function.parameters"),
    (CHAT, chat(strict=True, parameters={"type": "object", "properties": {"a": REFUSED_SCHEMA}}),
     "tools[0].function.parameters"),
    (CHAT, chat(strict=True, parameters={"anyOf": [{"type": "object"}]}), "tools[0].function.parameters.anyOf"),
    (CHAT, chat(parameters={"$ref": "#/$defs/a", "$defs": {"a": {"type": "object"}}}) | {"tool_choice": "required"},
     "tools[0].function.parameters.$ref"),
    (MESSAGES, {"tools": [{**CLAUDE, "strict": True, "input_schema": {"oneOf": [SCHEMA]}}]},
     "tools[0].input_schema.oneOf"),
    (MESSAGES, {"tools": [{**CLAUDE, "strict": True, "input_schema": {"properties": {"a": REFUSED_SCHEMA}}}]},
     "tools[0].input_schema"),
    (CHAT, history("{a"), "messages[1].tool_calls[1].function.arguments"),
    (CHAT, history("say"), "messages[1].tool_calls[1].function.arguments"),
    (CHAT, history("[1]"), "messages[1].tool_calls[1].function.arguments"),
    (CHAT, history("[" * 100_000), "messages[1].tool_calls[1].function.arguments"),
    (RESPONSES, {"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "x"},
                           {"type": "function_call_output", "call_id": "c", "output": "x"}]}, "input[0].arguments"),
    (CHAT, {"tools": [TOOL, TOOL]}, "tools[1].function.name"),
    (CHAT, {"tools": [TOOL] * 1025}, "tools"),
    (CHAT, {"tool_choice": "required"}, "tool_choice"),
    (CHAT, {"tools": [TOOL], "tool_choice": "any"}, "tool_choice"),
    (CHAT, {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}},
     "tool_choice.function.name"),
    (CHAT, {"tools": [TOOL], "tool_choice": {"type": "function"}}, "tool_choice.function"),
    (CHAT, {"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "none", "tools": [1]}}},
     "tool_choice.allowed_tools.mode"),
    (CHAT, {"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}},
     "tool_choice.allowed_tools.tools"),
    (CHAT, {"tools": [TOOL], "parallel_tool_calls": 1}, "parallel_tool_calls"),
    (CHAT, {"tools": [TOOL], "response_format": {"type": "structural_tag", "format": {"type": "any_text"}}}, "tools"),
    (CHAT, {"tools": [TOOL], "response_format": {"type": "regex", "regex": "(?=a)a"}}, "response_format"),
    (CHAT, {"tools": [TOOL], "guided_json": {"type": "object", "not": {}}}, "guided_json"),
    (CHAT, {"tools": [TOOL], "tool_choice": "required", "ignore_eos": True}, "ignore_eos"),
    (CHAT, {"functions": [{"name": "f"}]}, "functions"),
    (CHAT, {"function_call": {"name": "f"}}, "function_call"),
    (RESPONSES, {"tools": [{"type": "web_search"}]}, "tools[0].type"),
    (RESPONSES, {"tools": [TOOL]}, "tools[0].function"),
    (RESPONSES, {"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
    (RESPONSES, {"tool_choice": {"type": "function", "name": "f"}}, "tool_choice.name"),
    (RESPONSES, {"tools": [{"type": "function", **FUNCTION}], "top_logprobs": 1}, "top_logprobs"),
    (RESPONSES, {"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, "input[0].call_id"),
    (RESPONSES, {"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}]}, "input[0]"),
    (RESPONSES, {"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": {}}]},
     "input[0].arguments"),
    (RESPONSES, {"input": [{"type": "item_reference", "id": "x"}]}, "input[0].id"),
    (RESPONSES, {"input": [{"type": "reasoning", "content": [{"type": "odd"}]}]}, "input[0].content[0]"),
    (MESSAGES, {"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type"),
    (MESSAGES, {"tools": [{"name": "f"}]}, "tools[0].input_schema"),
    (MESSAGES, {"tools": [{**CLAUDE, "name": "a b"}]}, "tools[0].name"),
    (MESSAGES, {"tools": [{**CLAUDE, "defer_loading": True}]}, "tools[0].defer_loading"),
    (MESSAGES, {"tool_choice": {"type": "any"}}, "tool_choice"),
    (MESSAGES, {"tools": [CLAUDE], "tool_choice": {"type": "tool", "name": "g"}}, "tool_choice.name"),
    (MESSAGES, {"tools": [CLAUDE], "tool_choice": {"type": "required"}}, "tool_choice.type"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "fields", "param"), REFUSED, ids=[f"{p}-{i}-{n}" for i, (p, _, n) in enumerate(REFUSED)]
)
def test_what_is_wrong_is_named(live: LiveServer, path: str, fields: dict[str, Any], param: str) -> None:
    minimal = {"input": "hi"} if path == RESPONSES else {"messages": HI, "max_tokens": 5}
    error = post(live, path, {**minimal, **fields}, status=400)["error"]
    assert param in error["message"], error
    assert path == MESSAGES or error["param"] == param, error


def test_a_call_that_was_cut_off_has_its_complete_values() -> None:
    where = "arguments"
    for text, expected in (("", ""), ("{", "{}"), ('{"a": "b', "{}"), ('{"a": 1, "b": [2, "c', '{"a": 1, "b": [2]}')):
        assert read_arguments(text, where) == expected
    assert read_arguments('{"a":  "ü"}', where) == '{"a":  "ü"}'
    for nothing in ("null", " null ", "  "):
        assert json.loads(read_arguments(nothing, where) or "{}") == {}


def test_many_long_names(live: LiveServer) -> None:
    names = [f"server.{number}.{'x' * 70}" for number in range(130)]
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    chosen = {"type": "function", "function": {"name": names[-1]}}
    answer = post(live, CHAT, {"messages": HI, "tools": [tools[0], tools[-1]], "tool_choice": chosen})
    [call] = answer["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == names[-1] and json.loads(call["function"]["arguments"]) == {}
    error = post(live, CHAT, {"messages": HI, "tools": tools}, status=400)["error"]
    assert error["code"] == "context_length_exceeded"  # they are taken, and only this model's context is too short


async def test_a_template_without_tools_is_named(http: httpx.AsyncClient) -> None:
    for path, body in (
        (CHAT, {"messages": HI, "tools": [TOOL]}),
        (RESPONSES, {"input": "hi", "tools": [{"type": "function", **FUNCTION}]}),
        (MESSAGES, {"messages": HI, "max_tokens": 5, "tools": [CLAUDE]}),
    ):
        answer = await http.post(path, json=body)
        assert answer.status_code == 400 and "does not support tools" in answer.json()["error"]["message"]
        none = {"type": "none"} if path == MESSAGES else "none"
        assert (await http.post(path, json={**body, "tool_choice": none})).status_code == 200


def test_a_schema_that_is_not_forced_may_be_more_than_a_grammar_holds(live: LiveServer) -> None:
    odd = {"type": "object", "properties": {"a": REFUSED_SCHEMA}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": odd}}]
    post(live, CHAT, {"messages": HI, "tools": tools, "max_tokens": 5})
    error = post(live, CHAT, {"messages": HI, "tools": tools, "tool_choice": "required"}, status=400)["error"]
    assert error["param"] == "tools[0].function.parameters" and "not" in error["message"]
