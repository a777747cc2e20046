"""Every family of the registry goes through the same contract: equal to Transformers on a tiny random checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from family_contract import (
    IMAGE,
    IMAGE_SIZES,
    MROPE_FAMILIES,
    TEXT_BACKBONES,
    VIDEO,
    VISION_FAMILIES,
    Loaded,
    build,
    draw_image,
    draw_media,
    edit_json,
    hf_rows,
    load_family,
    mixed_media,
    plan,
    prepare,
    preprocess,
    run_processor,
)

from seesay.config import MediaLimits, VisionConfig
from seesay.errors import CheckpointError, RequestError
from seesay.values import MediaPart, RenderedPrompt
from seesay.vl.media import MediaFront
from seesay.vl.prompt import TokenizedPrompt, build_input, tokenize

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:transformers"),
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers"),
    pytest.mark.filterwarnings("ignore:__array_wrap__ must accept:DeprecationWarning"),
]


@pytest.mark.parametrize("name", VISION_FAMILIES)
def test_tokens_equal_the_processors(name: str, load: Callable[[str], Loaded]) -> None:
    loaded = load(name)
    media = mixed_media(loaded.family)
    made = build(loaded, media)
    assert made.token_ids.tolist() == run_processor(loaded, media)["input_ids"][0].tolist()
    for item in made.items:
        start, stop = item.span
        assert ((item.slots >= start) & (item.slots < stop)).all()


@pytest.mark.parametrize("name", VISION_FAMILIES)
def test_tokens_are_counted_from_the_size_alone(name: str, load: Callable[[str], Loaded]) -> None:
    """Over random sizes and options: what is counted before decoding is what the preprocessed item takes."""
    family = load(name).family
    rng = np.random.default_rng(5)
    for round_ in range(60):
        modality = family.modalities[round_ % len(family.modalities)]
        count = 1 if modality is IMAGE else int(rng.integers(1, 9))
        height, width = (int(n) for n in np.exp(rng.uniform(np.log(4), np.log(160), 2)))
        known = family.options.get(modality, ())
        options: dict[str, Any] = {}
        if round_ % 3 == 0:
            choices = {"max_pixels": 5000, "min_pixels": 20000, "max_dynamic_patch": 3, "min_dynamic_patch": 2}
            options = {key: value for key, value in choices.items() if key in known and rng.random() < 0.5}
        if options.get("min_pixels", 0) > options.get("max_pixels", 10**9):
            del options["min_pixels"]
        media = draw_media(modality, count, height, width, seed=round_)
        prepared = prepare(family, media, options)
        made = build_input(
            TokenizedPrompt(token_ids=np.asarray([1, 2]), ranges=((0, 1),)), [prepared], family=family, model_digest=b""
        )
        planned = plan(family, modality, media.size, options)
        assert planned.num_tokens == len(made.token_ids) - 1, (modality, media.size, options)
        assert all(prepared.features[key] == value for key, value in planned.measures.items())
        assert planned.num_units == made.items[0].num_units


@pytest.mark.parametrize("name", VISION_FAMILIES)
def test_pixels_equal_the_processors(name: str, load: Callable[[str], Loaded]) -> None:
    loaded = load(name)
    media = mixed_media(loaded.family)
    inputs = run_processor(loaded, media)
    by_key: dict[str, list[torch.Tensor]] = {}
    for item in media:
        key = "pixel_values_videos" if item.modality is VIDEO and "video_grid_thw" in inputs else "pixel_values"
        by_key.setdefault(key, []).append(loaded.encoder.load_pixels(preprocess(loaded.family, item)))
    for key, ours in by_key.items():
        theirs = inputs[key] if inputs[key].dim() == 2 else inputs[key].permute(0, 2, 3, 1)
        torch.testing.assert_close(torch.cat(ours), theirs, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", VISION_FAMILIES)
def test_rows_equal_the_models_and_fill_the_slots(name: str, load: Callable[[str], Loaded]) -> None:
    loaded = load(name)
    media = mixed_media(loaded.family)
    made = build(loaded, media)
    rows = loaded.encoder.encode([item.features for item in made.items])
    assert [len(r) for r in rows] == [len(item.slots) for item in made.items]
    assert all(r.shape[1] == loaded.encoder.hidden_size for r in rows)
    for ours, theirs in zip(rows, hf_rows(loaded, run_processor(loaded, media), media)):
        assert theirs.std() > 0.1, "the random tower says nothing"
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", VISION_FAMILIES)
def test_packed_equals_alone(name: str, load: Callable[[str], Loaded]) -> None:
    loaded = load(name)
    features = [preprocess(loaded.family, item) for item in mixed_media(loaded.family)]
    packed = loaded.encoder.encode(features)
    backwards = loaded.encoder.encode(features[::-1])[::-1]
    for one, together, reversed_order in zip(features, packed, backwards):
        alone = loaded.encoder.encode([one])[0]
        torch.testing.assert_close(together, alone, rtol=0, atol=2e-5)
        torch.testing.assert_close(reversed_order, alone, rtol=0, atol=2e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("name", VISION_FAMILIES)
def test_bfloat16_rows_on_the_gpu_are_near_float32(name: str, load: Callable[[str], Loaded]) -> None:
    loaded = load(name)
    features = [preprocess(loaded.family, item) for item in mixed_media(loaded.family)]
    encoder = loaded.family.build_encoder(torch.device("cuda"), torch.bfloat16)
    for found, expected in zip(encoder.encode(features), loaded.encoder.encode(features)):
        assert found.is_cuda and found.dtype is torch.bfloat16
        assert (found.float().cpu() - expected).abs().mean() < 0.05 * expected.abs().mean()


@pytest.mark.parametrize("name", VISION_FAMILIES)
def test_logits_of_the_spliced_prompt_equal_the_models(name: str, load: Callable[[str], Loaded]) -> None:
    """Our tokens, rows, slots and positions in Transformers' decoder, against its own forward."""
    loaded = load(name)
    media = mixed_media(loaded.family)
    made = build(loaded, media)
    embeddings = loaded.model.get_input_embeddings()(torch.from_numpy(made.token_ids)).detach().clone()
    for item, rows in zip(made.items, loaded.encoder.encode([item.features for item in made.items])):
        embeddings[torch.from_numpy(item.slots)] = rows
    positions = torch.from_numpy(made.positions)
    positions = positions[:, None] if positions.dim() == 2 else positions[None]
    with torch.no_grad():
        ours = loaded.model.model.language_model(inputs_embeds=embeddings[None], position_ids=positions)
        ours = loaded.model.lm_head(ours.last_hidden_state)
        theirs = loaded.model(**run_processor(loaded, media)).logits
    assert theirs.std() > 0.1
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-3)


@pytest.mark.parametrize("name", VISION_FAMILIES)
def test_options_are_checked_by_name(name: str, load: Callable[[str], Loaded]) -> None:
    family = load(name).family
    with pytest.raises(RequestError, match="'sharpness' is unknown") as caught:
        preprocess(family, draw_image(30, 30), {"sharpness": 3})
    assert caught.value.param == "sharpness"
    for option in family.options.get(IMAGE, ()):
        assert option in str(caught.value)
        for bad in (0, -5, 2.5, "many", True):
            with pytest.raises(RequestError, match=option):
                preprocess(family, draw_image(30, 30), {option: bad})


@pytest.mark.parametrize("name", VISION_FAMILIES)
def test_largest_input_is_at_least_as_large_as_any(name: str, load: Callable[[str], Loaded]) -> None:
    loaded = load(name)
    largest = loaded.family.largest_input()
    assert largest is not None
    for size in [*IMAGE_SIZES, (500, 400), (10, 700), (300, 40), (1000, 1000)]:
        planned = plan(loaded.family, IMAGE, draw_image(*size).size)
        assert planned.num_units <= loaded.family.num_units(largest)
    assert torch.isfinite(loaded.encoder.encode([largest])[0]).all()


@pytest.mark.parametrize("name", VISION_FAMILIES)
def test_media_key_follows_options_and_settings(
    name: str, load: Callable[[str], Loaded], tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    family = load(name).family
    keys = {family.media_key(modality, {}) for modality in family.modalities}
    assert len(keys) == len(family.modalities)
    for option in family.options.get(IMAGE, ()):
        keys.add(family.media_key(IMAGE, {option: 3}))
    assert len(keys) == len(family.modalities) + len(family.options.get(IMAGE, ()))
    assert family.media_key(IMAGE, {}) == family.media_key(IMAGE, {})

    def darken(settings: dict[str, Any]) -> None:
        for kind in ("image_processor", "video_processor"):
            if kind in settings:
                settings[kind]["image_mean"] = [0.1, 0.1, 0.1]

    other, _ = load_family(edit_json(tiny_checkpoint(name), tmp_path / "c", "processor_config.json", darken))
    assert other.media_key(IMAGE, {}) not in keys


@pytest.mark.parametrize("name", [*TEXT_BACKBONES, *VISION_FAMILIES])
def test_backbone_names_every_decoder_tensor(name: str, tiny_checkpoint: Callable[[str], Path]) -> None:
    family, _ = load_family(tiny_checkpoint(name))
    backbone = family.backbone()
    names = {backbone.decoder_name(n) for n in family.checkpoint.tensor_names()} - {None}
    assert {"embed_tokens.weight", "norm.weight", "layers.1.mlp.down_proj.weight"} <= names
    assert ("lm_head.weight" in names) != backbone.tie_word_embeddings
    assert backbone.text_config.num_hidden_layers == 2
    assert not any(n.startswith(("model", "visual", "vision", "language")) for n in names if n)


@pytest.mark.parametrize("name", TEXT_BACKBONES)
def test_text_models_take_no_media(name: str, tiny_checkpoint: Callable[[str], Path]) -> None:
    family, tokenizer = load_family(tiny_checkpoint(name))
    assert family.markers == {} and family.modalities == () and family.largest_input() is None
    front = MediaFront(family, VisionConfig(), MediaLimits())
    with pytest.raises(RequestError, match="this model takes no media, not image input"):
        front.open([MediaPart(modality=IMAGE, source=b"")])
    front.close()
    with pytest.raises(CheckpointError, match="no vision tower"):
        family.build_encoder(torch.device("cpu"), torch.float32)
    tokens = tokenize(RenderedPrompt(text="the thing"), tokenizer)
    made = build_input(tokens, [], family=family, model_digest=bytes(32))
    assert made.positions.tolist() == list(range(len(made.token_ids))) and made.next_position == len(made.token_ids)


@pytest.mark.parametrize("name", MROPE_FAMILIES)
def test_pixel_limits_of_one_item(name: str, load: Callable[[str], Loaded]) -> None:
    family = load(name).family
    image = draw_image(60, 90)

    def units(options: dict[str, Any]) -> int:
        return plan(family, IMAGE, image.size, options).num_units

    assert units({"max_pixels": 1024}) * 16 <= 1024 < units({}) * 16
    assert units({"min_pixels": 20000, "max_pixels": 40000}) * 16 >= 20000
    assert units({"min_pixels": 20000}) * 16 >= 20000
    assert preprocess(family, image, {"resized_height": 39, "resized_width": 66})["grid"] == (1, 10, 16)
    with pytest.raises(RequestError, match="go together"):
        units({"resized_width": 40})
    with pytest.raises(RequestError, match="above max_pixels"):
        units({"min_pixels": 5000, "max_pixels": 1000})
    with pytest.raises(RequestError, match="longer than wide"):
        preprocess(family, draw_image(2, 900))


def test_tile_limit_of_one_item(load: Callable[[str], Loaded]) -> None:
    family = load("internvl").family
    image = draw_image(30, 90)
    assert len(preprocess(family, image, {"max_dynamic_patch": 1})["pixels"]) == 1
    assert len(preprocess(family, image, {"max_dynamic_patch": 2})["pixels"]) == 3
    assert len(preprocess(family, image)["pixels"]) == 4
    with pytest.raises(RequestError, match="above max_dynamic_patch"):
        preprocess(family, image, {"min_dynamic_patch": 4, "max_dynamic_patch": 2})
