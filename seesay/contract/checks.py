"""The contract of a model family, as far as it can be checked without another implementation: each function is one
check, which raises `AssertionError` where the family differs from itself.

The tests run these checks, and others that compare with Transformers, for all families of this package.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from seesay.contract.items import (
    FPS,
    IMAGE,
    IMAGE_SIZES,
    VIDEO,
    Subject,
    build,
    draw_image,
    draw_media,
    mixed_media,
    plan,
    prepare,
    preprocess,
)
from seesay.errors import RequestError
from seesay.values import DecodedMedia, MediaSize, Modality
from seesay.vl.family import MAX_UNITS, Family, Features
from seesay.vl.media.media_items import PreparedMedia
from seesay.vl.prompts.prompt import TokenizedPrompt, build_input
from seesay.vl.weight_map import WeightMap

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

_Outcome = tuple[Features, object] | None
_DRAWN_OPTIONS: Mapping[str, Any] = {
    "max_pixels": 5000,
    "min_pixels": 20000,
    "max_dynamic_patch": 3,
    "min_dynamic_patch": 2,
    "do_image_splitting": False,
    "size": 61,
}


def plans_equal_what_is_prepared(subject: Subject, num_rounds: int = 60) -> None:
    """Over random sizes and options: what is counted before decoding is what the preprocessed item takes. Few are
    refused, as videos of one frame by some processors."""
    family = subject.family
    rng = np.random.default_rng(5)
    num_refused = 0
    for round_ in range(num_rounds):
        modality = family.modalities[round_ % len(family.modalities)]
        count = 1 if modality is IMAGE else int(rng.integers(1, 9))
        height, width = (int(n) for n in np.exp(rng.uniform(np.log(4), np.log(160), 2)))
        options = _draw_options(family, modality, rng) if round_ % 3 == 0 else {}
        media = draw_media(modality, count, height, width, seed=round_)
        try:
            prepared = prepare(family, media, options)
        except RequestError:
            num_refused += 1
        else:
            _check_plan(family, media, prepared, options)
    assert num_refused <= num_rounds / 8, f"{num_refused} of {num_rounds} sizes are refused"


def _check_plan(family: Family, media: DecodedMedia, prepared: PreparedMedia, options: Mapping[str, object]) -> None:
    """The plan of a medium counts what it became."""
    made = build_input(
        TokenizedPrompt(token_ids=np.asarray([1, 2]), ranges=((0, 1),)), [prepared], family=family, model_digest=b""
    )
    planned = plan(family, media.modality, media.size, options)
    assert planned.num_tokens == len(made.token_ids) - 1, (media.modality, media.size, options)
    assert all(prepared.features[key] == value for key, value in planned.measures.items())
    assert planned.num_units == made.items[0].num_units
    assert {"num_tiles", "resized"} <= planned.measures.keys()


def _draw_options(family: Family, modality: Modality, rng: np.random.Generator) -> dict[str, Any]:
    """Return about half of the options that the family has for a modality."""
    known = family.options.get(modality, ())
    options = {key: value for key, value in _DRAWN_OPTIONS.items() if key in known and rng.random() < 0.5}
    if options.get("min_pixels", 0) > options.get("max_pixels", 10**9):
        del options["min_pixels"]
    return options


def rows_fill_their_places(subject: Subject) -> None:
    """The tower makes a finite row for each place of an item in the prompt, and rows that depend on the picture."""
    media = mixed_media(subject.family)
    made = build(subject, media)
    rows = subject.encoder.encode([item.features for item in made.items])
    counts, places = [len(each) for each in rows], [item.num_rows for item in made.items]
    assert counts == places, f"rows of the tower: {counts}, places in the prompt: {places}"
    for number, (each, item) in enumerate(zip(rows, made.items, strict=True)):
        start, stop = item.span
        assert ((item.slots >= start) & (item.slots < stop)).all(), f"item {number} has places outside of itself"
        assert each.isfinite().all(), f"item {number} has rows that are not finite"
    one, other = _encode_picture(subject, seed=1), _encode_picture(subject, seed=2)
    assert (one - other).abs().max() > 0, "two pictures of one size have the same rows"
    assert made.positions.shape[-1] == len(made.token_ids), "there is not one position for each token"


def _encode_picture(subject: Subject, *, seed: int) -> Any:
    return subject.encoder.encode([preprocess(subject.family, draw_image(64, 64, seed))])[0]


def packed_equals_alone(subject: Subject) -> None:
    """An item's rows do not depend on the items that are encoded with it, nor on their order."""
    features = [preprocess(subject.family, item) for item in mixed_media(subject.family)]
    packed = subject.encoder.encode(features)
    backwards = subject.encoder.encode(features[::-1])[::-1]
    for number, (one, together, reversed_order) in enumerate(zip(features, packed, backwards, strict=True)):
        alone = subject.encoder.encode([one])[0]
        for rows in (together, reversed_order):
            assert rows.shape == alone.shape, number
            limit = 2e-5 * max(1.0, float(alone.abs().max()))
            assert (rows - alone).abs().max() < limit, (number, float((rows - alone).abs().max()))


def largest_input_is_the_largest(subject: Subject) -> None:
    """No picture has more patches than the one for which memory is planned."""
    largest = subject.family.largest_input()
    assert largest is not None, "largest_size gives None for a family with a tower"
    most = subject.family.num_units(largest)
    for size in [*IMAGE_SIZES, (500, 400), (10, 700), (300, 40), (1000, 1000)]:
        found = plan(subject.family, IMAGE, draw_image(*size).size).num_units
        assert found <= most, f"a picture of {size} pixels has {found} patches, the largest input {most}"
    assert subject.encoder.encode([largest])[0].isfinite().all(), "the largest input has rows that are not finite"


def hostile_sizes_are_bounded(subject: Subject) -> None:
    """Media of any size are planned within the limits, or refused as requests: nothing else is raised."""
    sides = (1, 3, 1000, 65_535, 10_000_000)
    for modality in subject.family.modalities:
        counts = (1,) if modality is IMAGE else (1, 2, 200)
        for count, height, width in itertools.product(counts, sides, sides):
            times = () if modality is IMAGE else tuple(index / FPS for index in range(count))
            size = MediaSize(num_frames=count, height=height, width=width, timestamps_s=times, frame_interval_s=1 / FPS)
            try:
                planned = plan(subject.family, modality, size)
            except RequestError:
                continue
            assert 0 < planned.num_units <= MAX_UNITS, (modality, size, planned.num_units)
            assert planned.num_tokens > 0, (modality, size)


# --- options and cache keys -------------------------------------------------------------------------------------------


def options_are_refused_by_name(subject: Subject) -> None:
    """An option that the family does not have, and a value that an option may not have, are errors that name it."""
    family, picture = subject.family, draw_image(30, 30)
    listed = _refusal(family, picture, {"sharpness": 3})
    assert "'sharpness' is unknown" in listed, listed
    for option in family.options.get(IMAGE, ()):
        assert option in listed, f"{option} is not among the options that an error names: {listed}"
        wrong: tuple[object, ...] = (0, -5, "many", True) if "_ratio_" in option else (0, -5, 2.5, "many", True)
        for value in (0, 1, -5, "many") if option in family.switches else wrong:
            message = _refusal(family, picture, {option: value})
            assert option in message, f"{option}={value!r}: {message}"


def _refusal(family: Family, picture: DecodedMedia, options: Mapping[str, object]) -> str:
    """Return the message with which options are refused."""
    try:
        preprocess(family, picture, options)
    except RequestError as error:
        return str(error)
    raise AssertionError(f"options {options} are accepted")


def probe_media(family: Family) -> list[DecodedMedia]:
    """Return media that options and settings change: large and small, wide and tall."""
    media = [draw_image(60, 90), draw_image(12, 13), draw_image(70, 33), draw_image(20, 170)]
    if VIDEO in family.modalities:
        media += [draw_media(VIDEO, 5, 40, 60), draw_media(VIDEO, 2, 9, 14)]
    return media


def outcome(family: Family, media: DecodedMedia, options: Mapping[str, object]) -> tuple[Features, Any] | None:
    """Return the features of a medium and its tokens; None where the options contradict each other or the size."""
    try:
        prepared = prepare(family, media, options)
    except RequestError:
        return None
    return prepared.features, prepared.plan.expansion


def differs(one: tuple[Features, Any], other: tuple[Features, Any]) -> bool:
    """Return whether two outcomes are not the same."""
    (mine, my_expansion), (theirs, their_expansion) = one, other
    if mine.keys() != theirs.keys():
        return True
    if my_expansion.token_ids.tolist() != their_expansion.token_ids.tolist():
        return True
    return not all(np.array_equal(np.asarray(mine[key]), np.asarray(theirs[key])) for key in mine)


def option_sets(family: Family, modality: Modality) -> Iterator[dict[str, Any]]:
    """Yield sets of options, each of which says one thing."""
    for name in (*family.options.get(modality, ()), "detail"):
        values: Sequence[Any] = OPTION_VALUES.get(name, (1, 2, 3)) if name != "detail" else ("low", "high")
        for value in values:
            yield {name: value, **GO_TOGETHER.get(name, {})}


def keys_follow_options(subject: Subject) -> dict[Modality, set[str]]:
    """Two sets of options of which a medium becomes something else have different keys. Returns the options that change
    none of `probe_media`."""
    family = subject.family
    media = probe_media(family)
    num_keys = len({family.media_key(modality, {}) for modality in family.modalities})
    assert num_keys == len(family.modalities), "a picture and a video may have the same key"
    return {
        modality: _find_unchanging(family, modality, [item for item in media if item.modality is modality])
        for modality in family.modalities
    }


def _find_unchanging(family: Family, modality: Modality, media: Sequence[DecodedMedia]) -> set[str]:
    """Return the options that change none of `media`. Raises `AssertionError` for two sets of options with one key of
    which a medium becomes something else."""
    unused = set(family.options.get(modality, ()))
    seen: list[tuple[bytes, dict[str, object], Sequence[_Outcome]]] = []
    for options in ({}, *option_sets(family, modality)):
        try:
            key = family.media_key(modality, family.resolve_options(modality, options))
        except RequestError:
            continue
        found = [outcome(family, item, options) for item in media]
        for other_key, other_options, others in seen:
            if _any_differs(found, others):
                assert key != other_key, f"{modality.value}: the key of {options} is that of {other_options}"
                unused -= options.keys() if not other_options else set()
        seen.append((key, options, found))
    return unused


def _any_differs(first: Sequence[_Outcome], second: Sequence[_Outcome]) -> bool:
    """Return whether one of the media that both sets of options take becomes something else."""
    pairs = zip(first, second, strict=True)
    return any(differs(a, b) for a, b in pairs if a is not None and b is not None)


# --- names of tensors -------------------------------------------------------------------------------------------------


def every_tensor_has_one_owner(subject: Subject) -> None:
    """Decoder and tower have each tensor of the checkpoint once, or the family says that neither uses it."""
    weights, names = subject.family.weights, subject.family.checkpoint.tensor_names()
    check_owners(weights, sorted(names))


def check_owners(weights: WeightMap, names: Sequence[str]) -> None:
    """Raise `AssertionError` for tensors among `names` that have no owner, or two."""
    unknown = [name for name in names if weights.is_leftover(name)]
    assert not unknown, f"neither the decoder nor the tower has {unknown}"
    both = [name for name in names if weights.decoder_name(name) and weights.tower_name(name)]
    assert not both, f"decoder and tower have {both}"
    for own_name in (weights.decoder_name, weights.tower_name):
        twice = _find_repeated(filter(None, map(own_name, names)))
        assert not twice, f"two tensors become {twice}"


def _find_repeated(names: Iterable[str]) -> list[str]:
    return sorted(name for name, count in Counter(names).items() if count > 1)


Check = Callable[[Subject], object]
TEXT_CHECKS: tuple[Check, ...] = (every_tensor_has_one_owner,)
MEDIA_CHECKS: tuple[Check, ...] = (
    plans_equal_what_is_prepared,
    rows_fill_their_places,
    packed_equals_alone,
    largest_input_is_the_largest,
    hostile_sizes_are_bounded,
    options_are_refused_by_name,
    keys_follow_options,
)
"""Checks of families with a tower."""
