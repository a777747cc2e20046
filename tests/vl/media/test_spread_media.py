"""Videos for models that take pictures only: their frames, as pictures."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from asking import ask, parse
from PIL import Image

from seesay.config import EngineConfig, GenerationConfig, MediaLimits
from seesay.engine.front.engine import AsyncEngine
from seesay.errors import ErrorCode, RequestError
from seesay.processors.media.load import load_video
from seesay.processors.media.video.video_file import VideoFile
from seesay.values import GenerationRequest, MediaPart, Modality, VideoFrames
from seesay.vl.constants import IMAGE_TOKEN, VIDEO_TOKEN
from seesay.vl.prompts.conversation_parts import parse_prompts

CPU = EngineConfig(device_type="cpu", block_size=16)


@pytest.fixture(scope="module")
def engine(tiny_checkpoint: Callable[[str], Path]) -> Iterator[AsyncEngine]:
    limits = MediaLimits(max_items=8)
    with AsyncEngine(str(tiny_checkpoint("llava")), backend_config=CPU, media_limits=limits) as engine:
        yield engine


@pytest.fixture(scope="module")
def clip() -> bytes:
    """40 frames of noise in 4 s."""
    file, rng = io.BytesIO(), np.random.default_rng(0)
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=10)
        stream.height, stream.width, stream.pix_fmt = 48, 64, "yuv420p"
        for _ in range(40):
            noise = rng.integers(0, 255, (6, 8, 3), dtype=np.uint8).repeat(8, 0).repeat(8, 1)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(noise, format="rgb24")))
        container.mux(stream.encode(None))
    return file.getvalue()


def pictures(clip: bytes, **options: Any) -> list[dict[str, Any]]:
    return [{"type": "image", "image": Image.fromarray(frame)} for frame in load_video(clip, **options).frames]


def tokens(engine: AsyncEngine, prompt: Any, **options: Any) -> list[int]:
    requests, _ = parse_prompts([prompt], **options)
    request = requests[0]
    assert isinstance(request, GenerationRequest), request
    ids: list[int] = engine.tokenize(request).result(60).tolist()
    return ids


def talk(*content: Any) -> list[dict[str, Any]]:
    texts = ({"type": "text", "text": part} if isinstance(part, str) else part for part in content)
    return [{"role": "user", "content": list(texts)}]


@pytest.mark.parametrize("options", [{}, {"num_frames": 3}, {"fps": 1, "video_end": 2}, {"max_frames": 2}])
def test_frames_are_asked_about_as_pictures_are(
    engine: AsyncEngine, clip: bytes, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Placed as the chat template places pictures, with the answer that pictures get. The video is decoded once."""
    reads = []
    real = VideoFile.frames

    def read(file: VideoFile) -> VideoFrames:
        reads.append(file)
        return real(file)

    monkeypatch.setattr(VideoFile, "frames", read)
    video = {"type": "video", "video": clip, **options}
    [seen] = ask(engine, parse([talk("before ", video, " after")], max_new_tokens=8))
    assert len(reads) == 1
    frames = pictures(clip, **(options or {"num_frames": 8}))
    [expected] = ask(engine, parse([talk("before ", *frames, " after")], max_new_tokens=8))
    assert seen.error is None and seen.token_ids == expected.token_ids
    assert seen.usage is not None and seen.usage.num_images == len(frames) == len(seen.media)
    assert seen.input_token_len == expected.input_token_len
    times_s = load_video(clip, **(options or {"num_frames": 8})).timestamps_s
    assert [report.timestamps_s for report in seen.media] == [(time_s,) for time_s in times_s]
    [again] = ask(engine, parse([talk("before ", video, " after")], max_new_tokens=8))
    assert [report.timestamps_s for report in again.media] == [(time_s,) for time_s in times_s], "recalled"
    assert not any(report.timestamps_s for report in expected.media)
    assert tokens(engine, talk("before ", video, " after")) == tokens(engine, talk("before ", *frames, " after"))


def test_markers_place_the_frames(engine: AsyncEngine, clip: bytes) -> None:
    picture = Image.new("RGB", (30, 20), "red")
    video = load_video(clip, num_frames=2)
    by_hand = [picture, *(Image.fromarray(frame) for frame in video.frames)]
    frames = f"{IMAGE_TOKEN}\n{IMAGE_TOKEN}"
    raw = {"do_preprocess": False}
    assert tokens(engine, (f"a {VIDEO_TOKEN} b {IMAGE_TOKEN}", [video, picture]), **raw) == tokens(
        engine, (f"a {frames} b {IMAGE_TOKEN}", [*by_hand[1:], picture]), **raw
    )
    for text in (f"no place {IMAGE_TOKEN}", f"{VIDEO_TOKEN} {VIDEO_TOKEN} {IMAGE_TOKEN}"):
        media = (MediaPart(modality=Modality.IMAGE, source=picture), MediaPart(modality=Modality.VIDEO, source=video))
        with pytest.raises(RequestError, match=r"VIDEO_TOKEN|takes no video"):
            engine.tokenize(GenerationRequest(prompt=text, media=media, gen_config=GenerationConfig())).result(60)
    parts = {"type": "video", "video": video}, {"type": "image", "image": picture}
    placed = talk(f"see {VIDEO_TOKEN} and {IMAGE_TOKEN}.", *parts)
    given = [{"type": "image", "image": image} for image in [*by_hand[1:], picture]]
    assert tokens(engine, placed) == tokens(engine, talk(f"see {IMAGE_TOKEN}{IMAGE_TOKEN} and {IMAGE_TOKEN}.", *given))


def test_limits_count_videos_not_frames(engine: AsyncEngine, clip: bytes) -> None:
    video = {"type": "video", "video": clip, "num_frames": 4}
    assert len(tokens(engine, talk(video, video, "?"))) == len(tokens(engine, talk(video, "?"))) * 2 - len(
        tokens(engine, talk("?"))
    )
    tokens(engine, talk(*[video] * 3, "?"))
    with pytest.raises(RequestError, match="has 9 pictures and videos") as raised:
        tokens(engine, talk(*[video] * 9))
    assert raised.value.code is ErrorCode.MEDIA_TOO_LARGE


def test_options_of_a_video_are_checked_by_name(engine: AsyncEngine, clip: bytes) -> None:
    unknown = "video option 'max_pixels' is unknown to this model; known are: detail, fps, max_frames, min_frames"
    for options, words in (({"fps": 0}, "fps must be"), ({"max_pixels": 9}, unknown)):
        [answer] = ask(engine, parse([talk({"type": "video", "video": clip, **options}, "?")], max_new_tokens=1))
        assert answer.error is not None and words in answer.text


@pytest.mark.parametrize("name", ["llava_original", "minicpmv"])
def test_frames_that_do_not_fit_are_told_how_many_would(
    name: str, clip: bytes, tiny_checkpoint: Callable[[str], Path]
) -> None:
    """Also where a marker has more tokens than the context: in these families none spells it. A long text is told
    so."""
    config = EngineConfig(device_type="cpu", block_size=16, session_len=150)
    video = {"type": "video", "video": clip, "num_frames": 40}
    with AsyncEngine(str(tiny_checkpoint(name)), backend_config=config) as engine:
        [refused] = ask(engine, parse([talk(video, "?")], max_new_tokens=1))
        assert isinstance(refused.error, RequestError) and refused.error.code is ErrorCode.CONTEXT_TOO_LONG
        found = re.search(r"A video takes \d+ tokens for 40 frames: with max_frames=(\d+) it would fit", refused.text)
        assert found is not None, refused.text
        [answer] = ask(engine, parse([talk({**video, "max_frames": int(found[1])}, "?")], max_new_tokens=1))
        assert answer.error is None and len(answer.media) == int(found[1])
        [refused] = ask(engine, parse([talk(*[video] * 4, "?")], max_new_tokens=1))
        assert "the prompt has 160 pictures and frames of videos (max_frames takes fewer" in refused.text
        [answer] = ask(engine, parse([talk({**video, "max_frames": 2}, "a b " * 300)], max_new_tokens=1))
        assert "characters, which are more than 150 tokens" in answer.text


def test_a_frame_is_decoded_again_when_its_embedding_is_gone(engine: AsyncEngine, clip: bytes) -> None:
    prompt = talk({"type": "video", "video": clip, "num_frames": 3}, "?")
    [first] = ask(engine, parse([prompt], max_new_tokens=4))
    [again] = ask(engine, parse([prompt], max_new_tokens=4))
    engine.reset_caches()
    [third] = ask(engine, parse([prompt], max_new_tokens=4))
    assert first.token_ids == again.token_ids == third.token_ids and first.error is None
    assert all(report.is_cached for report in again.media)


def test_without_pyav(engine: AsyncEngine, clip: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = talk({"type": "video", "video": clip, "num_frames": 3}, "?")
    expected = tokens(engine, prompt)
    monkeypatch.setattr("seesay.processors.media.video.video_file.has_pyav", lambda: False)
    assert tokens(engine, prompt) == expected
