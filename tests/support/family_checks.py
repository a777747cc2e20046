"""The contract of a model family: each function is one check, which raises `AssertionError` where the family differs
from Transformers or from itself. `tests/vl/test_families.py` runs them for every family of the registry, and
`tests/test_contract_mutations.py` runs them on families with a fault.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from enrolment import reference_of
from family_contract import (
    IMAGE,
    VIDEO,
    Loaded,
    attended_rows,
    build,
    decoder_of,
    edit_json,
    group_patches,
    group_steps,
    head_of,
    join_patches,
    list_line,
    list_patches,
    list_pixels,
    load_family,
    mixed_media,
    plan,
    preprocess,
    render,
    run_processor,
    share_options,
    spliced_embeddings,
)
from processing import as_image_inputs, count_tiles

from seesay.contract import checks as contract_checks
from seesay.contract.checks import MEDIA_CHECKS
from seesay.contract.checks import check_owners as check_owners
from seesay.contract.checks import differs as differs
from seesay.contract.checks import every_tensor_has_one_owner as every_tensor_has_one_owner
from seesay.contract.checks import option_sets as option_sets
from seesay.contract.checks import outcome as outcome
from seesay.contract.checks import packed_equals_alone as packed_equals_alone
from seesay.contract.checks import plans_equal_what_is_prepared as plans_equal_what_is_prepared
from seesay.contract.checks import probe_media as probe_media
from seesay.errors import CheckpointError, RequestError
from seesay.values import DecodedMedia, MediaSize
from seesay.vl.prompts.prompt import tokenize

# --- tokens -----------------------------------------------------------------------------------------------------------


def tokens_equal_the_processors(loaded: Loaded, media: list[DecodedMedia] | None = None) -> None:
    """The ids of a prompt with media are exactly those of the processor, and the places of rows lie in their item."""
    media = mixed_media(loaded.family) if media is None else media
    made = build(loaded, media)
    theirs = run_processor(loaded, media)["input_ids"][0].numpy()
    if reference_of(loaded.path) != loaded.path and len(theirs) == len(made.token_ids):
        for item in made.items:  # such a layout may have no token for these places
            theirs[item.slots] = made.token_ids[item.slots]
    assert made.token_ids.tolist() == theirs.tolist()
    for item in made.items:
        start, stop = item.span
        assert ((item.slots >= start) & (item.slots < stop)).all()


def counts_equal_the_processors(loaded: Loaded, sizes: Sequence[tuple[int, int]]) -> None:
    """The number of tokens of a picture, from its size alone, is that of the processor, or both refuse the size."""
    ours: list[tuple[int, int] | None] = []
    for height, width in sizes:
        size = MediaSize(num_frames=1, height=height, width=width)
        try:
            expansion = plan(loaded.family, IMAGE, size).expansion
            ours.append((len(expansion.token_ids), int(expansion.takes_embedding.sum())))
        except RequestError:
            ours.append(None)
    theirs = _count_in_processor(loaded, sizes)
    for index, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
        # Some count sizes that they refuse, or take a height of 1 or 3 for the channels.
        if other not in (mine or [None]) and (mine is None or sizes[index][0] in (1, 3)):
            theirs[index] = _count_made(loaded, sizes[index])
    # Some processors count the tokens around the rows, others do not.
    all_tokens = [None if each is None else each[0] for each in ours]
    rows = [None if each is None else each[1] for each in ours]
    both = zip(sizes, ours, theirs, strict=True)
    differ = [(size, mine, other) for size, mine, other in both if other not in (mine or [None])]
    assert theirs in (all_tokens, rows), f"{len(differ)} of {len(sizes)} sizes, such as {differ[:3]}"


def _count_in_processor(loaded: Loaded, sizes: Sequence[tuple[int, int]]) -> list[int | None]:
    """Return the tokens of each size; None for one that the processor refuses, which refuses all at once, too."""
    if not hasattr(loaded.processor, "_get_num_multimodal_tokens"):
        return _count_written(loaded, sizes)
    try:
        counts = loaded.processor._get_num_multimodal_tokens(image_sizes=sizes)["num_image_tokens"]
        return [int(count) for count in counts]
    except ValueError:
        if len(sizes) == 1:
            return [None]
    middle = len(sizes) // 2
    return [*_count_in_processor(loaded, sizes[:middle]), *_count_in_processor(loaded, sizes[middle:])]


def _count_made(loaded: Loaded, size: tuple[int, int]) -> int | None:
    """Return the tokens that the processor makes of a blank picture of this size; None if it cannot."""
    blank = DecodedMedia(modality=IMAGE, frames=np.zeros((1, *size, 3), dtype=np.uint8), digest=bytes(32))
    try:
        made = run_processor(loaded, [blank])["input_ids"][0]
    except (IndexError, RuntimeError, ValueError):
        return None
    rendered = loaded.family.complete(render(loaded.family, [blank]))
    family = loaded.family
    text = tokenize(rendered, loaded.tokenizer, is_apart=family.tokenizes_apart, begins_empty=family.begins_empty)
    return len(made) - text.num_text_tokens


def _count_written(loaded: Loaded, sizes: Sequence[tuple[int, int]]) -> list[int | None]:
    """Return the tokens of what a processor that does not count them writes for pictures of these sizes; None for those
    of which no pixel is left."""
    processor = loaded.processor

    @cache
    def count(*grid: int) -> int:
        inputs = as_image_inputs(processor, *grid)
        if hasattr(processor, "_prepend_local_ids"):
            text = processor.replace_image_token(inputs, 0, image_token_divisor=processor.image_token_divisor)
            [text] = processor._prepend_local_ids([processor.image_token], [text], processor.image_token)
        else:
            text = processor.replace_image_token(inputs, 0)
        return len(processor.tokenizer(text, add_special_tokens=False)["input_ids"])

    grids = (count_tiles(processor, *size) for size in sizes)
    return [count(*grid) if all(grid) or len(grid) != 2 else None for grid in grids]


def random_sizes(count: int, seed: int = 5) -> list[tuple[int, int]]:
    """Heights and widths from 1 to 4,000: pairs of odd ones; then as many with ratios of small numbers, at which
    rounding decides, as of any."""
    rng = np.random.default_rng(seed)
    odd = (1, 2, 3, 20, 335, 336, 337, 671, 672, 3000)
    sizes = [(height, width) for height in odd for width in odd]
    num_drawn = max(0, count - len(sizes)) // 2
    drawn = [
        rng.integers(1, 13, (num_drawn, 2)) * rng.integers(1, 334, (num_drawn, 1)),
        np.exp(rng.uniform(0, np.log(4000), (num_drawn, 2))).astype(int),
    ]
    return [*sizes, *((int(height), int(width)) for height, width in np.concatenate(drawn))]


def _list_prompts(loaded: Loaded) -> list[list[DecodedMedia]]:
    """Return the media of a prompt with several, and of one with a picture alone where that is processed otherwise."""
    mixed = mixed_media(loaded.family)
    return [mixed, mixed[:1]] if loaded.family.shared_options(len(mixed)) else [mixed]


# --- pixels and rows --------------------------------------------------------------------------------------------------


_LOADERS = {"high_res_pixel_values": "load_high_pixels", "pixel_values_local": "load_tile_pixels"}
"""Methods of encoders that load further views of pictures, by what processors call these."""


def pixels_equal_the_processors(loaded: Loaded, media: list[DecodedMedia] | None = None) -> None:
    """The tower's normalized input is what the processor returns, without its padding."""
    if media is None:
        for each in _list_prompts(loaded):
            pixels_equal_the_processors(loaded, each)
        return
    inputs = run_processor(loaded, media)
    groups = {"pixel_values": media}
    if "pixel_values_videos" in inputs:
        groups = {
            "pixel_values": [item for item in media if item.modality is IMAGE],
            "pixel_values_videos": [item for item in media if item.modality is VIDEO],
        }
    if "high_res_pixel_values" in inputs:
        groups["high_res_pixel_values"] = media
    if "pixel_values_local" in inputs:
        groups["pixel_values_local"] = [item for item in media if len(preprocess(loaded.family, item).get("tiles", ()))]
    for key, items in groups.items():
        if not items:
            continue
        load = getattr(loaded.encoder, _LOADERS.get(key, "load_pixels"))
        mask = inputs.get(key.replace("values", "attention_mask"))
        theirs = (
            list_patches(inputs[key], inputs["spatial_shapes"], loaded.encoder.tower.config.merge_size)
            if "spatial_shapes" in inputs
            else group_steps(inputs[key], loaded.processor.video_processor.patch_size, 2)
            if "image_grid_hw" in inputs and inputs[key].dim() == 5
            else group_patches(inputs[key], inputs["image_grid_hw"], loaded.encoder.tower.config.merge_size)
            if "image_grid_hw" in inputs
            else list_line(inputs[key])
            if "target_sizes" in inputs and inputs[key].dim() == 4
            else list_pixels(inputs[key], mask, inputs.get("image_sizes"))
        )
        shared = [share_options(loaded.family, item, media) for item in items]
        loaded_pixels = [load(preprocess(loaded.family, item, own)) for item, own in zip(items, shared)]
        if theirs[0].dim() == 3 and loaded_pixels[0].dim() == 2:
            planned = [plan(loaded.family, item.modality, item.size) for item in items]
            group = loaded.encoder.tower.config.merge_size
            loaded_pixels = [
                join_patches(each, of.measures["resized"], group) for each, of in zip(loaded_pixels, planned)
            ]
        ours = [tile for pixels in loaded_pixels for tile in pixels]
        assert len(ours) == len(theirs), (key, len(ours), len(theirs))
        for number, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
            assert mine.shape == other.shape, (key, number, mine.shape, other.shape)
            assert (mine - other).abs().max() < 1e-5, (key, number, float((mine - other).abs().max()))


NOT_MIXED = ("glm_ocr",)
"""Models of which Transformers takes pictures or videos in a prompt: their rows have the same token."""


def rows_equal_the_models(loaded: Loaded, media: list[DecodedMedia] | None = None) -> None:
    """The tower makes a row for each place, and they are those that Transformers' model puts there."""
    if media is None:
        prompts = _list_prompts(loaded)
        if loaded.name in NOT_MIXED:
            prompts = [
                [item for item in each if item.modality is modality]
                for each in prompts
                for modality in loaded.family.modalities
            ]
        for each in prompts:
            rows_equal_the_models(loaded, each)
        return
    made = build(loaded, media)
    rows = loaded.encoder.encode([item.features for item in made.items])
    assert [len(r) for r in rows] == [item.num_rows for item in made.items]
    assert all(r.shape[1] == loaded.encoder.hidden_size for r in rows)
    if (attended := attended_rows(loaded, run_processor(loaded, media))) is not None:
        for number, (ours, theirs) in enumerate(zip(rows, attended, strict=True)):
            assert theirs.std() > 0.1, "the random tower says nothing"
            assert (ours - theirs).abs().max() < 1e-4, (number, float((ours - theirs).abs().max()))
        return
    embeddings, deep = spliced_embeddings(loaded, run_processor(loaded, media))
    assert len(embeddings) == len(made.token_ids)
    first = 0
    for number, (ours, item) in enumerate(zip(rows, made.items, strict=True)):
        theirs = torch.cat([embeddings[torch.from_numpy(item.slots)], deep[first : first + len(ours)]], dim=1)
        first += len(ours)
        assert theirs.std() > 0.1, "the random tower says nothing"
        assert (ours - theirs).abs().max() < 1e-4, (number, float((ours - theirs).abs().max()))


def logits_equal_the_models(loaded: Loaded, media: list[DecodedMedia] | None = None) -> None:
    """Our tokens, rows, places and positions in Transformers' decoder give what its own forward gives."""
    media = mixed_media(loaded.family) if media is None else media
    made = build(loaded, media)
    if any(hasattr(layer, "cross_attn") for layer in getattr(decoder_of(loaded), "layers", ())):
        return  # rows are in no place: the engine's tests compare logits
    embeddings = loaded.model.get_input_embeddings()(torch.from_numpy(made.token_ids)).detach().clone()
    features = [item.features for item in made.items]
    deep: list[torch.Tensor] = []
    takes_rows = torch.zeros(1, len(embeddings), dtype=torch.bool)
    for item, rows in zip(made.items, loaded.encoder.encode(features) if features else (), strict=True):
        takes_rows[0, torch.from_numpy(item.slots)] = True
        embeddings[torch.from_numpy(item.slots)] = rows[:, : embeddings.shape[1]]
        deep.append(rows[:, embeddings.shape[1] :])
    positions = torch.from_numpy(made.positions)
    positions = positions[:, None] if positions.dim() == 2 else positions[None]
    extra: dict[str, Any] = {}
    if deep and deep[0].shape[1]:  # the decoder alone takes them
        parts = torch.split(torch.cat(deep), embeddings.shape[1], dim=1)
        extra = {"visual_pos_masks": takes_rows, "deepstack_visual_embeds": list(parts)}
    theirs_in = run_processor(loaded, media)
    if "token_type_ids" in theirs_in:  # the rows of a picture see each other, or the tokens of type 0
        types = torch.zeros_like(takes_rows) if loaded.family.is_prefix_lm else takes_rows
        extra["attention_mask"] = loaded.model.create_masks_for_generate(
            loaded.model.config, embeddings[None], None, None, None, token_type_ids=types.long()
        )
    if getattr(loaded.model, "splits_rows", False):  # the decoder computes rows of media otherwise
        extra["is_row"] = takes_rows
    with torch.no_grad():
        decoder = decoder_of(loaded)
        if hasattr(decoder, "get_per_layer_inputs"):  # it looks up more by the ids of a text
            ids = torch.from_numpy(made.token_ids)[None].masked_fill(takes_rows, decoder.config.pad_token_id)
            extra["per_layer_inputs"] = decoder.get_per_layer_inputs(ids)
        hidden = decoder(inputs_embeds=embeddings[None], position_ids=positions, **extra).last_hidden_state
        ours = head_of(loaded)(hidden)
        if (cap := getattr(decoder.config, "final_logit_softcapping", None)) is not None:
            ours = cap * torch.tanh(ours / cap)
        theirs = loaded.model(**theirs_in).logits
    assert theirs.std() > 0.1
    assert (ours - theirs).abs().max() < 1e-3, float((ours - theirs).abs().max())


# --- positions --------------------------------------------------------------------------------------------------------


def positions_equal_the_models(loaded: Loaded, media: list[DecodedMedia] | None = None) -> None:
    """The model's own positions of the processor's inputs. Without such: positions count up."""
    media = mixed_media(loaded.family) if media is None else media
    made = build(loaded, media)
    if not hasattr(getattr(loaded.model, "model", None), "get_rope_index"):
        assert loaded.family.num_position_axes == 1, "the model has no positions of its own"
        assert made.positions.tolist() == list(range(len(made.token_ids)))
        assert made.next_position == len(made.token_ids)
        return
    inputs = run_processor(loaded, media)
    for key in ("pixel_values", "pixel_values_videos", "video_metadata"):
        inputs.pop(key, None)
    expected, delta = loaded.model.model.get_rope_index(**inputs)
    np.testing.assert_array_equal(np.atleast_2d(made.positions), expected[:, 0].numpy())
    assert made.next_position == len(made.token_ids) + int(delta[0, 0])


# --- cache keys -------------------------------------------------------------------------------------------------------


def keys_follow_options(loaded: Loaded) -> None:
    """As that of the contract; and each option of the family does change some medium."""
    for modality, unused in contract_checks.keys_follow_options(loaded).items():
        assert not unused, f"{modality.value}: {sorted(unused)} change no medium"


_SECOND = "high_res_"
"""Beginning of the settings for the tower of larger pictures, where there are two."""
_STATISTICS = ("image_mean", "image_std", f"{_SECOND}image_mean", f"{_SECOND}image_std")
NORMALIZING = (*_STATISTICS, "rescale_factor", "do_normalize", "do_rescale")
"""Settings that the tower applies: they change its input, and not the features."""


def keys_follow_settings(loaded: Loaded, scratch: Path) -> None:
    """A processor with another setting, of which some medium becomes something else, has another key. Where the keys
    differ, nothing is processed but to see that some settings do change a medium."""
    family = loaded.family
    if family.checkpoint.image_processor is not None:
        return  # constants of the published code, and of config.json, which tests of that layout change
    media = probe_media(family)
    before = [outcome(family, item, {}) for item in media]
    settings = json.loads((loaded.path / "processor_config.json").read_text())
    wanted, compared = {"image_mean", "image_std", "resample"}, set[str]()
    for number, (kind, name, value) in enumerate(_changed_settings(settings)):

        def change(data: dict[str, Any], kind: str = kind, name: str = name, value: Any = value) -> None:
            for each in data.keys() & {"image_processor", "video_processor"} if name in NORMALIZING else (kind,):
                data[each][name] = value  # pictures and clips must be normalized alike
                if (other := name.replace("image_", "norm_")) in data[each]:
                    data[each][other] = value

        try:
            other, _ = load_family(edit_json(loaded.path, scratch / str(number), "processor_config.json", change))
        except CheckpointError:
            continue
        for item, mine in zip(media, before, strict=True):
            keys = [each.media_key(item.modality, {}) for each in (family, other)]
            if mine is None or (keys[0] != keys[1] and name not in wanted - compared):
                continue
            theirs = outcome(other, item, {})
            if theirs is None or not (name in NORMALIZING or differs(mine, theirs)):
                continue
            compared.add(name)
            assert keys[0] != keys[1], f"{kind}.{name}={value!r} changes a medium and not its key"
    assert wanted <= compared, compared


def _changed_settings(settings: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Each setting of each processor of a checkpoint, with another value of its type."""
    for kind in ("image_processor", "video_processor"):
        for name, value in settings.get(kind, {}).items():
            if isinstance(value, bool):
                yield kind, name, not value
            elif isinstance(value, int):
                yield kind, name, (3 if value == 2 else 2) if name.endswith("resample") else value + 1
            elif isinstance(value, float):
                yield kind, name, value / 2
            elif name in _STATISTICS:
                yield kind, name, [each / 2 for each in value]
            elif isinstance(value, dict):
                for inner, number in value.items():
                    if isinstance(number, int):
                        yield kind, name, {**value, inner: number * 2}
            elif isinstance(value, list) and len(value) > 1 and isinstance(value[0], list):
                yield kind, name, value[1:]


# --- names of tensors -------------------------------------------------------------------------------------------------


def every_tensor_is_known(loaded: Loaded) -> None:
    """Decoder and tower, or neither, have each tensor of Transformers' own list, under its name in memory and under
    that in the file; and they have nothing twice."""
    check_owners(loaded.family.weights, list(loaded.model.state_dict()))
    every_tensor_has_one_owner(loaded)


Check = Callable[..., object]
CHECKS: tuple[Check, ...] = (
    tokens_equal_the_processors,
    *(check for check in MEDIA_CHECKS if check.__name__ != "keys_follow_options"),
    pixels_equal_the_processors,
    rows_equal_the_models,
    logits_equal_the_models,
    positions_equal_the_models,
    keys_follow_options,
    every_tensor_is_known,
)
"""Checks that take a loaded family and nothing else."""
