"""InternLM-XComposer2's prompts, tiles and checkpoints: published sizes, options, and tensors that are refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from asking import ask, make_picture, parse
from family_contract import IMAGE, Loaded, draw_image, edit_json, load_family, plan, preprocess
from quantized_folders import PACKED_FORMS, Tensors, edit_tensors, set_config, write_quantized
from safetensors.torch import load_file, save_file

from seesay.config import EngineConfig
from seesay.engine.front.engine import AsyncEngine
from seesay.errors import CheckpointError, RequestError
from seesay.templates import builtin
from seesay.templates.pieces import PiecesTemplate
from seesay.values import MediaPart, MediaSize, Message, RenderedPrompt, TextPart
from seesay.vl.bases.hd_transform import HDTransform
from seesay.vl.prompts.prompt import tokenize

_POSITIONS = "vit.vision_tower.vision_model.embeddings.position_embedding.weight"
_RANK = "model.layers.0.attention.wqkv.Plora_A.weight"


# --- prompts ----------------------------------------------------------------------------------------------------------


def write(name: str, *messages: Message) -> str:
    """What a built-in template writes, without what it says before all messages."""
    pieces = builtin.find(name)
    assert pieces is not None
    template = PiecesTemplate(name, pieces.with_changes({"meta_instruction": None}))
    return template.render(messages, markers={IMAGE: "<ImageHere>"}).text


def say(*parts: str, placed: bool = False) -> Message:
    """A user's message; "@" is a picture."""
    picture = MediaPart(modality=IMAGE, source="x", is_placed=placed)
    return Message(role="user", parts=tuple(picture if part == "@" else TextPart(text=part) for part in parts))


ANSWER = Message(role="assistant", parts=(TextPart(text="A car."),))
BEFORE, BETWEEN = "[UNUSED_TOKEN_146]user\n", "[UNUSED_TOKEN_145]\n[UNUSED_TOKEN_146]assistant\n"


def test_several_pictures_are_numbered_through_a_conversation_with_2_5() -> None:
    expected = f"{BEFORE}Image1 <ImageHere>; Image2 <ImageHere>; compare{BETWEEN}A car.[UNUSED_TOKEN_145]\n"
    expected += f"{BEFORE}Image3 <ImageHere>; and this?{BETWEEN}"
    assert write("internlm-xcomposer2d5", say("@", "@", "compare"), ANSWER, say("@", "and this?")) == expected
    assert write("internlm-xcomposer2", say("@", "@", "compare")) == f"{BEFORE}<ImageHere><ImageHere>compare{BETWEEN}"


def test_a_single_picture_comes_first_with_2_5_unless_it_is_placed() -> None:
    for parts in (("@", "what?"), ("what?", "@")):
        assert write("internlm-xcomposer2d5", say(*parts)) == f"<ImageHere>{BEFORE}what?{BETWEEN}"
    placed = write("internlm-xcomposer2d5", say("see ", "@", "!", placed=True))
    assert placed == f"{BEFORE}see <ImageHere>!{BETWEEN}"
    both = write("internlm-xcomposer2d5", say("see ", "@", placed=True), ANSWER, say("@", "this?"))
    assert both.startswith(f"{BEFORE}see <ImageHere>[") and "Image2 <ImageHere>; this?" in both


@pytest.mark.parametrize(
    ("name", "counts"), [("xcomposer2", [1, 1]), ("xcomposer2_4khd", [1, 1]), ("xcomposer2d5", [1, 0])]
)
def test_each_text_begins_with_the_first_token_but_for_2_5(
    load: Callable[[str], Loaded], name: str, counts: list[int]
) -> None:
    """Text that is not empty."""
    family, tokenizer = load(name).family, load(name).tokenizer
    [bos] = tokenizer.encode("", add_special_tokens=True)
    marker = family.markers[IMAGE]
    text = f"a{marker}{marker}b"
    places = ((1, 1 + len(marker)), (1 + len(marker), 1 + 2 * len(marker)))
    rendered = RenderedPrompt(
        text=text, markers=places, media=tuple(MediaPart(modality=IMAGE, source=None) for _ in "12")
    )
    made = tokenize(rendered, tokenizer, is_apart=family.tokenizes_apart, begins_empty=family.begins_empty)
    before, behind = made.token_ids[: made.ranges[0][0]], made.token_ids[made.ranges[0][1] :]
    assert [(ids == bos).sum() for ids in (before, behind)] == counts


# --- tiles ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "published", "enlarged"),
    [
        ((560, 560), ((560, 560), (1, 1)), ((2240, 2240), (4, 4))),
        ((1080, 1920), ((1260, 2240), (3, 4)), ((1890, 3360), (4, 6))),
        ((3000, 1000), ((3360, 1120), (6, 2)), ((4480, 1493), (8, 3))),
        ((561, 560), ((1120, 1118), (2, 2)), ((2240, 2236), (4, 4))),
        ((1, 4000), ((1, 4480), (1, 8)), ((3, 13440), (1, 24))),
    ],
)
def test_tiles_of_published_sizes(size: tuple[int, int], published: object, enlarged: object) -> None:
    """With 24 tiles of 560 pixels, as 2.5 has them, and without its limit."""
    measured = MediaSize(num_frames=1, height=size[0], width=size[1])
    for is_capped, expected in ((True, published), (False, enlarged)):
        found = HDTransform(tile=560, max_tiles=24, is_capped=is_capped).measure(measured, {})
        assert (found["resized"], found["joined"]) == expected


def test_six_tiles_of_each_of_several_pictures_with_2_5(load: Callable[[str], Loaded]) -> None:
    """Published: 4,122 rows of two pictures of 1600 x 1200. A request may ask for more."""
    family, size = load("xcomposer2d5").family, MediaSize(num_frames=1, height=1200, width=1600)
    assert [dict(family.shared_options(count)) for count in (1, 2, 9)] == [{}, *[{"max_dynamic_patch": 6}] * 2]
    published = HDTransform(tile=560, max_tiles=24, is_capped=True)
    rows, columns = published.measure(size, family.shared_options(2))["joined"]
    assert 2 * ((rows * columns + 1) * 20**2 + 1 + (rows + 1) * 20) == 4122
    assert published.measure(size, {})["joined"] == (3, 3)
    for other in ("xcomposer2", "xcomposer2_4khd"):
        assert load(other).family.shared_options(2) == {}


def test_most_tiles_of_one_picture(load: Callable[[str], Loaded]) -> None:
    family, picture = load("xcomposer2d5").family, draw_image(60, 90)
    counts = [preprocess(family, picture, {"max_dynamic_patch": most})["num_tiles"] for most in (1, 4, 6)]
    assert counts == [2, 5, 7]
    assert preprocess(family, picture, {"detail": "low"})["num_tiles"] == 2
    with pytest.raises(RequestError, match=r"max_dynamic_patch must be an integer in \[1, 1024\]"):
        plan(family, IMAGE, picture.size, {"max_dynamic_patch": 1025})


def test_squares_have_no_tiles(load: Callable[[str], Loaded]) -> None:
    family, picture = load("xcomposer2").family, draw_image(60, 90)
    assert preprocess(family, picture, {"detail": "low"})["num_tiles"] == 1
    assert family.option_names(IMAGE).isdisjoint({"max_dynamic_patch"})
    with pytest.raises(RequestError, match="'max_dynamic_patch' is unknown to this model"):
        plan(family, IMAGE, picture.size, {"max_dynamic_patch": 2})


# --- checkpoints ------------------------------------------------------------------------------------------------------


def change_tensor(source: Path, target: Path, name: str, tensor: torch.Tensor | None) -> Path:
    """A copy of a checkpoint with another tensor, or without it."""
    shutil.copytree(source, target)
    state = load_file(source / "model.safetensors")
    del state[name]
    save_file({**state, **({} if tensor is None else {name: tensor})}, target / "model.safetensors")
    return target


@pytest.mark.parametrize(
    ("checkpoint", "name", "tensor", "message"),
    [
        ("xcomposer2", _POSITIONS, None, f"tensor '{_POSITIONS}' is missing"),
        ("xcomposer2", _POSITIONS, torch.zeros(28, 32), "has 28 positions, which are not those of a square"),
        ("xcomposer2", _POSITIONS, torch.zeros(32), r"has the shape \[32\], not two axes"),
        ("xcomposer2", _POSITIONS, torch.zeros(37, 32), "img_size must be 24, for 6² positions of 4 pixels, got '20'"),
        ("xcomposer2d5", _POSITIONS, torch.zeros(26, 32), "a grid of 5² patches cannot be merged 2 by 2"),
        ("xcomposer2d5", _RANK, None, f"tensor '{_RANK}' is missing"),
        ("xcomposer2d5", _RANK, torch.zeros(0, 64), f"tensor '{_RANK}' is empty"),
    ],
)
def test_damaged_tensors_are_refused(
    tiny_checkpoint: Callable[[str], Path],
    tmp_path: Path,
    checkpoint: str,
    name: str,
    tensor: torch.Tensor | None,
    message: str,
) -> None:
    path = change_tensor(tiny_checkpoint(checkpoint), tmp_path / "other", name, tensor)
    with pytest.raises(CheckpointError, match=message):
        load_family(path)


def test_a_number_of_tiles_must_be_one(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    path = edit_json(
        tiny_checkpoint("xcomposer2d5"), tmp_path / "other", "processor_config.json",
        lambda data: data["image_processor"].update(hd_num=0),
    )  # fmt: skip
    with pytest.raises(CheckpointError, match="hd_num must be an integer from 1 to 1024, got '0'"):
        load_family(path)


@pytest.mark.parametrize(("checkpoint", "scale"), [("xcomposer2d5", None), ("xcomposer2_4khd", 2.0)])
def test_factors_of_the_additions(load: Callable[[str], Loaded], checkpoint: str, scale: float | None) -> None:
    """Those to queries, keys and values have one of their own where their rank is another."""
    rows = load(checkpoint).family.backbone().media_rows
    assert rows is not None and (rows.rank, rows.scale) == (6, 1.0)
    assert (None if rows.qkv_rank is None else rows.qkv_scale) == scale
    assert rows.for_qkv.rank == (6 if scale is None else 8)


def answer(path: Path) -> list[list[int]]:
    """Greedy ids of a text, of one with a picture, and of one with two."""
    pictures = [make_picture(20, 70, 1), make_picture(50, 30, 2)]
    prompts: list[Any] = ["the game", ("the game", pictures[0]), ("the game", pictures)]
    with AsyncEngine(str(path), backend_config=EngineConfig(device_type="cpu", block_size=16)) as engine:
        outputs = ask(engine, parse(prompts, max_new_tokens=12, ignore_eos=True))
    assert all(output.error is None for output in outputs)
    return [list(output.token_ids) for output in outputs]


def test_four_bits_answer_as_their_numbers_multiplied_out(
    tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """As LMDeploy writes them: additions and tower stay in half precision, and no setting names them."""
    quantized, plain = write_quantized(tiny_checkpoint("xcomposer2d5"), tmp_path, PACKED_FORMS["awq, groups of 32"])
    common = {"quant_method": "awq", "version": "gemm", "bits": 4, "group_size": 32, "zero_point": True}
    set_config(quantized, quantization_config=common)

    def halve(tensors: Tensors) -> None:
        floats = {name: tensor.half() for name, tensor in tensors.items() if tensor.is_floating_point()}
        tasks = {"model.layers.0.feed_forward.w1.lora_web_A.weight": torch.zeros(512, 64, dtype=torch.float16)}
        tensors |= floats | tasks

    def round_plain(tensors: Tensors) -> None:
        layers = load_file(quantized / "model.safetensors")
        tensors |= {name: tensor.half().float() for name, tensor in tensors.items() if name in layers}

    def leave_out(tensors: Tensors) -> None:
        tensors |= {name: torch.zeros_like(each) for name, each in tensors.items() if ".Plora_B." in name}

    edit_tensors(quantized, halve)
    edit_tensors(plain, round_plain)
    names = set(load_file(quantized / "model.safetensors"))
    layer = "model.layers.1.attention.wqkv."
    assert {f"{layer}{part}" for part in ("qweight", "qzeros", "scales", "Plora_A.weight", "Plora_B.weight")} <= names
    found = answer(quantized)
    assert found == answer(plain)
    edit_tensors(quantized, leave_out)
    assert answer(quantized)[0] == found[0]
    assert answer(quantized)[1:] != found[1:]
