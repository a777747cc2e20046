"""DeepSeek-VL2: how pictures are cut, prompts with many of them, decoders by their configuration, refused files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from asking import ask, make_message, make_picture, parse
from family_contract import IMAGE, Loaded, draw_image, edit_json, load_family, plan, preprocess

from seesay.checkpoint import Checkpoint
from seesay.config import EngineConfig
from seesay.engine.front.engine import AsyncEngine
from seesay.errors import CheckpointError, RequestError
from seesay.templates import choose_template
from seesay.values import MediaSize
from seesay.vl.families.deepseek_vl2 import DeepseekVL2

CONFIG = EngineConfig(device_type="cpu", block_size=16)
RESOLUTIONS = [(384 * high, 384 * wide) for high in range(1, 10) for wide in range(1, 10) if high * wide <= 9]


@pytest.mark.parametrize(
    ("size", "cut", "fitted", "num_tokens"),
    [
        ((384, 384), (1, 1), (384, 384), 421), ((400, 400), (2, 2), (768, 768), 1023),
        ((1080, 1920), (2, 4), (768, 1365), 1807), ((3000, 300), (8, 1), (3072, 307), 1891),
        ((1, 1), (1, 1), (384, 384), 421), ((1, 4000), (1, 1), (1, 384), 421), ((4000, 1), (1, 1), (384, 1), 421),
    ],
)  # fmt: skip
def test_tiles_of_pictures_of_published_sizes(
    size: tuple[int, int], cut: tuple[int, int], fitted: tuple[int, int], num_tokens: int
) -> None:
    family = DeepseekVL2.__new__(DeepseekVL2)
    family._resolutions, family._tile, family._grid, family._is_whole_first = RESOLUTIONS, (384, 384), (14, 14), True
    measured = family.measure(IMAGE, MediaSize(num_frames=1, height=size[0], width=size[1]), {})
    assert measured["cut"] == cut and len(family._arrange(measured)) == num_tokens
    assert measured["fitted"] == fitted


def test_most_tiles_of_one_picture(load: Callable[[str], Loaded]) -> None:
    family, picture = load("deepseek_vl2").family, draw_image(30, 90)
    assert [preprocess(family, picture, {"max_dynamic_patch": most})["num_tiles"] for most in (1, 2, 3, 4)] == [
        2,
        3,
        3,
        5,
    ]
    assert preprocess(family, picture, {"detail": "low"})["num_tiles"] == 2
    assert plan(family, IMAGE, MediaSize(num_frames=1, height=1, width=4000)).measures["fitted"] == (1, 22)
    with pytest.raises(RequestError, match="would take 1073741824 pixels while they are resized"):
        plan(family, IMAGE, MediaSize(num_frames=1, height=1, width=1 << 26))


@pytest.mark.parametrize(("count", "options", "num_tiles"), [(2, {}, 4), (3, {}, 1), (3, {"max_dynamic_patch": 4}, 4)])
def test_more_than_two_pictures_are_not_cut(
    tiny_checkpoint: Callable[[str], Path], count: int, options: dict[str, int], num_tiles: int
) -> None:
    """Unless the request says how they are: each has the rows of the whole picture, then those of its tiles."""
    parts = [{"type": "image", "image": make_picture(44, 44, seed), **options} for seed in range(count)]
    with AsyncEngine(str(tiny_checkpoint("deepseek_vl2")), backend_config=CONFIG) as engine:
        [request] = parse([[{"role": "user", "content": [*parts, {"type": "text", "text": "?"}]}]], max_new_tokens=2)
        ids = engine.tokenize(request).result(60).tolist()
        [output] = ask(engine, [request])
    side = 6 if num_tiles == 4 else 3
    assert ids.count(engine.tokenizer.token_id("<image>")) == count * (3 * 4 + 1 + side * (side + 1))
    assert output.error is None and output.usage is not None and output.usage.prompt_tokens == len(ids)


def test_the_first_view_may_be_the_last(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    path = edit_json(
        tiny_checkpoint("deepseek_vl2"),
        tmp_path / "tail",
        "config.json",
        lambda data: data.update(global_view_pos="tail"),
    )
    rows = preprocess(load_family(path)[0], draw_image(20, 20))["rows"].tolist()
    assert rows == [9, 10, 11, -2, 12, 13, 14, -2, 15, 16, 17, -2, -1, 0, 1, 2, -2, 3, 4, 5, -2, 6, 7, 8, -2]


def apply(config: dict[str, Any], change: dict[str, Any]) -> None:
    config["language_config"].update(change)
    del config["architectures"]


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({}, "deepseek_v2"),
        ({"use_mla": True}, "deepseek_v2"),
        ({"scoring_func": "sigmoid", "topk_method": "noaux_tc"}, "deepseek_v3"),
        ({"use_mla": False}, "deepseek_ocr2_text"),
    ],
)
def test_the_decoder_of_a_configuration(
    change: dict[str, Any], kind: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    path = edit_json(
        tiny_checkpoint("deepseek_vl2"), tmp_path / "changed", "config.json",
        lambda data: apply(data, change),
    )  # fmt: skip
    checkpoint = Checkpoint.load(path)
    assert checkpoint.architecture == "DeepseekVLV2ForCausalLM" and checkpoint.text_config.model_type == kind
    dense = (checkpoint.text_config.mlp_layer_types == ["dense", "sparse"]) if kind.endswith("text") else True
    assert dense and checkpoint.text_config.hidden_size == 64


@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        ("language_config", {"topk_method": "gready"}, "topk_method must be one of greedy, group_limited_greedy, got"),
        ("language_config", {"norm_topk_prob": True}, "norm_topk_prob must be False, got 'True'"),
        ("language_config", {"scoring_func": "sigmoid", "use_mla": False}, "scoring_func must be 'softmax'"),
        ("language_config", {"scoring_func": "sigmoid", "topk_method": "greedy"}, "topk_method must be 'noaux_tc'"),
        ("language_config", {"first_k_dense_replace": 3, "use_mla": False}, "must be an integer from 0 to 2, got '3'"),
        ("language_config", {"num_experts_per_tok": None}, "num_experts_per_tok must be an integer from 1 to"),
        ("projector_config", {"projector_type": "linear"}, "projector_config.projector_type must be"),
        ("projector_config", {"depth": 3}, "projector_config.depth must be 2"),
        ("vision_config", {"class_token": True}, "vision_config.class_token must be False"),
        ("vision_config", {"layers": 0}, "layers must be an integer from 1 to 1024"),
        ("", {"tile_tag": "1D"}, "tile_tag must be '2D', got '1D'"),
        ("", {"global_view_pos": "left"}, "global_view_pos must be one of head, tail"),
        ("", {"architectures": ["DeepseekVLV3ForCausalLM"]}, "DeepseekVLV3ForCausalLM.* is another model with this"),
        ("settings", {"candidate_resolutions": [[22, 30]]}, r"must be a list of \[width, height\] of 1 to 1024 tiles"),
        ("settings", {"candidate_resolutions": []}, "candidate_resolutions must be a list"),
        ("settings", {"candidate_resolutions": [[44, 22]]}, "must be 22 pixels wide, got 44"),
        ("settings", {"patch_size": 14}, "patch_size must be 4, got 14"),
        ("settings", {"downsample_ratio": 4}, "downsample_ratio must be 2, got 4"),
        ("settings", {"image_token": "<img>"}, "image_token must be <image>"),
    ],
)  # fmt: skip
def test_other_files_are_refused(
    part: str, change: dict[str, Any], message: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    file = "processor_config.json" if part == "settings" else "config.json"
    key = "image_processor" if part == "settings" else part
    path = edit_json(
        tiny_checkpoint("deepseek_vl2"), tmp_path / "changed", file, lambda data: data.get(key, data).update(change)
    )
    with pytest.raises(CheckpointError, match=message):
        load_family(path)


def test_a_conversation_without_a_published_template(tiny_checkpoint: Callable[[str], Path]) -> None:
    path = tiny_checkpoint("deepseek_vl2")
    template = choose_template("deepseek-vl2-tiny", load_family(path)[1], folder=path)
    assert template.name != "deepseek-vl2"  # the folder has its own
    with AsyncEngine(str(path), backend_config=CONFIG, chat_template_config="deepseek-vl2") as engine:
        [request] = parse([[make_message("<|User|>")]])
        text = engine.tokenizer.decode(engine.tokenize(request).result(60).tolist(), skip_special_tokens=False)
    assert text.endswith("<|User|>: <|User|>\n\n<|Assistant|>:")
