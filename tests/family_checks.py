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
    build,
    decoder_of,
    draw_image,
    draw_media,
    edit_json,
    join_patches,
    list_pixels,
    load_family,
    mixed_media,
    plan,
    prepare,
    preprocess,
    render,
    run_processor,
    spliced_embeddings,
)
from processing import as_image_inputs, count_tiles

from seesay.errors import CheckpointError, RequestError
from seesay.values import DecodedMedia, MediaSize, Modality
from seesay.vl.family import Family, Features
from seesay.vl.prompt import TokenizedPrompt, build_input, tokenize

OPTION_VALUES = {
    "min_pixels": (20_000, 700),
    "max_pixels": (1_200, 5_000),
    "total_pixels": (3_000, 9_000),
    "min_dynamic_patch": (2,),
    "max_dynamic_patch": (1, 2, 3),
    "do_pan_and_scan": (True,),
    "pan_and_scan_min_crop_size": (6, 30),
    "pan_and_scan_max_num_crops": (2, 3),
    "pan_and_scan_min_ratio_to_activate": (1.6, 3),
    "resized_height": (39,),
    "resized_width": (66,),
    "use_image_id": (True, False),
    "do_image_splitting": (False, True),
    "size": (20, 40, 64, {"longest_edge": 61}, {"longest_edge": 62}),
}
"""Values with which an option changes something for some medium of `probe_media`. An option that is not here is tried
with 1, 2 and 3."""
GO_TOGETHER: Mapping[str, Mapping[str, Any]] = {
    "resized_height": {"resized_width": 66},
    "resized_width": {"resized_height": 39},
    "pan_and_scan_min_crop_size": {"do_pan_and_scan": True},
    "pan_and_scan_max_num_crops": {"do_pan_and_scan": True},
    "pan_and_scan_min_ratio_to_activate": {"do_pan_and_scan": True},
}


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
    text = tokenize(render(loaded.family, [blank]), loaded.tokenizer, is_apart=loaded.family.tokenizes_apart)
    return len(made) - text.num_text_tokens


def _count_written(loaded: Loaded, sizes: Sequence[tuple[int, int]]) -> list[int | None]:
    """Return the tokens of what a processor that does not count them writes for pictures of these sizes."""
    processor = loaded.processor

    @cache
    def count(*grid: int) -> int:
        text = processor.replace_image_token(as_image_inputs(processor, *grid), 0)
        return len(processor.tokenizer(text, add_special_tokens=False)["input_ids"])

    return [count(*count_tiles(processor, *size)) for size in sizes]


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


def plans_equal_what_is_prepared(loaded: Loaded, num_rounds: int = 60) -> None:
    """Over random sizes and options: what is counted before decoding is what the preprocessed item takes."""
    family = loaded.family
    rng = np.random.default_rng(5)
    for round_ in range(num_rounds):
        modality = family.modalities[round_ % len(family.modalities)]
        count = 1 if modality is IMAGE else int(rng.integers(1, 9))
        height, width = (int(n) for n in np.exp(rng.uniform(np.log(4), np.log(160), 2)))
        known = family.options.get(modality, ())
        options: dict[str, Any] = {}
        if round_ % 3 == 0:
            choices = {
                "max_pixels": 5000,
                "min_pixels": 20000,
                "max_dynamic_patch": 3,
                "min_dynamic_patch": 2,
                "do_image_splitting": False,
                "size": 61,
            }
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
        assert {"num_tiles", "resized"} <= planned.measures.keys()


# --- pixels and rows --------------------------------------------------------------------------------------------------


def pixels_equal_the_processors(loaded: Loaded, media: list[DecodedMedia] | None = None) -> None:
    """The tower's normalized input is what the processor returns, without its padding."""
    media = mixed_media(loaded.family) if media is None else media
    inputs = run_processor(loaded, media)
    groups = {"pixel_values": media}
    if "pixel_values_videos" in inputs:
        groups = {
            "pixel_values": [item for item in media if item.modality is IMAGE],
            "pixel_values_videos": [item for item in media if item.modality is VIDEO],
        }
    if "high_res_pixel_values" in inputs:
        groups["high_res_pixel_values"] = media
    for key, items in groups.items():
        if not items:
            continue
        load = loaded.encoder.load_high_pixels if key.startswith("high_res") else loaded.encoder.load_pixels
        mask = inputs.get(key.replace("values", "attention_mask"))
        theirs = list_pixels(inputs[key], mask, inputs.get("image_sizes"))
        loaded_pixels = [load(preprocess(loaded.family, item)) for item in items]
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


def rows_equal_the_models(loaded: Loaded, media: list[DecodedMedia] | None = None) -> None:
    """The tower makes a row for each place, and they are those that Transformers' model puts there."""
    media = mixed_media(loaded.family) if media is None else media
    made = build(loaded, media)
    rows = loaded.encoder.encode([item.features for item in made.items])
    assert [len(r) for r in rows] == [len(item.slots) for item in made.items]
    assert all(r.shape[1] == loaded.encoder.hidden_size for r in rows)
    embeddings, deep = spliced_embeddings(loaded, run_processor(loaded, media))
    assert len(embeddings) == len(made.token_ids)
    first = 0
    for number, (ours, item) in enumerate(zip(rows, made.items, strict=True)):
        theirs = torch.cat([embeddings[torch.from_numpy(item.slots)], deep[first : first + len(ours)]], dim=1)
        first += len(ours)
        assert theirs.std() > 0.1, "the random tower says nothing"
        assert (ours - theirs).abs().max() < 1e-4, (number, float((ours - theirs).abs().max()))


def packed_equals_alone(loaded: Loaded) -> None:
    """An item's rows do not depend on the items that are encoded with it, nor on their order."""
    features = [preprocess(loaded.family, item) for item in mixed_media(loaded.family)]
    packed = loaded.encoder.encode(features)
    backwards = loaded.encoder.encode(features[::-1])[::-1]
    for number, (one, together, reversed_order) in enumerate(zip(features, packed, backwards, strict=True)):
        alone = loaded.encoder.encode([one])[0]
        for rows in (together, reversed_order):
            assert rows.shape == alone.shape, number
            assert (rows - alone).abs().max() < 2e-5, (number, float((rows - alone).abs().max()))


def logits_equal_the_models(loaded: Loaded, media: list[DecodedMedia] | None = None) -> None:
    """Our tokens, rows, places and positions in Transformers' decoder give what its own forward gives."""
    media = mixed_media(loaded.family) if media is None else media
    made = build(loaded, media)
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
    if "token_type_ids" in theirs_in:  # the rows of a picture see each other
        extra["attention_mask"] = loaded.model.create_masks_for_generate(
            loaded.model.config, embeddings[None], None, None, None, token_type_ids=takes_rows.long()
        )
    with torch.no_grad():
        decoder = decoder_of(loaded)
        hidden = decoder(inputs_embeds=embeddings[None], position_ids=positions, **extra).last_hidden_state
        ours = loaded.model.lm_head(hidden)
        theirs = loaded.model(**theirs_in).logits
    assert theirs.std() > 0.1
    assert (ours - theirs).abs().max() < 1e-3, float((ours - theirs).abs().max())


# --- positions --------------------------------------------------------------------------------------------------------


def positions_equal_the_models(loaded: Loaded, media: list[DecodedMedia] | None = None) -> None:
    """The model's own positions of the processor's inputs. Without such: positions count up."""
    media = mixed_media(loaded.family) if media is None else media
    made = build(loaded, media)
    if not hasattr(loaded.model.model, "get_rope_index"):
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


def probe_media(family: Family) -> list[DecodedMedia]:
    """Media that options and settings change: large and small, wide and tall."""
    media = [draw_image(60, 90), draw_image(12, 13), draw_image(70, 33), draw_image(20, 170)]
    if VIDEO in family.modalities:
        media += [draw_media(VIDEO, 5, 40, 60), draw_media(VIDEO, 2, 9, 14)]
    return media


def outcome(family: Family, media: DecodedMedia, options: Mapping[str, Any]) -> tuple[Features, Any] | None:
    """Features of a medium, and its tokens; None where the options contradict each other or the size."""
    try:
        prepared = prepare(family, media, options)
    except RequestError:
        return None
    return prepared.features, prepared.plan.expansion


def differs(one: tuple[Features, Any], other: tuple[Features, Any]) -> bool:
    (mine, my_expansion), (theirs, their_expansion) = one, other
    if mine.keys() != theirs.keys():
        return True
    if my_expansion.token_ids.tolist() != their_expansion.token_ids.tolist():
        return True
    return not all(np.array_equal(np.asarray(mine[key]), np.asarray(theirs[key])) for key in mine)


def option_sets(family: Family, modality: Modality) -> Iterator[dict[str, Any]]:
    for name in (*family.options.get(modality, ()), "detail"):
        values: Sequence[Any] = OPTION_VALUES.get(name, (1, 2, 3)) if name != "detail" else ("low", "high")
        for value in values:
            yield {name: value, **GO_TOGETHER.get(name, {})}


def keys_follow_options(loaded: Loaded) -> None:
    """Two sets of options of which a medium becomes something else have different keys, and each option of the family
    does change some medium."""
    family = loaded.family
    media = probe_media(family)
    assert len({family.media_key(modality, {}) for modality in family.modalities}) == len(family.modalities)
    for modality in family.modalities:
        unused = set(family.options.get(modality, ()))
        seen: list[tuple[bytes, dict[str, Any], list[tuple[Features, Any] | None]]] = []
        of_kind = [item for item in media if item.modality is modality]
        for options in ({}, *option_sets(family, modality)):
            try:
                key = family.media_key(modality, family.resolve_options(modality, options))
            except RequestError:
                continue
            found = [outcome(family, item, options) for item in of_kind]
            for other_key, other_options, others in seen:
                pairs = [(a, b) for a, b in zip(found, others, strict=True) if a is not None and b is not None]
                if any(differs(a, b) for a, b in pairs):
                    assert key != other_key, f"{modality.value}: the key of {options} is that of {other_options}"
                    unused -= options.keys() if not other_options else set()
            seen.append((key, options, found))
        assert not unused, f"{modality.value}: {sorted(unused)} change no medium"


_SECOND = "high_res_"
"""Beginning of the settings for the tower of larger pictures, where there are two."""
_STATISTICS = ("image_mean", "image_std", f"{_SECOND}image_mean", f"{_SECOND}image_std")
NORMALIZING = (*_STATISTICS, "rescale_factor", "do_normalize", "do_rescale")
"""Settings that the tower applies: they change its input, and not the features."""


def keys_follow_settings(loaded: Loaded, scratch: Path) -> None:
    """A processor with another setting, of which some medium becomes something else, has another key."""
    family = loaded.family
    media = probe_media(family)
    before = [outcome(family, item, {}) for item in media]
    settings = json.loads((loaded.path / "processor_config.json").read_text())
    compared = set()
    for number, (kind, name, value) in enumerate(_changed_settings(settings)):

        def change(data: dict[str, Any], kind: str = kind, name: str = name, value: Any = value) -> None:
            for each in data.keys() & {"image_processor", "video_processor"} if name in NORMALIZING else (kind,):
                data[each][name] = value  # pictures and clips must be normalized alike

        try:
            other, _ = load_family(edit_json(loaded.path, scratch / str(number), "processor_config.json", change))
        except CheckpointError:
            continue
        for item, mine in zip(media, before, strict=True):
            theirs = outcome(other, item, {})
            if mine is None or theirs is None or not (name in NORMALIZING or differs(mine, theirs)):
                continue
            compared.add(name)
            keys = [each.media_key(item.modality, {}) for each in (family, other)]
            assert keys[0] != keys[1], f"{kind}.{name}={value!r} changes a medium and not its key"
    assert {"image_mean", "image_std", "resample"} <= compared, compared


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
    weights = loaded.family.weights
    for names in (loaded.model.state_dict(), loaded.family.checkpoint.tensor_names()):
        unknown = [name for name in names if weights.is_leftover(name)]
        assert not unknown, unknown
        both = [name for name in names if weights.decoder_name(name) and weights.tower_name(name)]
        assert not both, both
        for own_name in (weights.decoder_name, weights.tower_name):
            own = [found for name in names if (found := own_name(name)) is not None]
            assert len(set(own)) == len(own)


Check = Callable[..., None]
CHECKS: tuple[Check, ...] = (
    tokens_equal_the_processors,
    plans_equal_what_is_prepared,
    pixels_equal_the_processors,
    rows_equal_the_models,
    packed_equals_alone,
    logits_equal_the_models,
    positions_equal_the_models,
    keys_follow_options,
    every_tensor_is_known,
)
"""Checks that take a loaded family and nothing else."""
