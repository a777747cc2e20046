"""A typed `<IMAGE_TOKEN>` is text over HTTP: on every route, in every role, it neither moves nor refuses a picture."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from live_server import HeldEngine, make_data_url, make_settings
from PIL import Image

from seesay import IMAGE_TOKEN, GenerationConfig
from seesay.engine.front.engine import AsyncEngine
from seesay.serving.app import create_app
from seesay.ui.conversation import Turn, make_messages
from seesay.values import MediaPart, TextPart
from seesay.vl.constants import VIDEO_TOKEN
from seesay.vl.prompts.conversation_parts import parse_prompts

URL = make_data_url()
PICTURE = {"type": "image_url", "image_url": {"url": URL}}
# As many tokens as pictures would move them; more, or those of clips, would be refused.
TYPED = [f"what is {IMAGE_TOKEN}?", f"{IMAGE_TOKEN}{IMAGE_TOKEN} {VIDEO_TOKEN}"]


def text(typed: str) -> dict[str, Any]:
    return {"type": "text", "text": typed}


def chat(typed: str, role: str = "user") -> dict[str, Any]:
    turn = {"role": role, "content": [PICTURE, text(typed)]}
    return {"messages": [turn] if role == "user" else [turn, {"role": "user", "content": "and?"}]}


def tool(typed: str) -> dict[str, Any]:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    return {
        "messages": [
            {"role": "user", "content": "look"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": [PICTURE, text(typed)]},
        ]
    }


def claude(*blocks: dict[str, Any]) -> list[dict[str, Any]]:
    source = {"type": "base64", "media_type": "image/png", "data": URL.partition(",")[2]}
    return [{"type": "image", "source": source}, *blocks]


def claude_tool(typed: str) -> dict[str, Any]:
    result = {"type": "tool_result", "tool_use_id": "t", "content": claude(text(typed))}
    call = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    turns = [("user", "look"), ("assistant", [call]), ("user", [result])]
    return {"max_tokens": 4, "messages": [{"role": role, "content": content} for role, content in turns]}


def responses(typed: str) -> dict[str, Any]:
    content = [{"type": "input_image", "image_url": URL}, {"type": "input_text", "text": typed}]
    return {"input": [{"role": "user", "content": content}]}


ROUTES: dict[str, tuple[str, Callable[[str], dict[str, Any]]]] = {
    "chat": ("/v1/chat/completions", chat),
    "chat, system": ("/v1/chat/completions", lambda typed: chat(typed, "system")),
    "chat, developer": ("/v1/chat/completions", lambda typed: chat(typed, "developer")),
    "chat, tool": ("/v1/chat/completions", tool),
    "responses": ("/v1/responses", responses),
    "responses, instructions": ("/v1/responses", lambda typed: {**responses(typed), "instructions": typed}),
    "embeddings": ("/v1/embeddings", chat),
    "interactive": (
        "/v1/chat/interactive",
        lambda typed: {"prompt": typed, "image_url": URL, "session_id": 1, "interactive_mode": True},
    ),
    "interactive, messages": ("/v1/chat/interactive", lambda typed: {"prompt": chat(typed)["messages"]}),
    "anthropic": (
        "/v1/messages",
        lambda typed: {"max_tokens": 4, "messages": [{"role": "user", "content": claude(text(typed))}]},
    ),
    "anthropic, system": (
        "/v1/messages",
        lambda typed: {"max_tokens": 4, "system": typed, "messages": [{"role": "user", "content": claude(text("a"))}]},
    ),
    "anthropic, tool": ("/v1/messages", claude_tool),
}


def kinds(request: Any) -> list[str]:
    """The parts of a prompt in order: texts as they are, 'picture' for a picture."""
    parts = [part for message in request.prompt for part in message.parts]
    assert all(isinstance(part, MediaPart | TextPart) for part in parts)
    return [part.text if isinstance(part, TextPart) else "picture" for part in parts]


async def submitted(engine: AsyncEngine, path: str, body: dict[str, Any]) -> Any:
    """The request that the engine is asked to answer."""
    held = HeldEngine(engine)
    app = create_app(held, make_settings())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test", timeout=60) as http:
        asking = asyncio.ensure_future(http.post(path, json=body))
        for _ in range(500):
            if asking.done() or not held.submitted.empty():
                break
            await asyncio.sleep(0.01)
        assert not asking.done(), asking.result().text
        asking.cancel()
        await asyncio.wait([asking])
    return held.submitted.get_nowait()[1]


@pytest.mark.parametrize("typed", TYPED)
@pytest.mark.parametrize("route", ROUTES)
async def test_it_moves_no_picture(engine: AsyncEngine, route: str, typed: str) -> None:
    path, make_body = ROUTES[route]
    shown = kinds(await submitted(engine, path, make_body(typed)))
    without = kinds(await submitted(engine, path, make_body("other")))
    assert shown == [typed if part == "other" else part for part in without]
    assert "picture" in shown and typed in shown


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize"])
async def test_its_characters_reach_the_model(http: httpx.AsyncClient, engine: AsyncEngine, path: str) -> None:
    typed = f" two {IMAGE_TOKEN}{IMAGE_TOKEN} "
    counts = [len(engine.tokenizer.encode(words)) for words in (typed, " two ")]
    lengths = []
    for words in (typed, " two "):
        body = chat(f"a{words}b") | ({} if path == "/tokenize" else {"max_tokens": 1})
        answer = (await http.post(path, json=body)).json()
        lengths.append(answer["count"] if path == "/tokenize" else answer["usage"]["prompt_tokens"])
    assert lengths[0] - lengths[1] == counts[0] - counts[1] > 0


async def test_a_raw_prompt_says_where_its_pictures_stand(http: httpx.AsyncClient) -> None:
    """`/generate` applies no template: whoever writes its prompt writes the markers too."""
    body = {"prompt": f"see {IMAGE_TOKEN} ?", "image_data": URL, "max_tokens": 1}
    assert (await http.post("/generate", json=body)).status_code == 200


async def test_the_webui_sends_it_as_text(engine: AsyncEngine, tmp_path: Path) -> None:
    Image.new("RGB", (40, 30), "red").save(tmp_path / "a.png")
    messages = make_messages((Turn(text=TYPED[0], files=(str(tmp_path / "a.png"),)),), TYPED[1])
    shown = kinds(await submitted(engine, "/v1/chat/completions", {"messages": messages}))
    assert shown == [TYPED[1], "picture", TYPED[0]]


def test_in_the_pipeline_it_is_the_marker() -> None:
    for prompt in ((f"a {IMAGE_TOKEN} b", URL), [{"role": "user", "content": [PICTURE, text(f"a {IMAGE_TOKEN} b")]}]):
        (request,), _ = parse_prompts(prompt, GenerationConfig())
        assert kinds(request) == ["a ", "picture", " b"]
