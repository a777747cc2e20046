"""Mini-Gemini beyond the contract: its own conversation, settings in config.json, and what is refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from family_contract import IMAGE, draw_image, edit_json, load_family, plan, prepare, preprocess
from safetensors.torch import load_file, save_file

from seesay.errors import CheckpointError
from seesay.templates import choose_template
from seesay.values import MediaPart, Message, TextPart
from seesay.vl.prompts.prompt import build_input, tokenize

PICTURE = draw_image(30, 120)


@pytest.fixture
def change(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> Callable[..., Path]:
    """`change(**fields)`: a copy of the tiny checkpoint with other fields in config.json."""

    def copy(**fields: Any) -> Path:
        target = tmp_path / "changed"
        shutil.rmtree(target, ignore_errors=True)
        return edit_json(tiny_checkpoint("mini_gemini"), target, "config.json", lambda config: config.update(fields))

    return copy


@pytest.mark.parametrize(
    ("count", "expected"), [(1, "USER: <image>\nwhat?"), (2, "USER: Image 1:<image>\nImage 2:<image>\nwhat?")]
)
def test_it_is_asked_as_by_its_own_code(count: int, expected: str, change: Callable[..., Path]) -> None:
    """The texts around pictures are tokenized one by one; several pictures are numbered."""
    path = change()
    family, tokenizer = load_family(path)
    template = choose_template("models/folder", tokenizer, "mini-gemini-vicuna")
    parts = [MediaPart(modality=IMAGE, source=None) for _ in range(count)]
    message = Message(role="user", parts=(*parts, TextPart(text="what?")))
    rendered = template.render([message], markers=family.markers)
    assert rendered.text.endswith(f"{expected} ASSISTANT:")
    prepared = [prepare(family, PICTURE) for _ in range(count)]
    tokens = tokenize(rendered, tokenizer, is_apart=family.tokenizes_apart, begins_empty=family.begins_empty)
    made = build_input(tokens, prepared, family=family, model_digest=b"")
    pieces = [tokenizer.encode(piece) for piece in rendered.text.split("<image>")]
    ids = [*tokenizer.encode("", add_special_tokens=True), *pieces[0]]
    for piece in pieces[1:]:
        ids += [*[287] * 9, *piece]
    assert made.token_ids.tolist() == ids


@pytest.mark.parametrize(
    ("fields", "num_rows"),
    [
        ({"image_grid": 2}, 4 * 9),
        ({"image_grid": 2, "image_global": True}, 5 * 9),
        ({"image_size_aux": 96}, 9),
        ({"image_aspect_ratio": "square"}, 9),
    ],
)
def test_settings_are_those_of_config_json(fields: dict[str, Any], num_rows: int, change: Callable[..., Path]) -> None:
    """With others a picture has another key in caches."""
    plain, _ = load_family(change())
    family, _ = load_family(change(**fields))
    assert plan(family, IMAGE, PICTURE.size).num_tokens == num_rows
    [rows] = family.build_encoder(torch.device("cpu"), torch.float32).encode([preprocess(family, PICTURE)])
    assert rows.shape == (num_rows, 64)
    assert family.media_key(IMAGE, {}) != plain.media_key(IMAGE, {})


@pytest.mark.parametrize("name", ["vision_tower_aux", "vision_tower.vision_tower"])
def test_towers_that_lie_elsewhere_are_told(name: str, change: Callable[..., Path]) -> None:
    path = change()
    state = load_file(path / "model.safetensors")
    left = {key: value for key, value in state.items() if f"model.{name}." not in key}
    save_file(left, path / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"no weights of its (second|vision) tower"):
        load_family(path)[0].build_encoder(torch.device("cpu"), torch.float32)


def test_norms_of_the_largest_tower_have_an_epsilon_of_their_own(change: Callable[..., Path]) -> None:
    found = []
    for name in ("openclip-convnext-large-d-320", "openclip-convnext-xxlarge"):
        encoder: Any = load_family(change(mm_vision_tower_aux=name))[0].build_encoder(
            torch.device("cpu"), torch.float32
        )
        found.append({each.eps for each in encoder.model.details.modules() if isinstance(each, torch.nn.LayerNorm)})
    assert found == [{1e-6}, {1e-5}]


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"mm_vision_tower_aux": None}, "mm_vision_tower_aux is missing"),
        ({"image_size_aux": 50}, "image_size_aux must be a multiple of 12, got '50'"),
        ({"image_size_aux": 48.0}, "image_size_aux must be a multiple of 12, got '48.0'"),
        ({"image_grid": 3}, "image_size_aux must be a multiple of 36, got '48'"),
        ({"image_grid": 0}, "image_grid must be an integer in [1, 4]"),
        ({"image_global": True}, "above 1 with image_global, got '1'"),
        ({"mm_projector_type": "linear"}, "mm_projector_type must be mlp2x_gelu, got 'linear'"),
        ({"mm_vision_select_feature": "cls_patch"}, "mm_vision_select_feature must be patch"),
        ({"mm_use_im_start_end": True}, "mm_use_im_start_end must be False, got 'True'"),
    ],
)
def test_what_is_not_supported_is_told(fields: dict[str, Any], told: str, change: Callable[..., Path]) -> None:
    with pytest.raises(CheckpointError) as raised:
        load_family(change(**fields))
    assert told in str(raised.value)
