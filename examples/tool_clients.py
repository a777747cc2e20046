"""Structured output and tools with two clients that are not ours, `instructor` and `langchain-openai`.

    pip install instructor langchain-openai
    seesay serve api_server MODEL --chat-template qwen-tools
    python examples/tool_clients.py http://localhost:23333/v1

Without an address, it starts a server of the built-in model, which calls functions only where it is forced to.
"""

from __future__ import annotations

import sys
from typing import Any, Literal

from openai import OpenAI
from pydantic import BaseModel, Field


class Look(BaseModel):
    """Looks to a side."""

    side: Literal["left", "right"]
    far: bool


class Count(BaseModel):
    """A number of shapes."""

    number: int = Field(ge=0, le=9)


def try_instructor(url: str, model: str) -> None:
    """Ask for a model of pydantic as a call of a function, as JSON by a schema, and piece by piece."""
    import instructor

    messages: Any = [{"role": "user", "content": "Is it on the left?"}]
    options: Any = {"model": model, "messages": messages, "temperature": 0, "max_tokens": 200, "max_retries": 0}
    client = OpenAI(base_url=url, api_key="none")
    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
        found = instructor.from_openai(client, mode=mode).chat.completions.create(response_model=Look, **options)
        print(f"instructor, {mode.name}: {found!r}")
    partial = instructor.from_openai(client, mode=instructor.Mode.TOOLS)
    pieces = list(partial.chat.completions.create_partial(response_model=Look, **options))
    print(f"instructor, {len(pieces)} pieces: {pieces[-1]!r}")


def try_langchain(url: str, model: str) -> None:
    """Ask for structured output in two ways, force a call, answer it, and stream one."""
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI

    @tool  # type: ignore[untyped-decorator]
    def look(side: Literal["left", "right"], far: bool) -> str:
        """Looks to a side."""
        return f"nothing on the {side}, {far}"

    chat = ChatOpenAI(base_url=url, api_key="none", model=model, temperature=0, max_tokens=200)
    for method in ("json_schema", "function_calling"):
        counted = chat.with_structured_output(Count, method=method).invoke("How many shapes are there?")
        print(f"langchain, {method}: {counted!r}")
    forced = chat.bind_tools([look], tool_choice="look", parallel_tool_calls=False)
    conversation: list[Any] = [HumanMessage("Is it on the left?")]
    said = forced.invoke(conversation)
    [call] = said.tool_calls
    conversation += [said, ToolMessage(look.invoke(call["args"]), tool_call_id=call["id"])]
    answer = chat.bind_tools([look]).invoke(conversation)
    print(f"langchain, call: {call['name']} {sorted(call['args'])}; then {answer.text!r}")
    whole = None
    for chunk in forced.stream(conversation):
        whole = chunk if whole is None else whole + chunk
    assert whole is not None
    print(f"langchain, streamed: {sorted(whole.tool_calls[0]['args'])}")


def main(url: str) -> None:
    """Try both clients with the first model of the server."""
    model = OpenAI(base_url=url, api_key="none").models.list().data[0].id
    try_instructor(url, model)
    try_langchain(url, model)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        import seesay

        with seesay.serve(server_name="127.0.0.1", server_port=0) as server:
            main(f"{server.api_server_url}/v1")
