"""Mono-InternVL beyond the contract: its own conversation, settings in config.json, and which rows go where."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from family_contract import IMAGE, draw_image, edit_json, load_family, plan, prepare, preprocess
from PIL import Image
from safetensors.torch import load_file, save_file

from seesay import GenerationConfig, pipeline
from seesay.config import EngineConfig
from seesay.errors import CheckpointError
from seesay.templates import choose_template
from seesay.values import MediaPart, Message, TextPart
from seesay.vl.families.mono_internvl import MonoInternVL
from seesay.vl.prompts.prompt import build_input, tokenize

PICTURE = draw_image(30, 120)


@pytest.fixture
def change(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> Callable[..., Path]:
    """`change(**fields)`: a copy of the tiny checkpoint with other fields in config.json, those of a part within it."""

    def copy(**fields: Any) -> Path:
        def put(config: dict[str, Any]) -> None:
            for name, value in fields.items():
                config[name] = {**config[name], **value} if isinstance(value, dict) else value

        target = tmp_path / "changed"
        shutil.rmtree(target, ignore_errors=True)
        return edit_json(tiny_checkpoint("mono_internvl"), target, "config.json", put)

    return copy


def test_it_is_asked_as_by_its_own_code(change: Callable[..., Path]) -> None:
    """In the conversation that config.json names, with rows between <img> and </img> for each tile."""
    path = change(template="internlm2-chat")
    family, tokenizer = load_family(path)
    template = choose_template("models/folder", tokenizer, folder=path)
    pictures = [PICTURE, draw_image(9, 9)]
    parts = [MediaPart(modality=IMAGE, source=None) for _ in pictures]
    messages = [Message(role="user", parts=(*parts, TextPart(text="What is it?")))]
    prepared = [prepare(family, item) for item in pictures]
    tokens = tokenize(
        template.render(messages, markers=family.markers), tokenizer, [each.plan.wording for each in prepared]
    )
    made = build_input(tokens, prepared, family=family, model_digest=b"")
    text = template.render(messages, markers={IMAGE: "<image>"}).text
    assert text.endswith("<|im_start|>user\n<image>\n<image>\nWhat is it?<|im_end|><|im_start|>assistant\n")
    for number in (4 + 1, 1):
        text = text.replace("<image>", f"<img>{'<IMG_CONTEXT>' * 4 * number}</img>", 1)
    assert made.token_ids.tolist() == tokenizer.encode(text, add_special_tokens=True)


@pytest.mark.parametrize(
    ("fields", "num_tiles"),
    [
        ({"use_thumbnail": False}, 4),
        ({"max_dynamic_patch": 2}, 3),
        ({"max_dynamic_patch": 8, "min_dynamic_patch": 8}, 9),
        ({"dynamic_image_size": False}, 1),
    ],
)
def test_settings_are_those_of_config_json(fields: dict[str, Any], num_tiles: int, change: Callable[..., Path]) -> None:
    """With others a picture has another key in caches."""
    plain, _ = load_family(change())
    assert plan(plain, IMAGE, PICTURE.size).measures["num_tiles"] == 5
    family, _ = load_family(change(**fields))
    assert plan(family, IMAGE, PICTURE.size).measures["num_tiles"] == num_tiles
    assert len(preprocess(family, PICTURE)["pixels"]) == num_tiles
    assert family.media_key(IMAGE, {}) != plain.media_key(IMAGE, {})


def test_there_is_no_tower_whatever_its_configuration_says(change: Callable[..., Path]) -> None:
    family, _ = load_family(change(vision_config={"num_hidden_layers": 7, "hidden_act": "relu"}))
    encoder: Any = family.build_encoder(torch.device("cpu"), torch.float32)
    names = [name for name, _ in encoder.model.named_parameters()]
    embeddings = {f"tower.{name}" for name in ("cls_token", "pos_embed", "patch_embed.weight", "patch_embed.bias")}
    assert isinstance(family, MonoInternVL)
    assert {name for name in names if name.startswith("tower.")} == embeddings


def test_frames_of_a_video_are_pictures_of_one_tile(tiny_checkpoint: Callable[[str], Path]) -> None:
    path, video = tiny_checkpoint("mono_internvl"), [Image.fromarray(PICTURE.frames[0])] * 3
    family, _ = load_family(path)
    assert [*family.markers] == [*family.modalities] == [IMAGE]
    options = GenerationConfig(max_new_tokens=1)
    with pipeline(str(path), backend_config=EngineConfig(device_type="cpu")) as pipe:
        content = [{"type": "text", "text": "what?"}, {"type": "video", "video": video}]
        found = pipe([{"role": "user", "content": content}], gen_config=options)
    assert found.usage is not None and (found.usage.num_images, found.usage.media_tokens) == (3, 3 * 4)


def test_only_rows_of_pictures_go_through_their_feed_forwards(
    tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """Where the feed-forwards of rows are others, logits of a text stay, also those behind the token of rows in an
    answer; and those of a question about a picture do not."""
    source, target = tiny_checkpoint("mono_internvl"), tmp_path / "other"
    shutil.copytree(source, target)
    state = load_file(source / "model.safetensors")
    save_file(
        {name: -tensor if ".feed_forward_ve.w2" in name else tensor for name, tensor in state.items()},
        target / "model.safetensors",
        {"format": "pt"},
    )
    added = json.loads((source / "tokenizer.json").read_text())["added_tokens"]
    [token] = [each["id"] for each in added if each["content"] == "<IMG_CONTEXT>"]
    options = GenerationConfig(max_new_tokens=4, do_sample=False, output_logits="all", logit_bias={token: 100.0})
    picture = Image.fromarray(PICTURE.frames[0])
    found = []
    for path in (source, target):
        with pipeline(str(path), backend_config=EngineConfig(device_type="cpu")) as pipe:
            found.append(pipe(["the game", ("the game", picture)], gen_config=options))
    (text, about), (text_after, about_after) = found
    assert text.token_ids == about.token_ids == [token] * 4
    # Which rows share a step depends on when the picture is there, and products round by their number of rows.
    torch.testing.assert_close(text.logits, text_after.logits, rtol=0, atol=1e-4)
    assert (about.logits[-4:] - about_after.logits[-4:]).abs().max() > 0.1


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"llm_config": {"architectures": ["InternLM2ForCausalLM"]}}, "InternLM2VEForCausalLM"),
        ({"vision_config": {"model_type": "intern_vit_6b"}}, "vision_config.model_type is 'intern_vit_patch'"),
        ({"select_layer": -4}, "vision_feature_layer=-4 is not one of 0 layers"),
    ],
)
def test_what_is_not_supported_is_told(fields: dict[str, Any], told: str, change: Callable[..., Path]) -> None:
    with pytest.raises(CheckpointError) as raised:
        load_family(change(**fields))[0].build_encoder(torch.device("cpu"), torch.float32)
    assert told in str(raised.value)
