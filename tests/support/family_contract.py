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

import torch
from oracles import load_oracle
from processing import process

from seesay.checkpoint import Checkpoint
from seesay.contract.items import FPS as FPS
from seesay.contract.items import IMAGE as IMAGE
from seesay.contract.items import IMAGE_SIZES as IMAGE_SIZES
from seesay.contract.items import VIDEO as VIDEO
from seesay.contract.items import Subject
from seesay.contract.items import build as build
from seesay.contract.items import draw_image as draw_image
from seesay.contract.items import draw_media as draw_media
from seesay.contract.items import mixed_media as mixed_media
from seesay.contract.items import plan as plan
from seesay.contract.items import prepare as prepare
from seesay.contract.items import preprocess as preprocess
from seesay.contract.items import render as render
from seesay.contract.items import share_options as share_options
from seesay.processors.text.tokenizer import Tokenizer
from seesay.values import DecodedMedia
from seesay.vl.family import Family
from seesay.vl.registry import find_family


@dataclass
class Loaded(Subject):
    """A family, and the model and processor of the same checkpoint that it is compared with: `load_oracle`."""

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


# --- Transformers' ----------------------------------------------------------------------------------------------------


def run_processor(loaded: Loaded, media: list[DecodedMedia], **options: Any) -> Any:
    """The same prompt through Transformers' processor, which takes `options`."""
    from PIL import Image

    text = render(loaded.family, media, loaded.around_videos).text
    images = [Image.fromarray(item.frames[0]) for item in media if item.modality is IMAGE]
    videos = [item.frames.copy() for item in media if item.modality is VIDEO]  # ERNIE's draws into them
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


def list_line(pixels: torch.Tensor) -> list[torch.Tensor]:
    """Return the patch vectors of all pictures of a processor that puts them one beside another, [1, 3, p, P · p]."""
    channels, side, length = pixels.shape[1:]
    patches = pixels[0].view(channels, side, length // side, side).permute(2, 0, 1, 3)
    return list(patches.reshape(length // side, -1))


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
    if pixels.dim() == 6:  # of several prompts
        pixels = pixels.flatten(0, 1)
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


def list_patches(pixels: torch.Tensor, shapes: torch.Tensor, group: int) -> list[torch.Tensor]:
    """Return the patch vectors of pictures [N, P, size], of which `shapes` [N, 2] says how many are there: those of a
    merge group one behind another, as (channel, y, x)."""
    found = []
    for picture, (rows, columns) in zip(pixels, shapes.tolist(), strict=True):
        patches = picture[: rows * columns].unflatten(1, (-1, 3)).transpose(1, 2).flatten(1)
        grid = patches.view(rows // group, group, columns // group, group, -1).transpose(1, 2)
        found += list(grid.reshape(rows * columns, -1))
    return found


def group_patches(patches: torch.Tensor, shapes: torch.Tensor, group: int) -> list[torch.Tensor]:
    """Return the patch vectors of pictures, one behind another and row by row [P, size], of `shapes` [N, 2]: those of a
    merge group one behind another."""
    found = []
    for (rows, columns), own in zip(shapes.tolist(), torch.split(patches, shapes.prod(1).tolist()), strict=True):
        grid = own.view(rows // group, group, columns // group, group, -1).transpose(1, 2)
        found += list(grid.reshape(rows * columns, -1))
    return found


def group_steps(videos: torch.Tensor, side: int, group: int) -> list[torch.Tensor]:
    """Return the patch vectors of videos [V, steps, frames · 3, H, W], laid out as (channel, frame, y, x): those of a
    merge group one behind another."""
    high, wide = (length // side // group for length in videos.shape[-2:])
    axes = videos.flatten(0, 1).view(-1, videos.shape[2] // 3, 3, high, group, side, wide, group, side)
    return list(axes.permute(0, 3, 6, 4, 7, 2, 1, 5, 8).flatten(5).flatten(0, 4))


class _Seen(Exception):
    """Ends a forward pass once its embeddings are known."""


def decoder_of(loaded: Loaded) -> Any:
    """Return the model's text decoder, without its head."""
    base = getattr(loaded.model, "model", loaded.model)
    found = base.text_model if hasattr(base, "text_model") else base.language_model
    return getattr(found, "model", found)


def head_of(loaded: Loaded) -> Any:
    """Return what makes logits of the decoder's output."""
    for model in (loaded.model, getattr(loaded.model, "language_model", None)):
        if (found := getattr(model, "lm_head", None)) is not None:
            return found
    return loaded.model.get_output_embeddings()


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


def attended_rows(loaded: Loaded, inputs: Any) -> list[torch.Tensor] | None:
    """Return the keys and values of each picture to which the decoder of Transformers' model attends beside the text,
    [rows, layers · 2 · size]; None for a model whose pictures are in the text."""
    layers = [layer.cross_attn for layer in getattr(decoder_of(loaded), "layers", ()) if hasattr(layer, "cross_attn")]
    if not layers:
        return None
    model = loaded.model.model
    names = ("pixel_values", "aspect_ratio_ids", "aspect_ratio_mask")
    with torch.no_grad():
        seen = model.multi_modal_projector(model.vision_model(**{n: inputs[n] for n in names}).last_hidden_state)[0]
        found = []
        for tiles, mask in zip(seen, inputs["aspect_ratio_mask"][0], strict=True):
            rows = tiles[mask.bool()].flatten(0, 1)
            keys = [each.k_norm(each.k_proj(rows).unflatten(1, (-1, each.head_dim))).flatten(1) for each in layers]
            pairs = zip(keys, (each.v_proj(rows) for each in layers), strict=True)
            found.append(torch.cat([part for pair in pairs for part in pair], dim=1))
    return found


def edit_json(source: Path, target: Path, name: str, edit: Callable[[dict[str, Any]], None]) -> Path:
    """A copy of the checkpoint folder `source` with one JSON file changed."""
    path = shutil.copytree(source, target)
    data = json.loads((path / name).read_text())
    edit(data)
    (path / name).write_text(json.dumps(data))
    return path
