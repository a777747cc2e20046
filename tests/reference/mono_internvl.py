"""Mono-InternVL (arXiv 2410.08202): patches with learned positions and a projector, without a tower; and an InternLM2
that has two feed-forwards in each layer, the second one for the rows of pictures.

Read from the files of github.com/OpenGVLab/Mono-InternVL: layers and heads from modeling_internlm2_ve.py; patches from
`InternVisionPatchModel` of modeling_intern_vit.py; the squares of rows, the projector, the order of tokens from
modeling_internvl_chat.py; the tiles from `dynamic_preprocess` of the README."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from reference.vision_language import Inputs, Json, Processor, VisionLanguage, read_picture, scale
from torch import Tensor, nn
from torch.nn import functional as F

MARKER, START, END = "<IMG_CONTEXT>", "<img>", "</img>"
MEAN, STD = (torch.tensor(each)[:, None, None] for each in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
"""Those of ImageNet: constants of the published code."""


class _Norm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x: Tensor) -> Tensor:
        normed: Tensor = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight
        return normed


class _FeedForward(nn.Module):
    def __init__(self, config: Json) -> None:
        super().__init__()
        size, inner = config["hidden_size"], config["intermediate_size"]
        self.w1, self.w3 = nn.Linear(size, inner, bias=False), nn.Linear(size, inner, bias=False)
        self.w2 = nn.Linear(inner, size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.w2(F.silu(self.w1(x)) * self.w3(x))
        return result


class _Attention(nn.Module):
    """The rows of `wqkv` are those of one group after another: its queries, its key, its value."""

    def __init__(self, config: Json) -> None:
        super().__init__()
        size, self.groups = config["hidden_size"], config["num_key_value_heads"]
        self.queries, self.dim = config["num_attention_heads"] // self.groups, size // config["num_attention_heads"]
        self.wqkv = nn.Linear(size, self.groups * (self.queries + 2) * self.dim, bias=config["bias"])
        self.wo = nn.Linear(size, size, bias=config["bias"])
        self.theta: float = config["rope_theta"]

    def turn(self, x: Tensor, positions: Tensor) -> Tensor:
        """x [groups, heads, T, dim]: components i and i + dim / 2 turn together."""
        frequencies = self.theta ** (-torch.arange(0, self.dim, 2, device=x.device).double() / self.dim)
        angles = (positions[:, None] * frequencies).repeat(1, 2)
        first, second = x.chunk(2, dim=-1)
        turned: Tensor = x * angles.cos().to(x) + torch.cat((-second, first), dim=-1) * angles.sin().to(x)
        return turned

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        grouped = self.wqkv(x).unflatten(-1, (self.groups, -1, self.dim)).permute(1, 2, 0, 3)
        query, key = self.turn(grouped[:, :-2], positions), self.turn(grouped[:, -2:-1], positions)
        scores = query @ key.transpose(2, 3) / math.sqrt(self.dim)
        later = torch.ones(len(x), len(x), dtype=torch.bool, device=x.device).triu(1)
        values = scores.masked_fill(later, -torch.inf).softmax(dim=-1) @ grouped[:, -1:]
        result: Tensor = self.wo(values.permute(2, 0, 1, 3).flatten(1))
        return result


class _Layer(nn.Module):
    def __init__(self, config: Json) -> None:
        super().__init__()
        size, eps = config["hidden_size"], config["rms_norm_eps"]
        self.attention = _Attention(config)
        self.feed_forward, self.feed_forward_ve = _FeedForward(config), _FeedForward(config)
        self.attention_norm, self.ffn_norm = _Norm(size, eps), _Norm(size, eps)

    def forward(self, x: Tensor, positions: Tensor, is_row: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), positions)
        normed = self.ffn_norm(x)
        return x + torch.where(is_row[:, None], self.feed_forward_ve(normed), self.feed_forward(normed))


class _Decoder(nn.Module):
    """One prompt. is_row bool [1, T]: where rows of pictures are; None: nowhere."""

    def __init__(self, config: Json) -> None:
        super().__init__()
        self.config = SimpleNamespace(**config)
        self.tok_embeddings = nn.Embedding(config["vocab_size"], config["hidden_size"])
        self.layers = nn.ModuleList(_Layer(config) for _ in range(config["num_hidden_layers"]))
        self.norm = _Norm(config["hidden_size"], config["rms_norm_eps"])

    def forward(self, inputs_embeds: Tensor, position_ids: Tensor | None = None, is_row: Tensor | None = None) -> Any:
        [x], length = inputs_embeds, inputs_embeds.shape[1]
        counted = torch.arange(length, device=x.device)
        positions = counted if position_ids is None else position_ids.flatten()
        rows = torch.zeros(length, dtype=torch.bool) if is_row is None else is_row[0]
        for layer in self.layers:
            x = layer(x, positions, rows.to(x.device))
        return SimpleNamespace(last_hidden_state=self.norm(x)[None])


class _Causal(nn.Module):
    def __init__(self, config: Json) -> None:
        super().__init__()
        self.model = _Decoder(config)
        self.output = nn.Linear(config["hidden_size"], config["vocab_size"], bias=False)


class _Patches(nn.Module):
    """The class token has a position, and is dropped."""

    def __init__(self, vision: Json) -> None:
        super().__init__()
        size, patch = vision["hidden_size"], vision["patch_size"]
        self.class_embedding = nn.Parameter(torch.zeros(1, 1, size))
        self.patch_embedding = nn.Conv2d(3, size, patch, stride=patch)
        self.position_embedding = nn.Parameter(torch.zeros(1, (vision["image_size"] // patch) ** 2 + 1, size))

    def forward(self, tiles: Tensor) -> Tensor:
        patches: Tensor = self.patch_embedding(tiles).flatten(2).transpose(1, 2)
        return patches + self.position_embedding[:, 1:]


class MonoInternVL(VisionLanguage):
    """Under the published names."""

    splits_rows = True

    def __init__(self, config: Json) -> None:
        super().__init__(config)
        vision, text = config["vision_config"], config["llm_config"]
        self.language_model = _Causal(text)
        self.vision_model = nn.ModuleDict({"embeddings": _Patches(vision)})
        self.joined = round(1 / config["downsample_ratio"])
        size, out = vision["hidden_size"] * self.joined**2, text["hidden_size"]
        self.mlp1 = nn.Sequential(nn.LayerNorm(size), nn.Linear(size, out), nn.GELU(), nn.Linear(out, out))

    @property
    def model(self) -> Any:
        return SimpleNamespace(language_model=self.language_model)

    @property
    def lm_head(self) -> Any:
        return self.language_model.output

    def get_input_embeddings(self) -> Any:
        return self.language_model.model.tok_embeddings

    def make_rows(self, **media: Tensor) -> Tensor:
        """Squares of patches become one row: those of a line one after another, of two lines one behind the other."""
        patches = self.vision_model["embeddings"](media["pixel_values"])
        side = math.isqrt(patches.shape[1]) // self.joined
        squares = patches.unflatten(1, (side, self.joined, side, self.joined)).transpose(2, 3)
        rows: Tensor = self.mlp1(squares.flatten(3))
        return rows.flatten(0, 2)

    def forward(self, input_ids: Tensor, is_row: Tensor | None = None, **media: Any) -> Any:
        embeddings = self.splice(input_ids, is_row, **media)
        hidden = self.language_model.model(inputs_embeds=embeddings, is_row=is_row).last_hidden_state
        return SimpleNamespace(logits=self.lm_head(hidden))

    def generate(self, input_ids: Tensor, **inputs: Any) -> Tensor:
        """Greedily, without an end. All tokens are computed again for each; those of the answer are text."""
        is_row = inputs.get("is_row")
        embeddings, ids = self.splice(input_ids, is_row, pixel_values=inputs.get("pixel_values")), input_ids
        for _ in range(inputs["max_new_tokens"]):
            hidden = self.language_model.model(inputs_embeds=embeddings, is_row=is_row).last_hidden_state
            logits = self.lm_head(hidden[:, -1])
            logits[:, self.language_model.model.config.eos_token_id] = -torch.inf
            token = logits.argmax(dim=-1, keepdim=True)
            ids, embeddings = torch.cat((ids, token), dim=1), torch.cat((embeddings, self.embed(token)), dim=1)
            is_row = None if is_row is None else F.pad(is_row, (0, 1))
        return ids


class MonoInternVLProcessor(Processor):
    """A picture is cut into the tiles whose shape is most like its own, and follows them as a whole."""

    def __init__(self, path: Path, *, config: Json) -> None:
        from transformers import PreTrainedTokenizerFast

        self.tokenizer = PreTrainedTokenizerFast.from_pretrained(str(path))
        vision = config["vision_config"]
        self.side: int = vision["image_size"]
        self.num_rows = int((self.side // vision["patch_size"] * config["downsample_ratio"]) ** 2)
        self.least, self.most = config["min_dynamic_patch"], config["max_dynamic_patch"]
        assert config["dynamic_image_size"] and config["use_thumbnail"]

    def choose(self, height: int, width: int) -> tuple[int, int]:
        """The (columns, rows) of tiles. Of shapes that are alike, the later one is taken where the picture has more
        than half of its pixels: shapes are in the order of their number of tiles, and else in that of a set's."""
        shapes = {
            (columns, rows)
            for number in range(self.least, self.most + 1)
            for columns in range(1, number + 1)
            for rows in range(1, number + 1)
            if self.least <= columns * rows <= self.most
        }
        best, nearest = (1, 1), math.inf
        for columns, rows in sorted(shapes, key=math.prod):
            distance = abs(width / height - columns / rows)
            if distance < nearest or (distance == nearest and width * height > 0.5 * self.side**2 * columns * rows):
                best, nearest = (columns, rows), distance
        return best

    def cut(self, picture: Tensor) -> list[Tensor]:
        columns, rows = self.choose(*picture.shape[1:])
        whole = scale(picture, (rows * self.side, columns * self.side), "bicubic")
        lines = whole.view(3, rows, self.side, columns, self.side)
        tiles = list(lines.permute(1, 3, 0, 2, 4).flatten(0, 1))
        return [*tiles, scale(picture, (self.side, self.side), "bicubic")] if len(tiles) > 1 else tiles

    def __call__(self, text: list[str], images: Any = (), add_special_tokens: bool = True, **_: Any) -> Inputs:
        cut = [self.cut(read_picture(image)) for image in images]
        before, *others = text[0].split(MARKER)
        counts = [len(tiles) * self.num_rows for tiles in cut]
        pieces = [f"{START}{MARKER * count}{END}{piece}" for count, piece in zip(counts, others, strict=True)]
        ids = self.tokenizer("".join((before, *pieces)), add_special_tokens=add_special_tokens)["input_ids"]
        inputs = Inputs(input_ids=torch.tensor([ids]))
        if not cut:
            return inputs
        tiles = torch.stack([(tile / 255 - MEAN) / STD for tiles in cut for tile in tiles])
        is_row = inputs["input_ids"] == self.tokenizer.convert_tokens_to_ids(MARKER)
        return Inputs(**inputs, is_row=is_row, pixel_values=tiles)

    def _get_num_multimodal_tokens(self, image_sizes: list[tuple[int, int]]) -> dict[str, list[int]]:
        numbers = [math.prod(self.choose(*size)) for size in image_sizes]
        return {"num_image_tokens": [(number + (number > 1)) * self.num_rows for number in numbers]}
