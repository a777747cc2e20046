"""Ovis 2: options, and checkpoints that cannot be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from family_contract import IMAGE, Loaded, build, draw_image, edit_json, load_family, plan, run_processor

from seesay.errors import CheckpointError
from seesay.templates import choose_template
from seesay.values import MediaSize
from seesay.values.frame_chain import Crop

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:transformers"),
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers"),
    pytest.mark.filterwarnings("ignore:__array_wrap__ must accept:DeprecationWarning"),
]


@pytest.mark.parametrize("name", ["ovis2", "ovis2_hard"])
@pytest.mark.parametrize("most", [1, 2, 9])
def test_most_tiles_mean_the_same_to_the_processor(name: str, most: int, load: Callable[[str], Loaded]) -> None:
    loaded = load(name)
    media = [draw_image(*size) for size in [(33, 70), (70, 33), (61, 60), (1, 90), (17, 17)]]
    inputs = run_processor(loaded, media, max_patches=most)
    made = build(loaded, media, {"max_dynamic_patch": most})
    assert made.token_ids.tolist() == inputs["input_ids"][0].tolist()


def test_low_detail_takes_one_tile(load: Callable[[str], Loaded]) -> None:
    size = MediaSize(num_frames=1, height=60, width=90)
    found = [plan(load("ovis2").family, IMAGE, size, {"detail": detail}) for detail in ("low", "high")]
    assert [each.measures["num_tiles"] for each in found] == [1, 7]
    assert found[0].num_tokens == 9 + 3 < found[1].num_tokens


def test_a_checkpoint_that_does_not_cut_pictures(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """Unless a request asks for it."""

    def edit(settings: dict[str, Any]) -> None:
        settings["image_processor"]["crop_to_patches"] = False

    family, _ = load_family(edit_json(tiny_checkpoint("ovis2"), tmp_path / "whole", "processor_config.json", edit))
    size = MediaSize(num_frames=1, height=60, width=90)
    assert plan(family, IMAGE, size).measures["num_tiles"] == 1
    assert plan(family, IMAGE, size, {"max_dynamic_patch": 6}).measures["num_tiles"] == 7


def test_the_authors_cut_the_picture_itself(tiny_checkpoint: Callable[[str], Path]) -> None:
    """The last row and column of tiles have what is left; the whole comes first."""
    family, _ = load_family(tiny_checkpoint("ovis2_original"))
    size = MediaSize(num_frames=1, height=49, width=73)
    measures = family.measure(IMAGE, size, {})
    assert measures["cut"] == (2, 3)
    crops = [step for chain in family.chain_frames(IMAGE, size, measures) for step in chain if isinstance(step, Crop)]
    assert [(step.at, step.size) for step in crops] == [
        ((0, 0), (24, 24)), ((0, 24), (24, 24)), ((0, 48), (24, 25)),
        ((24, 0), (25, 24)), ((24, 24), (25, 24)), ((24, 48), (25, 25)),
    ]  # fmt: skip


def test_the_template_of_the_authors_replaces_the_decoders(tiny_checkpoint: Callable[[str], Path]) -> None:
    path = tiny_checkpoint("ovis2_original")
    template = choose_template("models/folder", load_family(path)[1], folder=path)
    assert template.name == "ovis2"


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("visual_indicator_token_ids", [1, 2, 3, 4, 5], r"visual_indicator_token_ids must be \[\d+, .* <IMG_START>"),
        ("visual_indicator_token_ids", None, "visual_indicator_token_ids"),
        ("image_token_id", 287, "config.json names token 287"),
        ("vision_config.hidden_stride", 0, "hidden_stride must be an integer from 1"),
        ("vision_config.hidden_stride", 4, "hidden_stride=4 does not divide the 6 patches in the side of a tile"),
        ("vision_config.hidden_stride", 1, "image_seq_length=9, but the tower makes 36 rows"),
        ("vision_config.tokenize_function", "gumbel_argmax", "tokenize_function must be softmax or st_argmax"),
        ("vision_config.num_visual_indicator_tokens", 4, "num_visual_indicator_tokens=4 .* is not supported"),
        ("vision_config.vocab_size", 5, "vocab_size=5 is not supported"),
        ("vision_config.vocab_size", 46, r"head_norm.weight' has shape \[40\], the config says \[41\]"),
        ("vision_config.qkv_bias", True, "qkv_bias=True with another mlp_bias"),
        ("vision_config.patch_size", [4, 4], r"patch_size=\[4, 4\] of the vision tower are not supported"),
        ("vision_config.patch_size", 25, "image_size=24 and patch_size=25 of the vision tower are not supported"),
        ("vision_config.image_size", 20, r"the tower takes \(20, 20\)"),
    ],
    ids=str,
)
def test_checkpoints_that_cannot_be(
    field: str, value: Any, message: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    def edit(config: dict[str, Any]) -> None:
        *parts, last = field.split(".")
        for part in parts:
            config = config[part]
        config[last] = value

    path = edit_json(tiny_checkpoint("ovis2"), tmp_path / "other", "config.json", edit)
    with pytest.raises(CheckpointError, match=message):
        load_family(path)[0].build_encoder(torch.device("cpu"), torch.float32)
