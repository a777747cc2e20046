"""DeepSeek-OCR and DeepSeek-OCR 2: how pages are cut, the authors' layout of the second one, refused files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from asking import make_message, parse
from family_contract import IMAGE, Loaded, draw_image, edit_json, load_family, preprocess

from seesay.config import EngineConfig
from seesay.engine.front.engine import AsyncEngine
from seesay.errors import CheckpointError
from seesay.values import MediaSize
from seesay.vl.families.deepseek_ocr import DeepseekOCR
from seesay.vl.family import Family

CONFIG = EngineConfig(device_type="cpu", block_size=16)


def build_encoder(family: Family) -> Any:
    return family.build_encoder(torch.device("cpu"), torch.float32)


def make_published(*, is_first: bool) -> DeepseekOCR:
    """A family with the sizes of the published models."""
    family = DeepseekOCR.__new__(DeepseekOCR)
    side, most = (640, 9) if is_first else (768, 6)
    family._whole, family._tile, family._min_tiles, family._max_tiles = (1024, 1024), (side, side), 2, most
    family._grids = ((16, 16), (side // 64, side // 64))
    family._is_original, family._has_newline = True, is_first
    return family


@pytest.mark.parametrize(
    ("size", "is_first", "cut", "num_tokens"),
    [
        ((640, 640), True, (0, 0), 273), ((641, 640), True, (2, 2), 273 + 20 * 21), ((2339, 1654), True, (3, 2), 903),
        ((300, 3000), True, (1, 9), 273 + 10 * 91), ((1, 641), True, (1, 9), 273 + 10 * 91),
        ((700, 700), False, (0, 0), 257), ((2339, 1654), False, (3, 2), 257 + 6 * 144),
    ],
)  # fmt: skip
def test_tiles_of_pages_of_published_sizes(
    size: tuple[int, int], is_first: bool, cut: tuple[int, int], num_tokens: int
) -> None:
    family = make_published(is_first=is_first)
    measured = family.measure(IMAGE, MediaSize(num_frames=1, height=size[0], width=size[1]), {})
    assert measured["cut"] == cut and len(family._arrange(measured)) == num_tokens


@pytest.mark.parametrize("name", ["deepseek_ocr", "deepseek_ocr2"])
def test_most_tiles_of_one_picture(name: str, load: Callable[[str], Loaded]) -> None:
    family, picture = load(name).family, draw_image(60, 150)
    found = [preprocess(family, picture, {"max_dynamic_patch": most}) for most in (1, 2, 3, 4)]
    assert [each["num_tiles"] for each in found] == [1, 3, 4, 4]
    assert "tiles" not in found[0] and len(found[2]["tiles"]) == 3
    assert preprocess(family, picture, {"detail": "low"})["num_tiles"] == 1


def write_as_authors(path: Path, source: Path) -> Path:
    """The DeepSeek-OCR 2 in `source`, whose tensors have the authors' names, with their configuration."""
    given = json.loads((source / "config.json").read_text())
    text, vision = given["text_config"], given["vision_config"]
    sam = vision["sam_config"]
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    known = {"width": "hidden_size", "layers": "num_hidden_layers", "heads": "num_attention_heads"}
    same = ("patch_size", "window_size", "output_channels", "downsample_channels", "global_attn_indexes")
    sizes = {**{own: sam[name] for own, name in known.items()}, **{name: sam[name] for name in same}}
    left_out = ("model_type", "mlp_layer_types", "rope_parameters", "architectures", "dtype")
    language = {name: value for name, value in text.items() if name not in left_out}
    language |= {"first_k_dense_replace": 1, "use_mla": False, "v_head_dim": 0, "topk_method": "greedy"}

    def change(data: dict[str, Any]) -> None:
        data.clear()
        data.update(
            architectures=["DeepseekOCR2ForCausalLM"], model_type="deepseek_vl_v2", tile_tag="2D",
            language_config={**language, "hidden_size": 1}, torch_dtype="float32",
            projector_config={"input_dim": 32, "n_embed": 64, "projector_type": "linear"},
            vision_config={
                "image_size": 64, "model_name": "deepencoderv2",
                "width": {"sam_vit_b": sizes, "qwen2-0-5b": {"dim": 32}},
                "encoder_config": {**{name: vision["encoder_config"][name] for name in names}, "rope_theta": 10000.0},
            },
            **language,
        )  # fmt: skip

    edited = edit_json(source, path, "config.json", change)
    settings = {"tile_size": 48, "max_patches": 4, "image_mean": [0.5, 0.45, 0.4], "image_std": [0.3, 0.28, 0.27]}
    beside = {"candidate_resolutions": [[64, 64]], "normalize": True, "patch_size": 1, "downsample_ratio": 4}
    (edited / "processor_config.json").write_text(json.dumps({**beside, "image_processor": settings}))
    return edited


def test_the_authors_layout_of_the_second_one(load: Callable[[str], Loaded], tmp_path: Path) -> None:
    """The fields at the top of the configuration count, as in the published code. It has the same towers, and resizes
    with Pillow, in the middle of the mean color."""
    loaded = load("deepseek_ocr2")
    family, _ = load_family(write_as_authors(tmp_path / "authors", loaded.path))
    assert isinstance(family, DeepseekOCR) and family.checkpoint.text_config.hidden_size == 64
    assert family.checkpoint.architecture == "DeepseekOcr2ForConditionalGeneration"
    assert family._pixels.library == "pillow" and family._color == (127, 114, 102)
    media = [draw_image(60, 150), draw_image(30, 40)]
    own = [preprocess(family, each) for each in media]
    assert [each["cut"] for each in own] == [(1, 3), (0, 0)] and [each["fitted"] for each in own] == [
        (26, 64),
        (48, 64),
    ]
    rows = build_encoder(family).encode(own)
    assert [len(each) for each in rows] == [256 + 3 * 144 + 1, 257]
    for mine, theirs in zip(rows, loaded.encoder.encode(own), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize(
    ("name", "file", "change", "message"),
    [
        ("deepseek_ocr", "config.json", {"tile_tag": "1D"}, "tile_tag must be '2D', got '1D'"),
        ("deepseek_ocr", "config.json", {"use_mla": True, "kv_lora_rank": 16}, "use_mla must be False"),
        ("deepseek_ocr", "config.json", {"projector_config": {"projector_type": "mlp_gelu"}}, "projector_type must be"),
        ("deepseek_ocr", "config.json", {"vision_config": {"width": 4}}, "width must be an object"),
        ("deepseek_ocr", "processor_config.json", {"patch_size": 3}, "patch_size must be 2, got 3"),
        ("deepseek_ocr", "processor_config.json", {"downsample_ratio": 2}, "downsample_ratio must be 4, got 2"),
        ("deepseek_ocr", "processor_config.json", {"tile_size": 1}, r"pictures of \(1, 1\) pixels with patches of 2"),
        ("deepseek_ocr", "processor_config.json", {"min_patches": 5}, "min_patches must be an integer from 1 to 4"),
        ("deepseek_ocr2", "processor_config.json", {"tile_size": 52}, r"169 rows .* tables of \[144, 256\] queries"),
        ("deepseek_ocr2", "processor_config.json", {"crop_to_patches": False}, "crop_to_patches must be True"),
        ("deepseek_ocr2", "processor_config.json", {"background_color": [1, 2]}, "background_color must be three"),
        ("deepseek_ocr2", "processor_config.json", {"size": {"height": 64, "width": 48}}, "must be squares"),
    ],
)  # fmt: skip
def test_other_files_are_refused(
    name: str,
    file: str,
    change: dict[str, Any],
    message: str,
    tiny_checkpoint: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    def edit(data: dict[str, Any]) -> None:
        data.get("image_processor", data).update(change)

    with pytest.raises(CheckpointError, match=message):
        load_family(edit_json(tiny_checkpoint(name), tmp_path / "changed", file, edit))


@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        ("sam_config", {"downsample_channels": [12, 16]}, "downsample_channels must be two numbers, the last one 32"),
        ("sam_config", {"global_attn_indexes": [2]}, "sam_config.global_attn_indexes must be some of 2 layers"),
        ("encoder_config", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}, "rope_type"),
    ],
)
def test_other_towers_are_refused(
    part: str, change: dict[str, Any], message: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    def edit(data: dict[str, Any]) -> None:
        data["vision_config"][part].update(change)

    family, _ = load_family(edit_json(tiny_checkpoint("deepseek_ocr2"), tmp_path / "changed", "config.json", edit))
    with pytest.raises(CheckpointError, match=message):
        build_encoder(family)


def test_a_prompt_without_a_published_template(tiny_checkpoint: Callable[[str], Path]) -> None:
    """The published code takes the text as it is, behind BOS."""
    path = tiny_checkpoint("deepseek_ocr")
    with AsyncEngine(str(path), backend_config=CONFIG, chat_template_config="deepseek-ocr") as engine:
        [request] = parse([[make_message("Free OCR.")]])
        text = engine.tokenizer.decode(engine.tokenize(request).result(60).tolist(), skip_special_tokens=False)
    assert text.isprintable() and text.endswith(">Free OCR.") and text.startswith("<")
