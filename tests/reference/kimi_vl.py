"""Kimi-VL (arXiv 2504.07491, section 2.1): MoonViT on pictures of any size, packed side by side, with learned positions
that are stretched by bicubic interpolation and rotary ones in two axes; squares of four patches joined by two linear
layers; and a DeepSeek-V3."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from reference.experts import join_experts, split_experts
from reference.vision_language import Inputs, Json, Processor, VisionLanguage, read_picture, scale
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

PLACE = "<|media_pad|>"
_PREFIXES = {"vision.": "vision_tower.", "projector.": "multi_modal_projector.", "llm.": "language_model."}


def turn(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Turn neighbouring elements of heads [P, heads, dim]: pair 2k by the column and pair 2k + 1 by the row, both with
    frequency 10000^(-4k / dim)."""
    dim = x.shape[-1]
    frequencies = 10000.0 ** (-torch.arange(0, dim, 4) / dim)
    angles = torch.stack((columns[:, None] * frequencies, rows[:, None] * frequencies), dim=-1).flatten(1)
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:2], -1, 2))
    turned = pairs * torch.polar(torch.ones_like(angles), angles).to(x.device)[:, None]
    return torch.view_as_real(turned).flatten(-2).to(x)


class _Block(nn.Module):
    def __init__(self, size: int, inner: int, heads: int) -> None:
        super().__init__()
        self.norm0, self.norm1 = nn.LayerNorm(size), nn.LayerNorm(size)
        self.wqkv, self.wo = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.mlp = nn.ModuleDict({"fc0": nn.Linear(size, inner), "fc1": nn.Linear(inner, size)})
        self.heads = heads

    def forward(self, x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        q, k, v = self.wqkv(self.norm0(x)).view(len(x), 3, self.heads, -1).unbind(1)
        q, k = turn(q, rows, columns), turn(k, rows, columns)
        weights = (torch.einsum("phd,khd->hpk", q, k) / math.sqrt(q.shape[-1])).softmax(dim=-1)
        x = x + self.wo(torch.einsum("hpk,khd->phd", weights, v).flatten(1))
        inner = F.gelu(self.mlp["fc0"](self.norm1(x)), approximate="tanh")
        result: Tensor = x + self.mlp["fc1"](inner)
        return result


class _Vision(nn.Module):
    """Under the published names."""

    def __init__(self, vision: Json) -> None:
        super().__init__()
        size, patch = vision["hidden_size"], vision["patch_size"]
        self.patch_embed = nn.ModuleDict({"proj": nn.Conv2d(3, size, patch, stride=patch), "pos_emb": nn.Module()})
        grid = vision["init_pos_emb_height"], vision["init_pos_emb_width"]
        self.patch_embed["pos_emb"].weight = nn.Parameter(torch.zeros(*grid, size))
        blocks = [
            _Block(size, vision["intermediate_size"], vision["num_attention_heads"])
            for _ in range(vision["num_hidden_layers"])
        ]
        self.encoder = nn.ModuleDict({"blocks": nn.ModuleList(blocks), "final_layernorm": nn.LayerNorm(size)})

    def forward(self, picture: Tensor) -> Tensor:
        """Squares [S, 4, size] of the patches of one picture [3, H, W]."""
        patches: Tensor = self.patch_embed["proj"](picture[None])[0]
        height, width = patches.shape[1:]
        table = self.patch_embed["pos_emb"].get_parameter("weight")
        stretched = F.interpolate(table.permute(2, 0, 1)[None], size=(height, width), mode="bicubic")[0]
        x = (patches + stretched).flatten(1).T
        rows, columns = torch.arange(height).repeat_interleave(width), torch.arange(width).repeat(height)
        for block in self.encoder["blocks"].children():
            x = block(x, rows, columns)
        normed: Tensor = self.encoder["final_layernorm"](x)
        return normed.view(height // 2, 2, width // 2, 2, -1).transpose(1, 2).reshape(height * width // 4, 4, -1)


class KimiVL(VisionLanguage):
    def __init__(self, config: Json) -> None:
        super().__init__(config)
        text, vision = config["text_config"], config["vision_config"]
        self.llm = DeepseekV3ForCausalLM(DeepseekV3Config(**text))
        self.vision = _Vision(vision)
        size = vision["hidden_size"]
        self.projector = nn.ModuleDict(
            {
                "pre_norm": nn.LayerNorm(size, eps=1e-5),
                "linear_1": nn.Linear(4 * size, 4 * size),
                "linear_2": nn.Linear(4 * size, text["hidden_size"]),
            }
        )

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        state = split_experts(super().state_dict(*args, **kwargs))
        return {_rename(name, _PREFIXES): tensor for name, tensor in state.items()}

    def load_state_dict(self, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        prefixes = {published: own for own, published in _PREFIXES.items()}
        own = {_rename(name, prefixes): tensor for name, tensor in state_dict.items()}
        return super().load_state_dict(join_experts(own), *args, **kwargs)

    def make_rows(self, **media: Tensor) -> Tensor:
        rows = []
        for picture, (height, width) in zip(media["pixel_values"], media["image_sizes"].tolist(), strict=True):
            squares = self.vision(picture[:, :height, :width])
            inner = self.projector["linear_1"](self.projector["pre_norm"](squares).flatten(1))
            rows.append(self.projector["linear_2"](F.gelu(inner)))
        return torch.cat(rows)


def _rename(name: str, prefixes: dict[str, str]) -> str:
    prefix = next(each for each in prefixes if name.startswith(each))
    return prefixes[prefix] + name.removeprefix(prefix)


class KimiVLProcessor(Processor):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.patch, self.limit = self.settings["patch_size"], self.settings["in_token_limit"]
        self.mean, self.std = (torch.tensor(self.settings[f"image_{name}"])[:, None, None] for name in ("mean", "std"))

    def fit(self, height: int, width: int) -> tuple[int, int]:
        """The size of a picture that is shrunk until it has at most so many patches."""
        count = (height // self.patch) * (width // self.patch)
        if count <= self.limit:
            return height, width
        factor = math.sqrt(self.limit / count)
        if int(height * factor) == 0 or int(width * factor) == 0:
            raise ValueError("height and width must be > 0")
        return int(height * factor), int(width * factor)

    def find_grid(self, height: int, width: int) -> tuple[int, int]:
        rows, columns = (2 * -(-length // (2 * self.patch)) for length in self.fit(height, width))
        if max(rows, columns) >= 512:
            raise ValueError("more patches than positions")
        return rows, columns

    def prepare(self, image: Any) -> Tensor:
        """A normalized picture [3, H, W] with black padding below and to the right."""
        rows, columns = self.find_grid(image.height, image.width)
        picture = scale(read_picture(image), self.fit(image.height, image.width), "bicubic")
        below, right = rows * self.patch - picture.shape[1], columns * self.patch - picture.shape[2]
        return (F.pad(picture, (0, right, 0, below)) / 255 - self.mean) / self.std

    def __call__(self, text: list[str], images: Any = (), add_special_tokens: bool = True, **_: Any) -> Inputs:
        first, *pieces = text[0].split(PLACE)
        grids = [self.find_grid(image.height, image.width) for image in images]
        written = first + "".join(
            PLACE * (rows * columns // 4) + piece for (rows, columns), piece in zip(grids, pieces, strict=True)
        )
        ids = torch.tensor([self.tokenizer(written, add_special_tokens=add_special_tokens)["input_ids"]])
        if not grids:
            return Inputs(input_ids=ids)
        pictures = [self.prepare(image) for image in images]
        high, wide = (max(picture.shape[axis] for picture in pictures) for axis in (1, 2))
        padded = [F.pad(each, (0, wide - each.shape[2], 0, high - each.shape[1])) for each in pictures]
        return Inputs(
            input_ids=ids,
            is_row=ids == self.tokenizer.convert_tokens_to_ids(PLACE),
            pixel_values=torch.stack(padded),
            image_sizes=torch.tensor([each.shape[1:] for each in pictures]),
        )

    def _get_num_multimodal_tokens(self, image_sizes: list[tuple[int, int]]) -> dict[str, list[int]]:
        return {"num_image_tokens": [math.prod(self.find_grid(*size)) // 4 for size in image_sizes]}
