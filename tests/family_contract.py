"""What the family tests share: a family beside Transformers' model of the same checkpoint, and prompts for both.

Nothing here knows a family. A processor may return pixels as patches, tiles, or tiles per picture that are padded to
the same number (`list_pixels`), and beside them whatever its model takes: sizes, grids, masks.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from oracles import load_oracle
from processing import process

from seesay.checkpoint import Checkpoint
from seesay.processors.text.tokenizer import Tokenizer
from seesay.values import DecodedMedia, MediaPart, MediaSize, Modality, MultimodalInput, RenderedPrompt
from seesay.vl.family import Family, Features, MediaPlan
from seesay.vl.media import PreparedMedia
from seesay.vl.prompt import build_input, tokenize
from seesay.vl.registry import find_family

IMAGE, VIDEO = Modality.IMAGE, Modality.VIDEO
IMAGE_SIZES = [(33, 70), (64, 64), (20, 90), (100, 31), (7, 9), (1, 1), (600, 4)]
FPS = 2.0


@dataclass
class Loaded:
    """A family, and the model and processor of the same checkpoint that it is compared with: `load_oracle`."""

    name: str
    path: Path
    family: Family
    tokenizer: Tokenizer
    encoder: Any
    model: Any
    processor: Any


def load_beside_transformers(path: Path, name: str) -> Loaded:
    family, tokenizer = load_family(path)
    model, processor = load_oracle(path)
    return Loaded(
        name=name,
        path=path,
        family=family,
        tokenizer=tokenizer,
        encoder=family.build_encoder(torch.device("cpu"), torch.float32),
        model=model,
        processor=processor,
    )


def load_family(path: Path) -> tuple[Family, Tokenizer]:
    checkpoint, tokenizer = Checkpoint.load(path), Tokenizer.load(path)
    return find_family(checkpoint.architecture, checkpoint.tower_type)(checkpoint, tokenizer), tokenizer


# --- media ------------------------------------------------------------------------------------------------------------


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


def mixed_media(family: Family) -> list[DecodedMedia]:
    """Pictures of odd sizes, and a clip between them where the family takes clips."""
    media = [draw_image(*size, seed=i) for i, size in enumerate(IMAGE_SIZES)]
    if VIDEO in family.modalities:
        media.insert(2, draw_media(VIDEO, 5, 40, 60))
    return media


# --- ours -------------------------------------------------------------------------------------------------------------


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


def render(family: Family, media: list[DecodedMedia]) -> RenderedPrompt:
    """Words before and after a marker for each of `media`, and an end."""
    text, spans = "the ", []
    for index, item in enumerate(media):
        marker = family.markers[item.modality]
        spans.append((len(text), len(text) + len(marker)))
        text += f"{marker} in 12\n" + ("the " if index % 2 else "")
    parts = tuple(MediaPart(modality=item.modality, source=None) for item in media)
    return RenderedPrompt(text=text + "<|im_end|>", media=parts, markers=tuple(spans))


def build(loaded: Loaded, media: list[DecodedMedia], options: dict[str, Any] | None = None) -> MultimodalInput:
    """The prompt of `render`, through our prompt builder."""
    prepared = [prepare(loaded.family, item, options) for item in media]
    wordings = [item.plan.wording for item in prepared]
    is_apart = loaded.family.tokenizes_apart
    tokens = tokenize(render(loaded.family, media), loaded.tokenizer, wordings, is_apart=is_apart)
    made: MultimodalInput = build_input(tokens, prepared, family=loaded.family, model_digest=bytes(32))
    return made


# --- Transformers' ----------------------------------------------------------------------------------------------------


def run_processor(loaded: Loaded, media: list[DecodedMedia], **options: Any) -> Any:
    """The same prompt through Transformers' processor, which takes `options`."""
    from PIL import Image

    text = render(loaded.family, media).text
    images = [Image.fromarray(item.frames[0]) for item in media if item.modality is IMAGE]
    videos = [item.frames for item in media if item.modality is VIDEO]
    metadata = [
        {"fps": FPS, "total_num_frames": len(video), "frames_indices": list(range(len(video)))} for video in videos
    ]
    return process(loaded.processor, text, images=images, videos=videos, video_metadata=metadata, **options)


def join_patches(patches: torch.Tensor, size: tuple[int, int], group: int) -> torch.Tensor:
    """Return the picture [1, height, width, 3] of `size` that was cut into patches (channel, y, x) [P, 3·side²], of
    which group² neighbours lie together."""
    side = math.isqrt(patches.shape[1] // 3)
    lines, columns = (length // side // group for length in size)
    axes = patches.view(lines, columns, group, group, 3, side, side).permute(0, 2, 5, 1, 3, 6, 4)
    return axes.reshape(1, *size, 3)


def list_pixels(
    pixels: torch.Tensor, mask: torch.Tensor | None = None, sizes: torch.Tensor | None = None
) -> list[torch.Tensor]:
    """Return what a processor made of all media, without what it added to make them equal in size: patch vectors
    [size] of [P, size], or tiles [H, W, 3] of [N, 3, H, W] or [B, N, 3, H, W].

    With a `mask` bool [B, N, H, W] (or [N, H, W]) the rest of a tile, and tiles of which nothing is left, were added.
    Without one, tiles of nothing but zeros behind the others of their picture were. Of pictures [N, 3, H, W] with
    `sizes` [N, 2] what lies outside of these was added."""
    if pixels.dim() == 2:
        return list(pixels)
    if pixels.dim() == 4 and sizes is not None:
        pictures = pixels.permute(0, 2, 3, 1)
        return [picture[:height, :width] for picture, (height, width) in zip(pictures, sizes.tolist(), strict=True)]
    if pixels.dim() == 4:
        pixels, mask = pixels[None], None if mask is None else mask[None]
    assert pixels.dim() == 5, f"pixels of shape {list(pixels.shape)}"
    tiles = []
    for index, row in enumerate(pixels.permute(0, 1, 3, 4, 2)):
        if mask is None:
            is_real = row.flatten(1).any(dim=1)
            count = int(is_real.sum())
            assert bool(is_real[:count].all()), "padding lies behind the tiles of a picture"
            tiles += list(row[:count])
            continue
        for tile, kept in zip(row, mask[index].bool(), strict=True):
            height, width = int(kept.any(dim=1).sum()), int(kept.any(dim=0).sum())
            assert int(kept.sum()) == height * width == int(kept[:height, :width].sum()), "a mask keeps a corner"
            if height:
                tiles.append(tile[:height, :width])
    return tiles


class _Seen(Exception):
    """Ends a forward pass once its embeddings are known."""


def decoder_of(loaded: Loaded) -> Any:
    """Return the model's text decoder, without its head."""
    base = loaded.model.model
    return base.text_model if hasattr(base, "text_model") else base.language_model


def spliced_embeddings(loaded: Loaded, inputs: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what Transformers' model gives its decoder for the processor's `inputs`, whatever these are: [T, hidden],
    with the rows of media in it; and what it adds to rows of media behind further layers, in the order of the rows:
    [R, layers · hidden], or no columns."""
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []

    def see(_module: Any, _args: Any, kwargs: Mapping[str, Any]) -> None:
        embeddings, deep = kwargs["inputs_embeds"][0], kwargs.get("deepstack_visual_embeds")
        seen.append((embeddings, torch.cat(deep, dim=1) if deep else embeddings[:, :0]))
        raise _Seen

    decoder = decoder_of(loaded)
    hook = decoder.register_forward_pre_hook(see, with_kwargs=True)
    try:
        with torch.no_grad():
            loaded.model(**inputs)
    except _Seen:
        pass
    finally:
        hook.remove()
    return seen[0]


def edit_json(source: Path, target: Path, name: str, edit: Callable[[dict[str, Any]], None]) -> Path:
    """A copy of the checkpoint folder `source` with one JSON file changed."""
    path = shutil.copytree(source, target)
    data = json.loads((path / name).read_text())
    edit(data)
    (path / name).write_text(json.dumps(data))
    return path
