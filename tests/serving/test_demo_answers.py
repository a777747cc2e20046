"""The built-in checkpoint behind the server: right answers about pictures."""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from live_server import LiveServer, ask_about, make_data_url, make_settings, serve
from PIL import Image, ImageFile

import seesay.demo
from seesay.config import EngineConfig, MediaLimits
from seesay.demo.scenes import CLIP_FPS, make_example, sample_scene
from seesay.engine.front.engine import AsyncEngine

CHECKPOINT = Path(seesay.demo.__file__).parent / "checkpoint"
SEEDS = range(2_000_000, 2_000_006)

pytestmark = pytest.mark.skipif(
    not (CHECKPOINT / "config.json").is_file(), reason="the built-in checkpoint is not here"
)


@pytest.fixture(scope="module")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that requests may name files of."""
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="module")
def demo(shared_folder: Path) -> Iterator[LiveServer]:
    limits = MediaLimits(allow_local_paths=False, allowed_local_media_path=str(shared_folder))
    settings = make_settings(model_name=None, media=limits)
    with (
        AsyncEngine(backend_config=EngineConfig(device_type="cpu"), media_limits=settings.media) as engine,
        serve(engine, settings) as server,
    ):
        yield server


@pytest.fixture
def client(demo: LiveServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{demo.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def conversation(task: str, seed: int) -> tuple[Any, str]:
    """(messages with the first question, its answer)."""
    example = make_example(task, seed)
    question, answer = example.turns[0]
    return ask_about(*(make_data_url(image) for image in example.images), question), answer


@pytest.mark.parametrize("task", ["describe", "count", "attribute", "read", "chart", "compare"])
async def test_right_answers_from_the_async_client_streamed(demo: LiveServer, task: str) -> None:
    async with openai.AsyncOpenAI(base_url=f"{demo.url}/v1", api_key="none", max_retries=0) as client:

        async def is_right(seed: int) -> bool:
            messages, expected = conversation(task, seed)
            pieces = await client.chat.completions.create(model="seesay-demo", messages=messages, stream=True)
            return "".join([piece.choices[0].delta.content or "" async for piece in pieces]) == expected

        num_right = sum(await asyncio.gather(*map(is_right, SEEDS)))
    assert num_right >= len(SEEDS) - 2, f"{num_right} of {len(SEEDS)} right"


def test_a_conversation_about_a_picture(client: openai.OpenAI) -> None:
    scene = sample_scene(seed=0)
    messages: list[Any] = []
    answers = []
    for index, (question, _) in enumerate(scene.turns):
        messages += ask_about(*((make_data_url(scene.images[0]),) if index == 0 else ()), question)
        answer = client.chat.completions.create(model="seesay-demo", messages=messages)
        assert answer.choices[0].finish_reason == "stop"
        answers.append(answer.choices[0].message.content)
        messages.append(answer.choices[0].message.model_dump())  # as clients send it back
    assert answers == [expected for _, expected in scene.turns]


def test_responses_and_two_pictures(client: openai.OpenAI) -> None:
    scene = sample_scene(seed=1)
    content: Any = [
        {"type": "input_image", "image_url": make_data_url(scene.images[0]), "detail": "auto"},
        {"type": "input_text", "text": scene.turns[0][0]},
    ]
    first = client.responses.create(model="seesay-demo", input=[{"role": "user", "content": content}])
    assert first.output_text == scene.turns[0][1] and first.status == "completed"
    second = client.responses.create(model="seesay-demo", input=scene.turns[1][0], previous_response_id=first.id)
    assert second.output_text == scene.turns[1][1]


def test_a_clip_as_a_data_url(client: openai.OpenAI) -> None:
    av = pytest.importorskip("av")
    num_right = 0
    for seed in SEEDS:
        example = make_example("motion", seed)
        question, expected = example.turns[0]
        file = io.BytesIO()
        with av.open(file, "w", format="mp4") as container:
            stream = container.add_stream("libx264", rate=int(CLIP_FPS))
            stream.width, stream.height = example.clip[0].size
            stream.pix_fmt, stream.options = "yuv444p", {"crf": "0"}
            for frame in example.clip:
                container.mux(stream.encode(av.VideoFrame.from_ndarray(np.asarray(frame), format="rgb24")))
            container.mux(stream.encode())
        url = "data:video/mp4;base64," + base64.b64encode(file.getvalue()).decode()
        content: Any = [
            {"type": "video_url", "video_url": {"url": url, "fps": CLIP_FPS}},
            {"type": "text", "text": question},
        ]
        answer = client.chat.completions.create(model="seesay-demo", messages=[{"role": "user", "content": content}])
        num_right += answer.choices[0].message.content == expected
    assert num_right >= len(SEEDS) - 2, f"{num_right} of {len(SEEDS)} right"


def test_files_of_the_allowed_folder_and_no_others(client: openai.OpenAI, shared_folder: Path, tmp_path: Path) -> None:
    scene = sample_scene(seed=0)
    question, expected = scene.turns[0]
    scene.images[0].save(shared_folder / "scene.png")
    scene.images[0].save(tmp_path / "outside.png")
    (shared_folder / "link.png").symlink_to(tmp_path / "outside.png")

    def ask(url: str) -> str | None:
        content: Any = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": question}]
        answer = client.chat.completions.create(model="seesay-demo", messages=[{"role": "user", "content": content}])
        return answer.choices[0].message.content

    assert ask(str(shared_folder / "scene.png")) == ask(f"file://{shared_folder}/scene.png") == expected
    for outside in (
        str(tmp_path / "outside.png"),
        f"file://{tmp_path}/outside.png",
        f"{shared_folder}/../{tmp_path.name}/outside.png",
        str(shared_folder / "link.png"),
        str(shared_folder / "missing.png"),
    ):
        with pytest.raises(openai.BadRequestError):
            ask(outside)


def test_a_small_file_of_a_huge_picture_is_refused_undecoded(
    client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    bomb = make_data_url(Image.new("1", (14_000, 14_000)))
    assert len(bomb) < 100_000
    decoded: list[tuple[int, int]] = []
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda picture: decoded.append(picture.size))
    with pytest.raises(openai.BadRequestError, match="pixels"):
        messages: list[Any] = ask_about(bomb, "?")
        client.chat.completions.create(model="seesay-demo", messages=messages)
    assert not decoded


def test_pictures_that_look_alike_embed_alike(client: openai.OpenAI) -> None:
    def embed(seed: int) -> np.ndarray:
        messages = ask_about(make_data_url(sample_scene(seed=seed).images[0]), "describe this image")
        answer = client.post("/embeddings", body={"messages": messages}, cast_to=openai.types.CreateEmbeddingResponse)
        vector = np.array(answer.data[0].embedding)
        return np.asarray(vector / np.linalg.norm(vector))

    one, same, other = embed(0), embed(0), embed(1)
    assert one @ same > 0.999 > one @ other
