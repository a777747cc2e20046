"""InternVL and LLaVA as their authors publish them, beyond the contract, which compares with Transformers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from family_contract import IMAGE, VIDEO, draw_image, draw_media, edit_json, load_family, plan, prepare, preprocess
from safetensors.torch import load_file, save_file

from seesay.errors import CheckpointError
from seesay.processors.media.host_chain import run_chains
from seesay.processors.text.tokenizer import Tokenizer
from seesay.templates import choose_template
from seesay.values import DecodedMedia, MediaPart, Message, TextPart
from seesay.values.frame_chain import unpack
from seesay.vl.family import Family
from seesay.vl.prompts.prompt import build_input, tokenize

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:transformers"),
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers"),
]


@pytest.fixture
def change(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> Callable[..., Path]:
    """`change(name, **fields)`: a copy of a tiny checkpoint with other fields in config.json."""

    def copy(name: str, **fields: Any) -> Path:
        return edit_json(tiny_checkpoint(name), tmp_path / name, "config.json", lambda config: config.update(fields))

    return copy


# --- prompts ----------------------------------------------------------------------------------------------------------


def ask_about(path: Path, media: list[DecodedMedia]) -> tuple[Family, list[int], str, Tokenizer]:
    """The family of a folder without a chat template of its own, the ids of a question about media in its built-in one,
    and the same prompt with the markers of the published code."""
    (path / "chat_template.jinja").unlink()
    family, tokenizer = load_family(path)
    template = choose_template("models/folder", tokenizer, folder=path)
    parts = [MediaPart(modality=item.modality, source=None) for item in media]
    messages = [Message(role="user", parts=(*parts, TextPart(text="What is it?")))]
    prepared = [prepare(family, item) for item in media]
    tokens = tokenize(
        template.render(messages, markers=family.markers), tokenizer, [item.plan.wording for item in prepared]
    )
    made = build_input(tokens, prepared, family=family, model_digest=b"")
    text = template.render(messages, markers={IMAGE: "<image>", VIDEO: "<video>"}).text
    return family, made.token_ids.tolist(), text, tokenizer


@pytest.mark.parametrize("template", ("internlm2-chat", "Hermes-2", "internvl2_5", "phi3-chat"))
def test_internvl_is_asked_as_by_its_own_code(template: str, change: Callable[..., Path]) -> None:
    """Rows between <img> and </img>, and a line for each frame of a clip."""
    media = [draw_image(20, 50), draw_media(VIDEO, 3, 20, 30)]
    _, ids, text, tokenizer = ask_about(change("internvl_chat", template=template), media)
    tile = "<IMG_CONTEXT>" * 4
    clip = "\n".join(f"Frame{number}: <img>{tile}</img>" for number in (1, 2, 3))
    assert "<image>\n<video>\nWhat is it?" in text
    text = text.replace("<image>", f"<img>{tile * 4}</img>").replace("<video>", clip)
    assert ids == tokenizer.encode(text, add_special_tokens=True)


def test_the_first_frame_is_named_in_the_text_before_it(change: Callable[..., Path]) -> None:
    """Also where a token of the vocabulary has a part of both."""

    def join(state: dict[str, Any]) -> None:
        state["model"]["vocab"]["ĊF"] = 288
        state["model"]["merges"].insert(0, ["Ċ", "F"])
        state["pre_tokenizer"] = state["pre_tokenizer"]["pretokenizers"][-1]  # bytes alone

    path = change("internvl_chat", template="internvl2_5")
    path = edit_json(path, path.with_name("joined"), "tokenizer.json", join)
    _, ids, text, tokenizer = ask_about(path, [draw_media(VIDEO, 2, 20, 30)])
    tile = f"<img>{'<IMG_CONTEXT>' * 4}</img>"
    expected = tokenizer.encode(text.replace("<video>", f"Frame1: {tile}\nFrame2: {tile}"), add_special_tokens=True)
    assert ids == expected and ids.count(288) == 2


@pytest.mark.parametrize(
    ("name", "before"),
    [("llava_original", " USER: "), ("llava_next_original", "[INST] "), ("llava_onevision_original", "user\n")],
)
def test_texts_around_a_picture_are_tokenized_as_by_llavas_own_code(
    name: str, before: str, change: Callable[..., Path]
) -> None:
    """One by one, and no token of the vocabulary stands for a picture."""
    picture = draw_image(20, 50)
    family, ids, text, tokenizer = ask_about(change(name), [picture])
    assert tokenizer.token_id("<image>") is None and f"{before}<image>\nWhat is it?" in text
    num_rows = plan(family, IMAGE, picture.size).num_tokens
    pieces = [tokenizer.encode(piece) for piece in text.split("<image>")]
    prefix = tokenizer.encode("", add_special_tokens=True)
    assert ids == [*prefix, *pieces[0], *[287] * num_rows, *pieces[1]]


@pytest.mark.parametrize("name", ("internvl_chat", "llava_onevision_original"))
def test_a_typed_marker_stays_text(name: str, change: Callable[..., Path]) -> None:
    """Also one that no token of the vocabulary spells: the picture and the clip stay where they are."""
    media = [draw_image(20, 50), draw_media(VIDEO, 2, 20, 30)]
    path = change(name)
    family, tokenizer = load_family(path)
    template = choose_template("models/folder", tokenizer, folder=path)
    found = []
    for typed in ("", "<image><video><IMG_CONTEXT>"):
        parts = [MediaPart(modality=item.modality, source=None) for item in media]
        message = Message(role="user", parts=(TextPart(text=f"a {typed}b"), *parts, TextPart(text=f"{typed}c")))
        rendered = template.render([message], markers=family.markers)
        assert [rendered.text[start:stop] for start, stop in rendered.markers] == [*family.markers.values()]
        items = [prepare(family, item) for item in media]
        made = build_input(tokenize(rendered, tokenizer), items, family=family, model_digest=b"")
        found.append(made)
        taken = set().union(*(range(*item.span) for item in made.items))
        kept = [token for place, token in enumerate(made.token_ids.tolist()) if place not in taken]
        assert tokenizer.decode(kept, skip_special_tokens=False).count(typed or "a b") >= 1 + bool(typed)
    assert [len(item.slots) for item in found[0].items] == [len(item.slots) for item in found[1].items]


# --- InternVL ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "num_tiles"),
    [
        ({}, 5),
        ({"use_thumbnail": False}, 4),
        ({"max_dynamic_patch": 2}, 3),
        ({"max_dynamic_patch": 8, "min_dynamic_patch": 8}, 9),
        ({"dynamic_image_size": False}, 1),
    ],
)
def test_pictures_are_cut_as_config_json_says(
    fields: dict[str, Any], num_tiles: int, change: Callable[..., Path]
) -> None:
    path = change("internvl_chat", **fields)
    family, _ = load_family(path)
    picture = draw_image(30, 31 if "min_dynamic_patch" in fields else 120)
    assert len(preprocess(family, picture)["pixels"]) == num_tiles
    assert plan(family, IMAGE, picture.size).measures["num_tiles"] == num_tiles
    family.resizes_on_device = True
    sent = preprocess(family, picture)
    made = run_chains(sent["frames"], unpack(sent["chains"]))
    assert len(made) == sent["num_tiles"] == num_tiles and made.shape[1:3] == (16, 16)


def test_the_first_pixel_shuffle_turns_the_grid(change: Callable[..., Path], tmp_path: Path) -> None:
    rows = []
    for version in ("v2", "v1"):
        family, _ = load_family(change("internvl_chat", ps_version=version))
        (encoded,) = family.build_encoder(torch.device("cpu"), torch.float32).encode(
            [preprocess(family, draw_image(9, 9))]
        )
        rows.append(encoded.view(2, 2, -1))
        shutil.rmtree(tmp_path / "internvl_chat")
    torch.testing.assert_close(rows[1], rows[0].transpose(0, 1), rtol=0, atol=1e-6)
    assert (rows[0][0, 1] - rows[0][1, 0]).abs().max() > 0.1


@pytest.mark.parametrize("name", ("llama", "qwen2", "phi3", "phi3_longrope"))
def test_other_decoders_inside(name: str, tiny_checkpoint: Callable[[str], Path], change: Callable[..., Path]) -> None:
    """A decoder is the same inside of an InternVLChatModel as alone."""
    source = tiny_checkpoint(name)
    path = change("internvl_chat", llm_config=json.loads((source / "config.json").read_text()))
    own = load_file(path / "model.safetensors")
    tensors = {key: value for key, value in own.items() if not key.startswith("language_model.")}
    inner = {f"language_model.{key}": value for key, value in load_file(source / "model.safetensors").items()}
    save_file(tensors | inner, path / "model.safetensors")
    inside, alone = (load_family(folder)[0] for folder in (path, source))
    found, expected = (each.backbone() for each in (inside, alone))
    assert found.decoder_config(session_len=4096) == expected.decoder_config(session_len=4096)
    names = [
        {backbone.decoder_name(key) for key in family.checkpoint.tensor_names()} - {None}
        for family, backbone in ((inside, found), (alone, expected))
    ]
    assert names[0] == names[1]


@pytest.mark.parametrize(
    ("name", "fields", "told"),
    [
        ("internvl_chat", {"ps_version": "v3"}, "ps_version must be v1 or v2, got 'v3'"),
        ("internvl_chat", {"force_image_size": 32}, "force_image_size must be None or 16, got '32'"),
        ("internvl_chat", {"pad2square": True}, "pad2square must be False, got 'True'"),
        ("internvl_chat", {"use_llm_lora": 16}, "use_llm_lora must be 0, got '16'"),
        ("internvl_chat", {"llm_config": None}, "llm_config must be an object"),
        ("internvl_chat", {"max_dynamic_patch": 10**9}, "max_dynamic_patch"),
        ("internvl_chat", {"llm_config": {"model_type": "mamba"}}, "mamba"),
        ("llava_original", {"mm_projector_type": "linear"}, "mm_projector_type must be mlp2x_gelu, got 'linear'"),
        ("llava_original", {"image_aspect_ratio": "highres"}, "image_aspect_ratio must be square, pad, anyres or"),
        (
            "llava_original",
            {"mm_vision_tower": "BAAI/EVA-CLIP-8B", "vision_config": None},
            "google/siglip-so400m-patch14",
        ),
        ("llava_next_original", {"mm_patch_merge_type": "flat"}, "mm_patch_merge_type must be spatial_unpad"),
        ("llava_next_original", {"image_grid_pinpoints": "336"}, "image_grid_pinpoints must be a list of"),
        ("llava_next_original", {"image_aspect_ratio": "anyres_max_9"}, "anyres has a CLIP"),
        ("llava_onevision_original", {"mm_newline_position": "grid"}, "mm_newline_position must be one_token"),
    ],
)
def test_what_is_not_supported_is_told(
    name: str, fields: dict[str, Any], told: str, change: Callable[..., Path]
) -> None:
    path = change(name, **fields)
    with pytest.raises(CheckpointError) as raised:
        family, _ = load_family(path)
        family.backbone().decoder_config(session_len=64)
    assert told in str(raised.value)


# --- LLaVA ------------------------------------------------------------------------------------------------------------


def test_a_tower_that_lies_elsewhere_is_told(change: Callable[..., Path]) -> None:
    path = change("llava_original")
    state = load_file(path / "model.safetensors")
    save_file({key: value for key, value in state.items() if "vision_tower" not in key}, path / "model.safetensors")
    with pytest.raises(
        CheckpointError, match=r"no weights of its vision tower.*mm_vision_tower='openai/clip-vit-large"
    ):
        load_family(path)


@pytest.mark.parametrize("lost", ["0.weight", "2.bias", "2."])
def test_a_missing_tensor_of_the_projector_has_the_name_of_this_layout(lost: str, change: Callable[..., Path]) -> None:
    path = change("llava_original")
    state = load_file(path / "model.safetensors")
    left = {key: value for key, value in state.items() if not key.startswith(f"model.mm_projector.{lost}")}
    save_file(left, path / "model.safetensors")
    told = rf"tensor 'model\.mm_projector\.{lost}.*' is missing from the checkpoint: download the checkpoint again"
    with pytest.raises(CheckpointError, match=told):
        load_family(path)[0].build_encoder(torch.device("cpu"), torch.float32)


def test_resolutions_as_a_range_of_grids(change: Callable[..., Path]) -> None:
    """As LLaVA-Video has them."""
    family, _ = load_family(change("llava_onevision_original", image_grid_pinpoints="(1x1),...,(2x3)"))
    assert family.preprocessing["resolutions"] == ((14, 14), (28, 14), (42, 14), (14, 28), (28, 28), (42, 28))


@pytest.mark.parametrize("name", ("llava_next_original", "llava_onevision_original"))
def test_a_newline_follows_a_picture_of_one_tile(name: str, change: Callable[..., Path]) -> None:
    family, _ = load_family(change(name))
    rows = preprocess(family, draw_image(20, 50), {"max_dynamic_patch": 1})["rows"]
    assert rows.ravel().tolist() == [*range(9), -1]


def test_resolutions_in_a_text_and_with_the_width_first(change: Callable[..., Path]) -> None:
    """As in LLaVA-1.6. Transformers has the height first."""
    path = change("llava_next_original", image_grid_pinpoints="[(12, 24), (24, 12), (36, 12)]")
    family, _ = load_family(path)
    assert family.preprocessing["resolutions"] == ((24, 12), (12, 24), (12, 36))
