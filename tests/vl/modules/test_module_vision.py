"""Vision-language models that run through Transformers' modules: the contract of families, what is refused, weights.

The golden tests hold them against Transformers in all ways of computing (`enrolment.VISION_MODULES`).
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import family_checks
import numpy as np
import pytest
import torch
from asking import ask, make_message, make_picture, parse
from enrolment import VISION_MODULES
from family_contract import IMAGE, VIDEO, Loaded, draw_image, plan, preprocess
from module_checkpoints import MODULE_CHECKPOINTS
from safetensors.torch import load_file, save_file

from seesay.checkpoint import Checkpoint
from seesay.config import EngineConfig
from seesay.engine.front.engine import AsyncEngine
from seesay.errors import CheckpointError, MissingExtraError, RequestError
from seesay.llm.models.modules import module_embedding
from seesay.llm.models.modules.module_decoder import ModuleDecoder
from seesay.processors.text.tokenizer import Tokenizer
from seesay.values import DecodedMedia, MediaSize, Modality
from seesay.vl.family import Wording
from seesay.vl.modules.module_vision import ModuleVisionFamily
from seesay.vl.modules.trial_media import refuse
from seesay.vl.registry import find_family

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:transformers")
CPU = torch.device("cpu")
CONFIG = EngineConfig(device_type="cpu")
FAST = ("aya_vision",)
NAMES = [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in VISION_MODULES]


def open_family(folder: Path) -> ModuleVisionFamily:
    return ModuleVisionFamily(Checkpoint.load(folder), Tokenizer.load(folder))


def load_model(family: ModuleVisionFamily) -> Any:
    """Tower and decoder, with all checks of a start."""
    tower = family.build_encoder(CPU, torch.float32)
    backbone = family.backbone()
    decoder = backbone.load_decoder(family.checkpoint, session_len=512, device=CPU, dtype=torch.float32)
    return tower, decoder


@pytest.mark.parametrize("name", VISION_MODULES)
def test_an_architecture_without_a_family_runs_through_its_modules(name: str) -> None:
    assert find_family(VISION_MODULES[name]) is ModuleVisionFamily


def test_blank_lines_around_media_are_tokenized_with_the_text(tiny_checkpoint: Callable[[str], Path]) -> None:
    family = open_family(tiny_checkpoint("gemma3n"))
    for modality, marker in ((IMAGE, "<image_soft_token>"), (Modality.AUDIO, "<audio_soft_token>")):
        assert family.word(modality, None) == Wording(before="\n\n", marker=marker, after="\n\n")
    load_model(family)  # compares prompts with line breaks behind pictures and audio
    assert open_family(tiny_checkpoint("aya_vision")).word(IMAGE, None) is None


def test_tokens_around_media_have_tables_of_their_own(
    tiny_checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without those, the token behind a picture has another embedding."""
    monkeypatch.setattr(module_embedding, "_is_table", lambda _: False)
    with pytest.raises(CheckpointError, match="compute a prompt with pictures otherwise"):
        load_model(open_family(tiny_checkpoint("gemma3n")))


def test_the_text_of_a_picture_may_be_another_than_the_token_of_its_rows(
    tiny_checkpoint: Callable[[str], Path],
) -> None:
    family = open_family(tiny_checkpoint("qianfan_ocr"))
    load_model(family)  # compares prompts with pictures
    assert family.markers == {IMAGE: "<image>"} and family.processor.image_token != family.token_id("<image>")


@pytest.mark.parametrize(
    "check",
    [
        family_checks.tokens_equal_the_processors,
        family_checks.plans_equal_what_is_prepared,
        family_checks.rows_equal_the_models,
        family_checks.packed_equals_alone,
        family_checks.positions_equal_the_models,
    ],
    ids=lambda check: check.__name__,
)
@pytest.mark.parametrize("name", NAMES)
def test_contract(name: str, check: family_checks.Check, load: Callable[[str], Loaded]) -> None:
    loaded = load(name)
    written = MODULE_CHECKPOINTS[name].video
    if written:  # some models tell videos by what their template writes around them
        before, behind = written.split(loaded.family.markers[VIDEO])
        loaded = replace(loaded, around_videos=(before, behind))
    check(loaded)


@pytest.mark.parametrize("name", NAMES)
def test_tokens_of_many_sizes_equal_the_processors(name: str, load: Callable[[str], Loaded]) -> None:
    """Three pictures with content in a prompt, of sizes that a blank one was planned for."""
    loaded = load(name)
    sizes = [size for size in family_checks.random_sizes(124)[100:] if max(size) <= 200 * min(size)]
    for first in range(0, len(sizes), 3):
        media = [draw_image(1 + height // 4, 1 + width // 4, first) for height, width in sizes[first : first + 3]]
        family_checks.tokens_equal_the_processors(loaded, media)


def test_a_size_is_asked_of_the_processor_once(load: Callable[[str], Loaded], monkeypatch: pytest.MonkeyPatch) -> None:
    family = load("aya_vision").family
    assert isinstance(family, ModuleVisionFamily)
    asked: list[tuple[int, ...]] = []
    process = family.processor.process

    def note(media: DecodedMedia) -> Any:
        asked.append(media.frames.shape)
        return process(media)

    monkeypatch.setattr(family.processor, "process", note)
    size = MediaSize(num_frames=1, height=61, width=83)
    assert plan(family, IMAGE, size) == plan(family, IMAGE, size)
    assert asked.count((1, 61, 83, 3)) == 1


def test_hostile_sizes_are_refused_before_anything_is_resized(load: Callable[[str], Loaded]) -> None:
    family = load("aya_vision").family
    for height, width in ((1, 100_000), (60_001, 300)):
        with pytest.raises(RequestError, match="one side is more than 200 times the other: crop or pad it"):
            plan(family, IMAGE, MediaSize(num_frames=1, height=height, width=width))


def test_pixels_that_become_other_tokens_are_refused(
    load: Callable[[str], Loaded], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a processor would make them that looks at the picture."""
    family = load("aya_vision").family
    assert isinstance(family, ModuleVisionFamily)
    process = family.processor.process

    def crop(media: DecodedMedia) -> Any:
        return process(replace(media, frames=media.frames[:, :, :20]) if media.frames.any() else media)

    monkeypatch.setattr(family.processor, "process", crop)
    with pytest.raises(RequestError, match="makes other tokens of this picture than of a blank one of its size"):
        preprocess(family, draw_image(31, 97))


def test_tower_and_decoder_are_one_model(tiny_checkpoint: Callable[[str], Path]) -> None:
    family = open_family(tiny_checkpoint("vipllava"))
    tower, decoder = load_model(family)
    assert tower.weights.tensors() == [] and tower.weights.parts() == {}
    stored = sum(tensor.numel() for tensor in load_file(family.checkpoint.path / "model.safetensors").values())
    tensors = [tensor for tensor in decoder.weights.tensors() if tensor.is_floating_point()]
    loaded = {t.data_ptr() if t.layout is torch.strided else id(t): t.numel() for t in tensors}
    assert any(tensor.layout is not torch.strided for tensor in tensors), "no layer is packed"
    assert stored <= sum(loaded.values()) < 1.1 * stored
    assert family.largest_input() is not None and family.small_inputs()


def test_a_number_of_tiles_that_no_processor_can_list_is_refused(
    tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(tiny_checkpoint("aya_vision"), tmp_path / "model")
    settings = json.loads((folder / "processor_config.json").read_text())
    settings["image_processor"]["max_patches"] = 1 << 40
    (folder / "processor_config.json").write_text(json.dumps(settings))
    with pytest.raises(CheckpointError, match="max_patches of its image processor must be an integer from 1 to 1024"):
        _ = open_family(folder).processor


def test_what_does_not_run_is_said_before_what_is_missing(
    tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """A processor's file would not help."""
    folder = shutil.copytree(tiny_checkpoint("vipllava"), tmp_path / "model")
    (folder / "processor_config.json").unlink()
    (folder / "config.json").write_text(json.dumps({"model_type": "udop", "architectures": ["UdopModel"]}))
    with pytest.raises(CheckpointError, match=r"it has an encoder of text, .* nearest: Qwen"):
        load_model(open_family(folder))


def test_a_processor_without_the_models_token_is_refused(
    tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(tiny_checkpoint("vipllava"), tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "image_token_index": 7, "image_token_id": 7}))
    message = r"cannot take pictures here: (?!.*does not run).* makes no token 7 \(image_token_id\) .* with text alone"
    with pytest.raises(CheckpointError, match=message):
        load_model(open_family(folder))


def test_a_text_of_the_check_has_no_tokens_of_media(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """The whole model takes a place for a picture where ours looks up a token."""
    folder = shutil.copytree(tiny_checkpoint("gemma4"), tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    drawn = torch.randint(config["text_config"]["vocab_size"], (2, 11), generator=torch.Generator().manual_seed(0))
    (folder / "config.json").write_text(json.dumps({**config, "image_token_id": int(drawn[0, 3])}))
    family = open_family(folder)
    decoder = family.backbone().load_decoder(family.checkpoint, session_len=512, device=CPU, dtype=torch.float32)
    assert isinstance(decoder, ModuleDecoder) and int(drawn[0, 3]) in decoder.named_tokens


@pytest.mark.parametrize(("name", "expected"), [("gemma4_small", 0), ("gemma4_large", 70)])
def test_tokens_of_a_picture_see_each_other_where_the_model_says_so(
    name: str, expected: int, tiny_checkpoint: Callable[[str], Path]
) -> None:
    _, decoder = load_model(open_family(tiny_checkpoint(name)))  # compares prompts with pictures
    assert decoder.traits.media_run == expected


@pytest.mark.parametrize(
    ("name", "axes", "width"),
    [
        pytest.param("qwen2_5_vl", 3, 64, marks=pytest.mark.slow),
        ("qwen3_vl", 3, 3 * 64),
        pytest.param("glm4v", 3, 64, marks=pytest.mark.slow),
        ("llava_next_video", 1, 64),  # frames are pooled
    ],
)
def test_positions_of_several_axes_and_rows_for_further_layers(
    name: str, axes: int, width: int, tiny_checkpoint: Callable[[str], Path]
) -> None:
    """Checkpoints of our families among them, through their modules: pictures and a video are compared when they are
    loaded."""
    family = open_family(tiny_checkpoint(name))
    _, decoder = load_model(family)
    assert family.modalities == (IMAGE, VIDEO)
    assert (decoder.traits.num_position_axes, decoder.traits.embedding_size) == (axes, width)


def test_positions_other_than_the_models_are_found(
    tiny_checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    family = open_family(tiny_checkpoint("qwen3_vl"))
    make = family.positions

    def stretch(*given: Any) -> Any:
        positions, following = make(*given)
        return positions * np.array([[1], [2], [1]]), following

    monkeypatch.setattr(family, "positions", stretch)
    with pytest.raises(CheckpointError, match="positions of their own, or are told apart in another way"):
        load_model(family)


# --- what is refused --------------------------------------------------------------------------------------------------


def test_pictures_that_are_no_row_of_tokens_are_refused_and_text_runs(tiny_checkpoint: Callable[[str], Path]) -> None:
    """A checkpoint of one of our families, through its modules."""
    folder = tiny_checkpoint("gemma3_vision")
    message = "tokens of a picture see later ones, have positions of their own"
    with pytest.raises(CheckpointError, match=message) as caught:
        load_model(open_family(folder))
    assert "With disable_vision_encoder=True it runs with text alone" in str(caught.value)
    family = open_family(folder)
    family.backbone().load_decoder(family.checkpoint, session_len=512, device=CPU, dtype=torch.float32)


def test_text_of_the_processor_that_joins_with_the_prompts_is_refused(
    tiny_checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it would be if the blank lines around a picture were tokens of the picture."""
    family = open_family(tiny_checkpoint("gemma3n"))
    monkeypatch.setattr(family, "_find_edges", lambda _: None)
    with pytest.raises(CheckpointError, match="are not those of the text and of each of them alone"):
        load_model(family)


@pytest.mark.parametrize(
    ("name", "vision", "message"),
    [
        ("gemma3n", {"architecture": "hf-hub:a/b"}, "vision_config.architecture must be the name of a timm model"),
        ("gemma3n", {"model_args": {"checkpoint_path": "/x"}}, "vision_config.model_args.checkpoint_path is not"),
        ("gemma3n", {"model_args": {"channel_multiplier": -1}}, "model_args.channel_multiplier must be from 0"),
        ("vipllava", {"model_type": "timm_wrapper", "architecture": "local-dir:/x"}, "must be the name of a timm"),
        ("vipllava", {"model_type": "timm_backbone", "backbone": "a"}, "vision_config is of type timm_backbone"),
    ],
    ids=str,
)
def test_a_hostile_model_of_timm_is_refused(
    name: str, vision: dict[str, Any], message: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """Before timm is asked for anything."""
    folder = shutil.copytree(tiny_checkpoint(name), tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    config["vision_config"] |= vision
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=message):
        ModuleVisionFamily.build_modules(Checkpoint.load(folder))


def test_a_tower_of_timm_without_timm(tiny_checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(MissingExtraError, match="the vision tower 'mobilenetv5_300m_enc' requires the package 'timm'"):
        ModuleVisionFamily.build_modules(Checkpoint.load(tiny_checkpoint("gemma3n")))


def test_an_engine_without_the_tower_answers_texts(tiny_checkpoint: Callable[[str], Path]) -> None:
    config = EngineConfig(device_type="cpu", disable_vision_encoder=True)
    picture = parse([[make_message(make_picture(20, 30, 1), "what?")]], max_new_tokens=2)
    with AsyncEngine(str(tiny_checkpoint("vipllava")), backend_config=config) as engine:
        assert ask(engine, parse(["the game"], max_new_tokens=2))[0].error is None
        error = ask(engine, picture)[0].error
        assert error is not None and "disable_vision_encoder" in str(error)


def test_a_folder_without_a_processor_is_refused_unless_the_tower_is_off(
    tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(tiny_checkpoint("vipllava"), tmp_path / "model")
    (folder / "processor_config.json").unlink()
    message = (
        r"model: processor_config\.json or preprocessor_config\.json is missing, .* set disable_vision_encoder=True"
    )
    with pytest.raises(CheckpointError, match=message):
        AsyncEngine(str(folder), backend_config=CONFIG)
    picture = parse([[make_message(make_picture(20, 30, 1), "what?")]], max_new_tokens=2)
    with AsyncEngine(str(folder), backend_config=replace(CONFIG, disable_vision_encoder=True)) as engine:
        assert ask(engine, parse(["the game"], max_new_tokens=2))[0].error is None
        error = ask(engine, picture)[0].error
        assert error is not None and "disable_vision_encoder" in str(error)


def test_processors_of_hostile_folders(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """Code beside the weights is not run, and no other model is loaded."""
    changes: dict[str, tuple[dict[str, Any], str]] = {
        "code": ({"auto_map": {"AutoProcessor": "evil.Evil"}, "processor_class": "Evil"}, "cannot be loaded|no image"),
        "audio": ({"audio_tokenizer": {"audio_tokenizer_class": "X"}}, "names another model, which is not loaded"),
        "class": ({"image_processor": {"image_processor_type": "BertModel"}}, "its processor cannot be loaded"),
    }
    for name, (change, message) in changes.items():
        folder = shutil.copytree(tiny_checkpoint("vipllava"), tmp_path / name)
        settings = json.loads((folder / "processor_config.json").read_text())
        (folder / "processor_config.json").write_text(json.dumps({**settings, **change}))
        (folder / "evil.py").write_text("raise SystemExit('code of a checkpoint was run')\n")
        with pytest.raises(CheckpointError, match=message):
            _ = open_family(folder).processor


# --- weights ----------------------------------------------------------------------------------------------------------


def test_weights_are_replaced_and_sleep_with_the_tower(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    folder = tiny_checkpoint("vipllava")
    other = shutil.copytree(folder, tmp_path / "other")
    tensors = load_file(other / "model.safetensors")
    flipped = {name: tensor.flip(0).contiguous() if "vision" in name else tensor for name, tensor in tensors.items()}
    save_file(flipped, other / "model.safetensors", metadata={"format": "pt"})
    request = parse([[make_message(make_picture(23, 31, 1), "what?")]], output_logits="all", max_new_tokens=4)

    def answer(engine: AsyncEngine) -> Any:
        [made] = ask(engine, request)
        assert made.error is None and made.logits is not None, made.error
        return made.logits

    with AsyncEngine(str(other), backend_config=CONFIG) as engine:
        new = answer(engine)
    with AsyncEngine(str(folder), backend_config=CONFIG) as engine:
        old = answer(engine)
        assert not torch.allclose(old, new)
        engine.update_weights(str(other))
        torch.testing.assert_close(answer(engine), new)
        engine.sleep(2)
        engine.wake_up()
        torch.testing.assert_close(answer(engine), new)
        engine.update_weights(str(folder))
        torch.testing.assert_close(answer(engine), old)


@pytest.mark.parametrize(
    ("times", "told"),
    [((), "a picture of 13x8 pixels"), ((0.0,), "a video of one frame of 13x8"), ((0.0, 0.5), "2 frames of 13x8")],
)
def test_a_video_of_one_frame_is_not_called_a_picture(times: tuple[float, ...], told: str) -> None:
    size = MediaSize(num_frames=max(1, len(times)), height=8, width=13, timestamps_s=times)
    with pytest.raises(RequestError, match=f"refuses {told}.*: too few"):
        refuse(size, "too few")
