"""Every family of the registry goes through the same contract: equal to Transformers on a tiny random checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import family_checks
import pytest
import torch
from enrolment import ALL_AUDIO, ALL_VISION, BACKBONES, ENROLLED, FAMILIES, OF_MODULES
from family_checks import Check
from family_contract import IMAGE, Loaded, draw_image, load_family, mixed_media, plan, preprocess

from seesay.config import MediaLimits, VisionConfig
from seesay.errors import CheckpointError, RequestError
from seesay.llm.models.composed_decoder import ComposedDecoder
from seesay.values import MediaPart, RenderedPrompt
from seesay.vl.bases.dynamic_resolution import DynamicResolutionFamily
from seesay.vl.media.media_frontend import MediaFrontend
from seesay.vl.prompts.prompt import build_input, tokenize

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:transformers"),
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers"),
    pytest.mark.filterwarnings("ignore:__array_wrap__ must accept:DeprecationWarning"),
]


@pytest.mark.every_case
@pytest.mark.parametrize("check", family_checks.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", ALL_VISION)
def test_contract(name: str, check: Check, load: Callable[[str], Loaded]) -> None:
    check(load(name))


@pytest.mark.parametrize("num_sizes", [1000, pytest.param(20_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", FAMILIES)
def test_counts_equal_the_processors(name: str, num_sizes: int, load: Callable[[str], Loaded]) -> None:
    family_checks.counts_equal_the_processors(load(name), family_checks.random_sizes(num_sizes))


@pytest.mark.parametrize("name", FAMILIES)
def test_keys_follow_settings(name: str, load: Callable[[str], Loaded], tmp_path: Path) -> None:
    family_checks.keys_follow_settings(load(name), tmp_path)


@pytest.mark.parametrize("num_pictures", (0, 1, 3))
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in FAMILIES else pytest.mark.slow) for name in ALL_VISION]
)
def test_prompts_of_few_pictures(name: str, num_pictures: int, load: Callable[[str], Loaded]) -> None:
    """Processors may treat a picture that is alone in another way."""
    loaded = load(name)
    media = [draw_image(3000, 20), draw_image(41, 57), draw_image(1, 1)][:num_pictures]
    family_checks.tokens_equal_the_processors(loaded, media)
    family_checks.logits_equal_the_models(loaded, media)
    if media:
        family_checks.pixels_equal_the_processors(loaded, media)
        family_checks.rows_equal_the_models(loaded, media)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ALL_VISION)
def test_bfloat16_rows_on_the_gpu_are_near_float32(name: str, load: Callable[[str], Loaded]) -> None:
    loaded = load(name)
    features = [preprocess(loaded.family, item) for item in mixed_media(loaded.family)]
    encoder = loaded.family.build_encoder(torch.device("cuda"), torch.bfloat16)
    for found, expected in zip(encoder.encode(features), loaded.encoder.encode(features)):
        assert found.is_cuda and found.dtype is torch.bfloat16
        assert (found.float().cpu() - expected).abs().mean() < 0.05 * expected.abs().mean()


@pytest.mark.parametrize("name", [*BACKBONES, *ALL_AUDIO, *(name for name in ALL_VISION if name not in OF_MODULES)])
def test_backbone_names_every_decoder_tensor(name: str, tiny_checkpoint: Callable[[str], Path]) -> None:
    family, _ = load_family(tiny_checkpoint(name))
    backbone = family.backbone()
    names = {backbone.decoder_name(n) for n in family.checkpoint.tensor_names()} - {None}
    config = backbone.decoder_config(session_len=256)
    decoder = ComposedDecoder(config, device=torch.device("meta"), dtype=torch.float32)
    wanted = {part.tensor for weight in decoder.plain_weights for part in weight.parts}
    linears = {path: each for path, each in decoder.linears.items() if path != "lm_head" or not config.tied_embeddings}
    for path, linear in linears.items():
        weights, bias = linear.list_weights(path)
        wanted |= {part.tensor for weight in (*weights.values(), *([bias] if bias else ())) for part in weight.parts}
    assert names == wanted
    assert ("lm_head.weight" in names) != backbone.tie_word_embeddings


@pytest.mark.parametrize("name", BACKBONES)
def test_text_models_take_no_media(name: str, tiny_checkpoint: Callable[[str], Path]) -> None:
    family, tokenizer = load_family(tiny_checkpoint(name))
    assert family.markers == {} and family.modalities == () and family.largest_input() is None
    front = MediaFrontend(family, VisionConfig(), MediaLimits())
    with pytest.raises(RequestError, match="this model takes no media, not image input"):
        front.open([MediaPart(modality=IMAGE, source=b"")])
    front.close()
    with pytest.raises(CheckpointError, match="no vision tower"):
        family.build_encoder(torch.device("cpu"), torch.float32)
    tokens = tokenize(RenderedPrompt(text="the thing"), tokenizer)
    made = build_input(tokens, [], family=family, model_digest=bytes(32))
    assert made.positions.tolist() == list(range(len(made.token_ids))) and made.next_position == len(made.token_ids)


@pytest.mark.parametrize("name", [name for name in FAMILIES if issubclass(ENROLLED[name], DynamicResolutionFamily)])
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
