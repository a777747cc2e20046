"""Answers of OpenAI's API as JSON schemas, written after its published reference. Objects may have more fields, which
are extensions, but must have these."""

from __future__ import annotations

from typing import Any

import jsonschema

STRING = {"type": "string"}
COUNT = {"type": "integer", "minimum": 0}
NULL = {"type": "null"}


def obj(**fields: Any) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": list(fields)}


def const(value: str) -> dict[str, Any]:
    return {"const": value}


def array(items: Any, **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, **more}


def nullable(schema: Any) -> dict[str, Any]:
    return {"anyOf": [schema, NULL]}


def prefixed(prefix: str, digits: int = 24) -> dict[str, Any]:
    return {"type": "string", "pattern": f"^{prefix}[0-9a-f]{{{digits}}}$"}


BYTES = array({"type": "integer", "minimum": 0, "maximum": 255})
LOGPROB = {"type": "number", "maximum": 0}
TOP_LOGPROB = obj(token=STRING, logprob=LOGPROB, bytes=BYTES)
TOKEN_LOGPROB = obj(token=STRING, logprob=LOGPROB, bytes=BYTES, top_logprobs=array(TOP_LOGPROB, maxItems=20))
CHAT_LOGPROBS = obj(content=array(TOKEN_LOGPROB), refusal=NULL)
USAGE = obj(
    prompt_tokens=COUNT, completion_tokens=COUNT, total_tokens=COUNT, prompt_tokens_details=obj(cached_tokens=COUNT)
)
FINISH = {"enum": ["stop", "length", "tool_calls"]}
CALL = obj(id=prefixed("call_"), type=const("function"), function=obj(name=STRING, arguments=STRING))
MESSAGE = {
    **obj(role=const("assistant"), content=nullable(STRING), refusal=NULL),
    "anyOf": [
        {"properties": {"content": STRING, "tool_calls": array(CALL, minItems=1)}},
        {"required": ["tool_calls"], "properties": {"tool_calls": array(CALL, minItems=1)}},
    ],
}
CALL_DELTA = {
    "type": "object",
    "required": ["index", "function"],
    "properties": {
        "index": COUNT,
        "id": prefixed("call_"),
        "type": const("function"),
        "function": {"type": "object", "required": ["arguments"], "properties": {"name": STRING, "arguments": STRING}},
    },
    "additionalProperties": False,
}
CHUNK_DELTA = {
    "type": "object",
    "properties": {
        "role": const("assistant"),
        "content": nullable(STRING),
        "reasoning_content": STRING,
        "tool_calls": array(CALL_DELTA, minItems=1, maxItems=1),
    },
}

CHAT_COMPLETION = obj(
    id=prefixed("chatcmpl-"),
    object=const("chat.completion"),
    created=COUNT,
    model=STRING,
    choices=array(
        obj(
            index=COUNT,
            message=MESSAGE,
            logprobs=nullable(CHAT_LOGPROBS),
            finish_reason=FINISH,
        ),
        minItems=1,
    ),
    usage=USAGE,
    system_fingerprint=STRING,
)
CHAT_CHUNK = obj(
    id=prefixed("chatcmpl-"),
    object=const("chat.completion.chunk"),
    created=COUNT,
    model=STRING,
    choices=array(
        obj(
            index=COUNT,
            delta=CHUNK_DELTA,
            logprobs=nullable(CHAT_LOGPROBS),
            finish_reason=nullable(FINISH),
        ),
        maxItems=1,
    ),
    system_fingerprint=STRING,
)
COMPLETION = obj(
    id=prefixed("cmpl-"),
    object=const("text_completion"),
    created=COUNT,
    model=STRING,
    choices=array(
        obj(
            index=COUNT,
            text=STRING,
            finish_reason=nullable(FINISH),
            logprobs=nullable(
                obj(
                    tokens=array(STRING),
                    token_logprobs=array(nullable(LOGPROB)),
                    top_logprobs=array(nullable({"type": "object", "additionalProperties": LOGPROB})),
                    text_offset=array(COUNT),
                )
            ),
        )
    ),
)
EMBEDDINGS = obj(
    object=const("list"),
    data=array(obj(object=const("embedding"), index=COUNT, embedding=array({"type": "number"}))),
    model=STRING,
    usage=obj(prompt_tokens=COUNT, total_tokens=COUNT),
)
MODELS = obj(object=const("list"), data=array(obj(id=STRING, object=const("model"), created=COUNT, owned_by=STRING)))
ERROR = obj(error=obj(message=STRING, type=STRING, param=nullable(STRING), code=nullable(STRING)))
OUTPUT_TEXT = obj(type=const("output_text"), text=STRING, annotations=array({}), logprobs=array(TOKEN_LOGPROB))
OUTPUT_MESSAGE = obj(
    type=const("message"),
    id=prefixed("msg_", 28),
    status={"enum": ["in_progress", "completed", "incomplete"]},
    role=const("assistant"),
    content=array(OUTPUT_TEXT),
)
STATUS = {"enum": ["in_progress", "completed", "incomplete"]}
FUNCTION_CALL = obj(
    type=const("function_call"),
    id=prefixed("fc_", 28),
    call_id=prefixed("call_"),
    name=STRING,
    arguments=STRING,
    status=STATUS,
)
REASONING = obj(
    type=const("reasoning"),
    id=prefixed("rs_", 28),
    summary=array({}),
    content=array(obj(type=const("reasoning_text"), text=STRING)),
)
RESPONSE_USAGE = obj(
    input_tokens=COUNT,
    input_tokens_details=obj(cached_tokens=COUNT),
    output_tokens=COUNT,
    output_tokens_details=obj(reasoning_tokens=COUNT),
    total_tokens=COUNT,
)
RESPONSE = obj(
    id=prefixed("resp_"),
    object=const("response"),
    created_at=COUNT,
    status={"enum": ["in_progress", "completed", "incomplete", "failed"]},
    error=NULL,
    incomplete_details=nullable(obj(reason=const("max_output_tokens"))),
    instructions=nullable(STRING),
    metadata={"type": "object"},
    model=STRING,
    output=array({"anyOf": [OUTPUT_MESSAGE, FUNCTION_CALL, REASONING]}, minItems=0),
    parallel_tool_calls={"type": "boolean"},
    temperature={"type": "number"},
    tool_choice={"type": ["string", "object"]},
    tools=array({}),
    top_p={"type": "number"},
    usage=nullable(RESPONSE_USAGE),
)


def check(value: Any, schema: dict[str, Any]) -> None:
    """Fail unless `value` is what `schema` says."""
    jsonschema.validate(value, schema)
