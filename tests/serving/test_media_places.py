"""Errors of pictures and clips name the place in the body where the client wrote them, on every route."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from live_server import make_data_url, make_settings

from seesay.config import EngineConfig, MediaLimits
from seesay.engine.core.loop import EngineLoop
from seesay.engine.front.engine import AsyncEngine
from seesay.serving.app import create_app
from seesay.vl.prompts.conversation_parts import parse_messages

CHAT, RESPONSES, GENERATE, TOKENIZE = "/v1/chat/completions", "/v1/responses", "/generate", "/tokenize"
INTERACTIVE, EMBEDDINGS, MESSAGES = "/v1/chat/interactive", "/v1/embeddings", "/v1/messages"
COUNT = "/v1/messages/count_tokens"
URL = make_data_url()
CUT = base64.b64encode(base64.b64decode(URL.partition(",")[2])[:60]).decode()
BAD_URLS = {
    "not a picture": "data:image/png;base64,AAAA",
    "truncated": f"data:image/png;base64,{CUT}",
    "bad base64": "data:image/png;base64,A!A",
    "no comma": "data:image/png",
    "forbidden host": "http://127.0.0.1:1/x.png",
    "file": "file:///etc/passwd",
    "ftp": "ftp://example.org/x.png",
    "no URL": "x",
}


def user(*content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": "hi"}, {"role": "user", "content": list(content)}]


def image(url: Any = URL, **more: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, **more}}


def clip(url: Any = URL, **more: Any) -> dict[str, Any]:
    return {"type": "video_url", "video_url": {"url": url, **more}}


def input_image(url: Any, **more: Any) -> dict[str, Any]:
    return {"type": "input_image", "image_url": url, **more}


def source(**fields: Any) -> dict[str, Any]:
    return {"type": "image", "source": fields}


def claude(*content: Any) -> dict[str, Any]:
    return {"max_tokens": 1, "messages": user(*content)}


THIRD = "messages[1].content[2].image_url.url"
ROUTES: list[tuple[str, Any, str]] = [
    (CHAT, lambda url: {"messages": user(image(), image(), image(url))}, THIRD),
    (CHAT, lambda url: {"messages": user(image(), image(), image(url)), "stream": True}, THIRD),
    (CHAT, lambda url: {"messages": user(image(url))}, "messages[1].content[0].image_url.url"),
    (TOKENIZE, lambda url: {"messages": user(image(), image(), image(url))}, THIRD),
    (EMBEDDINGS, lambda url: {"messages": user(image(), image(), image(url))}, THIRD),
    (RESPONSES, lambda url: {"input": user(input_image(URL), input_image(url))}, "input[1].content[1].image_url"),
    (INTERACTIVE, lambda url: {"prompt": user(image(), image(url))}, "prompt[1].content[1].image_url.url"),
    (INTERACTIVE, lambda url: {"prompt": "x", "image_url": url}, "image_url"),
    (INTERACTIVE, lambda url: {"prompt": "x", "image_url": [URL, url]}, "image_url[1]"),
    (GENERATE, lambda url: {"prompt": "<IMAGE_TOKEN> x", "image_data": url}, "image_data"),
    (GENERATE, lambda url: {"prompt": "<IMAGE_TOKEN><IMAGE_TOKEN>", "image_data": [URL, url]}, "image_data[1]"),
    (MESSAGES, lambda url: claude(source(type="url", url=URL), source(type="url", url=url)),
     "messages[1].content[1].source.url"),
    (COUNT, lambda url: {"messages": user(source(type="url", url=URL), source(type="url", url=url))},
     "messages[1].content[1].source.url"),
]  # fmt: skip


async def check(http: httpx.AsyncClient, path: str, body: Any, place: str) -> None:
    response = await http.post(path, json=body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert place in error["message"]
    if path not in (MESSAGES, COUNT):  # Anthropic's errors have no `param`
        assert error["param"] == place, error


@pytest.mark.parametrize("url", BAD_URLS.values(), ids=list(BAD_URLS))
@pytest.mark.parametrize(("path", "make", "place"), ROUTES, ids=[f"{n}-{r[0]}" for n, r in enumerate(ROUTES)])
async def test_a_bad_source_is_located(http: httpx.AsyncClient, path: str, make: Any, place: str, url: str) -> None:
    if path == COUNT and url.endswith(CUT):
        pytest.skip("counting reads headers only")
    await check(http, path, make(url), place)


@pytest.mark.parametrize(
    ("part", "name"),
    [
        (clip(fps="x"), "fps"),
        (clip(fps=0), "fps"),
        (clip(fps=1, num_frames=2), "num_frames"),
        (clip(num_frames=0), "num_frames"),
        (clip(num_frames=1 << 30), "num_frames"),
        (clip(nframes=0), "nframes"),
        (clip(min_frames=4, max_frames=2), "min_frames"),
        (clip(odd=1), "odd"),
        (image(min_pixels=-1), "min_pixels"),
        (image(min_pixels=10**6, max_pixels=10), "min_pixels"),
        (image(resized_height=28), "resized_height"),
        (image(transparency="odd"), "transparency"),
        (image(detail="odd"), "detail"),
        (image(max_dynamic_patch=2), "max_dynamic_patch"),
        (image(odd=1), "odd"),
        (image(5), "url"),
        (clip([URL, 5]), "url[1]"),
    ],
    ids=repr,
)
async def test_a_bad_option_is_located(http: httpx.AsyncClient, part: dict[str, Any], name: str) -> None:
    place = f"messages[1].content[1].{part['type']}.{name}"
    await check(http, CHAT, {"messages": user(image(), part)}, place)


async def test_a_bad_detail_of_a_response_is_located(http: httpx.AsyncClient) -> None:
    await check(http, RESPONSES, {"input": user(input_image(URL, detail="odd"))}, "input[1].content[0].detail")


async def test_base64_of_anthropic_is_located(http: httpx.AsyncClient) -> None:
    body = claude(source(type="base64", media_type="image/png", data=CUT))
    await check(http, MESSAGES, body, "messages[1].content[0].source.data")


async def test_media_of_earlier_requests_are_named_by_what_refers_to_them(
    tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """A picture that the first request found is gone when the conversation goes on."""
    picture = tmp_path / "x.png"
    limits = MediaLimits.for_server(allowed_local_media_path=tmp_path)
    config = EngineConfig(session_len=512, device_type="cpu", block_size=16)
    with AsyncEngine(str(tiny_checkpoint("qwen2_5_vl")), backend_config=config, media_limits=limits) as engine:
        transport = httpx.ASGITransport(app=create_app(engine, make_settings(media=limits)))
        http = httpx.AsyncClient(transport=transport, base_url="http://test", timeout=60)
        picture.write_bytes(base64.b64decode(URL.partition(",")[2]))
        body: dict[str, Any] = {"input": user(input_image(URL), input_image(str(picture))), "max_output_tokens": 1}
        first = await http.post(RESPONSES, json=body)
        assert first.status_code == 200, first.text
        session = {"session_id": 1, "interactive_mode": True, "request_output_len": 1}
        turn = await http.post(INTERACTIVE, json={"prompt": "x", "image_url": str(picture), **session})
        assert turn.status_code == 200, turn.text
        folder = await http.post(GENERATE, json={"prompt": "<IMAGE_TOKEN>", "image_data": str(tmp_path)})
        assert folder.status_code == 400 and "Errno" not in folder.text, folder.text
        (tmp_path / "folder").mkdir()
        folder = await http.post(GENERATE, json={"prompt": "<IMAGE_TOKEN>", "image_data": str(tmp_path / "folder")})
        assert folder.json()["error"]["message"].endswith("is not a regular file"), folder.text
        picture.unlink()
        body = {"input": user(input_image(URL)), "previous_response_id": first.json()["id"]}
        await check(http, RESPONSES, body, "previous_response_id")
        await check(http, INTERACTIVE, {"prompt": "x", "image_url": URL, **session}, "session_id")


async def test_a_picture_that_cannot_be_encoded_is_located(
    tiny_checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = EngineConfig(session_len=512, device_type="cpu", block_size=16)
    with AsyncEngine(str(tiny_checkpoint("qwen2_5_vl")), backend_config=config) as engine:
        assert isinstance(engine.core, EngineLoop)
        worker = engine.core.embeddings.worker
        assert worker is not None and worker._encoder is not None
        encode = worker._encoder.encode

        def fail_on_some(features: Sequence[Any]) -> Any:
            if any(entry["grid"] == (1, 12, 12) for entry in features):
                raise ZeroDivisionError("a bad picture")
            return encode(features)

        monkeypatch.setattr(worker._encoder, "encode", fail_on_some)
        transport = httpx.ASGITransport(app=create_app(engine, make_settings()))
        http = httpx.AsyncClient(transport=transport, base_url="http://test", timeout=60)
        bad = make_data_url(seed=60, size=(48, 48))
        for path, body, place in [
            (CHAT, {"messages": user(image(), image(bad), image(bad))}, "messages[1].content[1].image_url.url"),
            (RESPONSES, {"input": user(input_image(URL), input_image(bad))}, "input[1].content[1].image_url"),
            (GENERATE, {"prompt": "<IMAGE_TOKEN><IMAGE_TOKEN>", "image_data": [URL, bad]}, "image_data[1]"),
        ]:
            response = await http.post(path, json=body)
            assert response.status_code == 500, response.text
            error = response.json()["error"]
            assert error["message"].startswith(f"{place}: the image could not be encoded: "), error
            assert error["param"] == place, error


def test_the_place_is_no_part_of_a_picture() -> None:
    """Equal pictures in two places are equal, and share what is cached for them."""
    first, second = parse_messages(user(image(), image()))[1].parts
    assert first == second
