"""Idefics3 and SmolVLM: options of pictures, positions of tiles, and what stands around a video."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from asking import parse
from family_contract import (
    IMAGE,
    VIDEO,
    Loaded,
    build,
    draw_image,
    draw_media,
    edit_json,
    list_pixels,
    load_family,
    plan,
    preprocess,
    render,
    run_processor,
)

from seesay.config import EngineConfig
from seesay.encoders.towers.fractional_positions import find_positions
from seesay.engine.front.engine import AsyncEngine
from seesay.errors import CheckpointError, RequestError
from seesay.processors.text.number_words import spell_number
from seesay.values import MediaSize

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:transformers"),
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers"),
    pytest.mark.filterwarnings("ignore:__array_wrap__ must accept:DeprecationWarning"),
]
SIZES = [(33, 70), (70, 33), (61, 60), (1, 90), (17, 17)]


@pytest.mark.parametrize("name", ["idefics3", "smolvlm"])
@pytest.mark.parametrize(
    "options",
    [
        {"do_image_splitting": False},
        {"size": {"longest_edge": 61}},
        {"size": {"longest_edge": 90}, "do_image_splitting": True},
        {"size": {"longest_edge": 7}},
        {"size": {"longest_edge": 40}, "do_image_splitting": False},
    ],
    ids=str,
)
def test_options_mean_the_same_to_the_processor(
    name: str, options: dict[str, Any], load: Callable[[str], Loaded]
) -> None:
    """Also for longest edges that are not whole tiles."""
    loaded = load(name)
    media = [draw_image(*size) for size in SIZES]
    inputs = run_processor(loaded, media, **options)
    assert build(loaded, media, options).token_ids.tolist() == inputs["input_ids"][0].tolist()
    theirs = list_pixels(inputs["pixel_values"], inputs["pixel_attention_mask"])
    ours = [tile for each in media for tile in loaded.encoder.load_pixels(preprocess(loaded.family, each, options))]
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-5)


def test_a_picture_larger_than_the_limit(load: Callable[[str], Loaded]) -> None:
    """No side is longer than 4,096, whatever the longest edge."""
    from transformers.models.smolvlm.image_processing_smolvlm import get_resize_output_image_size

    for name in ("idefics3", "smolvlm"):
        for height, width in [*SIZES, (3000, 20), (20, 3000), (1, 1)]:
            size = MediaSize(num_frames=1, height=height, width=width)
            for edge in (4095, 4096, 4097, 5001, 9000):
                found = plan(load(name).family, IMAGE, size, {"size": edge, "do_image_splitting": False})
                expected = get_resize_output_image_size(torch.empty(3, height, width, device="meta"), edge)
                assert found.measures["fitted"] == expected, (height, width, edge)


@pytest.mark.parametrize("value", ["large", {"longest_edge": 0}, {"height": 9}, {"longest_edge": 9, "height": 9}, True])
def test_wrong_sizes_are_refused(value: Any, load: Callable[[str], Loaded]) -> None:
    with pytest.raises(RequestError, match="size must be") as raised:
        load("smolvlm").family.resolve_options(IMAGE, {"size": value})
    assert raised.value.param == "size"


def test_low_detail_contradicts_splitting(load: Callable[[str], Loaded]) -> None:
    family = load("idefics3").family
    with pytest.raises(RequestError, match="do_image_splitting"):
        family.resolve_options(IMAGE, {"detail": "low", "do_image_splitting": True})
    assert family.resolve_options(IMAGE, {"detail": "low"}) == {"do_image_splitting": False}


@pytest.mark.parametrize(("grid", "table"), [(26, 26), (27, 27), (32, 32), (6, 7), (18, 27), (1, 5)])
def test_positions_of_tiles_equal_transformers(grid: int, table: int) -> None:
    """Of the published sizes, and of tiles that are not those of the table."""
    from transformers import Idefics3VisionConfig
    from transformers.models.idefics3.modeling_idefics3 import Idefics3VisionEmbeddings

    config = Idefics3VisionConfig(hidden_size=1, image_size=2 * table, patch_size=2)
    embeddings = Idefics3VisionEmbeddings(config)
    with torch.no_grad():
        embeddings.patch_embedding.weight.zero_()
        embeddings.patch_embedding.bias.zero_()
        embeddings.position_embedding.weight.copy_(torch.arange(table**2)[:, None])
        found = embeddings(torch.zeros(1, 3, 2 * grid, 2 * grid), torch.ones(1, grid, grid, dtype=torch.bool))
    assert find_positions((grid, grid), table, "multiplied").tolist() == found.flatten().int().tolist()


def test_numbers_in_words() -> None:
    num2words = pytest.importorskip("num2words").num2words

    rng = np.random.default_rng(0)
    for number in [*range(2200), *(int(n) for n in np.exp(rng.uniform(0, np.log(1e9), 3000)))]:
        assert spell_number(number) == num2words(number)
    with pytest.raises(ValueError, match="999,999,999"):
        spell_number(-1)


@pytest.mark.parametrize("before", ["", "see ", "User:", "a\n", "\n\n", "Frame"])
@pytest.mark.parametrize("after", ["", "Then", " then", "\n", "\n\nnow", "me"])
def test_text_beside_a_video_is_tokenized_with_it(before: str, after: str, load: Callable[[str], Loaded]) -> None:
    """The words around the frames share tokens with the text of the user."""
    from family_contract import FPS, prepare
    from processing import process

    from seesay.values import MediaPart, RenderedPrompt
    from seesay.vl.prompts.prompt import build_input, tokenize

    loaded = load("smolvlm")
    video = draw_media(VIDEO, 3, 20, 30)
    text = f"{before}<video>{after}"
    rendered = RenderedPrompt(
        text=text,
        media=(MediaPart(modality=VIDEO, source=None),),
        markers=((len(before), len(before) + len("<video>")),),
        literals=((0, len(before)),) if before else (),
    )
    prepared = prepare(loaded.family, video)
    tokens = tokenize(rendered, loaded.tokenizer, [prepared.plan.wording])
    made = build_input(tokens, [prepared], family=loaded.family, model_digest=b"")
    metadata = {"fps": FPS, "total_num_frames": 3, "frames_indices": [0, 1, 2]}
    inputs = process(loaded.processor, text, videos=[video.frames], video_metadata=[metadata])
    assert made.token_ids.tolist() == inputs["input_ids"][0].tolist()
    assert tokens.num_text_tokens + prepared.plan.num_tokens == len(made.token_ids)


@pytest.mark.parametrize("duration", [None, 0.4, 59.9, 61.0, 4000.5])
def test_times_and_duration_equal_the_processors(duration: float | None, load: Callable[[str], Loaded]) -> None:
    from dataclasses import replace

    from processing import process

    loaded = load("smolvlm")
    indices, fps = [0, 31, 599, 600, 36_010], 10.0
    video = draw_media(VIDEO, len(indices), 20, 30)
    times = tuple(index / fps for index in indices)
    video = replace(video, timestamps_s=times, frame_interval_s=(duration or 0.0) / len(indices))
    metadata = {"fps": fps, "total_num_frames": 40_000, "frames_indices": indices, "duration": duration}
    inputs = process(
        loaded.processor, render(loaded.family, [video]).text, videos=[video.frames], video_metadata=[metadata]
    )
    assert build(loaded, [video]).token_ids.tolist() == inputs["input_ids"][0].tolist()


def test_videos_are_sampled_as_the_checkpoint_says(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """And without what it says, as the checkpoints of other families are."""

    def change(sampling: dict[str, Any] | None) -> Callable[[dict[str, Any]], None]:
        def edit(settings: dict[str, Any]) -> None:
            settings["video_processor"]["video_sampling"] = sampling

        return edit

    found = []
    for number, sampling in enumerate(({"fps": 1.5, "max_frames": 7}, None, {"fps": 0}, {"max_frames": 2.5})):
        path = edit_json(tiny_checkpoint("smolvlm"), tmp_path / str(number), "processor_config.json", change(sampling))
        if number < 2:
            found.append(dict(load_family(path)[0].default_sampling))
        else:
            with pytest.raises(CheckpointError, match="video_sampling"):
                load_family(path)
    assert found == [{"fps": 1.5, "max_frames": 7, "min_frames": 1}, {}]


def test_tokens_are_counted_before_a_video_is_decoded(tiny_checkpoint: Callable[[str], Path]) -> None:
    """Videos between texts, pictures beside them, and the marker placed by hand."""
    frames = [np.full((24, 40, 3), 10 * i, np.uint8) for i in range(4)]
    video = {"type": "video", "video": frames, "fps": 0.5}
    picture = {"type": "image", "image": np.zeros((60, 31, 3), np.uint8)}
    texts = [{"type": "text", "text": text} for text in ("see", "\n\nand ", "?")]
    prompts: list[Any] = [
        [{"role": "user", "content": [video, texts[0]]}],
        [{"role": "user", "content": [texts[0], video, texts[1], picture, video, texts[2]]}],
    ]
    config = EngineConfig(device_type="cpu", block_size=16)
    with AsyncEngine(str(tiny_checkpoint("smolvlm")), backend_config=config) as engine:
        for request in parse(prompts, max_new_tokens=1):
            ids = engine.tokenize(request).result(60)
            assert engine.count_tokens(request) == len(ids)
        text = engine.tokenizer.decode(engine.tokenize(parse(prompts)[1]).result(60), skip_special_tokens=False)
    assert "seeYou are provided the following series of four frames from a 0:00:08 [H:MM:SS] video.\n\nFrame" in text
    assert text.count("\nFrame from 00:06:<fake_token_around_image><global-img><image>") == 2
