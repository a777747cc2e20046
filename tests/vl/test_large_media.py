"""A picture of 16,000 tokens, 64 pictures in a prompt, and a video of ten minutes: chunked, cached, within limits."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from asking import ask, make_picture, parse
from family_contract import edit_json

from seesay.config import EngineConfig, MediaLimits, VisionConfig
from seesay.engine.front.engine import AsyncEngine
from seesay.engine.front.response import Response
from seesay.errors import ErrorCode, RequestError
from seesay.processors.media.load import load_video
from seesay.values import EngineStats

SESSION_LEN = 17_000
CHUNK = 2048


@pytest.fixture(scope="module")
def engine(tiny_checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[AsyncEngine]:
    """Windows of attention in all layers of the tower: with full attention, 64,000 patches take a CPU ten seconds."""

    def edit(config: dict[str, Any]) -> None:
        config["vision_config"]["fullatt_block_indexes"] = []
        config["text_config"]["max_position_embeddings"] = 1 << 15

    folder = edit_json(tiny_checkpoint("qwen2_5_vl"), tmp_path_factory.mktemp("large") / "model", "config.json", edit)
    config = EngineConfig(
        device_type="cpu", block_size=64, session_len=SESSION_LEN, max_prefill_token_num=CHUNK,
        num_gpu_blocks=SESSION_LEN // 64 + 20,
    )  # fmt: skip
    vision = VisionConfig(max_batch_tokens=4096)
    limits = MediaLimits.for_server()
    with AsyncEngine(str(folder), backend_config=config, vision_config=vision, media_limits=limits) as engine:
        yield engine


def count_steps(stats: EngineStats) -> int:
    return sum(count for _, count in stats.step_sizes)


def check(engine: AsyncEngine, content: list[dict[str, Any]], least: int, most: int) -> Response:
    """Ask twice: computed in chunks, then from the caches, with one answer."""
    prompt = [{"role": "user", "content": [*content, {"type": "text", "text": "what?"}]}]
    before = engine.stats()
    [first] = ask(engine, parse([prompt], max_new_tokens=3))
    done = engine.stats()
    assert count_steps(done) - count_steps(before) >= first.input_token_len // CHUNK
    assert first.error is None, first.text
    assert least <= first.input_token_len <= most
    [again] = ask(engine, parse([prompt], max_new_tokens=3))
    assert again.token_ids == first.token_ids and again.usage is not None
    assert again.usage.cached_tokens >= first.input_token_len - 128
    assert all(report.is_cached for report in again.media)
    assert engine.stats().total_encoder_items == done.total_encoder_items
    return first


def test_a_picture_of_16000_tokens(engine: AsyncEngine) -> None:
    picture = make_picture(1000, 1024, 1)
    first = check(engine, [{"type": "image", "image": picture, "max_pixels": 1024 * 1000}], 16_000, 16_050)
    assert first.media[0].num_tokens == 16_000
    larger = make_picture(1100, 1024, 1)
    prompt = [{"role": "user", "content": [{"type": "image", "image": larger, "max_pixels": 1100 * 1024}]}]
    [refused] = ask(engine, parse([prompt], max_new_tokens=3))
    assert isinstance(refused.error, RequestError) and refused.error.code is ErrorCode.CONTEXT_TOO_LONG


def test_64_pictures_in_a_prompt(engine: AsyncEngine) -> None:
    pictures = [{"type": "image", "image": make_picture(60 + i, 130 - i, i)} for i in range(64)]
    first = check(engine, pictures, 4000, 12_000)
    assert len(first.media) == 64 and len({report.num_tokens for report in first.media}) > 4


@pytest.fixture(scope="module")
def ten_minutes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """6,000 frames at 10 per second, a key frame every 25 seconds; each second has a grey of its own."""
    path = tmp_path_factory.mktemp("video") / "ten_minutes.mp4"
    with av.open(str(path), "w", options={"movflags": "faststart"}) as container:
        stream = container.add_stream("libx264", rate=10, options={"g": "250", "preset": "ultrafast"})
        stream.height, stream.width, stream.pix_fmt = 32, 48, "yuv420p"
        for second in range(600):
            frame = np.full((32, 48, 3), 16 + second % 100 * 2, np.uint8)
            for _ in range(10):
                container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode(None))
    return path


def test_a_video_of_ten_minutes(engine: AsyncEngine, ten_minutes: Path) -> None:
    video = load_video(ten_minutes)
    assert len(video.frames) == 768
    greys = video.frames.mean(axis=(1, 2, 3))
    np.testing.assert_allclose(greys, 16 + np.array(video.timestamps_s).astype(int) % 100 * 2, atol=3)
    content = {"type": "video", "video": ten_minutes.read_bytes(), "max_frames": 256, "max_pixels": 32 * 48}
    check(engine, [content], 3000, 16_000)


def test_several_videos_in_a_prompt(engine: AsyncEngine, ten_minutes: Path) -> None:
    parts = [
        {"type": "video", "video": ten_minutes.read_bytes(), "num_frames": 4, "video_start": start, "max_pixels": 1536}
        for start in (0, 100, 200, 300, 500.5)
    ]
    first = check(engine, parts, 40, 2000)
    assert [report.num_frames for report in first.media] == [4] * 5


def test_a_video_with_too_many_frames_is_told_what_would_fit(engine: AsyncEngine, ten_minutes: Path) -> None:
    part = {"type": "video", "video": ten_minutes.read_bytes(), "max_pixels": 128 * 192, "min_pixels": 128 * 192}
    prompt = [{"role": "user", "content": [part, {"type": "text", "text": "what?"}]}]
    [refused] = ask(engine, parse([prompt], max_new_tokens=3))
    assert isinstance(refused.error, RequestError) and refused.error.code is ErrorCode.CONTEXT_TOO_LONG
    found = re.search(r"A video takes (\d+) tokens for 768 frames: with max_frames=(\d+) it would fit", refused.text)
    assert found is not None, refused.text
    fitting = int(found[2])
    for max_frames, fits in ((fitting, True), (fitting + 2, False)):
        content = [{**part, "max_frames": max_frames}, {"type": "text", "text": "what?"}]
        [request] = parse([[{"role": "user", "content": content}]])
        assert (engine.count_tokens(request) < SESSION_LEN) is fits
