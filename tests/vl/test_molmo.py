"""Molmo's prompts and crops: the published format, options, and settings that are refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from asking import ask, make_message, make_picture, parse
from family_contract import IMAGE, Loaded, draw_image, edit_json, load_family, plan, preprocess

from seesay.config import EngineConfig
from seesay.engine.front.engine import AsyncEngine
from seesay.errors import CheckpointError, RequestError
from seesay.processors.media.tiles import choose_crops
from seesay.values import MediaSize

PICTURE = make_picture(40, 90, 5)
CHATML = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' }}{% endfor %}"


@pytest.fixture(scope="module")
def engine(tiny_checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[AsyncEngine]:
    """Of a folder as published, whose template is that of the text model."""
    source, target = tiny_checkpoint("molmo"), tmp_path_factory.mktemp("molmo") / "published"
    path = edit_json(source, target, "tokenizer_config.json", lambda data: data.update(chat_template=CHATML))
    (path / "chat_template.jinja").write_text(CHATML)
    with AsyncEngine(str(path), backend_config=EngineConfig(device_type="cpu", block_size=16)) as engine:
        yield engine


@pytest.mark.parametrize("pictures", [[PICTURE], [PICTURE, make_picture(9, 9, 6)]])
def test_the_prompt_is_that_of_the_published_processor(
    engine: AsyncEngine, load: Callable[[str], Loaded], pictures: list[Any]
) -> None:
    """Pictures come first, also where the message has them last."""
    expected = load("molmo").processor.process("what is in the frame?", pictures)["input_ids"][0].tolist()
    for parts in ((*pictures, "what is in the frame?"), ("what is in the frame?", *pictures)):
        [request] = parse([[make_message(*parts)]])
        assert engine.tokenize(request).result(60).tolist() == expected


def test_penalties_and_biases_know_no_logits_of_the_tokens_of_pictures(engine: AsyncEngine) -> None:
    size = engine.vocab_size
    assert size == engine.checkpoint.config["embedding_size"]
    options = {"max_new_tokens": 4, "ignore_eos": True, "repetition_penalty": 1.3, "frequency_penalty": 0.5}
    [answer] = ask(engine, parse([[make_message(PICTURE, "?")]], output_logits="generation", **options))
    assert answer.error is None and answer.logits is not None and answer.logits.shape[1] == size
    [refused] = ask(engine, parse([[make_message("?")]], logit_bias={size: 1.0}))
    assert isinstance(refused.error, RequestError) and "vocabulary" in refused.error.message


@pytest.mark.parametrize(
    ("size", "crops"),
    [((336, 336), (1, 1)), ((337, 336), (2, 1)), ((560, 1008), (2, 4)), ((3000, 300), (12, 1)), ((112, 112), (1, 1)),
     ((1, 4000), (1, 1)), ((5000, 5000), (3, 3))],
)  # fmt: skip
def test_crops_of_published_sizes(size: tuple[int, int], crops: tuple[int, int]) -> None:
    assert choose_crops(size, 224, 112, 12) == crops


def test_most_crops_of_one_picture(load: Callable[[str], Loaded]) -> None:
    family = load("molmo").family
    picture = draw_image(30, 90)
    assert [preprocess(family, picture, {"max_crops": most})["num_tiles"] for most in (1, 3, 6)] == [2, 4, 7]
    assert preprocess(family, picture, {"detail": "low"})["num_tiles"] == 2
    with pytest.raises(RequestError, match=r"max_crops must be an integer in \[1, 1024\]"):
        plan(family, IMAGE, picture.size, {"max_crops": 1025})
    wide = MediaSize(num_frames=1, height=60_000, width=60_000)
    with pytest.raises(RequestError, match="more than"):
        family.plan_media(IMAGE, MediaSize(num_frames=1, height=1, width=1 << 26), {"max_crops": 1024})
    assert family.plan_media(IMAGE, wide, {}).peak_pixels >= 4 * wide.num_pixels  # float32


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("overlap_margins", [1, 2], "overlap_margins must be two even numbers of patches, less than 6 together"),
        ("overlap_margins", [4, 4], "less than 6 together"),
        ("overlap_margins", 4, "overlap_margins"),
        ("max_crops", 0, "max_crops must be an integer from 1 to 1024"),
        ("base_image_input_size", [24, 48], r"base_image_input_size must be \[24, 24\]"),
        ("image_padding_mask", False, "image_padding_mask must be True"),
        ("image_token_length_w", 4, "image_token_length_w must be 3"),
        ("resample", 1, "resample must be 2"),
    ],
)
def test_other_settings_are_refused(
    tiny_checkpoint: Callable[[str], Path], tmp_path: Path, name: str, value: Any, message: str
) -> None:
    path = edit_json(
        tiny_checkpoint("molmo"), tmp_path / "other", "processor_config.json",
        lambda data: data["image_processor"].update({name: value}),
    )  # fmt: skip
    with pytest.raises(CheckpointError, match=message):
        load_family(path)


def test_the_token_of_patches_must_be_an_added_one(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    size = json.loads((tiny_checkpoint("molmo") / "config.json").read_text())["embedding_size"]
    path = edit_json(
        tiny_checkpoint("molmo"), tmp_path / "other", "config.json",
        lambda data: data.update(embedding_size=size + 64),
    )  # fmt: skip
    with pytest.raises(CheckpointError, match="<im_patch> must be one of the 128 tokens behind the vocabulary of"):
        load_family(path)
