"""MiniCPM-V 2.5, 2.6, 4 and 4.5 (arXiv 2408.01800): slices (section 3.1), SigLIP with positions stretched over any
grid, and a resampler with two-dimensional sines, which in 4.5 takes several frames of a video at once (arXiv
2509.18154, section 2.1).

Each statement was read from a published file, of the repositories on the hub:

* `Slicer`: image_processing_minicpmv.py of MiniCPM-Llama3-V-2_5 (2024-07-23) and MiniCPM-V-2_6; 4.5 has the same.
* `MiniCPMVProcessor.spell`: get_slice_image_placeholder and get_grid_placeholder of the same files.
* `MiniCPMVProcessor.group`: encode_video in the README of MiniCPM-V-4_5.
* `MiniCPMV.make_rows` with `has_lines`: get_vllm_embedding in modeling_minicpmv.py of MiniCPM-Llama3-V-2_5. It pads the
  patches of all slices with zeros to the longest, and gives them to the tower as pictures of one line with a mask that
  is true everywhere, as its index lies on the axis of lines.
* `MiniCPMV.encode` and `place_in_square`: Idefics2VisionEmbeddings and Idefics2VisionTransformer of Transformers 4.40,
  which is 2.5's tower; modeling_navit_siglip.py of MiniCPM-V-2_6 and 4_5, whose masks leave the padding out.
* `Resampler`, `sines`, `time_sines`: resampler.py of MiniCPM-V-2_6 and, with times, 4_5; that of 2.5 is equal to 2.6's.

`tests/golden` holds numbers that these files computed.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from reference.vision_language import Inputs, Json, Processor, VisionLanguage, read_picture, scale
from torch import Tensor, nn
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    SiglipVisionConfig,
    SiglipVisionModel,
)

DECODERS = {
    2.5: (LlamaConfig, LlamaForCausalLM),
    2.6: (Qwen2Config, Qwen2ForCausalLM),
    4.0: (LlamaConfig, LlamaForCausalLM),
    4.5: (Qwen3Config, Qwen3ForCausalLM),
}


class Resampler(nn.Module):
    def __init__(self, num_queries: int, size: int, hidden: int) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.zeros(num_queries, size))
        self.kv_proj = nn.Linear(hidden, size, bias=False)
        self.attn = nn.MultiheadAttention(size, size // 128, batch_first=True)
        self.ln_q = nn.LayerNorm(size, eps=1e-6)
        self.ln_kv = nn.LayerNorm(size, eps=1e-6)
        self.ln_post = nn.LayerNorm(size, eps=1e-6)
        self.proj = nn.Parameter(torch.zeros(size, size))

    def forward(self, slices: list[Tensor], sizes: list[tuple[int, int]], times: list[int]) -> Tensor:
        """The rows of slices that are seen together. A time of -1 is that of a picture."""
        values = [self.ln_kv(self.kv_proj(patches)) for patches in slices]
        size = values[0].shape[1]
        keys = [
            value
            + sines(size, *grid, value.device, value.dtype)
            + (0 if time < 0 else time_sines(size, time).to(value))
            for value, grid, time in zip(values, sizes, times, strict=True)
        ]
        attended, _ = self.attn(self.ln_q(self.query)[None], torch.cat(keys)[None], torch.cat(values)[None])
        result: Tensor = self.ln_post(attended[0]) @ self.proj
        return result


@lru_cache(maxsize=32)
def sines(size: int, height: int, width: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """[height · width, size]: a quarter each of sines and cosines of the column, and of the row."""
    quarter = size // 4
    speeds = torch.tensor([10000 ** (-index / quarter) for index in range(quarter)])
    table = torch.zeros(height, width, size)
    for row in range(height):
        table[row, :, 2 * quarter :] = torch.cat(((row * speeds).sin(), (row * speeds).cos()))
    for column in range(width):
        table[:, column, : 2 * quarter] = torch.cat(((column * speeds).sin(), (column * speeds).cos()))
    return table.view(-1, size).to(device, dtype)


def time_sines(size: int, time: int) -> Tensor:
    """[size]: a half each of sines and cosines."""
    angles = time * torch.tensor([10000 ** (-index / (size // 2)) for index in range(size // 2)])
    return torch.cat((angles.sin(), angles.cos()))


def place_in_square(count: int, side: int) -> Tensor:
    """The line of a square of `side` positions for each of `count` lines of patches."""
    edges = torch.arange(1 / side, 1.0, 1 / side)
    corners = torch.arange(0, 1 - 1e-6, float(1 / torch.tensor(count, dtype=torch.int32)))
    assert len(corners) == count
    return torch.bucketize(corners, edges, right=True)


class MiniCPMV(VisionLanguage):
    def __init__(self, config: Json) -> None:
        super().__init__(config)
        config_class, model_class = DECODERS[config.get("version", 2.5)]
        left_out = ("vision_config", "model_type", "auto_map", "architectures", "slice_config")
        self.llm = model_class(config_class(**{key: value for key, value in config.items() if key not in left_out}))
        vision = {key: value for key, value in config["vision_config"].items() if key != "model_type"}
        self.vpm = SiglipVisionModel(SiglipVisionConfig(**vision, vision_use_head=False))
        self.resampler = Resampler(config["query_num"], config["hidden_size"], vision["hidden_size"])
        self.side = vision["image_size"] // vision["patch_size"]
        self.has_lines = config.get("version", 2.5) == 2.5

    def make_rows(self, **media: Tensor) -> Tensor:
        pixel_values, sizes = media["pixel_values"], media["target_sizes"].tolist()
        patches = list(torch.split(pixel_values, list(map(math.prod, sizes))))
        if self.has_lines:
            padded = nn.utils.rnn.pad_sequence(patches, batch_first=True)
            lines = [self.encode(each, 1, len(each)) for each in padded]
            slices = [line[: len(each)] for line, each in zip(lines, patches, strict=True)]
        else:
            slices = [self.encode(each, *size) for each, size in zip(patches, sizes, strict=True)]
        rows, first = [], 0
        temporal_ids, lengths = media["temporal_ids"].tolist(), media["temporal_lengths"].tolist()
        for length in lengths:
            pack = slice(first, first + length)
            rows.append(self.resampler(slices[pack], sizes[pack], temporal_ids[pack]))
            first += length
        return torch.cat(rows)

    def encode(self, patches: Tensor, height: int, width: int) -> Tensor:
        embed = self.vpm.embeddings
        places = place_in_square(height, self.side)[:, None] * self.side + place_in_square(width, self.side)
        kernel, bias = embed.patch_embedding.weight.flatten(1), embed.patch_embedding.bias
        x = patches.to(kernel) @ kernel.T + bias + embed.position_embedding(places.flatten().to(patches.device))
        result: Tensor = self.vpm.post_layernorm(self.vpm.encoder(inputs_embeds=x[None]).last_hidden_state)[0]
        return result


class Slicer:
    """Makes slices of pictures, and the patches of slices."""

    def __init__(self, settings: Json) -> None:
        self.area_side, self.patch = settings["scale_resolution"], settings["patch_size"]
        self.most = settings["max_slice_nums"]
        statistics = (settings.get(f"norm_{name}", settings.get(f"image_{name}")) for name in ("mean", "std"))
        self.mean, self.std = (torch.tensor(values)[:, None, None] for values in statistics)

    def find_grid(self, width: int, height: int) -> tuple[int, int] | None:
        """(columns, rows) of slices."""
        count = min(math.ceil(width * height / self.area_side**2), self.most)
        if count < 2:
            return None
        counts = [each for each in (count - 1, count, count + 1) if 1 < each <= self.most]
        grids = [(columns, each // columns) for each in counts for columns in range(1, each + 1) if each % columns == 0]
        shape = math.log(width / height)
        return min(grids, key=lambda grid: abs(shape - math.log(grid[0] / grid[1])))

    def nearest(self, length: float, step: int) -> int:
        return max(step, step * round(length / step))

    def fit(self, width: float, height: float) -> tuple[int, int]:
        shape = width / height
        new_height = int(self.area_side / math.sqrt(shape))
        new_width = int(new_height * shape)
        return self.nearest(new_width, self.patch), self.nearest(new_height, self.patch)

    def slice(self, picture: Tensor) -> list[Tensor]:
        """The whole picture, then its slices, each uint8 [3, H, W]."""
        height, width = picture.shape[1:]
        grid = self.find_grid(width, height)
        small = self.nearest(width, self.patch), self.nearest(height, self.patch)
        is_enlarged = grid is None or width * height > self.area_side**2
        whole = self.fit(width, height) if is_enlarged else small
        found = [scale(picture, (whole[1], whole[0]), "bicubic")]
        if grid is None:
            return found
        columns, rows = grid
        part = self.fit(self.nearest(width, columns) / columns, self.nearest(height, rows) / rows)
        large = scale(picture, (rows * part[1], columns * part[0]), "bicubic")
        for row in range(rows):
            for column in range(columns):
                top, left = row * part[1], column * part[0]
                found.append(large[:, top : top + part[1], left : left + part[0]])
        return found

    def cut(self, slices: list[Tensor]) -> Inputs:
        """The normalized patches [P, 3·p·p] of slices, one after another, and their sizes in patches."""
        patches = [
            nn.functional.unfold(((each / 255 - self.mean) / self.std)[None], self.patch, stride=self.patch)[0].T
            for each in slices
        ]
        sizes = torch.tensor([[side // self.patch for side in each.shape[1:]] for each in slices])
        return Inputs(pixel_values=torch.cat(patches), target_sizes=sizes)

    def __call__(self, images: Any) -> Inputs:
        """The inputs of the tower for PIL pictures."""
        slices = [each for image in images for each in self.slice(read_picture(image))]
        lone = {"temporal_ids": torch.full((len(slices),), -1), "temporal_lengths": torch.ones(len(slices)).long()}
        return Inputs(**self.cut(slices), **lone)


class MiniCPMVProcessor(Processor):
    def __init__(self, path: Path, *, version: float) -> None:
        super().__init__(path)
        self.is_new = version > 2.5
        self.slicer = Slicer(self.settings)
        self.has_id, self.num_rows = self.settings["use_image_id"], self.settings["image_feature_size"]
        self.video_processor = SimpleNamespace(model_input_names=[])

    def spell(self, width: int, height: int, number: int) -> str:
        """The text that stands for a picture."""
        whole = "<image>" + "<unk>" * self.num_rows + "</image>"
        text = f"<image_id>{number}</image_id>{whole}" if self.has_id else whole
        grid = self.slicer.find_grid(width, height)
        if grid is None:
            return text
        one = whole.replace("image>", "slice>") if self.is_new else whole
        lines = "\n".join([one * grid[0]] * grid[1])
        return text + (lines if self.is_new else f"<slice>{lines}</slice>")

    def group(self, num_frames: int, fps: float, force_packing: int | None = None) -> list[list[int]]:
        """The temporal ids of all frames of a video of so many per second, as the model card's code packs them."""
        duration, most = num_frames / fps, 180
        packing = 1 if fps * int(duration) <= most else min(math.ceil(duration * fps / most), 3)
        scale = np.arange(0, duration, 0.1)
        times = [scale[np.abs(scale - index / fps).argmin()] / 0.1 for index in range(num_frames)]
        step = force_packing or packing
        return [[int(time) for time in times[first : first + step]] for first in range(0, num_frames, step)]

    def __call__(
        self,
        text: list[str],
        images: Any = (),
        videos: Any = (),
        video_metadata: Any = (),
        add_special_tokens: bool = True,
        force_packing: int | None = None,
        **_: Any,
    ) -> Inputs:
        """A video is marked as one; published, each frame is a picture, and all but a pack's first are left out of the
        text. A video counts as one in the numbers of pictures; published, prompts with videos have no numbers."""
        pictures = iter(map(read_picture, images))
        clips = iter(zip(videos, video_metadata, strict=True))
        prompt, slices, packs = "", list[Tensor](), list[list[int]]()
        for number, piece in enumerate(re.split(r"(<(?:image|video)>\./</(?:image|video)>)", text[0])):
            if piece == "<image>./</image>":
                picture = next(pictures)
                prompt += self.spell(picture.shape[2], picture.shape[1], number // 2)
                cut = self.slicer.slice(picture)
                slices, packs = slices + cut, packs + [[-1]] * len(cut)
            elif piece == "<video>./</video>":
                frames, metadata = next(clips)
                found = self.group(len(frames), metadata["fps"], force_packing)
                prompt += "\n".join(["<image>" + "<unk>" * self.num_rows + "</image>"] * len(found))
                width, height = self.slicer.fit(frames.shape[3], frames.shape[2])
                slices, packs = slices + [scale(frame, (height, width), "bicubic") for frame in frames], packs + found
            else:
                prompt += piece
        ids = self.tokenizer(prompt, return_tensors="pt", add_special_tokens=add_special_tokens)["input_ids"]
        if not slices:
            return Inputs(input_ids=ids)
        is_row = ids == self.tokenizer.convert_tokens_to_ids("<unk>")
        return Inputs(
            input_ids=ids,
            is_row=is_row,
            **self.slicer.cut(slices),
            temporal_ids=torch.tensor([time for pack in packs for time in pack]),
            temporal_lengths=torch.tensor(list(map(len, packs))),
        )

    def _get_num_multimodal_tokens(self, image_sizes: list[tuple[int, int]]) -> dict[str, list[int]]:
        grids = [self.slicer.find_grid(width, height) for height, width in image_sizes]
        return {"num_image_tokens": [self.num_rows * (1 + (math.prod(grid) if grid else 0)) for grid in grids]}
