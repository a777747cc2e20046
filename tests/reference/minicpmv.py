"""MiniCPM-V 2.5, 2.6, 4 and 4.5 (arXiv 2408.01800): slices (section 3.1), SigLIP with positions stretched over any
grid, and a resampler with two-dimensional sines."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from reference.vision_language import Inputs, Json, Processor, VisionLanguage, scale
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

    def forward(self, patches: Tensor, height: int, width: int) -> Tensor:
        values = self.ln_kv(self.kv_proj(patches))
        keys = values + sines(values.shape[1], height, width).to(values.device)
        attended, _ = self.attn(self.ln_q(self.query)[None], keys[None], values[None])
        result: Tensor = self.ln_post(attended[0]) @ self.proj
        return result


def sines(size: int, height: int, width: int) -> Tensor:
    """[height · width, size]: a quarter each of sines and cosines of the column, and of the row."""
    quarter = size // 4
    table = torch.zeros(height, width, size)
    speeds = torch.tensor([10000 ** (-index / quarter) for index in range(quarter)])
    for row in range(height):
        for column in range(width):
            parts = [function(place * speeds) for place in (column, row) for function in (torch.sin, torch.cos)]
            table[row, column] = torch.cat(parts)
    return table.view(-1, size)


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

    def make_rows(self, **media: Tensor) -> Tensor:
        pixel_values, target_sizes = media["pixel_values"], media["target_sizes"]
        rows, first = [], 0
        for height, width in target_sizes.tolist():
            patches = pixel_values[first : first + height * width]
            first += height * width
            rows.append(self.resampler(self.encode(patches, height, width), height, width))
        return torch.cat(rows)

    def encode(self, patches: Tensor, height: int, width: int) -> Tensor:
        embed = self.vpm.embeddings
        places = place_in_square(height, self.side)[:, None] * self.side + place_in_square(width, self.side)
        kernel, bias = embed.patch_embedding.weight.flatten(1), embed.patch_embedding.bias
        x = patches @ kernel.T + bias + embed.position_embedding(places.flatten().to(patches.device))
        result: Tensor = self.vpm.post_layernorm(self.vpm.encoder(inputs_embeds=x[None]).last_hidden_state)[0]
        return result


class MiniCPMVProcessor(Processor):
    def __init__(self, path: Path, *, version: float) -> None:
        super().__init__(path)
        self.is_new = version > 2.5
        own = self.settings
        self.area_side, self.patch, self.most = own["scale_resolution"], own["patch_size"], own["max_slice_nums"]
        self.has_id, self.num_rows = own["use_image_id"], own["image_feature_size"]

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

    def spell(self, width: int, height: int, number: int) -> str:
        """The text that stands for a picture."""
        whole = "<image>" + "<unk>" * self.num_rows + "</image>"
        text = f"<image_id>{number}</image_id>{whole}" if self.has_id else whole
        grid = self.find_grid(width, height)
        if grid is None:
            return text
        one = whole.replace("image>", "slice>") if self.is_new else whole
        lines = "\n".join([one * grid[0]] * grid[1])
        return text + (lines if self.is_new else f"<slice>{lines}</slice>")

    def __call__(self, text: list[str], images: Any = (), add_special_tokens: bool = True, **_: Any) -> Inputs:
        pictures = [torch.from_numpy(np.array(image)).permute(2, 0, 1) for image in images]
        pieces = re.split(r"<image>\./</image>", text[0])
        assert len(pieces) == len(pictures) + 1
        prompt = pieces[0]
        for number, (picture, piece) in enumerate(zip(pictures, pieces[1:], strict=True)):
            prompt += self.spell(picture.shape[2], picture.shape[1], number) + piece
        ids = self.tokenizer(prompt, return_tensors="pt", add_special_tokens=add_special_tokens)["input_ids"]
        if not pictures:
            return Inputs(input_ids=ids)
        slices = [each for picture in pictures for each in self.slice(picture)]
        statistics = (self.settings.get(f"norm_{name}", self.settings.get(f"image_{name}")) for name in ("mean", "std"))
        mean, std = (torch.tensor(values)[:, None, None] for values in statistics)
        patches = [
            nn.functional.unfold(((each / 255 - mean) / std)[None], self.patch, stride=self.patch)[0].T
            for each in slices
        ]
        sizes = torch.tensor([[side // self.patch for side in each.shape[1:]] for each in slices])
        is_row = ids == self.tokenizer.convert_tokens_to_ids("<unk>")
        return Inputs(input_ids=ids, is_row=is_row, pixel_values=torch.cat(patches), target_sizes=sizes)

    def _get_num_multimodal_tokens(self, image_sizes: list[tuple[int, int]]) -> dict[str, list[int]]:
        grids = [self.find_grid(width, height) for height, width in image_sizes]
        return {"num_image_tokens": [self.num_rows * (1 + (math.prod(grid) if grid else 0)) for grid in grids]}
