"""What the family tests share: a family beside Transformers' model of the same checkpoint, and prompts for both."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from seesay.checkpoint import Checkpoint
from seesay.processors.text.tokenizer import Tokenizer
from seesay.values import DecodedMedia, MediaPart, MediaSize, Modality, MultimodalInput, RenderedPrompt
from seesay.vl.family import Family, Features, MediaPlan
from seesay.vl.media import PreparedMedia
from seesay.vl.prompt import build_input, tokenize
from seesay.vl.registry import find_family, list_families

IMAGE, VIDEO = Modality.IMAGE, Modality.VIDEO
VISION_FAMILIES = sorted({f.__module__.rpartition(".")[2] for f in list_families().values() if f.modalities})
MROPE_FAMILIES = [name for name in VISION_FAMILIES if name.startswith("qwen")]
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


def load_beside_transformers(path: Path) -> Loaded:
    from transformers import AutoModelForImageTextToText, AutoProcessor

    family, tokenizer = load_family(path)
    return Loaded(
        family=family,
        tokenizer=tokenizer,
        encoder=family.build_encoder(torch.device("cpu"), torch.float32),
        model=AutoModelForImageTextToText.from_pretrained(path).eval(),
        processor=AutoProcessor.from_pretrained(path),
    )


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


def plan(family: Family, modality: Modality, size: MediaSize, options: Mapping[str, Any] | None = None) -> MediaPlan:
    """The plan of an item with options as a request has them."""
    return family.plan_media(modality, size, family.resolve_options(modality, options or {}))


def prepare(family: Family, media: DecodedMedia, options: Mapping[str, Any] | None = None) -> PreparedMedia:
    """What the media front makes of decoded media."""
    planned = plan(family, media.modality, media.size, options)
    features = family.preprocess(media, planned.measures)
    return PreparedMedia(modality=media.modality, features=features, plan=planned, key=media.digest, size=media.size)


def preprocess(family: Family, media: DecodedMedia, options: Mapping[str, Any] | None = None) -> Features:
    """The tower's input for decoded media, with options as a request has them."""
    return prepare(family, media, options).features


def build(loaded: Loaded, media: list[DecodedMedia], options: dict[str, Any] | None = None) -> MultimodalInput:
    """'the', a marker and a word for each of `media`, an end: through our prompt builder."""
    markers = loaded.family.markers
    text, spans = "the ", []
    for item in media:
        spans.append((len(text), len(text) + len(markers[item.modality])))
        text += f"{markers[item.modality]} in 12\n"
    parts = tuple(MediaPart(modality=item.modality, source=None) for item in media)
    prepared = [prepare(loaded.family, item, options) for item in media]
    rendered = RenderedPrompt(text=text + "<|im_end|>", media=parts, markers=tuple(spans))
    tokens = tokenize(rendered, loaded.tokenizer)
    made: MultimodalInput = build_input(tokens, prepared, family=loaded.family, model_digest=bytes(32))
    return made


def run_processor(loaded: Loaded, media: list[DecodedMedia]) -> Any:
    """The same prompt through Transformers' processor."""
    from PIL import Image

    markers = loaded.family.markers
    text = "the " + "".join(f"{markers[item.modality]} in 12\n" for item in media) + "<|im_end|>"
    images = [Image.fromarray(item.frames[0]) for item in media if item.modality is IMAGE]
    videos = [torch.from_numpy(item.frames).permute(0, 3, 1, 2) for item in media if item.modality is VIDEO]
    kwargs: dict[str, Any] = {"images": images} if images else {}
    if videos:
        kwargs["videos"] = videos
        kwargs["video_metadata"] = [
            {"fps": FPS, "total_num_frames": len(video), "frames_indices": list(range(len(video)))} for video in videos
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
            return list(torch.split(rows, counts))
        images = iter(model.get_image_features(inputs["pixel_values"], inputs["image_grid_thw"]).pooler_output)
        videos = iter(())
        if "pixel_values_videos" in inputs:
            found = model.get_video_features(inputs["pixel_values_videos"], inputs["video_grid_thw"]).pooler_output
            videos = iter(found)
        return [next(images) if item.modality is IMAGE else next(videos) for item in media]


def edit_json(source: Path, target: Path, name: str, edit: Callable[[dict[str, Any]], None]) -> Path:
    """A copy of the checkpoint folder `source` with one JSON file changed."""
    path = shutil.copytree(source, target)
    data = json.loads((path / name).read_text())
    edit(data)
    (path / name).write_text(json.dumps(data))
    return path
