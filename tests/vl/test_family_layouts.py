"""Checkpoints as they are on the hub, older and newer; damaged and unsupported ones are refused by name."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from enrolment import BACKBONES, FAMILIES
from family_contract import IMAGE, VIDEO, Loaded, draw_image, draw_media, edit_json, load_family, plan, preprocess
from safetensors.torch import load_file, save_file

from seesay.checkpoint import find_stored_names
from seesay.encoders.towers.tiles import TileEncoder
from seesay.errors import CheckpointError

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:transformers"),
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers"),
    pytest.mark.filterwarnings("ignore:__array_wrap__ must accept:DeprecationWarning"),
]


@pytest.mark.parametrize("name", FAMILIES)
def test_old_processor_files_mean_the_same(
    name: str, tiny_checkpoint: Callable[[str], Path], load: Callable[[str], Loaded], tmp_path: Path
) -> None:
    path = shutil.copytree(tiny_checkpoint(name), tmp_path / "old")
    if load(name).family.checkpoint.image_processor is not None:
        pytest.skip("the published code does not read the processor's file")
    nested = json.loads((path / "processor_config.json").read_text())
    (path / "preprocessor_config.json").write_text(json.dumps(nested.pop("image_processor")))
    if "video_processor" in nested:
        (path / "video_preprocessor_config.json").write_text(json.dumps(nested.pop("video_processor")))
    (path / "processor_config.json").write_text(json.dumps(nested))
    assert load_family(path)[0].preprocessing == load(name).family.preprocessing


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "ernie4_5_vl"])  # its routers lie transposed
def test_names_of_newer_checkpoints_mean_the_same(
    name: str, tiny_checkpoint: Callable[[str], Path], load: Callable[[str], Loaded], tmp_path: Path
) -> None:
    """Tensors under the names the model has in memory, as some checkpoints have them. Experts are joined there."""
    path = shutil.copytree(tiny_checkpoint(name), tmp_path / "new")
    loaded = load(name)
    state = {key: value.contiguous().clone() for key, value in loaded.model.state_dict().items()}
    if getattr(loaded.model.config, "tie_word_embeddings", False):
        state.pop("lm_head.weight", None)
    save_file(state, path / "model.safetensors", metadata={"format": "pt"})
    family, _ = load_family(path)
    old, new = (
        {
            name
            for n in each.checkpoint.tensor_names()
            if ".mlp.experts." not in (name := str(each.weights.decoder_name(n)))
        }
        for each in (loaded.family, family)
    )
    assert new == old
    features = [preprocess(family, draw_image(30, 40))]
    rows = family.build_encoder(torch.device("cpu"), torch.float32).encode(features)
    torch.testing.assert_close(rows, loaded.encoder.encode(features), rtol=0, atol=0)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("damage", ["missing", "unexpected", "misshapen", "twice"])
def test_damaged_towers_are_refused_by_name(
    name: str, damage: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    path = shutil.copytree(tiny_checkpoint(name), tmp_path / damage)
    state = load_file(path / "model.safetensors")
    weights = load_family(path)[0].weights
    victim = next(key for key in sorted(state) if weights.tower_name(key) is not None and state[key].dim() > 1)
    if damage == "missing":
        del state[victim]
    elif damage == "misshapen":
        state[victim] = state[victim][:-1].contiguous()
    elif damage == "twice":
        other = victim.removeprefix("model.") if victim.startswith("model.") else f"model.{victim}"
        if weights.tower_name(other) is None:
            pytest.skip("tensors of this family have one name each")
        state[other] = state[victim].clone()
    else:
        state[victim + "_extra"] = torch.zeros(3)
    save_file(state, path / "model.safetensors", metadata={"format": "pt"})
    problem = {
        "missing": "is missing",
        "unexpected": "unexpected tensor",
        "misshapen": "shape",
        "twice": "the same tensor",
    }
    with pytest.raises(CheckpointError, match=f"'(model\\.)?{re.escape(victim.removeprefix('model.'))}") as raised:
        load_family(path)[0].build_encoder(torch.device("cpu"), torch.float32)
    assert problem[damage] in str(raised.value)


@pytest.mark.parametrize("name", [*BACKBONES, *FAMILIES])
def test_every_missing_tensor_is_told_by_a_name_that_the_model_knows(
    name: str, tiny_checkpoint: Callable[[str], Path]
) -> None:
    """Its name in this checkpoint is among at most three. One that is renamed inside may be told as the model's."""
    family, _ = load_family(tiny_checkpoint(name))
    stored = family.checkpoint.tensor_names()
    for name_of in (family.weights.decoder_name, family.weights.tower_name):
        for missing in stored:
            own, left = name_of(missing), stored - {missing}
            if own is None:
                continue
            found = find_stored_names(own, left, name_of)
            is_renamed = missing.split(".")[-2:] != own.split(".")[-2:]
            assert {name_of(each) for each in found} == {own} or (is_renamed and found == [own]), (missing, found)
            assert missing in found[:3] or is_renamed, (missing, found)


@pytest.mark.parametrize(("layer", "strategy"), [(-2, "full"), ([1, -1], "default"), (1, "default"), (-1, "full")])
def test_llava_feature_layers(
    layer: int | list[int], strategy: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    from transformers import LlavaConfig, LlavaForConditionalGeneration

    path = shutil.copytree(tiny_checkpoint("llava"), tmp_path / "layers")
    config = LlavaConfig.from_pretrained(path)
    config.vision_feature_layer, config.vision_feature_select_strategy = layer, strategy
    torch.manual_seed(0)
    model = LlavaForConditionalGeneration(config).eval()
    model.save_pretrained(path)
    family, _ = load_family(path)
    encoder = family.build_encoder(torch.device("cpu"), torch.float32)
    assert isinstance(encoder, TileEncoder)
    features = preprocess(family, draw_image(40, 30))
    rows = encoder.encode([features])[0]
    assert len(rows) == plan(family, IMAGE, draw_image(40, 30).size).expansion.takes_embedding.sum()
    with torch.no_grad():
        expected = model.model.get_image_features(encoder.load_pixels(features).permute(0, 3, 1, 2)).pooler_output
    torch.testing.assert_close(rows, expected[0], rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ("qwen2_vl", "qwen2_5_vl"))
def test_flat_config_and_one_processor_file(
    name: str, tiny_checkpoint: Callable[[str], Path], load: Callable[[str], Loaded], tmp_path: Path
) -> None:
    """The first Qwen2-VL checkpoints: text settings at the top, old rope keys, one processor file for both."""

    def flatten(config: dict[str, Any]) -> None:
        text = config.pop("text_config")
        rope = text.pop("rope_parameters")
        text["rope_scaling"] = {"type": "mrope", "mrope_section": rope["mrope_section"]}
        text["rope_theta"] = rope["rope_theta"]
        text.pop("model_type")
        config.update(text, torch_dtype="float32")
        config["vision_config"].pop("rope_parameters", None)
        config["vision_config"]["model_type"] = config["model_type"]

    path = edit_json(tiny_checkpoint(name), tmp_path / "flat", "config.json", flatten)
    (path / "processor_config.json").unlink()
    settings = {"min_pixels": 256, "max_pixels": 6400, "patch_size": 4, "temporal_patch_size": 2, "merge_size": 2}
    (path / "preprocessor_config.json").write_text(json.dumps(settings))
    family, _ = load_family(path)
    loaded = load(name)
    ours, theirs = family.backbone(), loaded.family.backbone()
    for key in ("hidden_size", "num_key_value_heads", "rms_norm_eps", "vocab_size", "num_hidden_layers"):
        assert getattr(ours.text_config, key) == getattr(theirs.text_config, key)
    rope = ours.text_config.rope_parameters
    assert (rope["rope_theta"], rope["mrope_section"]) == (10000.0, [2, 3, 3])
    assert ours.tie_word_embeddings == theirs.tie_word_embeddings
    features = preprocess(family, draw_image(40, 90))
    np.testing.assert_array_equal(features["pixels"], preprocess(loaded.family, draw_image(40, 90))["pixels"])
    rows = family.build_encoder(torch.device("cpu"), torch.float32).encode([features])
    torch.testing.assert_close(rows, loaded.encoder.encode([features]), rtol=0, atol=0)
    assert preprocess(family, draw_media(VIDEO, 4, 90, 90))["grid"] == (2, 20, 20)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("llava", {"size": 20, "crop_size": 20, "do_center_crop": True, "resample": 3}),
        (
            "llava_next",
            {
                "aspect_ratio_setting": "anyres",
                "image_processor_type": "LlavaNextImageProcessor",
                "image_grid_pinpoints": [[12, 24], [24, 12], [24, 24], [36, 12], [12, 36]],
                "size": {"shortest_edge": 12},
                "crop_size": {"height": 12, "width": 12},
                "do_center_crop": True,
                "do_convert_rgb": True,
                "resample": 3,
            },
        ),
        ("llava_onevision", {"size": {"height": 14, "width": 14}, "image_mean": [0.5, 0.45, 0.4],
                             "image_std": [0.3, 0.28, 0.27]}),
    ],
)  # fmt: skip
def test_llava_with_the_inner_vision_model(
    name: str,
    settings: dict[str, Any],
    tiny_checkpoint: Callable[[str], Path],
    load: Callable[[str], Loaded],
    tmp_path: Path,
) -> None:
    """The names and the one processor file of published checkpoints."""
    path = shutil.copytree(tiny_checkpoint(name), tmp_path / "inner")
    state = load_file(path / "model.safetensors")
    inner = {name.replace("vision_tower.", "vision_tower.vision_model."): value for name, value in state.items()}
    inner["vision_tower.vision_model.embeddings.position_ids"] = torch.arange(26)[None]
    inner["language_model.model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)
    save_file(inner, path / "model.safetensors", metadata={"format": "pt"})
    (path / "processor_config.json").unlink()
    (path / "preprocessor_config.json").write_text(json.dumps(settings))
    family, _ = load_family(path)
    loaded = load(name)
    features = preprocess(family, draw_image(40, 90))
    rows = family.build_encoder(torch.device("cpu"), torch.float32).encode([features])
    expected = loaded.encoder.encode([preprocess(loaded.family, draw_image(40, 90))])
    torch.testing.assert_close(rows, expected, rtol=0, atol=0)
    names = {family.backbone().decoder_name(name) for name in family.checkpoint.tensor_names()}
    assert names == {loaded.family.backbone().decoder_name(n) for n in loaded.family.checkpoint.tensor_names()}


def test_llava_pads_to_a_square_as_the_processor_does(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    from transformers import LlavaImageProcessor

    def pad(settings: dict[str, Any]) -> None:
        settings["image_processor"].update(do_pad=True, image_processor_type="LlavaImageProcessor")

    path = edit_json(tiny_checkpoint("llava"), tmp_path / "pad", "processor_config.json", pad)
    family, _ = load_family(path)
    encoder: Any = family.build_encoder(torch.device("cpu"), torch.float32)
    image = draw_image(40, 90)
    processor = LlavaImageProcessor(size={"shortest_edge": 20}, crop_size={"height": 20, "width": 20}, do_pad=True)
    expected = processor(torch.from_numpy(image.frames[0]).permute(2, 0, 1), return_tensors="pt")["pixel_values"]
    found = encoder.load_pixels(preprocess(family, image)).permute(0, 3, 1, 2)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_internvl_with_token_names_in_one_table(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    names = ("start_image_token", "end_image_token", "context_image_token", "video_token")

    def gather(config: dict[str, Any]) -> None:
        config["extra_special_tokens"] = {name: config.pop(name) for name in names}

    path = edit_json(tiny_checkpoint("internvl"), tmp_path / "table", "tokenizer_config.json", gather)
    assert load_family(path)[0].markers == load_family(tiny_checkpoint("internvl"))[0].markers


@pytest.mark.parametrize(
    ("name", "file", "change", "needle"),
    [
        ("qwen2_vl", "processor_config.json", {"image_processor": {"do_resize": False}}, "do_resize"),
        ("qwen2_vl", "processor_config.json", {"image_processor": {"patch_size": 8}}, "patches of"),
        ("qwen2_5_vl", "processor_config.json", {"video_processor": {"image_mean": [0.1, 0.2, 0.3]}}, "normalized"),
        ("qwen2_5_vl", "processor_config.json", {"image_processor": {"image_std": [0.1]}}, "three numbers"),
        ("llava", "config.json", {"vision_config": {"model_type": "dinov2"}}, "dinov2"),
        ("llava_interleave", "config.json", {"vision_feature_select_strategy": "default"}, "has not"),
        ("llava_next", "config.json", {"vision_feature_select_strategy": "full"}, "must be one of default, got 'full'"),
        ("llava_next", "processor_config.json", {"image_processor": {"image_grid_pinpoints": [[12, 24]]}}, "not those"),
        (
            "llava_next",
            "processor_config.json",
            {"image_processor": {"crop_size": {"height": 9, "width": 9}}},
            "tower's 12",
        ),
        ("llava_onevision", "config.json", {"vision_aspect_ratio": "pad"}, "anyres_max_N, got 'pad'"),
        ("llava_onevision", "processor_config.json", {"video_processor": {"image_std": [1, 1, 1]}}, "differently"),
        (
            "llava_onevision",
            "processor_config.json",
            {"video_processor": {"size": {"height": 7, "width": 7}}},
            "the tower's",
        ),
        ("llava", "config.json", {"vision_feature_layer": 7}, "vision_feature_layer"),
        ("llava", "processor_config.json", {"image_processor": {"crop_size": {"height": 24, "width": 24}}}, "takes 20"),
        ("internvl", "processor_config.json", {"image_processor": {"size": {"height": 8, "width": 8}}}, "size"),
        ("internvl", "config.json", {"vision_feature_select_strategy": "full"}, "select_strategy"),
        ("internvl", "config.json", {"image_token_id": 280}, "token 280"),
    ],
)
def test_unsupported_settings_are_refused_by_name(
    name: str,
    file: str,
    change: dict[str, Any],
    needle: str,
    tiny_checkpoint: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    def apply(data: dict[str, Any]) -> None:
        for key, value in change.items():
            data[key] = {**data[key], **value} if isinstance(value, dict) else value

    path = edit_json(tiny_checkpoint(name), tmp_path / "changed", file, apply)
    with pytest.raises(CheckpointError, match=needle):
        load_family(path)
