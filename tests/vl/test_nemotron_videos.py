"""Videos of Nemotron 3 Nano Omni: the processor's sizes, times and tokens, the model's answers, and what is refused."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from asking import ask, make_picture, parse
from family_contract import (
    VIDEO,
    Loaded,
    build,
    draw_image,
    draw_media,
    edit_json,
    load_family,
    plan,
    preprocess,
    render,
)
from oracles import load_oracle
from processing import process

from seesay.config import EngineConfig
from seesay.engine.front.engine import AsyncEngine
from seesay.errors import CheckpointError, RequestError
from seesay.processors.media.load import load_video
from seesay.values import MediaSize
from seesay.vl.families.nemotron_h_omni import find_frame_grid

NAME, ORIGINAL = "nemotron_h_omni", "nemotron_h_omni_original"
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning:transformers")


def write_file(frames: npt.NDArray[np.uint8], *, rate: int) -> bytes:
    """Return an MP4 of frames."""
    import av

    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=rate)
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "yuv420p"
        for each in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(each, format="rgb24")))
        container.mux(stream.encode(None))
    return buffer.getvalue()


def describe(fps: float, indices: Sequence[int]) -> dict[str, Any]:
    return {"fps": fps, "total_num_frames": 4000, "frames_indices": list(indices)}


@pytest.mark.parametrize("keeps_ratio", [True, False])
@pytest.mark.parametrize("most", [1024, 90, 4, 7])
def test_sizes_are_those_of_transformers(most: int, keeps_ratio: bool) -> None:
    from transformers import NemotronH_Omni_Reasoning_V3VideoProcessor

    processor = NemotronH_Omni_Reasoning_V3VideoProcessor(
        video_target_num_patches=most, video_maintain_aspect_ratio=keeps_ratio
    )
    sides = [1, 3, *range(20, 2000, 97), 1080, 1920, 40_000]
    for height in sides:
        for width in sides:
            columns, rows = processor._compute_target_patches(height, width)
            assert find_frame_grid((height, width), most, keeps_ratio=keeps_ratio) == (rows, columns), (height, width)


@pytest.mark.parametrize("name", [NAME, ORIGINAL])
def test_times_are_those_of_transformers(name: str, load: Callable[[str], Loaded]) -> None:
    """Of even and odd numbers of frames, taken of files with any rate."""
    loaded = load(name)
    for indices, fps in (
        ([0, 7, 14, 22, 3600], 29.97),
        ([0, 15], 30.0),
        ([0, 9, 12], 24.0),
        ([5], 30.0),
        ([0, 1], 0.7),
    ):
        video = draw_media(VIDEO, len(indices), 20, 30)
        video = replace(video, timestamps_s=tuple(index / fps for index in indices), source_fps=fps)
        text = render(loaded.family, [video]).text
        inputs = process(loaded.processor, text, videos=[video.frames], video_metadata=[describe(fps, indices)])
        assert build(loaded, [video]).token_ids.tolist() == inputs["input_ids"][0].tolist(), (indices, fps)


def test_times_without_a_rate_are_those_of_frames(load: Callable[[str], Loaded]) -> None:
    video = replace(draw_media(VIDEO, 3, 20, 30), timestamps_s=(0.0, 0.495, 12.3456))
    text = load(NAME).tokenizer.decode(build(load(NAME), [video]).token_ids)
    assert "Frame 1 sampled at 0.00 seconds and frame 2 sampled at 0.49 seconds: \nFrame 3 sampled at 12.35 " in text


@pytest.mark.parametrize("name", [NAME, ORIGINAL])
def test_rows_of_odd_numbers_of_frames(name: str, load: Callable[[str], Loaded]) -> None:
    """The last frame is shown twice."""
    loaded = load(name)
    for count in (1, 2, 3):
        features = preprocess(loaded.family, draw_media(VIDEO, count, 33, 52))
        [rows] = loaded.encoder.encode([features])
        frames = torch.from_numpy(draw_media(VIDEO, count, 33, 52).frames).permute(0, 3, 1, 2)
        pixels = loaded.processor.video_processor(videos=[frames], return_tensors="pt")["pixel_values_videos"]
        with torch.no_grad():
            [expected] = loaded.model.get_video_features(pixels).pooler_output
        assert features["grid"][0] == -(-count // 2)
        torch.testing.assert_close(rows, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", [NAME, ORIGINAL])
def test_answers_about_several_videos_equal_transformers(name: str, tiny_checkpoint: Callable[[str], Path]) -> None:
    """Of an odd number of frames, one and two in a prompt, whole and in chunks. Transformers takes several only if they
    have one size."""
    clips = [[make_picture(37, 52, seed + number) for number in range(3)] for seed in (1, 9)]
    texts = ("see ", " and ", " what?")
    conversations = []
    for count in (1, 2):
        content: list[dict[str, Any]] = [{"type": "text", "text": texts[0]}]
        for clip, text in zip(clips[:count], texts[1:]):
            content += [{"type": "video", "video": clip, "fps": 2.0}, {"type": "text", "text": text}]
        conversations.append([{"role": "user", "content": content}])
    path = tiny_checkpoint(name)
    expected = [_answer_in_transformers(path, conversation) for conversation in conversations]
    for chunk in (2048, 13):
        config = EngineConfig(device_type="cpu", dtype="float32", max_prefill_token_num=chunk)
        with AsyncEngine(str(path), backend_config=config) as engine:
            answers = ask(engine, parse(conversations, max_new_tokens=16, min_new_tokens=16))
        assert [answer.error for answer in answers] == [None, None]
        assert [list(answer.token_ids) for answer in answers] == expected, chunk


def test_answers_about_a_file_equal_transformers(tiny_checkpoint: Callable[[str], Path]) -> None:
    """Its frames last 33 ms to Transformers, which the times in the prompt follow from."""
    file, options = write_file(draw_media(VIDEO, 45, 40, 64).frames, rate=30), dict[str, Any](num_frames=5)
    video = load_video(file, **options)
    part = {"type": "video", "video": file, **options}
    content = [{"type": "text", "text": "see "}, part, {"type": "text", "text": " what?"}]
    indices = [round(30 * time_s) for time_s in video.timestamps_s]
    assert indices == [0, 11, 22, 33, 44]
    path, taken = tiny_checkpoint(NAME), {"type": "video", "video": video.frames}
    expected = _answer_in_transformers(path, [{"content": [content[0], taken, content[2]]}], describe(30.0, indices))
    with AsyncEngine(str(path), backend_config=EngineConfig(device_type="cpu", dtype="float32")) as engine:
        [answer] = ask(engine, parse([[{"role": "user", "content": content}]], max_new_tokens=16, min_new_tokens=16))
    assert answer.error is None and list(answer.token_ids) == expected


def _answer_in_transformers(
    path: Path, conversation: list[dict[str, Any]], metadata: dict[str, Any] | None = None
) -> list[int]:
    model, processor = load_oracle(path)
    content = conversation[0]["content"]
    clips = [np.stack([np.asarray(frame) for frame in part["video"]]) for part in content if "video" in part]
    kinds = [part if part["type"] == "text" else {"type": "video"} for part in content]
    prompt = processor.apply_chat_template(
        [{"role": "user", "content": kinds}], tokenize=False, add_generation_prompt=True
    )
    described = [metadata or describe(2.0, range(len(clip))) for clip in clips]
    inputs = process(processor, prompt, videos=clips, video_metadata=described)
    with torch.inference_mode():
        output = model.generate(**inputs, max_new_tokens=16, min_new_tokens=16, do_sample=False)
    answer: list[int] = output[0, inputs["input_ids"].shape[1] :].tolist()
    return answer


def test_videos_of_several_sizes_beside_pictures(load: Callable[[str], Loaded]) -> None:
    """The rows of each item are those that it has alone, in one call of the tower."""
    loaded = load(NAME)
    media = [draw_media(VIDEO, 3, 20, 90), draw_media(VIDEO, 4, 60, 30)]
    made = build(loaded, [media[0], draw_image(40, 57), media[1]])
    together = loaded.encoder.encode([item.features for item in made.items])
    for rows, item in zip(together, made.items, strict=True):
        assert len(rows) == len(item.slots)
        torch.testing.assert_close(rows, loaded.encoder.encode([item.features])[0], rtol=0, atol=2e-5)


def test_most_pixels_of_a_frame(load: Callable[[str], Loaded]) -> None:
    family, size = load(NAME).family, draw_media(VIDEO, 3, 60, 64).size
    grids = [plan(family, VIDEO, size, {"max_pixels": most}).measures["grid"] for most in (1, 700, 1 << 20)]
    assert grids == [(2, 2, 2), (2, 6, 6), (2, 8, 10)]
    assert family.resolve_options(VIDEO, {"detail": "low"}) == {"max_pixels": 90 * 16}


def test_frames_that_become_too_many_patches_are_refused(load: Callable[[str], Loaded]) -> None:
    size = MediaSize(num_frames=2, height=1, width=10**12, timestamps_s=(0.0, 0.5))
    with pytest.raises(RequestError, match="patches, more than the"):
        plan(load(NAME).family, VIDEO, size)


def change(path: Path, target: Path, file: str, part: str, fields: dict[str, Any]) -> Path:
    def apply(data: dict[str, Any]) -> None:
        data.get(part, data).update(fields)

    return edit_json(path, target, file, apply)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"patch_size": 8}, "video processor setting patch_size must be 4, got 8"),
        ({"downsample_ratio": 1.0}, "video processor setting downsample_ratio must be 0.5, got 1.0"),
        ({"norm_mean": [0.1, 0.2, 0.3]}, "pictures and videos are normalized differently: not supported"),
        ({"norm_std": 3}, "processor setting image_std must be three numbers"),
        ({"video_target_num_patches": 0}, "video_target_num_patches must be an integer from 1 to"),
        ({"do_sample_frames": True, "fps": 0}, "processor setting fps must be a number above 0"),
    ],
)
def test_other_settings_are_refused(
    fields: dict[str, Any], message: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    path = change(tiny_checkpoint(NAME), tmp_path / "changed", "processor_config.json", "video_processor", fields)
    with pytest.raises(CheckpointError, match=message):
        load_family(path)


def test_another_number_of_frames_in_a_step_is_refused(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    fields = {"video_temporal_patch_dim": 3}
    path = change(tiny_checkpoint(NAME), tmp_path / "changed", "processor_config.json", "", fields)
    with pytest.raises(CheckpointError, match="video processor setting video_temporal_patch_dim must be 2, got 3"):
        load_family(path)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {}),
        ({"fps": 3.0}, {}),
        ({"do_sample_frames": True, "fps": 3.0}, {"fps": 3.0}),
        ({"do_sample_frames": True, "num_frames": 12}, {"num_frames": 12}),
        ({"do_sample_frames": True}, {}),
    ],
)
def test_the_checkpoint_says_which_frames_are_taken(
    fields: dict[str, Any], expected: dict[str, Any], tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    path = change(tiny_checkpoint(NAME), tmp_path / "changed", "processor_config.json", "video_processor", fields)
    assert load_family(path)[0].default_sampling == expected


def test_videos_are_refused_where_their_rows_are_pruned(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """Which rows Transformers leaves out depends on their values, which are not known when a prompt is planned."""
    path = change(tiny_checkpoint(NAME), tmp_path / "changed", "config.json", "", {"video_pruning_rate": 0.5})
    frames = [make_picture(20, 30, seed) for seed in range(2)]
    video = [{"role": "user", "content": [{"type": "video", "video": frames}, {"type": "text", "text": "what?"}]}]
    with AsyncEngine(str(path), backend_config=EngineConfig(device_type="cpu")) as engine:
        refused, taken = ask(engine, parse([video, ("what?", frames[0])], max_new_tokens=2))
    assert "videos are not supported with video_pruning_rate=0.5 of config.json" in str(refused.error)
    assert taken.error is None
