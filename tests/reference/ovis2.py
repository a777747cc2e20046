"""Ovis2 as its authors publish it (arXiv 2405.20797): an AIMv2 whose squares of four rows choose among the words of a
visual vocabulary, with embeddings of their own, and a Qwen2.

Read from the files of AIDC-AI/Ovis2-34B: the tower from modeling_aimv2.py; what is taken of it, the head and the words
from `BaseVisualTokenizer.encode` and `forward` of modeling_ovis.py; pictures from `preprocess_image` there; the prompt
from `QwenConversationFormatter` of configuration_ovis.py.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from reference.vision_language import Inputs, Json, Processor, VisionLanguage
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import Qwen2Config, Qwen2ForCausalLM

MARKER = "<image>"
MOST_PARTS = 9
LEAST_COVERED = 0.9
NUM_INDICATORS = 5


class _Norm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


class _Block(nn.Module):
    def __init__(self, backbone: Json) -> None:
        super().__init__()
        size, inner, eps = backbone["hidden_size"], backbone["intermediate_size"], backbone["rms_norm_eps"]
        qkv, other = backbone["qkv_bias"], backbone["use_bias"]
        self.heads = backbone["num_attention_heads"]
        self.attn = nn.ModuleDict(
            {"qkv": nn.Linear(size, 3 * size, bias=qkv), "proj": nn.Linear(size, size, bias=other)}
        )
        widths = {"fc1": (size, inner), "fc2": (inner, size), "fc3": (size, inner)}
        self.mlp = nn.ModuleDict({name: nn.Linear(*width, bias=other) for name, width in widths.items()})
        self.norm_1, self.norm_2 = _Norm(size, eps), _Norm(size, eps)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.attn["qkv"](self.norm_1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])).softmax(dim=-1)
        x = x + self.attn["proj"]((weights @ v).transpose(1, 2).flatten(2))
        normed = self.norm_2(x)
        result: Tensor = x + self.mlp["fc2"](F.silu(self.mlp["fc1"](normed)) * self.mlp["fc3"](normed))
        return result


class _VisualTokenizer(nn.Module):
    def __init__(self, config: Json) -> None:
        super().__init__()
        backbone = config["backbone_config"]
        size, patch, eps = backbone["hidden_size"], backbone["patch_size"], backbone["rms_norm_eps"]
        patchifier = nn.ModuleDict({"proj": nn.Conv2d(3, size, patch, stride=patch), "norm": _Norm(size, eps)})
        preprocessor = nn.ModuleDict({"patchifier": patchifier})
        positions = torch.zeros(1, (backbone["image_size"] // patch) ** 2, size)
        preprocessor.register_parameter("pos_embed", nn.Parameter(positions))
        blocks = nn.ModuleList([_Block(backbone) for _ in range(backbone["num_hidden_layers"])])
        trunk = nn.ModuleDict({"blocks": blocks, "post_trunk_norm": _Norm(size, eps)})  # its output is not taken
        self.backbone = nn.ModuleDict({"preprocessor": preprocessor, "trunk": trunk})
        self.stride, num_words = config["hidden_stride"], config["vocab_size"] - NUM_INDICATORS
        linear = nn.Linear(size * self.stride**2, num_words, bias=False)
        self.head = nn.Sequential(linear, nn.LayerNorm(num_words))

    def forward(self, tiles: Tensor) -> Tensor:
        """Probabilities [N, R, words] of tiles [N, 3, S, S]. `hidden_states[-1]` is what the last block makes."""
        preprocessor: Any = self.backbone["preprocessor"]
        patchifier = preprocessor["patchifier"]
        x = patchifier["norm"](patchifier["proj"](tiles).flatten(2).transpose(1, 2))
        x = x + preprocessor.get_parameter("pos_embed")
        trunk: Any = self.backbone["trunk"]
        for block in trunk["blocks"].children():
            x = block(x)
        side = math.isqrt(x.shape[1])
        squares = x.unflatten(1, (side // self.stride, self.stride, side // self.stride, self.stride))
        return self.head(squares.transpose(2, 3).flatten(3).flatten(1, 2)).softmax(dim=-1)  # type: ignore[no-any-return]


class Ovis2(VisionLanguage):
    """Under the published names."""

    def __init__(self, config: Json) -> None:
        super().__init__(config)
        self.llm = Qwen2ForCausalLM(Qwen2Config(**config["llm_config"]))
        self.visual_tokenizer = _VisualTokenizer(config["visual_tokenizer_config"])
        size = config["visual_tokenizer_config"]["vocab_size"], config["hidden_size"]
        self.vte = nn.Embedding(*size, _weight=torch.zeros(size))

    def make_rows(self, **media: Tensor) -> Tensor:
        rows, first = [], 0
        begin, whole, column, line, end = self.vte.weight[-NUM_INDICATORS:, None]
        for high, wide in media["grids"].tolist():
            count = 1 + high * wide if high * wide > 1 else 1
            probable = self.visual_tokenizer(media["pixel_values"][first : first + count])
            first += count
            tiles = list(probable @ self.vte.weight[:-NUM_INDICATORS])
            rows += [begin, tiles[0], whole]
            for index, tile in enumerate(tiles[1:], start=1):
                last = end[:0] if index == high * wide else line
                rows += [tile, column if index % wide else last]
            rows.append(end)
        return torch.cat(rows)


class Ovis2Processor(Processor):
    """Texts around pictures are tokenized one by one. The last token stands where a row goes."""

    def __init__(self, path: Path, *, config: Json) -> None:
        from transformers import PreTrainedTokenizerFast

        self.tokenizer = PreTrainedTokenizerFast.from_pretrained(str(path))
        self.tokenizer.chat_template = TEMPLATE
        self.settings = json.loads((path / "preprocessor_config.json").read_text())
        self.side: int = self.settings["crop_size"]["height"]
        visual = config["visual_tokenizer_config"]
        self.num_rows: int = (self.side // visual["backbone_config"]["patch_size"] // visual["hidden_stride"]) ** 2
        self.place = config["llm_config"]["vocab_size"] - 1
        self.mean, self.std = (torch.tensor(self.settings[f"image_{name}"])[:, None, None] for name in ("mean", "std"))

    def choose(self, height: int, width: int) -> tuple[int, int]:
        """The (rows, columns) of the fewest parts that show more than 0.9 of the pixels at their own size; of those
        that show most if there are none."""
        grids = [(i, j) for i in range(1, MOST_PARTS + 1) for j in range(1, MOST_PARTS + 1) if i * j <= MOST_PARTS]
        shown = {
            grid: sum(self.count_shown(*box) for box in cut(height, width, grid)) / (height * width) for grid in grids
        }
        enough = [grid for grid in grids if shown[grid] > LEAST_COVERED]
        if enough:
            return min(enough, key=lambda grid: (math.prod(grid), -shown[grid]))
        return min(grids, key=lambda grid: (-shown[grid], math.prod(grid)))

    def count_shown(self, left: int, top: int, right: int, bottom: int) -> float:
        """The pixels of a part that are left when its longer side is a tile's."""
        short, long = sorted((right - left, bottom - top))
        return short / long * self.side * self.side if long > self.side else long * short

    def fit(self, part: Image.Image) -> Tensor:
        """A normalized tile [3, S, S]: zeros around the part."""
        width, height = part.size
        longest = max(width, height)
        size = max(1, int(width / longest * self.side)), max(1, int(height / longest * self.side))
        pixels = torch.from_numpy(np.array(part.resize(size, Image.Resampling.BICUBIC))).permute(2, 0, 1)
        left, top = (self.side - size[0]) // 2, (self.side - size[1]) // 2
        tile = torch.zeros(3, self.side, self.side)
        tile[:, top : top + size[1], left : left + size[0]] = (pixels / 255 - self.mean) / self.std
        return tile

    def count(self, grid: tuple[int, int]) -> int:
        """The rows of a picture: those of its tiles, and the indicators around and between them."""
        parts = math.prod(grid)
        return self.num_rows + 3 if parts == 1 else (1 + parts) * self.num_rows + 2 + parts

    def __call__(self, text: list[str], images: Any = (), add_special_tokens: bool = False, **_: Any) -> Inputs:
        del add_special_tokens  # there are none
        pieces = [self.tokenizer(piece, add_special_tokens=False)["input_ids"] for piece in text[0].split(MARKER)]
        grids = [self.choose(image.height, image.width) for image in images]
        ids, is_row = list(pieces[0]), [False] * len(pieces[0])
        for grid, piece in zip(grids, pieces[1:], strict=True):
            ids += [self.place] * self.count(grid) + piece
            is_row += [True] * self.count(grid) + [False] * len(piece)
        inputs = Inputs(input_ids=torch.tensor([ids]))
        if not grids:
            return inputs
        tiles = []
        for image, grid in zip(images, grids, strict=True):
            boxes = cut(image.height, image.width, grid)
            parts = [image, *map(image.crop, boxes)] if len(boxes) > 1 else [image]
            tiles += [self.fit(part) for part in parts]
        more = {"is_row": torch.tensor([is_row]), "pixel_values": torch.stack(tiles), "grids": torch.tensor(grids)}
        return Inputs(**inputs, **more)

    def _get_num_multimodal_tokens(self, image_sizes: list[tuple[int, int]]) -> dict[str, list[int]]:
        return {"num_image_tokens": [self.count(self.choose(*size)) for size in image_sizes]}


def cut(height: int, width: int, grid: tuple[int, int]) -> list[tuple[int, int, int, int]]:
    """The (left, top, right, bottom) of the parts, row by row. The last ones have what is left of the picture."""
    (lines, columns) = (
        [*(length // count * i for i in range(count)), length]
        for length, count in zip((height, width), grid, strict=True)
    )
    return [(columns[j], lines[i], columns[j + 1], lines[i + 1]) for i in range(grid[0]) for j in range(grid[1])]


TEMPLATE = (
    "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}"
    "{% endif %}{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% set seen = namespace(text=false) %}{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}{{ '<image>' }}"
    "{% if not seen.text %}{{ '\n' }}{% endif %}{% else %}{% set seen.text = true %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""A line break follows the pictures at the beginning of a message, as the model's card asks."""
