"""MiniCPM-V's prompts: numbered pictures, options of one of them, frames of videos."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from asking import ask, make_picture, parse
from family_contract import VIDEO, Loaded, draw_image, plan, prepare, run_processor
from PIL import Image

from seesay.config import EngineConfig
from seesay.encoders.towers import resampler
from seesay.engine.front.engine import AsyncEngine
from seesay.errors import RequestError
from seesay.values import DecodedMedia, GenerationRequest, MediaSize
from seesay.vl.prompts.conversation_parts import parse_prompts

PICTURE = make_picture(40, 90, 5)


@pytest.fixture(scope="module")
def engine(tiny_checkpoint: Callable[[str], Path]) -> Iterator[AsyncEngine]:
    config = EngineConfig(device_type="cpu", block_size=16)
    with AsyncEngine(str(tiny_checkpoint("minicpmv")), backend_config=config) as engine:
        yield engine


def talk(*parts: Any, **options: Any) -> list[dict[str, Any]]:
    """A message of texts, pictures, and lists of frames, which all have the options."""
    content: list[dict[str, Any]] = []
    for part in parts:
        kind = "text" if isinstance(part, str) else "image" if isinstance(part, Image.Image) else "video"
        content.append({"type": kind, kind: part, **({} if kind == "text" else options)})
    return [{"role": "user", "content": content}]


def read(engine: AsyncEngine, prompt: Any, **options: Any) -> str:
    """The prompt as the model sees it, with one <unk> for each picture and slice."""
    [request], _ = parse_prompts([prompt], **options)
    assert isinstance(request, GenerationRequest), request
    ids = engine.tokenize(request).result(60).tolist()
    assert engine.count_tokens(request) == len(ids)
    text: str = engine.tokenizer.decode(ids, skip_special_tokens=False)
    return text.replace("<unk><unk><unk>", "<unk>")


WHOLE, SLICE = "<image><unk></image>", "<slice><unk></slice>"


def test_pictures_are_numbered_through_the_prompt(engine: AsyncEngine) -> None:
    """And counted exactly before they are decoded, also where a number takes two tokens."""
    small = Image.new("RGB", (9, 9))
    seen = read(engine, talk(*[small] * 12, "?"))
    assert [f"<image_id>{number}</image_id>{WHOLE}" in seen for number in range(13)] == [True] * 12 + [False]


def test_options_change_the_tokens_of_one_picture(engine: AsyncEngine) -> None:
    first = talk(PICTURE, max_slice_nums=1, use_image_id=False)[0]["content"]
    second = talk(PICTURE, "?", max_slice_nums=2)[0]["content"]
    seen = read(engine, [{"role": "user", "content": [*first, *second]}])
    assert f"user\n{WHOLE}\n<image_id>1</image_id>{WHOLE}{SLICE}{SLICE}\n?" in seen
    assert f"<image_id>0</image_id>{WHOLE}{SLICE}{SLICE}{SLICE}\n{SLICE}" in read(engine, talk(PICTURE))


def test_frames_of_a_video_have_no_numbers_and_few_slices(engine: AsyncEngine) -> None:
    """As the published code writes them, unless the request says more."""
    seen = read(engine, talk([PICTURE] * 2, PICTURE, "?"))
    assert seen.count(f"{WHOLE}{SLICE}{SLICE}\n") == 2 and "<image_id>0" not in seen
    assert "<image_id>2</image_id>" in seen
    assert "<image_id>1</image_id>" in read(engine, talk([PICTURE] * 2, "?", use_image_id=True))


def test_a_raw_prompt_may_spell_pictures_as_the_published_code_does(engine: AsyncEngine) -> None:
    small = Image.new("RGB", (9, 9))
    seen = read(engine, ("a (<image>./</image>) b <image>./</image>", [small, small]), do_preprocess=False)
    assert seen == f"a <image_id>0</image_id>{WHOLE} b <image_id>1</image_id>{WHOLE}"


# --- slices of 2.5 ----------------------------------------------------------------------------------------------------


def make_thin(seed: int) -> list[Any]:
    """A picture that is one slice of 25 patches, with its options; those of others have about 16."""
    return [{"type": "image", "image": make_picture(4, 400, seed), "max_slice_nums": 1}]


@pytest.fixture(scope="module")
def older_engine(tiny_checkpoint: Callable[[str], Path]) -> Iterator[AsyncEngine]:
    config = EngineConfig(device_type="cpu", block_size=16)
    with AsyncEngine(str(tiny_checkpoint("minicpmv_2_5")), backend_config=config) as engine:
        yield engine


def test_slices_are_padded_to_the_longest_of_the_prompt(older_engine: AsyncEngine) -> None:
    """A picture has another hash, and other rows, beside one with a longer slice, and its own ones beside others."""
    picture = talk(make_picture(20, 40, 1))[0]["content"]

    def build(*content: Any) -> list[Any]:
        [request] = parse([[{"role": "user", "content": [each for part in content for each in part]}]])
        prompt, _ = older_engine._preparer.prompts.build(request)
        return list(prompt.items)

    [alone] = build(picture)
    beside_short, _ = build(picture, talk(make_picture(20, 40, 2))[0]["content"])
    beside_long, long = build(picture, make_thin(3))
    assert alone.features["padded"] < beside_long.features["padded"] == long.features["padded"] == 25
    assert alone.hash == beside_short.hash != beside_long.hash
    assert long.hash == build(make_thin(3))[0].hash


def test_a_known_picture_is_encoded_again_beside_a_longer_one(older_engine: AsyncEngine, tmp_path: Path) -> None:
    """Its embedding is cached for a prompt of its own: what is computed beside a longer one does not depend on that.
    The picture is a file, which is not decoded again while its embedding is cached."""
    make_picture(20, 40, 4).save(tmp_path / "known.png")
    picture: list[Any] = [{"type": "image", "image": str(tmp_path / "known.png")}]
    question = {"type": "text", "text": "what?"}
    alone, pair = ([{"role": "user", "content": [*part, question]}] for part in (picture, [*picture, *make_thin(5)]))
    answers = []
    for before in ((alone,), ()):
        older_engine.reset_caches()
        for prompt in (*before, pair):
            [answer] = ask(older_engine, parse([prompt], max_new_tokens=4, logprobs=3))
        answers.append(answer)
    warm, cold = answers
    assert warm.error is None and warm.token_ids == cold.token_ids
    assert warm.logprobs is not None and cold.logprobs is not None
    for ours, theirs in zip(warm.logprobs, cold.logprobs, strict=True):
        assert ours == pytest.approx(theirs, abs=1e-5)


# --- videos of 4.5 ----------------------------------------------------------------------------------------------------


def draw_clip(num_frames: int, fps: float) -> DecodedMedia:
    frames = np.random.default_rng(num_frames).integers(0, 256, (num_frames, 20, 30, 3), dtype=np.uint8)
    return DecodedMedia(
        modality=VIDEO,
        frames=frames,
        timestamps_s=tuple(index / fps for index in range(num_frames)),
        frame_interval_s=1 / fps,
        digest=bytes(32),
    )


def test_frames_are_packed_as_published(load: Callable[[str], Loaded]) -> None:
    """For videos of many lengths and rates: packs of one to three, and the places of their frames in time."""
    loaded, lengths = load("minicpmv_4_5"), set()
    rng = np.random.default_rng(3)
    counts = [1, 2, 179, 180, 181, 182, 360, 361, 540, 700, *rng.integers(1, 600, 60).tolist()]
    for count, fps in zip(counts, itertools.cycle((3, 5, 10, 2.997, 0.5))):
        size = MediaSize(
            num_frames=count,
            height=20,
            width=30,
            timestamps_s=tuple(index / fps for index in range(count)),
            frame_interval_s=1 / fps,
        )
        ours = plan(loaded.family, VIDEO, size).measures["packs"]
        theirs = loaded.processor.group(count, fps)
        assert list(map(list, ours)) == theirs, (count, fps)
        lengths.add(len(ours[0]))
    assert lengths == {1, 2, 3}


@pytest.mark.parametrize("packing", [1, 2, 6])
def test_frames_of_a_pack_become_rows_together(
    load: Callable[[str], Loaded], packing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal to the plain model, also beside a picture, and when a long video takes several calls of the tower."""
    loaded = load("minicpmv_4_5")
    media = [draw_image(20, 50), draw_clip(7, 2.0)]
    prepared = [prepare(loaded.family, media[0]), prepare(loaded.family, media[1], {"force_packing": packing})]
    rows = loaded.encoder.encode([item.features for item in prepared])
    theirs = loaded.model.make_rows(
        **{
            name: value
            for name, value in run_processor(loaded, media, force_packing=packing).items()
            if name not in ("input_ids", "is_row")
        }
    )
    assert len(rows[1]) == 3 * -(-7 // packing)
    torch.testing.assert_close(torch.cat(rows), theirs, atol=1e-4, rtol=1e-4)
    monkeypatch.setattr(resampler, "MAX_PATCHES_AT_ONCE", 40)
    assert torch.cat(loaded.encoder.encode([item.features for item in prepared])).allclose(torch.cat(rows), atol=1e-5)
    monkeypatch.setattr(resampler.ResampledSiglip, "_find_times", lambda *_: None)
    [_, without] = loaded.encoder.encode([item.features for item in prepared])
    # A time that all keys of a pack have changes nothing.
    assert bool((without - rows[1]).abs().max() > 1e-3) is (packing > 1)


def test_a_video_says_what_it_takes(tiny_checkpoint: Callable[[str], Path]) -> None:
    """Its packs stand in lines; how many frames are in one is an option of that video; others are refused by name."""
    config = EngineConfig(device_type="cpu", block_size=16)
    with AsyncEngine(str(tiny_checkpoint("minicpmv_4_5")), backend_config=config) as engine:
        clip = [make_picture(20, 30, seed) for seed in range(4)]
        whole = "<image><unk></image>"
        assert f"user\n{whole}\n{whole}\n{whole}\n{whole}\n?" in read(engine, talk(clip, "?"))
        packed = read(engine, talk(clip, "?", force_packing=3))
        assert f"{whole}\n{whole}\n?" in packed and packed.count(whole) == 2
        content = [*talk(clip, force_packing=4)[0]["content"], *talk(PICTURE)[0]["content"]]
        seen = read(engine, [{"role": "user", "content": content}])
        assert "<image_id>1</image_id>" in seen and seen.count("<image><unk></image>") == 2
        for options, message in (
            ({"force_packing": 7}, r"force_packing must be an integer in \[1, 6\], got 7"),
            ({"max_slice_nums": 2}, "video option 'max_slice_nums' is unknown to this model"),
        ):
            [refused] = ask(engine, parse([talk(clip, "?", **options)], max_new_tokens=1))
            assert isinstance(refused.error, RequestError) and re.search(message, refused.text), refused.text
        [answer] = ask(engine, parse([talk(clip, PICTURE, "?")], max_new_tokens=3))
        assert answer.error is None and [report.num_frames for report in answer.media] == [4, 1]


def test_a_number_of_frames_that_would_fit_is_planned(tiny_checkpoint: Callable[[str], Path]) -> None:
    """200 frames are packed by two, so half of their tokens are not those of 100 frames."""
    config = EngineConfig(device_type="cpu", block_size=16, session_len=400)
    clip = [make_picture(4, 6, 0)] * 200
    with AsyncEngine(str(tiny_checkpoint("minicpmv_4_5")), backend_config=config) as engine:
        [refused] = ask(engine, parse([talk(clip, "?", sample_fps=2)], max_new_tokens=1))
        found = re.search(r"for 200 frames: with max_frames=(\d+) it would fit", refused.text)
        assert found is not None, refused.text
        for num_frames, fits in ((int(found[1]), True), (int(found[1]) + 2, False)):
            [answer] = ask(engine, parse([talk(clip, "?", sample_fps=2, max_frames=num_frames)], max_new_tokens=1))
            assert (answer.error is None) is fits, answer.text
