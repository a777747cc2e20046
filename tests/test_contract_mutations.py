"""A test of the tests: faults that are easy to make in a family, each of which the contract must find.

A fault is put into our code in this process, the family is loaded anew, and the check that should find it must fail;
without the fault it must pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import family_checks
import numpy as np
import pytest
import torch
from enrolment import ENROLLED
from family_contract import Loaded, draw_image, load_beside_transformers, load_family

from seesay.checkpoint.parts import Source
from seesay.contract import checks as contract_checks
from seesay.device.linear.norm import rms_norm
from seesay.encoders.towers import (
    fractional_positions,
    hybrid_vit,
    ovis,
    packed_layout,
    pooled_crops,
    projected_vit,
    resampled_vit,
    resampler,
    sam,
    vit,
    vit_layers,
)
from seesay.encoders.towers import tiles as tiles_encoder
from seesay.encoders.towers.layers import join_squares
from seesay.encoders.towers.tiles import TileEncoder
from seesay.encoders.towers.timm_tower import TimmTower as TimmModule
from seesay.processors.media import host_chain as chain_runner
from seesay.processors.media import images, slices, tiles
from seesay.processors.text.tokenizer import Tokenizer
from seesay.values import Expansion, Modality, RenderedPrompt
from seesay.values.frame_chain import Crop, Pad
from seesay.vl.bases import (
    any_resolution,
    arrangement,
    dynamic_resolution,
    eva_clip,
    float_pixels,
    hd_transform,
    sliced,
)
from seesay.vl.bases.dynamic_resolution import DynamicResolutionFamily
from seesay.vl.bases.pixels import PixelSettings
from seesay.vl.bases.timed_videos import ClipSettings
from seesay.vl.families import (
    cogvlm,
    deepseek_ocr,
    deepseek_vl,
    deepseek_vl2,
    gemma3,
    glm4v,
    idefics3,
    internvl,
    kimi_vl,
    llava,
    llava_next,
    llava_onevision,
    minicpmv,
    molmo,
    nemotron_h_omni,
    ovis2,
    paligemma,
    perception_lm,
    phi3_v,
    pixtral,
    qwen3_vl,
    qwen_vl,
    smolvlm,
    xcomposer2,
)
from seesay.vl.family import Family, Features, Wording
from seesay.vl.weight_map import WeightMap

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:transformers"),
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers"),
    pytest.mark.filterwarnings("ignore:__array_wrap__ must accept:DeprecationWarning"),
]
Patch = pytest.MonkeyPatch
COUNTS = "counts_equal_the_processors"
ROUNDED = [(147, 392), (392, 147)]
"""Sizes at which rounding decides about a line."""
Fault = Callable[[Patch], None]


@dataclass(frozen=True)
class Mutation:
    """`fault` in the model `name`, which `check` (a function of `family_checks`) must find."""

    fault: Fault
    name: str
    check: str

    def __str__(self) -> str:
        return f"{self.fault.__name__}-{self.name}-{self.check}"


MUTATIONS: list[Mutation] = []


def caught_by(check: str, *names: str) -> Callable[[Fault], Fault]:
    """Declare a fault that `check` finds in each of the models `names`."""

    def declare(fault: Fault) -> Fault:
        MUTATIONS.extend(Mutation(fault, name, check) for name in names)
        return fault

    return declare


def wrap(patch: Patch, owner: Any, name: str, change: Callable[[Any], Any]) -> None:
    """Let what `owner.name` returns be changed."""
    original = getattr(owner, name)

    def changed(*args: Any, **options: Any) -> Any:
        return change(original(*args, **options))

    patch.setattr(owner, name, changed)


# --- cache keys -------------------------------------------------------------------------------------------------------


@caught_by("keys_follow_options", "qwen2_vl", "qwen2_5_vl", "internvl")
def key_without_options(patch: Patch) -> None:
    original = Family.media_key
    patch.setattr(Family, "media_key", lambda self, modality, options: original(self, modality, {}))


def _drop_from_key(patch: Patch, modality: Modality, name: str) -> None:
    original = Family.media_key

    def media_key(self: Family, kind: Modality, options: Any) -> bytes:
        kept = {key: value for key, value in options.items() if (kind, key) != (modality, name)}
        return original(self, kind, kept)

    patch.setattr(Family, "media_key", media_key)


@caught_by("keys_follow_options", "internvl")
def key_without_one_option(patch: Patch) -> None:
    _drop_from_key(patch, Modality.IMAGE, "max_dynamic_patch")


@caught_by("keys_follow_options", "qwen2_vl")
def key_without_one_option_of_videos(patch: Patch) -> None:
    _drop_from_key(patch, Modality.VIDEO, "max_pixels")


@caught_by("keys_follow_options", "qwen2_5_vl", "internvl")
def key_without_modality(patch: Patch) -> None:
    original = Family.media_key
    patch.setattr(Family, "media_key", lambda self, _modality, options: original(self, Modality.IMAGE, options))


@caught_by("keys_follow_settings", "qwen2_vl", "llava", "internvl")
def key_without_settings(patch: Patch) -> None:
    patch.setattr(Family, "media_key", lambda self, modality, options: repr((modality, options)).encode())


@caught_by("keys_follow_settings", "llava", "internvl")
def key_without_statistics(patch: Patch) -> None:
    patch.setattr(PixelSettings, "as_json", lambda self: {"resample": self.resample})


@caught_by("keys_follow_settings", "llava", "internvl", "qwen2_vl")
def key_without_filter(patch: Patch) -> None:
    patch.setattr(PixelSettings, "as_json", lambda self: self.statistics)


def _drop_setting(patch: Patch, family: type[Family], name: str) -> None:
    original = vars(family)["preprocessing"].fget
    patch.setattr(family, "preprocessing", property(lambda self: {**original(self), name: None}))


@caught_by("keys_follow_settings", "internvl")
def key_without_number_of_tiles(patch: Patch) -> None:
    _drop_setting(patch, internvl.InternVL, "tiles")


@caught_by("keys_follow_settings", "llava")
def key_without_size(patch: Patch) -> None:
    _drop_setting(patch, llava.Llava, "size")


# --- tokens -----------------------------------------------------------------------------------------------------------


def _shorten(expansion: Expansion) -> Expansion:
    last = int(np.flatnonzero(expansion.takes_embedding)[-1])
    kept = np.arange(len(expansion.token_ids)) != last
    return Expansion(token_ids=expansion.token_ids[kept], takes_embedding=expansion.takes_embedding[kept])


def _each_class(names: tuple[str, ...], change: Callable[[type[Family]], None]) -> None:
    for name in names:
        change(ENROLLED[name])


RENAMED = ("qwen2_vl", "qwen2_5_vl", "llava", "internvl", "llava_next", "llava_onevision")
"""Those whose tensors have other names in memory than in the file."""
VISION = (*RENAMED, "idefics3", "smolvlm")


@caught_by("tokens_equal_the_processors", *VISION)
@caught_by("counts_equal_the_processors", *VISION)
@caught_by("rows_equal_the_models", "llava")
def one_placeholder_too_few(patch: Patch) -> None:
    _each_class(VISION, lambda family: wrap(patch, family, "expand", _shorten))


@caught_by("tokens_equal_the_processors", "internvl", "qwen2_vl", "pixtral")
def no_end_token(patch: Patch) -> None:
    def drop(expansion: Expansion) -> Expansion:
        return Expansion(token_ids=expansion.token_ids[:-1], takes_embedding=expansion.takes_embedding[:-1])

    _each_class(("internvl", "qwen2_vl", "pixtral"), lambda family: wrap(patch, family, "expand", drop))


@caught_by("tokens_equal_the_processors", "internvl")
def a_separator_is_split_in_two(patch: Patch) -> None:
    """Each half of the text is tokenized by itself."""
    original = Tokenizer.encode

    def encode(self: Tokenizer, text: str, *args: Any, **options: Any) -> Any:
        if "Frame" not in text or len(text) > 12:
            return original(self, text, *args, **options)
        middle = text.index("Frame") + 2
        parts = [original(self, part, *args, **options) for part in (text[:middle], text[middle:])]
        return [token for part in parts for token in part]

    patch.setattr(Tokenizer, "encode", encode)


@caught_by("tokens_equal_the_processors", "internvl")
def frames_are_numbered_from_zero(patch: Patch) -> None:
    original = Tokenizer.encode

    def encode(self: Tokenizer, text: str, *args: Any, **options: Any) -> Any:
        if "Frame" in text and len(text) < 12:
            number = int("".join(filter(str.isdigit, text)))
            text = text.replace(str(number), str(number - 1))
        return original(self, text, *args, **options)

    patch.setattr(Tokenizer, "encode", encode)


@caught_by("pixels_equal_the_processors", "internvl")
def rows_and_columns_of_tiles_are_swapped(patch: Patch) -> None:
    wrap(patch, internvl, "tile_grid", lambda grid: grid[::-1])


@caught_by("counts_equal_the_processors", "internvl")
def no_thumbnail_is_counted(patch: Patch) -> None:
    def drop(measures: Any) -> Any:
        return {**measures, "num_tiles": max(1, measures["num_tiles"] - 1)}

    wrap(patch, internvl.InternVL, "measure", drop)


@caught_by("plans_equal_what_is_prepared", "internvl")
def preprocessing_cuts_another_number_of_tiles_than_was_planned(patch: Patch) -> None:
    wrap(patch, internvl.InternVL, "preprocess", lambda features: {**features, "num_tiles": 1})


@caught_by("counts_equal_the_processors", "qwen2_vl", "qwen2_5_vl")
def sizes_are_rounded_down(patch: Patch) -> None:
    def smart_resize(height: int, width: int, *, factor: int, **limits: Any) -> tuple[int, int]:
        found = images.smart_resize(height, width, factor=factor, **limits)
        down = (max(factor, height // factor * factor), max(factor, width // factor * factor))
        return down if limits["min_pixels"] <= math.prod(down) <= limits["max_pixels"] else found

    patch.setattr(dynamic_resolution, "smart_resize", smart_resize)


@caught_by("counts_equal_the_processors", "llava_next")
def padding_is_not_rounded(patch: Patch) -> None:
    """49 · 3/8 of something is a whole number, and a little less in floating point."""
    patch.setattr(arrangement, "round", lambda value, _digits: value, raising=False)


@caught_by("counts_equal_the_processors", "llava_next")
def padding_is_rounded_to_the_next_line(patch: Patch) -> None:
    patch.setattr(arrangement, "round", lambda value, _digits: round(value), raising=False)


@caught_by("counts_equal_the_processors", "llava_next", "llava_onevision")
@caught_by("tokens_equal_the_processors", "llava_next")
def padding_is_cut_off_at_one_side_only(patch: Patch) -> None:
    def unpad(numbers: Any, size: tuple[int, int], **options: Any) -> Any:
        found = arrangement.unpad(numbers, size, **options)
        cut = [whole - left for whole, left in zip(numbers.shape, found.shape, strict=True)]
        return numbers[: len(numbers) - cut[0] // 2, : numbers.shape[1] - cut[1] // 2]

    patch.setattr(any_resolution, "unpad", unpad)


@caught_by("tokens_equal_the_processors", "llava_next")
def the_last_line_has_no_newline(patch: Patch) -> None:
    wrap(patch, llava_next, "chain", lambda numbers: numbers[:-1])


@caught_by("counts_equal_the_processors", "llava_next", "llava_onevision")
def height_and_width_of_a_resolution_are_swapped(patch: Patch) -> None:
    wrap(patch, any_resolution, "select_resolution", lambda found: found[::-1])


@caught_by("counts_equal_the_processors", "llava_onevision")
def large_pictures_are_not_shrunk(patch: Patch) -> None:
    patch.setattr(llava_onevision, "_SHRINKS_ABOVE", math.inf)


@caught_by("counts_equal_the_processors", "pixtral", "mistral3")
def shrunk_sides_are_rounded(patch: Patch) -> None:
    patch.setattr(pixtral, "math", SimpleNamespace(floor=round, prod=math.prod))


@caught_by("tokens_equal_the_processors", "pixtral")
def every_line_ends_as_the_last_one(patch: Patch) -> None:
    original = pixtral.Pixtral.__init__

    def init(self: pixtral.Pixtral, *args: Any) -> None:
        original(self, *args)
        self._break = self._end

    patch.setattr(pixtral.Pixtral, "__init__", init)


@caught_by("tokens_equal_the_processors", "gemma3_vision")
def texts_around_a_picture_are_tokenized_alone(patch: Patch) -> None:
    def expand(self: gemma3.Gemma3, modality: Modality, measures: Any) -> Expansion:
        found = original(self, modality, measures)
        breaks = np.array(self.tokenizer.encode("\n\n"))
        ids = np.concatenate([breaks, found.token_ids, breaks])
        return Expansion(token_ids=ids, takes_embedding=np.pad(found.takes_embedding, len(breaks)))

    original = gemma3.Gemma3.expand
    patch.setattr(gemma3.Gemma3, "expand", expand)
    patch.setattr(gemma3.Gemma3, "word", Family.word)


@caught_by("rows_equal_the_models", "gemma3_vision")
def the_projectors_norm_has_no_offset(patch: Patch) -> None:
    patch.setattr(projected_vit, "rms_norm", lambda x, weight, eps: rms_norm(x, weight - 1, eps))


@caught_by("tokens_equal_the_processors", "paligemma2")
def prompts_begin_with_bos(patch: Patch) -> None:
    original = paligemma.PaliGemma.complete

    def complete(self: paligemma.PaliGemma, rendered: RenderedPrompt, **options: Any) -> RenderedPrompt:
        written = original(self, replace(rendered, markers=()), **options)
        shift = len(self._bos)
        return replace(written, markers=tuple((start + shift, stop + shift) for start, stop in rendered.markers))

    patch.setattr(paligemma.PaliGemma, "complete", complete)


@caught_by("tokens_equal_the_processors", "paligemma2")
def no_line_break_ends_a_prompt(patch: Patch) -> None:
    original = paligemma.PaliGemma.complete
    patch.setattr(paligemma.PaliGemma, "complete", lambda self, rendered: original(self, rendered, is_open=True))


@caught_by("logits_equal_the_models", "paligemma", "paligemma2")
def prompts_are_causal(patch: Patch) -> None:
    patch.setattr(paligemma.PaliGemma, "is_prefix_lm", False)


@caught_by("rows_equal_the_models", "gemma3_vision", "deepseek_vl", "paligemma2")
def the_towers_last_norm_is_left_out(patch: Patch) -> None:
    original = vit.Vit.forward

    def forward(self: vit.Vit, patches: torch.Tensor) -> torch.Tensor:
        self.norm = None
        return original(self, patches)

    patch.setattr(vit.Vit, "forward", forward)


@caught_by("keys_follow_options", "gemma3_vision")
def key_without_pan_and_scan(patch: Patch) -> None:
    _drop_from_key(patch, Modality.IMAGE, "do_pan_and_scan")


@caught_by("keys_follow_options", "pixtral")
def key_without_the_largest_side(patch: Patch) -> None:
    _drop_from_key(patch, Modality.IMAGE, "size")


@caught_by("keys_follow_settings", "pixtral")
def key_without_the_limit(patch: Patch) -> None:
    _drop_setting(patch, pixtral.Pixtral, "limit")


@caught_by("rows_equal_the_models", "pixtral", "mistral3")
def rows_and_columns_have_the_same_frequencies(patch: Patch) -> None:
    wrap(patch, pixtral.Pixtral, "_tower_config", lambda config: replace(config, alternates_axes=False))


@caught_by("keys_follow_options", "llava_next", "llava_onevision")
def key_without_the_number_of_tiles(patch: Patch) -> None:
    _drop_from_key(patch, Modality.IMAGE, "max_dynamic_patch")


# --- pixels and rows --------------------------------------------------------------------------------------------------


@caught_by("pixels_equal_the_processors", *VISION, "pixtral")
def statistics_of_another_processor(patch: Patch) -> None:
    halves = {"mean": (0.5,) * 3, "std": (0.5,) * 3, "rescale_factor": 1 / 255}
    patch.setattr(PixelSettings, "statistics", property(lambda self: halves))


@caught_by("pixels_equal_the_processors", *VISION, "pixtral")
def channels_of_the_mean_are_swapped(patch: Patch) -> None:
    patch.setattr(
        PixelSettings,
        "statistics",
        property(lambda self: {"mean": self.mean[::-1], "std": self.std, "rescale_factor": self.rescale_factor}),
    )


@caught_by("pixels_equal_the_processors", "llava", "qwen2_vl", "pixtral")
def another_filter(patch: Patch) -> None:
    patch.setattr(chain_runner, "resize", lambda frames, size, **_: images.resize(frames, size, resample="bilinear"))


@caught_by("pixels_equal_the_processors", "qwen2_vl", "qwen2_5_vl", "mistral3")
@caught_by("rows_equal_the_models", "qwen2_5_vl", "mistral3")
def patches_are_not_in_merge_order(patch: Patch) -> None:
    def shuffle(patches: Any) -> Any:
        groups = patches.reshape(-1, 4, patches.shape[1])
        return groups[:, [0, 2, 1, 3]].reshape(patches.shape)

    wrap(patch, chain_runner, "cut_patches", shuffle)


@caught_by("pixels_equal_the_processors", "internvl")
def the_thumbnail_comes_first(patch: Patch) -> None:
    wrap(patch, ENROLLED["internvl"], "chain_frames", lambda chains: chains[::-1])


@caught_by("pixels_equal_the_processors", "llava")
def pictures_are_cropped_at_a_corner(patch: Patch) -> None:
    patch.setattr(llava, "crop_center", lambda size, target: (Crop(target, (0, 0)),))


@caught_by("pixels_equal_the_processors", "deepseek_vl")
def thin_pictures_become_thinner(patch: Patch) -> None:
    original = images.longest_edge_size
    patch.setattr(deepseek_vl, "longest_edge_size", lambda *size, least: original(*size, least=1))


@caught_by("pixels_equal_the_processors", "deepseek_vl")
def squares_are_padded_with_black(patch: Patch) -> None:
    patch.setattr(deepseek_vl, "read_padding_color", lambda *_, **__: (0, 0, 0))


@caught_by("pixels_equal_the_processors", "deepseek_vl")
def squares_are_padded_at_one_side(patch: Patch) -> None:
    patch.setattr(deepseek_vl, "pad_to", lambda _size, target, color: (Pad(target, (0, 0), color),))


@caught_by("pixels_equal_the_processors", "deepseek_vl_original")
def sizes_of_the_authors_are_rounded_up_too(patch: Patch) -> None:
    patch.setattr(deepseek_vl, "floored_edge_size", images.longest_edge_size)


@caught_by("pixels_equal_the_processors", "deepseek_vl_hybrid")
def the_small_picture_is_made_of_the_original(patch: Patch) -> None:
    def chain_frames(self: Any, modality: Modality, size: Any, measures: Any) -> Any:
        high = original(self, modality, size, measures)[1]
        return DeepseekVL.chain_frames(self, modality, size, measures)[0], high

    def preprocess(self: Any, media: Any, measures: Any) -> dict[str, Any]:
        low, high = (chain_runner.run_chains(media.frames, (each,)) for each in chain_frames(self, *_of(media)))
        return {**measures, "pixels": low, "high_pixels": high}

    def _of(media: Any) -> tuple[Any, ...]:
        return media.modality, media.size, {}

    DeepseekVL, original = deepseek_vl.DeepseekVL, ENROLLED["deepseek_vl_hybrid"].chain_frames
    patch.setattr(ENROLLED["deepseek_vl_hybrid"], "preprocess", preprocess)


@caught_by("pixels_equal_the_processors", "deepseek_vl_hybrid")
def both_towers_have_the_same_statistics(patch: Patch) -> None:
    original = hybrid_vit.HybridEncoder.__init__

    def init(self: Any, checkpoint: Any, name_of: Any, towers: Any, normalizers: Any, **options: Any) -> None:
        original(self, checkpoint, name_of, towers, normalizers[:1] * 2, **options)

    patch.setattr(hybrid_vit.HybridEncoder, "__init__", init)


@caught_by("rows_equal_the_models", "deepseek_vl_hybrid")
def windows_end_with_the_picture(patch: Patch) -> None:
    """The rows of zeros behind the last windows are attended to."""
    original = sam._cut_windows
    patch.setattr(sam, "_cut_windows", lambda grids, window: original(grids + 1e-3, window))


@caught_by("rows_equal_the_models", "deepseek_vl_hybrid")
def distances_in_height_and_width_are_swapped(patch: Patch) -> None:
    original = sam._RelativeAttention._attend

    def attend(self: Any, grids: torch.Tensor) -> torch.Tensor:
        return original(self, grids.transpose(1, 2)).transpose(1, 2)

    patch.setattr(sam._RelativeAttention, "_attend", attend)


@caught_by("rows_equal_the_models", "deepseek_vl_hybrid")
def the_layer_after_the_kept_one(patch: Patch) -> None:
    wrap(
        patch, ENROLLED["deepseek_vl_hybrid"], "_read_sam",
        lambda config: replace(config, kept_layer=config.kept_layer + 1),
    )  # fmt: skip


@caught_by("keys_follow_settings", "deepseek_vl_hybrid")
def key_without_the_larger_picture(patch: Patch) -> None:
    _drop_setting(patch, ENROLLED["deepseek_vl_hybrid"], "high")


@caught_by("tokens_equal_the_processors", "ovis2")
def tiles_are_chosen_as_by_the_authors(patch: Patch) -> None:
    wrap(patch, ovis2, "fit_covering_grid", lambda grid: grid[::-1])


@caught_by("tokens_equal_the_processors", "ovis2_original")
def rows_and_columns_of_the_authors_are_swapped(patch: Patch) -> None:
    wrap(patch, ovis2, "fit_covering_grid", lambda grid: grid[::-1])


@caught_by("pixels_equal_the_processors", "ovis2_original")
def parts_are_stretched_to_a_tile(patch: Patch) -> None:
    patch.setattr(ovis2, "floored_edge_size", lambda _height, _width, edge, *, least: (edge, edge))


@caught_by(COUNTS, "ovis2")
def a_grid_that_shows_less_is_enough(patch: Patch) -> None:
    patch.setattr(tiles, "_COVERING", 0.8)
    tiles.fit_covering_grid.cache_clear()


@caught_by("pixels_equal_the_processors", "ovis2")
def the_view_of_the_whole_comes_last(patch: Patch) -> None:
    wrap(patch, ovis2.Ovis2, "chain_frames", lambda chains: chains[::-1])


@caught_by("rows_equal_the_models", "ovis2")
def indicators_are_the_first_words(patch: Patch) -> None:
    patch.setattr(
        ovis.OvisVit, "stack", lambda self: self.visual_embeddings_table.weight[: self.vocabulary.num_indicators]
    )


@caught_by("rows_equal_the_models", "ovis2")
def positions_are_normed_with_the_patches(patch: Patch) -> None:
    def embed(self: vit.Vit, patches: torch.Tensor) -> torch.Tensor:
        assert self.norm_patches is not None and self.pos_embed is not None
        normed: torch.Tensor = self.norm_patches(self.patch_embed(patches) + self.pos_embed)
        return normed

    patch.setattr(vit.Vit, "_embed", embed)


@caught_by("rows_equal_the_models", "ovis2", "ovis2_hard")
def rows_are_mixed_and_picked_the_other_way(patch: Patch) -> None:
    patch.setattr(ovis2, "_IS_HARD", {"softmax": True, "st_argmax": False})


@caught_by("keys_follow_settings", "ovis2")
def key_without_the_grid(patch: Patch) -> None:
    _drop_setting(patch, ovis2.Ovis2, "tiles")


@caught_by("keys_follow_settings", "deepseek_vl")
def key_without_the_least_side(patch: Patch) -> None:
    _drop_setting(patch, deepseek_vl.DeepseekVL, "min")


@caught_by("rows_equal_the_models", "llava")
def the_last_layer_instead_of_the_one_before(patch: Patch) -> None:
    original = ENROLLED["llava"].__init__

    def init(self: Any, *args: Any) -> None:
        original(self, *args)
        self._feature_layers = tuple(layer + 1 for layer in self._feature_layers)

    patch.setattr(ENROLLED["llava"], "__init__", init)


@caught_by("rows_equal_the_models", *VISION, "pixtral")
@caught_by("packed_equals_alone", *VISION, "pixtral")
def rows_of_two_items_are_swapped(patch: Patch) -> None:
    from seesay.encoders.towers.packed_vit import PackedEncoder

    for encoder in (TileEncoder, PackedEncoder):
        wrap(patch, encoder, "encode", lambda rows: [*rows[1::-1], *rows[2:]])


@caught_by("packed_equals_alone", "qwen2_vl", "qwen2_5_vl", "pixtral")
def pictures_attend_to_their_neighbours(patch: Patch) -> None:
    """All frames of all items are one segment."""
    from seesay.encoders.towers import packed_layout, packed_vit

    patch.setattr(packed_vit, "make_kept_layout", packed_layout.make_kept_layout.__wrapped__)
    wrap(patch, packed_layout, "_order_windows", lambda found: (*found[:2], found[2].sum(keepdims=True)))


@caught_by("rows_equal_the_models", "llava_next", "llava_onevision")
def newlines_come_before_their_lines(patch: Patch) -> None:
    for family in (llava_next, llava_onevision):
        wrap(patch, family, "end_lines", lambda lines: np.roll(lines, 1, axis=1))


@caught_by("rows_equal_the_models", "llava_next", "llava_onevision")
def a_newline_is_a_row_of_the_picture(patch: Patch) -> None:
    for family in (llava_next, llava_onevision):
        patch.setattr(family, "NEWLINE", -2)


@caught_by("rows_equal_the_models", "llava_next", "llava_onevision")
def tiles_lie_one_below_the_other(patch: Patch) -> None:
    """Each tile is a band of lines of the picture."""

    def join(first: int, tiles: tuple[int, int], grid: tuple[int, int]) -> Any:
        found = arrangement.join_tiles(first, tiles, grid)
        return np.sort(found, axis=None).reshape(found.shape)

    patch.setattr(any_resolution, "join_tiles", join)


@caught_by("rows_equal_the_models", "llava_next")
def the_whole_picture_comes_last(patch: Patch) -> None:
    patch.setattr(llava_next, "chain", lambda whole, lines: arrangement.chain(lines, whole))


@caught_by("pixels_equal_the_processors", "llava_next", "llava_onevision")
def pictures_are_padded_at_one_side_only(patch: Patch) -> None:
    patch.setattr(any_resolution, "pad_to", lambda size, target, color: (Pad(target, (0, 0), color),))


@caught_by("pixels_equal_the_processors", "llava_onevision")
def several_pictures_are_stretched_to_squares(patch: Patch) -> None:
    patch.setattr(llava_onevision, "pad_to", lambda *_: ())


@caught_by("rows_equal_the_models", "llava_onevision")
def lines_are_shrunk_to_their_nearest(patch: Patch) -> None:
    def nearest(old: int, new: int) -> Any:
        lines = np.arange(new) * old // new
        return np.stack((lines, lines)), np.stack((np.ones(new, np.float32), np.zeros(new, np.float32)))

    patch.setattr(arrangement, "_lie_between", nearest)


@caught_by("rows_equal_the_models", "llava_onevision")
def every_frame_is_the_first(patch: Patch) -> None:
    grid = np.arange(9, dtype=np.int32)

    def chain(*parts: Any) -> Any:
        found = arrangement.chain_blends(*parts)
        rows = found["rows"]
        return {**found, "rows": np.where(rows < 0, rows, rows % len(grid))}

    patch.setattr(llava_onevision, "chain_blends", chain)


# --- positions and names ----------------------------------------------------------------------------------------------


@caught_by("tokens_equal_the_processors", "qwen3_vl")
def a_time_step_has_the_time_of_its_first_frame(patch: Patch) -> None:
    def begin(measures: Any) -> Any:
        times = measures.get("times")
        return measures if times is None else {**measures, "times": tuple(time - 0.25 for time in times)}

    wrap(patch, qwen3_vl.Qwen3VL, "measure", begin)


@caught_by("tokens_equal_the_processors", "glm4v", "glm46v")
def a_time_step_has_the_time_of_the_next_one(patch: Patch) -> None:
    wrap(patch, glm4v.Glm4V, "find_times", lambda times: tuple(time + 1 for time in times))


@caught_by("tokens_equal_the_processors", "glm4v", "glm46v")
def times_are_written_as_by_the_other_processor(patch: Patch) -> None:
    original = glm4v.Glm4V.__init__

    def init(self: glm4v.Glm4V, *args: Any) -> None:
        original(self, *args)
        self._spells_tenths = not self._spells_tenths

    patch.setattr(glm4v.Glm4V, "__init__", init)


@caught_by("tokens_equal_the_processors", "glm4v")
def places_of_a_video_have_its_own_token(patch: Patch) -> None:
    patch.setattr(glm4v.Glm4V, "row_token", property(lambda self: self.item_tokens[Modality.VIDEO][1]))


@caught_by("counts_equal_the_processors", "glm4v")
def a_picture_counts_as_one_frame(patch: Patch) -> None:
    original = ClipSettings.fit

    def fit(self: ClipSettings, size: Any, options: Any) -> tuple[int, int]:
        return original(replace(self, temporal_patch_size=1), size, options)

    patch.setattr(ClipSettings, "fit", fit)


@caught_by("rows_equal_the_models", "glm4v")
def positions_are_blended_linearly(patch: Patch) -> None:
    wrap(patch, glm4v.Glm4V, "tower_config", lambda config: replace(config, position_blending="bilinear"))


# --- Kimi-VL ----------------------------------------------------------------------------------------------------------


@caught_by("rows_equal_the_models", "kimi_vl")
def rows_and_columns_of_neighbours_change_places(patch: Patch) -> None:
    original = packed_layout._compute_angles
    patch.setattr(packed_layout, "_compute_angles", lambda places, *more: original(places.flip(1), *more))


@caught_by("rows_equal_the_models", "kimi_vl")
def halves_of_heads_are_turned(patch: Patch) -> None:
    wrap(patch, kimi_vl, "_make_tower_config", lambda config: replace(config, rotates_neighbours=False))


@caught_by("rows_equal_the_models", "kimi_vl")
def positions_of_a_picture_are_blended_linearly(patch: Patch) -> None:
    wrap(patch, kimi_vl, "_make_tower_config", lambda config: replace(config, position_blending="bilinear"))


@caught_by("rows_equal_the_models", "kimi_vl")
def the_second_norm_has_the_precision_of_another_tower(patch: Patch) -> None:
    wrap(patch, kimi_vl, "_make_tower_config", lambda config: replace(config, norm_eps=1e-2))


@caught_by("pixels_equal_the_processors", "kimi_vl")
def padding_is_gray(patch: Patch) -> None:
    patch.setattr(kimi_vl, "_BLACK", (127, 127, 127))


@caught_by("pixels_equal_the_processors", "kimi_vl")
def padding_lies_on_all_sides(patch: Patch) -> None:
    def center(size: tuple[int, int], _at: object, color: tuple[int, int, int]) -> Pad:
        return Pad(size, (1, 1), color)

    patch.setattr(kimi_vl, "Pad", center)


@caught_by("counts_equal_the_processors", "kimi_vl")
def patches_that_are_not_whole_count(patch: Patch) -> None:
    original = kimi_vl.KimiVL.measure

    def measure(self: kimi_vl.KimiVL, modality: Modality, size: Any, options: Any) -> Features:
        whole = replace(size, height=-(-size.height // 4) * 4, width=-(-size.width // 4) * 4)
        return original(self, modality, whole, options)

    patch.setattr(kimi_vl.KimiVL, "measure", measure)


# --- Nemotron Omni ----------------------------------------------------------------------------------------------------


@caught_by("rows_equal_the_models", "nemotron_h_omni")
def positions_are_stretched_over_the_frame_alone(patch: Patch) -> None:
    blending: Any = "antialiased"
    wrap(patch, nemotron_h_omni, "make_tower_config", lambda config: replace(config, position_blending=blending))


@caught_by("rows_equal_the_models", "nemotron_h_omni")
def rows_before_patches_are_all_the_first(patch: Patch) -> None:
    from seesay.encoders.towers import packed_vit

    patch.setattr(packed_vit, "make_kept_layout", packed_layout.make_kept_layout.__wrapped__)
    wrap(patch, packed_layout, "_find_prefixed", lambda found: [np.where(found[0] < 3, 0, found[0]), found[1]])


@caught_by("pixels_equal_the_processors", "nemotron_h_omni")
def interpolation_does_not_overshoot(patch: Patch) -> None:
    original = images.resize_as_float
    patch.setattr(float_pixels, "resize_as_float", lambda *args, **more: original(*args, **{**more, "clamps": True}))


@caught_by("rows_equal_the_models", "nemotron_h_omni")
def frames_of_a_step_are_swapped(patch: Patch) -> None:
    from seesay.encoders.towers import packed_vit

    original = packed_vit.PackedVisionTower.embed_patches

    def embed(self: Any, patches: torch.Tensor) -> torch.Tensor:
        if patches.shape[1] != self.config.patch_dim:
            patches = patches.view(len(patches), 3, 2, -1).flip(2).flatten(1)
        return original(self, patches)

    patch.setattr(packed_vit.PackedVisionTower, "embed_patches", embed)


@caught_by("tokens_equal_the_processors", "nemotron_h_omni")
def steps_are_named_by_their_first_frames(patch: Patch) -> None:
    original = nemotron_h_omni.VideoSettings.name_step

    def name_step(self: nemotron_h_omni.VideoSettings, times: Sequence[int], step: int) -> str:
        return original(self, times[: 2 * step + 1], step)

    patch.setattr(nemotron_h_omni.VideoSettings, "name_step", name_step)


# --- DeepSeek-OCR -----------------------------------------------------------------------------------------------------


@caught_by("rows_equal_the_models", "deepseek_ocr")
def newlines_and_separators_of_pages_are_swapped(patch: Patch) -> None:
    patch.setattr(deepseek_ocr, "_NEWLINE", -1)
    patch.setattr(deepseek_ocr, "_SEPARATOR", -2)


@caught_by("rows_equal_the_models", "deepseek_ocr")
def tiles_of_pages_are_not_joined(patch: Patch) -> None:
    def lay(first: int, tiles: tuple[int, int], grid: tuple[int, int]) -> Any:
        return arrangement.number_rows(first, (tiles[0] * grid[0], tiles[1] * grid[1]))

    patch.setattr(deepseek_ocr, "join_tiles", lay)


# --- DeepSeek-VL2 -----------------------------------------------------------------------------------------------------


@caught_by("rows_equal_the_models", "deepseek_vl2")
def the_newline_and_the_separator_change_places(patch: Patch) -> None:
    patch.setattr(deepseek_vl2, "_NEWLINE", -1)
    patch.setattr(deepseek_vl2, "_SEPARATOR", -2)


@caught_by("rows_equal_the_models", "deepseek_vl2")
def the_whole_square_comes_behind_the_tiles(patch: Patch) -> None:
    """Of one picture: more of them are not cut, and their only tile is the whole picture, too."""
    patch.setattr(family_checks, "mixed_media", lambda _family: [draw_image(30, 80)])
    original = deepseek_vl2.DeepseekVL2.__init__

    def init(self: deepseek_vl2.DeepseekVL2, *args: Any) -> None:
        original(self, *args)
        self._is_whole_first = False

    patch.setattr(deepseek_vl2.DeepseekVL2, "__init__", init)


@caught_by("rows_equal_the_models", "deepseek_vl2")
def squares_are_joined_row_by_row(patch: Patch) -> None:
    patch.setattr(projected_vit, "join_squares", lambda *args, **options: join_squares(*args, turns=options["turns"]))


@caught_by("tokens_equal_the_processors", "deepseek_vl2")
def many_pictures_are_cut(patch: Patch) -> None:
    patch.setattr(deepseek_vl2.DeepseekVL2, "shared_options", Family.shared_options)


@caught_by("tokens_equal_the_processors", "deepseek_vl2")
def two_pictures_are_not_cut(patch: Patch) -> None:
    patch.setattr(family_checks, "mixed_media", lambda _family: [draw_image(30, 80), draw_image(60, 20)])
    patch.setattr(deepseek_vl2, "_MOST_CUT", 1)


@caught_by("pixels_equal_the_processors", "deepseek_vl2")
def padding_is_black(patch: Patch) -> None:
    patch.setattr(deepseek_vl2, "read_padding_color", lambda *args, **options: (0, 0, 0))


@caught_by("pixels_equal_the_processors", "deepseek_vl2")
def odd_padding_is_rounded_down(patch: Patch) -> None:
    patch.setattr(deepseek_vl2, "center", lambda length, full: (full - length) // 2)


@caught_by("pixels_equal_the_processors", "deepseek_vl2")
def a_fitted_side_is_rounded_up(patch: Patch) -> None:
    patch.setattr(deepseek_vl2, "round", math.ceil, raising=False)


@caught_by("rows_equal_the_models", "glm4v", "chatglm_4v", "mistral3", "cogvlm2")
def patches_of_a_group_are_joined_whole(patch: Patch) -> None:
    """Patch by patch, where the matrix has channel by channel."""
    from seesay.encoders.towers.downsampler import PatchMerger

    patch.setattr(PatchMerger, "forward", lambda self, x: self.merging_layer(x.reshape(-1, math.prod(self.group))))


@caught_by("positions_equal_the_models", "chatglm_4v", "cogvlm")
@caught_by("logits_equal_the_models", "chatglm_4v", "cogvlm")
def rows_of_a_picture_count_up(patch: Patch) -> None:
    patch.setattr(eva_clip.EvaClipFamily, "positions", Family.positions)


@caught_by("rows_equal_the_models", "chatglm_4v")
def learned_rows_are_not_divided(patch: Patch) -> None:
    patch.setattr(projected_vit, "partial", lambda *_args, **_options: None)


@caught_by("rows_equal_the_models", "chatglm_4v", "cogvlm")
def the_learned_rows_change_places(patch: Patch) -> None:
    patch.setattr(eva_clip, "_START_ROW", -1)
    patch.setattr(eva_clip, "_END_ROW", -2)


@caught_by("tokens_equal_the_processors", "cogvlm")
def texts_around_pictures_begin_anew(patch: Patch) -> None:
    patch.setattr(cogvlm.CogVlm, "tokenizes_apart", True)


@caught_by("pixels_equal_the_processors", "cogvlm2_video")
def frames_are_scaled_down_with_antialiasing(patch: Patch) -> None:
    patch.setattr(cogvlm.CogVlmVideo, "antialiases", True)


@caught_by("tokens_equal_the_processors", "cogvlm2_video")
def frames_have_their_numbers_in_place_of_seconds(patch: Patch) -> None:
    original = cogvlm.CogVlmVideo.measure

    def measure(self: cogvlm.CogVlmVideo, *args: Any) -> Features:
        found = original(self, *args)
        return {**found, "seconds": tuple(range(found["num_tiles"]))}

    patch.setattr(cogvlm.CogVlmVideo, "measure", measure)


@caught_by("rows_equal_the_models", "cogvlm2_video")
def all_frames_have_the_rows_of_the_first(patch: Patch) -> None:
    wrap(patch, eva_clip, "number_rows", lambda rows: rows % rows.size)


@caught_by("rows_equal_the_models", "mini_gemini_gemma")
def rows_before_a_gemma_are_not_scaled(patch: Patch) -> None:
    from seesay.encoders.towers import detailed_vit

    wrap(patch, detailed_vit, "DetailConfig", lambda config: replace(config, row_scale=1.0))


@caught_by("positions_equal_the_models", "qwen3_vl", "glm4v")
def all_time_steps_begin_at_one_position(patch: Patch) -> None:
    """As if no text lay between them."""

    def join(items: Any) -> Any:
        for item in items:
            first = int(item.slots[0])
            yield item, first, first + len(item.slots)

    patch.setattr(dynamic_resolution, "_list_runs", join)


@caught_by("tokens_equal_the_processors", "smolvlm")
def text_beside_a_video_is_tokenized_alone(patch: Patch) -> None:
    """The words before a video end the text before them."""
    original = Tokenizer.encode_prompt

    def encode_prompt(self: Tokenizer, rendered: Any, **options: Any) -> Any:
        at = rendered.text.find("You are provided")
        if at <= 0:
            return original(self, rendered, **options)
        _, ranges = original(self, rendered, **options)
        head, whole = (self.encode(text) for text in (rendered.text[:at], rendered.text))
        tail = self.encode(rendered.text[at:])
        shift = len(head) + len(tail) - len(whole)
        moved = tuple((start + shift, stop + shift) if start > len(head) else (start, stop) for start, stop in ranges)
        return np.asarray([*head, *tail]), moved

    patch.setattr(Tokenizer, "encode_prompt", encode_prompt)


@caught_by("tokens_equal_the_processors", "smolvlm")
def a_video_has_no_duration(patch: Patch) -> None:
    def drop(measures: Any) -> Any:
        return {**measures, "duration": 0} if "duration" in measures else measures

    wrap(patch, ENROLLED["smolvlm"], "measure", drop)


@caught_by("counts_equal_the_processors", "smolvlm")
@caught_by("tokens_equal_the_processors", "idefics3")
def a_line_of_tiles_has_no_end(patch: Patch) -> None:
    original = idefics3.TileWriter.write_tile
    patch.setattr(idefics3.TileWriter, "write_tile", lambda self, before: original(self, before.lstrip()))


@caught_by("pixels_equal_the_processors", "idefics3", "smolvlm")
def pictures_are_resized_once(patch: Patch) -> None:
    """To whole tiles, without the size that keeps their shape."""

    def skip(measures: Any) -> Any:
        return {**measures, "fitted": measures["resized"]}

    for name in ("idefics3", "smolvlm"):
        wrap(patch, ENROLLED[name], "measure", skip)


@caught_by("pixels_equal_the_processors", "perception_lm")
def tiles_come_before_the_whole_picture(patch: Patch) -> None:
    original = perception_lm.PerceptionLM.preprocess

    def preprocess(self: perception_lm.PerceptionLM, *args: Any) -> dict[str, Any]:
        found = original(self, *args)
        return {**found, "pixels": np.roll(found["pixels"], 1, axis=0)}

    patch.setattr(perception_lm.PerceptionLM, "preprocess", preprocess)


@caught_by(COUNTS, "perception_lm")
def of_equal_canvases_the_first_is_taken(patch: Patch) -> None:
    canvases = tiles._list_canvases
    patch.setattr(tiles, "_list_canvases", lambda count: dict(reversed(canvases(count).items())))


@caught_by("rows_equal_the_models", "perception_lm")
def columns_are_turned_as_lines(patch: Patch) -> None:
    original = vit._compute_angles
    patch.setattr(vit, "_compute_angles", lambda config, rope: original(config, replace(rope, columns_first=False)))


@caught_by("rows_equal_the_models", "perception_lm")
def a_class_token_is_turned(patch: Patch) -> None:
    wrap(patch, vit, "_compute_angles", lambda angles: tuple(torch.roll(each, 1, dims=0) for each in angles))


@caught_by("rows_equal_the_models", "perception_lm")
def halves_of_heads_are_turned_as_stored(patch: Patch) -> None:
    wrap(patch, vit_layers, "_order_heads", lambda picks: (range(picks[0].start, picks[0].start + 32),))


@caught_by("rows_equal_the_models", "fast_vlm")
def rows_of_a_convolution_come_by_columns(patch: Patch) -> None:
    def forward(self: TimmModule, patches: torch.Tensor) -> torch.Tensor:
        rows = original(self, patches)
        side = math.isqrt(rows.shape[1])
        return rows.view(len(rows), side, side, -1).transpose(1, 2).flatten(1, 2)

    original = TimmModule.forward
    patch.setattr(TimmModule, "forward", forward)


@caught_by("pixels_equal_the_processors", "idefics3", "smolvlm")
def the_shorter_side_is_not_made_even(patch: Patch) -> None:
    def scale(size: tuple[int, int], edge: int) -> tuple[int, int]:
        height, width = tiles._scale(size, edge)
        return max(1, height), max(1, width)

    patch.setattr(idefics3, "fit_longest_edge", scale)


@caught_by("rows_equal_the_models", "smolvlm")
def tiles_take_the_first_positions_of_the_table(patch: Patch) -> None:
    patch.setattr(vit, "find_positions", lambda grid, *_: np.arange(grid[0] * grid[1]))


@caught_by("rows_equal_the_models", "idefics3", "smolvlm", "internvl")
def squares_are_joined_by_columns(patch: Patch) -> None:
    from seesay.encoders.towers import layers

    def join(rows: torch.Tensor, grid: tuple[int, int], side: int, **options: bool) -> torch.Tensor:
        turned = rows.reshape(len(rows), *grid, -1).transpose(1, 2).flatten(1, 2)
        return layers.join_squares(turned, grid[::-1], side, **options)

    patch.setattr(projected_vit, "join_squares", join)


@caught_by("keys_follow_options", "idefics3", "smolvlm")
def key_without_splitting(patch: Patch) -> None:
    _drop_from_key(patch, Modality.IMAGE, "do_image_splitting")


@caught_by("keys_follow_settings", "smolvlm")
def key_without_the_size_of_videos(patch: Patch) -> None:
    _drop_setting(patch, smolvlm.SmolVLM, "video_edge")


@caught_by("positions_equal_the_models", "qwen2_vl", "qwen2_5_vl")
@caught_by("logits_equal_the_models", "qwen2_5_vl")
def a_clip_has_no_time(patch: Patch) -> None:
    for name in ("qwen2_vl", "qwen2_5_vl"):
        patch.setattr(ENROLLED[name], "time_interval", lambda self, features: 0.0)


@caught_by("positions_equal_the_models", "qwen2_5_vl")
def a_clip_has_one_step_per_grid(patch: Patch) -> None:
    patch.setattr(ENROLLED["qwen2_5_vl"], "time_interval", lambda self, features: 1.0)


@caught_by("positions_equal_the_models", "qwen2_vl")
def the_answer_starts_one_position_late(patch: Patch) -> None:
    wrap(patch, DynamicResolutionFamily, "positions", lambda found: (found[0], found[1] + 1))


@caught_by("positions_equal_the_models", "qwen2_vl")
def height_and_width_are_swapped(patch: Patch) -> None:
    wrap(patch, DynamicResolutionFamily, "positions", lambda found: (found[0][[0, 2, 1]], found[1]))


# --- slices and tiles of pictures that fill an area -------------------------------------------------------------------


@caught_by("rows_equal_the_models", "minicpmv")
def learned_positions_are_not_stretched(patch: Patch) -> None:
    wrap(patch, resampler, "find_positions", lambda found: found // 2)


@caught_by("rows_equal_the_models", "minicpmv")
def sines_of_rows_and_columns_are_swapped(patch: Patch) -> None:
    original = resampler._Layout
    patch.setattr(resampler, "_Layout", lambda packing, columns, rows, *rest: original(packing, rows, columns, *rest))


@caught_by("rows_equal_the_models", "minicpmv_2_5")
def lines_of_patches_are_columns(patch: Patch) -> None:
    original = fractional_positions.find_positions
    patch.setattr(resampler, "find_positions", lambda grid, side, rounding: original(grid[::-1], side, rounding))


@caught_by("rows_equal_the_models", "minicpmv_2_5")
def slices_are_padded_for_their_own_picture(patch: Patch) -> None:
    patch.setattr(minicpmv.MiniCPMV, "share", Family.share)


@caught_by("rows_equal_the_models", "minicpmv")
def values_have_positions_too(patch: Patch) -> None:
    original = resampler._CrossAttention.forward
    patch.setattr(
        resampler._CrossAttention, "forward", lambda self, q, key, _v, segments: original(self, q, key, key, segments)
    )


@caught_by("pixels_equal_the_processors", "minicpmv")
def slices_are_cut_column_by_column(patch: Patch) -> None:
    def cut(frames: Any, size: tuple[int, int]) -> Any:
        return chain_runner_cut(frames.swapaxes(1, 2), size[::-1]).swapaxes(1, 2)

    chain_runner_cut = chain_runner._cut_tiles
    patch.setattr(chain_runner, "_cut_tiles", cut)


@caught_by("tokens_equal_the_processors", "minicpmv")
def of_equally_near_grids_the_last_one_wins(patch: Patch) -> None:
    def choose_last(size: tuple[int, int], side: int, *, max_slices: int) -> tuple[int, int] | None:
        found = slices.choose_grid(size, side, max_slices=max_slices)
        return found[::-1] if found is not None and size[0] == size[1] else found

    patch.setattr(sliced, "choose_grid", choose_last)


@caught_by("counts_equal_the_processors", "minicpmv")
def a_picture_has_no_slice_more_than_its_area(patch: Patch) -> None:
    def choose_fewer(size: tuple[int, int], side: int, *, max_slices: int) -> tuple[int, int] | None:
        most = min(max_slices, math.ceil(math.prod(size) / side**2))
        return slices.choose_grid(size, side, max_slices=most)

    patch.setattr(sliced, "choose_grid", choose_fewer)


@caught_by("tokens_equal_the_processors", "minicpmv")
def pictures_are_not_numbered(patch: Patch) -> None:
    patch.setattr(minicpmv.MiniCPMV, "number", Family.number)


@caught_by("keys_follow_options", "minicpmv")
def key_without_the_number(patch: Patch) -> None:
    _drop_from_key(patch, Modality.IMAGE, "use_image_id")


@caught_by("rows_equal_the_models", "mini_gemini_hd")
def tiles_of_details_come_column_by_column(patch: Patch) -> None:
    from seesay.encoders.towers import detailed_vit

    cut = detailed_vit._cut
    patch.setattr(detailed_vit, "_cut", lambda x, tiles: cut(x.mT.contiguous(), tiles).mT)


@caught_by("rows_equal_the_models", "mini_gemini", "mini_gemini_hd")
def the_smaller_picture_is_made_without_aliases(patch: Patch) -> None:
    from seesay.encoders.towers import detailed_vit

    options: Any = {"mode": "bilinear", "align_corners": False, "antialias": True}
    patch.setattr(detailed_vit, "scale", lambda x, size: torch.nn.functional.interpolate(x, size, **options))


@caught_by("rows_equal_the_models", "mono_internvl")
def patches_have_the_positions_of_their_neighbours(patch: Patch) -> None:
    """As if the class token came last."""
    from seesay.encoders.towers.vit import Vit

    wrap(patch, Vit, "_find_own_positions", lambda found: found.roll(-1, dims=-2))


@caught_by("rows_equal_the_models", "molmo")
def padding_belongs_to_the_crop_that_has_it(patch: Patch) -> None:
    wrap(patch, molmo.Crops, "find_padding", lambda found: np.roll(found, 1, axis=0))


@caught_by("rows_equal_the_models", "molmo")
def rows_lie_crop_by_crop(patch: Patch) -> None:
    wrap(patch, molmo.Crops, "arrange", lambda found: (found[0], np.sort(found[1].ravel()).reshape(found[1].shape)))


@caught_by("rows_equal_the_models", "molmo")
def the_earlier_neighbour_gives_the_rows_of_the_overlap(patch: Patch) -> None:
    def keep(self: Any, index: int, _count: int) -> slice:
        return slice(0 if index == 0 else sum(self.margins) // 2, self.grid // 2)

    patch.setattr(molmo.Crops, "_keep", keep)


@caught_by("tokens_equal_the_processors", "molmo")
def overlaps_are_kept(patch: Patch) -> None:
    patch.setattr(molmo.Crops, "_keep", lambda self, index, count: slice(None))


@caught_by("rows_equal_the_models", "molmo")
def the_token_in_the_place_of_a_row_is_not_added(patch: Patch) -> None:
    original = pooled_crops.PooledCropVit.forward
    patch.setattr(
        pooled_crops.PooledCropVit,
        "forward",
        lambda self, patches: original(self, patches) - self.added_tokens[self._token_row],
    )


@caught_by("rows_equal_the_models", "molmo")
def the_first_patch_of_a_square_asks(patch: Patch) -> None:
    original = pooled_crops._SquarePooling.forward

    def ask_with_first(self: Any, squares: torch.Tensor) -> torch.Tensor:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(torch.Tensor, "mean", lambda x, **_: x[:, :1])
            return original(self, squares)

    patch.setattr(pooled_crops._SquarePooling, "forward", ask_with_first)


@caught_by("pixels_equal_the_processors", "molmo")
def resized_pixels_are_rounded(patch: Patch) -> None:
    wrap(patch, molmo, "resize_as_float", np.round)


@caught_by("tokens_equal_the_processors", "phi3_v")
def text_is_not_tokenized_apart(patch: Patch) -> None:
    patch.setattr(phi3_v.Phi3Vision, "tokenizes_apart", False)


@caught_by("rows_equal_the_models", "phi3_v")
def separators_are_swapped(patch: Patch) -> None:
    patch.setattr(phi3_v, "_LINE_END", -1)
    patch.setattr(phi3_v, "_VIEW_END", -2)


@caught_by("pixels_equal_the_processors", "phi3_v")
def the_whole_picture_is_rounded(patch: Patch) -> None:
    wrap(patch, tiles_encoder, "scale_whole", lambda found: (found * 64).round() / 64)


@caught_by("pixels_equal_the_processors", "phi3_v")
def tall_pictures_are_padded_below(patch: Patch) -> None:
    patch.setattr(hd_transform, "pad_to", lambda size, target, color: (Pad(target, (0, 0), color),))


@caught_by("rows_equal_the_models", "xcomposer2d5")
def separators_of_views_end_lines(patch: Patch) -> None:
    patch.setattr(xcomposer2, "_LINE_END", -1)
    patch.setattr(xcomposer2, "_VIEW_END", -2)


@caught_by("rows_equal_the_models", "xcomposer2_4khd")
def the_whole_picture_comes_behind_its_tiles(patch: Patch) -> None:
    wrap(patch, xcomposer2, "_arrange", lambda found: np.roll(found, -13))


@caught_by("pixels_equal_the_processors", "xcomposer2d5")
def white_is_on_both_sides(patch: Patch) -> None:
    original = hd_transform.HDTransform
    patch.setattr(xcomposer2, "HDTransform", lambda **options: original(**{**options, "padding": "both"}))


@caught_by("tokens_equal_the_processors", "xcomposer2d5")
def several_pictures_have_as_many_tiles_as_one(patch: Patch) -> None:
    patch.setattr(xcomposer2.InternLMXComposer2, "shared_options", lambda *_: {})


@caught_by("tokens_equal_the_processors", "xcomposer2", "xcomposer2_4khd")
def only_the_first_text_begins_with_bos(patch: Patch) -> None:
    is_apart = property(lambda _: False, lambda *_: None)
    patch.setattr(xcomposer2.InternLMXComposer2, "tokenizes_apart", is_apart, raising=False)


@caught_by(COUNTS, "xcomposer2d5")
def small_pictures_are_enlarged(patch: Patch) -> None:
    original = hd_transform.HDTransform
    patch.setattr(xcomposer2, "HDTransform", lambda **options: original(**{**options, "is_capped": False}))


@caught_by(COUNTS, "xcomposer2_4khd")
def pictures_are_not_enlarged(patch: Patch) -> None:
    original = hd_transform.HDTransform
    patch.setattr(xcomposer2, "HDTransform", lambda **options: original(**{**options, "is_capped": True}))


@caught_by("tokens_equal_the_processors", "qwen_vl")
def pictures_are_numbered_from_zero(patch: Patch) -> None:
    original = Wording.write_before
    patch.setattr(Wording, "write_before", lambda self, number: original(self, number - 1))


@caught_by("tokens_equal_the_processors", "qwen_vl")
def a_picture_ends_no_line(patch: Patch) -> None:
    wrap(patch, qwen_vl.QwenVL, "word", lambda found: replace(found, after=""))


@caught_by("rows_equal_the_models", "qwen_vl")
def heads_are_not_together(patch: Patch) -> None:
    original = vit_layers._list_sources
    patch.setattr(
        vit_layers,
        "_list_sources",
        lambda config: (
            [Source(module="in_proj", num_outputs=3 * config.hidden_size)] if config.groups_heads else original(config)
        ),
    )


@caught_by("rows_equal_the_models", "qwen_vl")
def queries_have_no_positions(patch: Patch) -> None:
    original = resampler.Resampler.forward
    patch.setattr(
        resampler.Resampler, "forward", lambda self, x, places, segments, _: original(self, x, places, segments)
    )


@caught_by("rows_equal_the_models", "qwen_vl")
def positions_are_taken_and_not_scaled(patch: Patch) -> None:
    def take(table: torch.Tensor, grid: tuple[int, int]) -> torch.Tensor:
        return table[torch.from_numpy(fractional_positions.find_positions(grid, math.isqrt(len(table)), "multiplied"))]

    for module in (vit, resampled_vit):
        patch.setattr(module, "stretch_positions", take)


@caught_by("every_tensor_is_known", *RENAMED, "pixtral")
def names_of_newer_checkpoints_are_unknown(patch: Patch) -> None:
    original = WeightMap._prefix
    patch.setattr(
        WeightMap, "_prefix", lambda self, name: None if name.startswith("model.vis") else original(self, name)
    )


# --- the tests --------------------------------------------------------------------------------------------------------


# --- what a family says of itself -------------------------------------------------------------------------------------


@caught_by("rows_fill_their_places", "llava")
def rows_are_those_of_no_picture(patch: Patch) -> None:
    wrap(patch, TileEncoder, "encode", lambda rows: [0 * each for each in rows])


@caught_by("largest_input_is_the_largest", "internvl")
def memory_is_planned_for_one_tile(patch: Patch) -> None:
    patch.setattr(internvl.InternVL, "largest_size", lambda self: (30, 30))


@caught_by("hostile_sizes_are_bounded", "qwen2_vl")
def one_line_of_patches_counts_as_none(patch: Patch) -> None:
    original = DynamicResolutionFamily.num_units

    def count(self: DynamicResolutionFamily, measures: Features) -> int:
        height, width = measures["resized"]
        return original(self, measures) if max(height, width) < 100 * min(height, width) else 0

    patch.setattr(DynamicResolutionFamily, "num_units", count)


@caught_by("options_are_refused_by_name", "internvl")
def any_option_is_taken(patch: Patch) -> None:
    patch.setattr(Family, "_check_options", lambda self, modality, options, known: None)


@pytest.fixture(scope="module")
def load(tiny_checkpoint: Callable[[str], Path]) -> Callable[[str], Loaded]:
    made: dict[str, Loaded] = {}

    def get(name: str) -> Loaded:
        if name not in made:
            made[name] = load_beside_transformers(tiny_checkpoint(name), name)
        return made[name]

    return get


def run(check: str, loaded: Loaded, scratch: Path) -> None:
    arguments = {
        "keys_follow_settings": (scratch,),
        COUNTS: ([*family_checks.random_sizes(400), *ROUNDED],),
    }
    owner = family_checks if hasattr(family_checks, check) else contract_checks
    getattr(owner, check)(loaded, *arguments.get(check, ()))


@pytest.mark.parametrize("name", sorted({each.name for each in MUTATIONS if each.check == COUNTS}))
def test_a_sound_family_passes(name: str, load: Callable[[str], Loaded], tmp_path: Path) -> None:
    """Other checks take the same arguments here as in `vl/test_families.py`, where each family passes them."""
    run(COUNTS, load(name), tmp_path)


FIRST = {each.check: each for each in reversed(MUTATIONS)}.values()
"""A fault for each check."""


@pytest.mark.parametrize(
    "mutation",
    [pytest.param(each, id=str(each), marks=() if each in FIRST else pytest.mark.slow) for each in MUTATIONS],
)
def test_a_fault_is_found(
    mutation: Mutation, load: Callable[[str], Loaded], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = load(mutation.name)
    mutation.fault(monkeypatch)
    family, tokenizer = load_family(sound.path)
    encoder = family.build_encoder(torch.device("cpu"), torch.float32)
    faulty = replace(sound, family=family, tokenizer=tokenizer, encoder=encoder)
    with pytest.raises(AssertionError):
        run(mutation.check, faulty, tmp_path)


def test_every_check_finds_a_fault() -> None:
    """A check that no fault makes fail proves nothing."""
    checks = {check.__name__ for check in family_checks.CHECKS}
    checks |= {"keys_follow_settings", COUNTS}
    assert {each.check for each in MUTATIONS} == checks
