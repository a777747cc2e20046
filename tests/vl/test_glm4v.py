"""GLM-4.1V and GLM-4.6V: what their checkpoints say and leave out, and pictures and videos in one prompt."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from family_contract import IMAGE, VIDEO, Loaded, build, draw_image, draw_media, edit_json, load_family, plan

from seesay.errors import CheckpointError, RequestError
from seesay.vl.bases.pixels import find_processor_class
from seesay.vl.family import Family

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:transformers"),
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers"),
]
TWO_SECONDS = draw_media(VIDEO, 4, 20, 30).size


def write_times(family: Family) -> str:
    ids = plan(family, VIDEO, TWO_SECONDS).expansion.token_ids
    special = {family.token_id(f"<|{name}_of_{kind}|>") for name in ("begin", "end") for kind in ("image", "video")}
    special.add(family.token_id("<|image|>"))
    return str(family.tokenizer.hf.decode([each for each in ids.tolist() if each not in special]))


@pytest.mark.parametrize(
    ("name", "processor", "times"),
    [
        ("glm4v", "Glm4vProcessor", "01"),
        ("glm4v", "Glm46VProcessor", "0.0 seconds1.0 seconds"),
        ("glm4v", None, "01"),
        ("glm46v", None, "0.0 seconds1.0 seconds"),
        ("glm46v", "Glm4vProcessor", "01"),
    ],
)
def test_the_processors_class_decides_how_times_are_written(
    name: str, processor: str | None, times: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """GLM-4.6V-Flash is published with the processor of the one and the model of the other."""

    def rename(data: dict[str, Any]) -> None:
        data.pop("processor_class", None)
        if processor is not None:
            data["processor_class"] = processor

    path = edit_json(tiny_checkpoint(name), tmp_path / "q", "processor_config.json", rename)
    path = edit_json(path, tmp_path / "r", "tokenizer_config.json", lambda data: data.pop("processor_class", None))
    family, _ = load_family(path)
    assert find_processor_class(family.checkpoint) == processor
    assert write_times(family) == times


def test_models_of_other_processors_are_refused(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """Transformers makes them by the class of GLM-4.6V."""
    path = edit_json(
        tiny_checkpoint("glm46v"), tmp_path / "q", "config.json", lambda data: data.update(model_type="glmga")
    )
    with pytest.raises(CheckpointError, match=r"type 'glmga' take other sizes .*; nearest: zai-org/GLM-4\.6V-Flash"):
        load_family(path)


def test_sections_are_those_of_the_model_where_the_configuration_has_none(
    tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    def widen(config: dict[str, Any]) -> None:
        text = config["text_config"]
        text |= {"num_attention_heads": 1, "num_key_value_heads": 1}
        text["rope_parameters"] |= {"partial_rotary_factor": 1.0}
        del text["rope_parameters"]["mrope_section"]

    family, _ = load_family(edit_json(tiny_checkpoint("glm4v"), tmp_path / "q", "config.json", widen))
    assert family.backbone().decoder_config(session_len=64).rotaries[0].sections == (8, 12, 12)


def test_a_tower_without_positions_is_refused(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    def shrink(config: dict[str, Any]) -> None:
        config["vision_config"]["image_size"] = 3

    family, _ = load_family(edit_json(tiny_checkpoint("glm4v"), tmp_path / "q", "config.json", shrink))
    with pytest.raises(CheckpointError, match="image_size=3 is less than patch_size=4"):
        family.build_encoder(torch.device("cpu"), torch.float32)


def test_a_tokenizer_without_the_markers_is_refused(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    path = edit_json(tiny_checkpoint("glm4v"), tmp_path / "q", "config.json", lambda config: None)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        text = (path / file).read_text().replace("<|begin_of_video|>", "<|begin_of_film|>")
        (path / file).write_text(text)
    with pytest.raises(CheckpointError, match=r"no token '<\|begin_of_video\|>'"):
        load_family(path)


def test_pixels_of_a_request_are_those_of_one_picture(load: Callable[[str], Loaded]) -> None:
    """Those of the processor's file are of the two frames that a picture counts as."""
    family, size = load("glm4v").family, draw_image(600, 600).size
    assert plan(family, IMAGE, size).measures["resized"] == (80, 80)
    assert plan(family, IMAGE, size, {"max_pixels": 1600}).measures["resized"] == (40, 40)
    assert plan(family, IMAGE, draw_image(8, 8).size, {"min_pixels": 1600}).measures["resized"] == (40, 40)
    with pytest.raises(RequestError, match="min_pixels=2000 is above max_pixels=1600"):
        plan(family, IMAGE, size, {"min_pixels": 2000, "max_pixels": 1600})


def test_frames_are_sampled_as_the_checkpoint_says(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    assert load_family(tiny_checkpoint("glm4v"))[0].default_sampling == {"fps": 2, "min_frames": 2, "max_frames": 600}
    assert load_family(tiny_checkpoint("glm46v"))[0].default_sampling == {}


@pytest.mark.parametrize(("change", "most"), [({"fps": 0.5}, 150), ({"max_duration": 1, "fps": 1}, 2)])
def test_settings_of_the_processor_choose_frames(
    change: dict[str, Any], most: int, tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    def edit(data: dict[str, Any]) -> None:
        data["video_processor"] |= change

    family, _ = load_family(edit_json(tiny_checkpoint("glm4v"), tmp_path / "q", "processor_config.json", edit))
    assert family.default_sampling == {"fps": change["fps"], "min_frames": 2, "max_frames": most}


@pytest.mark.parametrize(
    ("rate", "message"), [(-1, "fps must be a number from 0 to"), (0, "setting fps must be a number above 0, got '0'")]
)
def test_a_rate_of_nothing_is_refused(
    rate: int, message: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    def edit(data: dict[str, Any]) -> None:
        data["video_processor"]["fps"] = rate

    path = edit_json(tiny_checkpoint("glm4v"), tmp_path / "q", "processor_config.json", edit)
    with pytest.raises(CheckpointError, match=message):
        load_family(path)


def test_places_of_a_video_have_the_token_of_pictures(load: Callable[[str], Loaded]) -> None:
    loaded = load("glm4v")
    made = build(loaded, [draw_media(VIDEO, 3, 20, 30), draw_image(20, 30)])
    tokens = {made.token_ids[item.slots].tolist()[0] for item in made.items}
    assert tokens == {loaded.model.config.image_token_id}
    assert loaded.model.config.video_token_id not in made.token_ids
