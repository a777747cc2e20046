"""DeepSeek-VL: settings of its processor that the family refuses, and the color of the padding."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from family_contract import draw_image, edit_json, load_family, preprocess

from seesay.errors import CheckpointError
from seesay.values import MediaSize, Modality
from seesay.values.frame_chain import Resize

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning:transformers")


@pytest.fixture
def change(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> Callable[..., Path]:
    """`change(name, **fields)`: a copy of a tiny checkpoint whose image processor has other fields."""

    def copy(name: str, **fields: Any) -> Path:
        def edit(settings: dict[str, Any]) -> None:
            settings["image_processor"].update(fields)

        return edit_json(tiny_checkpoint(name), tmp_path / name, "processor_config.json", edit)

    return copy


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"min_size": 21}, "min_size must be an integer from 1 to 20, got '21'"),
        ({"min_size": 0}, "min_size must be an integer from 1 to 20"),
        ({"do_pad": False}, "do_pad=false is not supported"),
        ({"size": {"height": 24, "width": 24}}, r"makes pictures of size=.*24.*, the tower takes \(20, 20\)"),
        ({"size": {"shortest_edge": 20}}, "size=.* must give height and width"),
        ({"image_mean": [0.5, 1.5, 0.5]}, "image_mean must be from 0 to 1, as it is the color of the padding"),
    ],
    ids=str,
)
def test_settings_that_cannot_be(fields: Mapping[str, Any], message: str, change: Callable[..., Path]) -> None:
    with pytest.raises(CheckpointError, match=message):
        load_family(change("deepseek_vl", **fields))


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("deepseek_vl_hybrid_original", {"do_normalize": True}, "normalized twice"),
        ("deepseek_vl_hybrid_original", {"image_size": 40}, r"high_res_size=40, the tower takes \(36, 36\)"),
        ("deepseek_vl_original", {"image_size": 24}, r"size=24, the tower takes \(20, 20\)"),
        ("deepseek_vl_original", {"min_size": 0}, "min_size must be"),
    ],
    ids=str,
)
def test_settings_of_the_authors_that_cannot_be(
    name: str, fields: Mapping[str, Any], message: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=message):
        load_family(
            edit_json(
                tiny_checkpoint(name), tmp_path / "changed", "preprocessor_config.json", lambda own: own.update(fields)
            )
        )


def test_a_larger_tower_alone_has_no_statistics(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    def forget(config: dict[str, Any]) -> None:
        del config["vision_config"]["params"]["low_res_cfg"]["pixel_mean"]

    path = edit_json(tiny_checkpoint("deepseek_vl_hybrid_original"), tmp_path / "changed", "config.json", forget)
    with pytest.raises(CheckpointError, match="both towers must have pixel_mean"):
        load_family(path)


def test_pictures_of_the_authors_are_rounded_down(tiny_checkpoint: Callable[[str], Path]) -> None:
    original, converted = (load_family(tiny_checkpoint(f"deepseek_vl{end}"))[0] for end in ("_original", ""))
    size = MediaSize(num_frames=1, width=200, height=98)
    steps = [family.chain_frames(Modality.IMAGE, size, {})[0][0] for family in (original, converted)]
    assert [step.size for step in steps if isinstance(step, Resize)] == [(9, 20), (10, 20)]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"high_res_size": {"height": 40, "width": 40}}, r"high_res_size=.*40.*, the tower takes \(36, 36\)"),
        ({"high_res_image_mean": [0.5, 1.5, 0.5]}, "image_mean must be from 0 to 1"),
        ({"high_res_resample": 9}, "resample must be"),
    ],
    ids=str,
)
def test_settings_of_the_larger_picture(fields: Mapping[str, Any], message: str, change: Callable[..., Path]) -> None:
    with pytest.raises(CheckpointError, match=message):
        load_family(change("deepseek_vl_hybrid", **fields))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"global_attn_indexes": []}, r"global_attn_indexes must be some of 3 layers, got \[\]"),
        ({"global_attn_indexes": [3]}, r"global_attn_indexes must be some of 3 layers, got \[3\]"),
        ({"global_attn_indexes": [-1]}, "global_attn_indexes must be some of 3 layers"),
        ({"use_rel_pos": False}, "use_rel_pos=false is not supported"),
        ({"use_abs_pos": False}, "use_abs_pos=false is not supported"),
        ({"window_size": 5}, "rel_pos_h"),
        ({"output_channels": 13}, r"layer_norm1.weight' has shape \[12\], the config says \[13\]"),
        ({"output_channels": 0}, "output_channels must be an integer from 1"),
        ({"patch_size": [4, 4]}, r"patch_size=\[4, 4\] of the vision tower are not supported"),
        ({"mlp_dim": 10**9}, "mlp_dim must be an integer from 1"),
    ],
    ids=str,
)
def test_towers_that_cannot_be(
    fields: dict[str, Any], message: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    def edit(config: dict[str, Any]) -> None:
        config["high_res_vision_config"].update(fields)

    path = edit_json(tiny_checkpoint("deepseek_vl_hybrid"), tmp_path / "other", "config.json", edit)
    with pytest.raises(CheckpointError, match=message):
        load_family(path)[0].build_encoder(torch.device("cpu"), torch.float32)


@pytest.mark.parametrize(
    ("name", "file", "fields", "message"),
    [
        ("deepseek_vl", "processor_config.json", {"num_image_tokens": 576}, "num_image_tokens=576, .* makes 25 rows"),
        ("deepseek_vl", "config.json", {"image_token_id": 287}, "config.json names token 287, the tokenizer has none"),
    ],
    ids=str,
)
def test_files_that_contradict_each_other(
    name: str, file: str, fields: dict[str, Any], message: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    path = edit_json(tiny_checkpoint(name), tmp_path / "other", file, lambda data: data.update(fields))
    with pytest.raises(CheckpointError, match=message):
        load_family(path)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("deepseek_vl", {"do_normalize": False}),
        ("llava", {"do_normalize": False, "do_pad": True, "image_processor_type": "LlavaImageProcessor"}),
    ],
    ids=str,
)
def test_padding_has_the_color_of_the_mean(name: str, fields: dict[str, Any], change: Callable[..., Path]) -> None:
    """Also where pixels are not normalized with it."""
    from transformers import AutoImageProcessor

    path = change(name, **fields)
    family, _ = load_family(path)
    image = draw_image(40, 90)
    encoder: Any = family.build_encoder(torch.device("cpu"), torch.float32)
    expected = AutoImageProcessor.from_pretrained(path)(
        torch.from_numpy(image.frames[0]).permute(2, 0, 1), return_tensors="pt"
    )["pixel_values"]
    found = encoder.load_pixels(preprocess(family, image)).permute(0, 3, 1, 2)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
