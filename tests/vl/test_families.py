"""Every family of the registry goes through the same contract: equal to Transformers on a tiny random checkpoint."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from seesay.checkpoint import Checkpoint
from seesay.errors import CheckpointError, RequestError
from seesay.processors.tokenizer import Tokenizer
from seesay.values import DecodedMedia, MediaItem, MediaPart, Modality, MultimodalInput, RenderedPrompt
from seesay.vl.family import Family
from seesay.vl.prompt import build_input
from seesay.vl.registry import find_family, list_families

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:transformers"),
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers"),
    pytest.mark.filterwarnings("ignore:__array_wrap__ must accept:DeprecationWarning"),
]
IMAGE, VIDEO = Modality.IMAGE, Modality.VIDEO
VISION_FAMILIES = sorted({f.__module__.rpartition(".")[2] for f in list_families().values() if f.modalities})
VIDEO_FAMILIES = sorted({f.__module__.rpartition(".")[2] for f in list_families().values() if VIDEO in f.modalities})
TEXT_BACKBONES = ["llama", "mistral", "phi3", "qwen2", "qwen3"]
IMAGE_SIZES = [(33, 70), (64, 64), (20, 90), (100, 31), (7, 9)]
FPS = 2.0


@dataclass
class Loaded:
    """A family, and Transformers' model and processor of the same checkpoint."""

    family: Family
    tokenizer: Tokenizer
    encoder: Any
    model: Any
    processor: Any


@pytest.fixture(scope="module")
def load(tiny_checkpoint: Callable[[str], Path]) -> Callable[[str], Loaded]:
    made: dict[str, Loaded] = {}

    def get(name: str) -> Loaded:
        if name not in made:
            from transformers import AutoModelForImageTextToText, AutoProcessor

            path = tiny_checkpoint(name)
            family, tokenizer = load_family(path)
            made[name] = Loaded(
                family=family,
                tokenizer=tokenizer,
                encoder=family.build_encoder(torch.device("cpu"), torch.float32),
                model=AutoModelForImageTextToText.from_pretrained(path).eval(),
                processor=AutoProcessor.from_pretrained(path),
            )
        return made[name]

    return get


def load_family(path: Path) -> tuple[Family, Tokenizer]:
    checkpoint, tokenizer = Checkpoint.load(path), Tokenizer.load(path)
    return find_family(checkpoint.architecture)(checkpoint, tokenizer), tokenizer


def draw_image(height: int, width: int, seed: int = 0) -> DecodedMedia:
    return draw_media(IMAGE, 1, height, width, seed)


def draw_media(modality: Modality, count: int, height: int, width: int, seed: int = 0) -> DecodedMedia:
    """Smooth colours with noise, so that resizing matters."""
    rng = np.random.default_rng([seed, count, height, width])
    noise = rng.integers(0, 120, (count, height, width, 3))
    slope = np.linspace(0, 120, height)[:, None, None] + np.linspace(0, 15, width)[:, None]
    times = tuple(i / FPS for i in range(count)) if modality is VIDEO else ()
    frames = (noise + slope).astype(np.uint8)
    return DecodedMedia(modality=modality, frames=frames, timestamps_s=times, digest=rng.bytes(32))


def build(loaded: Loaded, media: list[DecodedMedia], options: dict[str, Any] | None = None) -> MultimodalInput:
    """'the', a marker and a word for each of `media`, an end: through our prompt builder."""
    markers = loaded.family.markers
    text, spans = "the ", []
    for item in media:
        spans.append((len(text), len(text) + len(markers[item.modality])))
        text += f"{markers[item.modality]} in 12\n"
    parts = tuple(MediaPart(modality=item.modality, source=None) for item in media)
    prepared = [
        SimpleNamespace(modality=m.modality, features=loaded.family.preprocess(m, options or {}), key=m.digest)
        for m in media
    ]
    rendered = RenderedPrompt(text=text + "<|im_end|>", media=parts, markers=tuple(spans))
    made: MultimodalInput = build_input(
        rendered, prepared, family=loaded.family, tokenizer=loaded.tokenizer, model_digest=bytes(32)
    )
    return made


def run_processor(loaded: Loaded, media: list[DecodedMedia]) -> Any:
    """The same prompt through Transformers' processor."""
    from PIL import Image

    markers = loaded.family.markers
    text = "the " + "".join(f"{markers[item.modality]} in 12\n" for item in media) + "<|im_end|>"
    images = [Image.fromarray(item.frames[0]) for item in media if item.modality is IMAGE]
    clips = [torch.from_numpy(item.frames).permute(0, 3, 1, 2) for item in media if item.modality is VIDEO]
    kwargs: dict[str, Any] = {"images": images} if images else {}
    if clips:
        kwargs["videos"] = clips
        kwargs["video_metadata"] = [
            {"fps": FPS, "total_num_frames": len(clip), "frames_indices": list(range(len(clip)))} for clip in clips
        ]
    return loaded.processor(text=[text], return_tensors="pt", **kwargs)


def mixed_media(family: Family) -> list[DecodedMedia]:
    media = [draw_image(*size, seed=i) for i, size in enumerate(IMAGE_SIZES)]
    if VIDEO in family.modalities:
        media.insert(2, draw_media(VIDEO, 5, 40, 60))
    return media


def hf_rows(loaded: Loaded, inputs: Any, media: list[DecodedMedia]) -> list[torch.Tensor]:
    """Rows of each item from Transformers' tower, in the order of `media`."""
    model = loaded.model.model
    with torch.no_grad():
        if "image_grid_thw" not in inputs:
            rows = model.get_image_features(inputs["pixel_values"]).pooler_output
            rows = torch.cat([r.reshape(-1, r.shape[-1]) for r in rows])
            counts = [len(item.slots) for item in build(loaded, media).items]
            return list(rows.split(counts))
        images = iter(model.get_image_features(inputs["pixel_values"], inputs["image_grid_thw"]).pooler_output)
        clips = iter(())
        if "pixel_values_videos" in inputs:
            found = model.get_video_features(inputs["pixel_values_videos"], inputs["video_grid_thw"]).pooler_output
            clips = iter(found)
        return [next(images) if item.modality is IMAGE else next(clips) for item in media]


# --- the contract ---------------------------------------------------------------------------------------------------


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
def test_pixels_equal_the_processors(name: str, load: Callable[[str], Loaded]) -> None:
    loaded = load(name)
    media = mixed_media(loaded.family)
    inputs = run_processor(loaded, media)
    by_key: dict[str, list[torch.Tensor]] = {}
    for item in media:
        key = "pixel_values_videos" if item.modality is VIDEO and "video_grid_thw" in inputs else "pixel_values"
        by_key.setdefault(key, []).append(loaded.encoder.load_pixels(loaded.family.preprocess(item, {})))
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
    features = [loaded.family.preprocess(item, {}) for item in mixed_media(loaded.family)]
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
    features = [loaded.family.preprocess(item, {}) for item in mixed_media(loaded.family)]
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
        family.preprocess(draw_image(30, 30), {"sharpness": 3})
    assert caught.value.param == "sharpness"
    for option in family.options.get(IMAGE, ()):
        assert option in str(caught.value)
        for bad in (0, -5, 2.5, "many", True):
            with pytest.raises(RequestError, match=option):
                family.preprocess(draw_image(30, 30), {option: bad})


@pytest.mark.parametrize("name", VISION_FAMILIES)
def test_largest_input_is_at_least_as_large_as_any(name: str, load: Callable[[str], Loaded]) -> None:
    loaded = load(name)
    largest = loaded.family.largest_input()
    assert largest is not None
    for size in [*IMAGE_SIZES, (500, 400), (10, 700), (300, 40), (1000, 1000)]:
        assert loaded.family.num_units(loaded.family.preprocess(draw_image(*size), {})) <= loaded.family.num_units(
            largest
        )
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
    with pytest.raises(RequestError):
        family.media_key(IMAGE, {"sharpness": 1})

    def darken(settings: dict[str, Any]) -> None:
        for kind in ("image_processor", "video_processor"):
            if kind in settings:
                settings[kind]["image_mean"] = [0.1, 0.1, 0.1]

    other, _ = load_family(edit_json(tiny_checkpoint(name), tmp_path / "c", "processor_config.json", darken))
    assert other.media_key(IMAGE, {}) not in keys


@pytest.mark.parametrize("name", VISION_FAMILIES)
def test_old_processor_files_mean_the_same(
    name: str, tiny_checkpoint: Callable[[str], Path], load: Callable[[str], Loaded], tmp_path: Path
) -> None:
    path = shutil.copytree(tiny_checkpoint(name), tmp_path / "old")
    nested = json.loads((path / "processor_config.json").read_text())
    (path / "preprocessor_config.json").write_text(json.dumps(nested.pop("image_processor")))
    if "video_processor" in nested:
        (path / "video_preprocessor_config.json").write_text(json.dumps(nested.pop("video_processor")))
    (path / "processor_config.json").write_text(json.dumps(nested))
    assert load_family(path)[0].preprocessing == load(name).family.preprocessing


@pytest.mark.parametrize("name", VISION_FAMILIES)
def test_names_of_newer_checkpoints_mean_the_same(
    name: str, tiny_checkpoint: Callable[[str], Path], load: Callable[[str], Loaded], tmp_path: Path
) -> None:
    """Tensors under the names the model has in memory, as some checkpoints have them."""
    path = shutil.copytree(tiny_checkpoint(name), tmp_path / "new")
    loaded = load(name)
    state = {key: value.contiguous().clone() for key, value in loaded.model.state_dict().items()}
    if loaded.model.config.tie_word_embeddings:
        del state["lm_head.weight"]
    save_file(state, path / "model.safetensors", metadata={"format": "pt"})
    family, _ = load_family(path)
    old = {loaded.family.weights.decoder_name(n) for n in loaded.family.checkpoint.tensor_names()}
    assert {family.weights.decoder_name(n) for n in family.checkpoint.tensor_names()} == old
    features = [family.preprocess(draw_image(30, 40), {})]
    rows = family.build_encoder(torch.device("cpu"), torch.float32).encode(features)
    torch.testing.assert_close(rows, loaded.encoder.encode(features), rtol=0, atol=0)


@pytest.mark.parametrize("name", VISION_FAMILIES)
@pytest.mark.parametrize("damage", ["missing", "unexpected", "misshapen", "foreign"])
def test_damaged_towers_are_refused_by_name(
    name: str, damage: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    path = shutil.copytree(tiny_checkpoint(name), tmp_path / damage)
    state = load_file(path / "model.safetensors")
    victim = next(
        key for key in sorted(state) if "mlp" in key and "0" in key and not key.startswith(("model", "language"))
    )
    if damage == "missing":
        del state[victim]
    elif damage == "misshapen":
        state[victim] = state[victim][:-1].contiguous()
    else:
        state["someone.else" if damage == "foreign" else victim + "_extra"] = torch.zeros(3)
    save_file(state, path / "model.safetensors", metadata={"format": "pt"})
    needle = {"foreign": "someone.else", "missing": victim.split(".", 1)[1].rpartition(".")[2]}.get(damage, victim)
    with pytest.raises(CheckpointError, match=needle):
        load_family(path)[0].build_encoder(torch.device("cpu"), torch.float32)


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
    with pytest.raises(RequestError, match="text only"):
        family.preprocess(draw_image(20, 20), {})
    with pytest.raises(CheckpointError, match="no vision tower"):
        family.build_encoder(torch.device("cpu"), torch.float32)
    made = build_input(RenderedPrompt(text="the thing"), [], family=family, tokenizer=tokenizer, model_digest=bytes(32))
    assert made.positions.tolist() == list(range(len(made.token_ids))) and made.next_position == len(made.token_ids)


# --- positions ------------------------------------------------------------------------------------------------------

MROPE_FAMILIES = [name for name in VISION_FAMILIES if name.startswith("qwen")]


@pytest.mark.parametrize("name", VISION_FAMILIES)
def test_positions_without_rope_index_count_up(name: str, load: Callable[[str], Loaded]) -> None:
    loaded = load(name)
    if hasattr(loaded.model.model, "get_rope_index"):
        return
    made = build(loaded, mixed_media(loaded.family))
    assert made.positions.tolist() == list(range(len(made.token_ids)))


def truncates_seconds(loaded: Loaded) -> bool:
    """Whether this transformers cuts the seconds per grid to whole ones first (a mistake of 5.17, mended since)."""
    positions, _ = loaded.model.model.get_rope_index(
        torch.zeros(1, 2, dtype=torch.long),
        mm_token_type_ids=torch.full((1, 2), 2),
        video_grid_thw=torch.tensor([[2, 2, 2]]),
        second_per_grid_ts=torch.tensor([1.5]),
    )
    return positions[0].max() == 2


@pytest.mark.parametrize("name", MROPE_FAMILIES)
@pytest.mark.parametrize("seed", range(40))
def test_positions_equal_get_rope_index(name: str, seed: int, load: Callable[[str], Loaded]) -> None:
    """Random prompts whose text is full of literal image tokens, which must change nothing."""
    loaded = load(name)
    rng = np.random.default_rng(seed)
    ids: list[int] = []
    types: list[int] = []
    items, grids, seconds = [], {1: [], 2: []}, []
    vocabulary = [3, 5, loaded.model.config.image_token_id, loaded.model.config.video_token_id]

    def add_text(count: int) -> None:
        ids.extend(rng.choice(vocabulary, count).tolist())
        types.extend([0] * count)

    for _ in range(rng.integers(0, 6)):
        add_text(int(rng.integers(1, 9)))
        kind = int(rng.integers(1, 3))
        grid = (int(rng.integers(1, 9)) if kind == 2 else 1, 2 * int(rng.integers(1, 7)), 2 * int(rng.integers(1, 7)))
        features: dict[str, Any] = {"grid": grid}
        if kind == 2:
            times = [0.1, 0.2, 1 / 3, 0.5, 1.0, 1.2, 2.0, rng.random() * 3]
            features["seconds_per_grid"] = float(rng.choice([1.0, 2.0, 3.0] if truncates_seconds(loaded) else times))
            seconds.append(features["seconds_per_grid"])
        count = grid[0] * grid[1] * grid[2] // 4
        slots = len(ids) + np.arange(count)
        ids.extend([vocabulary[1 + kind]] * count)
        types.extend([kind] * count)
        grids[kind].append(grid)
        modality = IMAGE if kind == 1 else VIDEO
        span = (int(slots[0]) - 1, int(slots[-1]) + 2)
        items.append(
            MediaItem(modality=modality, span=span, slots=slots, hash=bytes(32), features=features, num_units=count * 4)
        )
    add_text(int(rng.integers(1, 9)))
    expected, delta = loaded.model.model.get_rope_index(
        torch.tensor([ids]),
        mm_token_type_ids=torch.tensor([types]),
        image_grid_thw=torch.tensor(grids[1]) if grids[1] else None,
        video_grid_thw=torch.tensor(grids[2]) if grids[2] else None,
        second_per_grid_ts=torch.tensor(seconds) if seconds else None,
    )
    positions, next_position = loaded.family.positions(np.array(ids), tuple(items))
    np.testing.assert_array_equal(positions, expected[:, 0].numpy())
    assert next_position == len(ids) + int(delta[0, 0])


@pytest.mark.parametrize("name", MROPE_FAMILIES)
def test_clip_positions_equal_the_processors_and_models(name: str, load: Callable[[str], Loaded]) -> None:
    loaded = load(name)
    media = [draw_media(VIDEO, 7, 50, 40), draw_image(40, 60), draw_media(VIDEO, 4, 30, 80)]
    inputs = run_processor(loaded, media)
    for key in ("pixel_values", "pixel_values_videos", "video_metadata"):
        inputs.pop(key, None)
    expected, delta = loaded.model.model.get_rope_index(**inputs)
    made = build(loaded, media)
    np.testing.assert_array_equal(made.positions, expected[:, 0].numpy())
    assert made.next_position == len(made.token_ids) + int(delta[0, 0])


@pytest.mark.parametrize("name", MROPE_FAMILIES)
def test_positions_of_a_sampled_clip_equal_the_processors(name: str, load: Callable[[str], Loaded]) -> None:
    """20 frames of 10.3 s: the time between them is duration / 20, as the reference has it."""
    loaded = load(name)
    if truncates_seconds(loaded):
        pytest.skip("this transformers cuts the seconds per grid to whole ones")
    total, rate, count = 309, 30.0, 20
    indices = np.linspace(0, total - 1, count).round().astype(int)
    frames = draw_media(VIDEO, count, 30, 40).frames
    clip = DecodedMedia(
        modality=VIDEO,
        frames=frames,
        timestamps_s=tuple(indices / rate),
        frame_interval_s=total / rate / count,
        digest=bytes(32),
    )
    inputs = loaded.processor(
        text=[f"the {loaded.family.markers[VIDEO]} in 12\n<|im_end|>"],
        videos=[torch.from_numpy(frames).permute(0, 3, 1, 2)],
        video_metadata=[{"fps": rate, "total_num_frames": total, "frames_indices": indices.tolist()}],
        return_tensors="pt",
    )
    for key in ("pixel_values_videos", "video_metadata"):
        inputs.pop(key, None)
    expected, _ = loaded.model.model.get_rope_index(**inputs)
    np.testing.assert_array_equal(build(loaded, [clip]).positions, expected[:, 0].numpy())


# --- what only some families have -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MROPE_FAMILIES)
def test_pixel_limits_of_one_item(name: str, load: Callable[[str], Loaded]) -> None:
    family = load(name).family
    image = draw_image(60, 90)
    units = partial(lambda options: family.num_units(family.preprocess(image, options)))
    assert units({"max_pixels": 1024}) * 16 <= 1024 < units({}) * 16
    assert units({"min_pixels": 20000, "max_pixels": 40000}) * 16 >= 20000
    assert units({"min_pixels": 20000}) * 16 >= 20000
    assert family.preprocess(image, {"resized_height": 39, "resized_width": 66})["grid"] == (1, 10, 16)
    with pytest.raises(RequestError, match="go together"):
        units({"resized_width": 40})
    with pytest.raises(RequestError, match="above max_pixels"):
        units({"min_pixels": 5000, "max_pixels": 1000})
    with pytest.raises(RequestError, match="longer than wide"):
        family.preprocess(draw_image(2, 900), {})


def test_tile_limit_of_one_item(load: Callable[[str], Loaded]) -> None:
    family = load("internvl").family
    image = draw_image(30, 90)
    assert len(family.preprocess(image, {"max_dynamic_patch": 1})["pixels"]) == 1
    assert len(family.preprocess(image, {"max_dynamic_patch": 2})["pixels"]) == 3
    assert len(family.preprocess(image, {})["pixels"]) == 4
    with pytest.raises(RequestError, match="above max_dynamic_patch"):
        family.preprocess(image, {"min_dynamic_patch": 4, "max_dynamic_patch": 2})


@pytest.mark.parametrize(("layer", "strategy"), [(-2, "full"), ([1, -1], "default"), (1, "default"), (-1, "full")])
def test_llava_feature_layers(
    layer: int | list[int], strategy: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    from transformers import LlavaConfig, LlavaForConditionalGeneration

    path = shutil.copytree(tiny_checkpoint("llava"), tmp_path / "layers")
    config = LlavaConfig.from_pretrained(path)
    config.vision_feature_layer, config.vision_feature_select_strategy = layer, strategy
    torch.manual_seed(0)
    model = LlavaForConditionalGeneration(config).eval()
    model.save_pretrained(path)
    family, _ = load_family(path)
    encoder = family.build_encoder(torch.device("cpu"), torch.float32)
    features = family.preprocess(draw_image(40, 30), {})
    rows = encoder.encode([features])[0]
    assert len(rows) == family.expand(IMAGE, features).takes_embedding.sum()
    with torch.no_grad():
        expected = model.model.get_image_features(encoder.load_pixels(features).permute(0, 3, 1, 2)).pooler_output
    torch.testing.assert_close(rows, expected[0], rtol=0, atol=1e-4)


def edit_json(source: Path, target: Path, name: str, edit: Callable[[dict[str, Any]], None]) -> Path:
    """A copy of the checkpoint folder `source` with one JSON file changed."""
    path = shutil.copytree(source, target)
    data = json.loads((path / name).read_text())
    edit(data)
    (path / name).write_text(json.dumps(data))
    return path


# --- layouts of checkpoints on the hub -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MROPE_FAMILIES)
def test_flat_config_and_one_processor_file(
    name: str, tiny_checkpoint: Callable[[str], Path], load: Callable[[str], Loaded], tmp_path: Path
) -> None:
    """The first Qwen2-VL checkpoints: text settings at the top, old rope keys, one processor file for both."""

    def flatten(config: dict[str, Any]) -> None:
        text = config.pop("text_config")
        rope = text.pop("rope_parameters")
        text["rope_scaling"] = {"type": "mrope", "mrope_section": rope["mrope_section"]}
        text["rope_theta"] = rope["rope_theta"]
        text.pop("model_type")
        config.update(text, torch_dtype="float32")
        config["vision_config"].pop("rope_parameters", None)
        config["vision_config"]["model_type"] = config["model_type"]

    path = edit_json(tiny_checkpoint(name), tmp_path / "flat", "config.json", flatten)
    (path / "processor_config.json").unlink()
    settings = {"min_pixels": 256, "max_pixels": 6400, "patch_size": 4, "temporal_patch_size": 2, "merge_size": 2}
    (path / "preprocessor_config.json").write_text(json.dumps(settings))
    family, _ = load_family(path)
    loaded = load(name)
    ours, theirs = family.backbone(), loaded.family.backbone()
    for key in ("hidden_size", "num_key_value_heads", "rms_norm_eps", "vocab_size", "num_hidden_layers"):
        assert getattr(ours.text_config, key) == getattr(theirs.text_config, key)
    rope = ours.text_config.rope_parameters
    assert (rope["rope_theta"], rope["mrope_section"]) == (10000.0, [2, 3, 3])
    assert ours.tie_word_embeddings == theirs.tie_word_embeddings
    features = family.preprocess(draw_image(40, 90), {})
    np.testing.assert_array_equal(features["pixels"], loaded.family.preprocess(draw_image(40, 90), {})["pixels"])
    rows = family.build_encoder(torch.device("cpu"), torch.float32).encode([features])
    torch.testing.assert_close(rows, loaded.encoder.encode([features]), rtol=0, atol=0)
    assert family.preprocess(draw_media(VIDEO, 4, 90, 90), {})["grid"] == (2, 20, 20)


def test_llava_with_the_inner_vision_model(
    tiny_checkpoint: Callable[[str], Path], load: Callable[[str], Loaded], tmp_path: Path
) -> None:
    path = shutil.copytree(tiny_checkpoint("llava"), tmp_path / "inner")
    state = load_file(path / "model.safetensors")
    inner = {name.replace("vision_tower.", "vision_tower.vision_model."): value for name, value in state.items()}
    inner["vision_tower.vision_model.embeddings.position_ids"] = torch.arange(26)[None]
    inner["language_model.model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)
    save_file(inner, path / "model.safetensors", metadata={"format": "pt"})
    (path / "processor_config.json").unlink()
    settings = {"size": 20, "crop_size": 20, "do_center_crop": True, "resample": 3}
    (path / "preprocessor_config.json").write_text(json.dumps(settings))
    family, _ = load_family(path)
    loaded = load("llava")
    features = family.preprocess(draw_image(40, 90), {})
    rows = family.build_encoder(torch.device("cpu"), torch.float32).encode([features])
    expected = loaded.encoder.encode([loaded.family.preprocess(draw_image(40, 90), {})])
    torch.testing.assert_close(rows, expected, rtol=0, atol=0)
    names = {family.backbone().decoder_name(name) for name in family.checkpoint.tensor_names()}
    assert names == {loaded.family.backbone().decoder_name(n) for n in loaded.family.checkpoint.tensor_names()}


def test_llava_pads_to_a_square_as_the_processor_does(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    from transformers import LlavaImageProcessor

    def pad(settings: dict[str, Any]) -> None:
        settings["image_processor"].update(do_pad=True, image_processor_type="LlavaImageProcessor")

    path = edit_json(tiny_checkpoint("llava"), tmp_path / "pad", "processor_config.json", pad)
    family, _ = load_family(path)
    encoder: Any = family.build_encoder(torch.device("cpu"), torch.float32)
    image = draw_image(40, 90)
    processor = LlavaImageProcessor(size={"shortest_edge": 20}, crop_size={"height": 20, "width": 20}, do_pad=True)
    expected = processor(torch.from_numpy(image.frames[0]).permute(2, 0, 1), return_tensors="pt")["pixel_values"]
    found = encoder.load_pixels(family.preprocess(image, {})).permute(0, 3, 1, 2)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_internvl_with_token_names_in_one_table(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    names = ("start_image_token", "end_image_token", "context_image_token", "video_token")

    def gather(config: dict[str, Any]) -> None:
        config["extra_special_tokens"] = {name: config.pop(name) for name in names}

    path = edit_json(tiny_checkpoint("internvl"), tmp_path / "table", "tokenizer_config.json", gather)
    assert load_family(path)[0].markers == load_family(tiny_checkpoint("internvl"))[0].markers


@pytest.mark.parametrize(
    ("name", "file", "change", "needle"),
    [
        ("qwen2_vl", "processor_config.json", {"image_processor": {"do_resize": False}}, "do_resize"),
        ("qwen2_vl", "processor_config.json", {"image_processor": {"patch_size": 8}}, "patches of"),
        ("qwen2_5_vl", "processor_config.json", {"video_processor": {"image_mean": [0.1, 0.2, 0.3]}}, "normalized"),
        ("qwen2_5_vl", "processor_config.json", {"image_processor": {"image_std": [0.1]}}, "three values"),
        ("llava", "config.json", {"vision_config": {"model_type": "siglip_vision_model"}}, "siglip_vision_model"),
        ("llava", "config.json", {"vision_feature_layer": 7}, "vision_feature_layer"),
        ("llava", "processor_config.json", {"image_processor": {"crop_size": {"height": 24, "width": 24}}}, "takes 20"),
        ("internvl", "processor_config.json", {"image_processor": {"size": {"height": 8, "width": 8}}}, "size"),
        ("internvl", "config.json", {"vision_feature_select_strategy": "full"}, "select_strategy"),
        ("internvl", "config.json", {"image_token_id": 280}, "token 280"),
    ],
)
def test_unsupported_settings_are_refused_by_name(
    name: str,
    file: str,
    change: dict[str, Any],
    needle: str,
    tiny_checkpoint: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    def apply(data: dict[str, Any]) -> None:
        for key, value in change.items():
            data[key] = {**data[key], **value} if isinstance(value, dict) else value

    path = edit_json(tiny_checkpoint(name), tmp_path / "changed", file, apply)
    with pytest.raises(CheckpointError, match=needle):
        load_family(path)
