"""Qwen-VL (arXiv 2308.12966, section 2.1): an OpenCLIP ViT without a class token, whose positions are scaled to the
picture's patches, and a resampler whose queries have positions, too. The decoder is a Qwen2 with as many keys as
queries. Tensors have the published names.

Read from files of Qwen/Qwen-VL-Chat, which the docstrings name; `tests/golden/qwen_vl` has numbers of these files."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import torch
from original_text import QWEN_NAMES, name_as_qwen, rename
from reference.vision_language import Inputs, Json, Processor, VisionLanguage, read_picture, scale
from torch import Tensor, nn
from transformers import Qwen2Config, Qwen2ForCausalLM

PICTURE = "<img></img>"


class _Attention(nn.Module):
    """visual.py, VisualAttention. Each head's query, key and value lie together."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.in_proj = nn.Linear(size, 3 * size)
        self.out_proj = nn.Linear(size, size)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.in_proj(x).view(len(x), self.heads, 3, -1).permute(2, 1, 0, 3)
        scores = query @ key.transpose(1, 2) / query.shape[-1] ** 0.5
        result: Tensor = self.out_proj((scores.softmax(dim=-1) @ value).transpose(0, 1).flatten(1))
        return result


class _Block(nn.Module):
    """visual.py, VisualAttentionBlock."""

    def __init__(self, size: int, heads: int, inner: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(size, eps=1e-6), nn.LayerNorm(size, eps=1e-6)
        self.attn = _Attention(size, heads)
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(size, inner), "c_proj": nn.Linear(inner, size)})

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        result: Tensor = x + self.mlp["c_proj"](nn.functional.gelu(self.mlp["c_fc"](self.ln_2(x))))
        return result


class _Pool(nn.Module):
    """visual.py, Resampler."""

    def __init__(self, count: int, size: int, hidden: int) -> None:
        super().__init__()
        self.query, self.pos_embed = (nn.Parameter(torch.zeros(count, size)) for _ in range(2))
        self.kv_proj = nn.Linear(hidden, size, bias=False)
        self.attn = nn.MultiheadAttention(size, size // 128)
        self.ln_q, self.ln_kv = nn.LayerNorm(size, eps=1e-6), nn.LayerNorm(size, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.ln_kv(self.kv_proj(x))
        places = scale_positions(self.pos_embed, len(x))
        result: Tensor = self.attn(self.ln_q(self.query) + self.pos_embed, x + places, x)[0]
        return result


class _Visual(nn.Module):
    """visual.py, VisionTransformer."""

    def __init__(self, sizes: Json) -> None:
        super().__init__()
        size, out, patch = sizes["width"], sizes["output_dim"], sizes["patch_size"]
        self.conv1 = nn.Conv2d(3, size, kernel_size=patch, stride=patch, bias=False)
        self.positional_embedding = nn.Parameter(torch.zeros(256, size))
        self.ln_pre = nn.LayerNorm(size, eps=1e-6)
        layers = [_Block(size, sizes["heads"], int(size * sizes["mlp_ratio"])) for _ in range(sizes["layers"])]
        self.transformer = nn.ModuleDict({"resblocks": nn.Sequential(*layers)})
        self.attn_pool = _Pool(sizes.get("n_queries", 256), out, size)
        self.ln_post = nn.LayerNorm(out, eps=1e-6)
        self.proj = nn.Parameter(torch.zeros(out, out))

    def forward(self, pixels: Tensor) -> Tensor:
        """The rows of one picture [3, S, S]."""
        x = self.conv1(pixels[None].to(self.conv1.weight))[0].flatten(1).T
        x = self.ln_pre(x + scale_positions(self.positional_embedding, len(x)))
        x = self.transformer["resblocks"](x)
        result: Tensor = self.ln_post(self.attn_pool(x)) @ self.proj
        return result


def scale_positions(table: Tensor, count: int) -> Tensor:
    """A square table of positions for a square of `count` patches: visual.py, get_abs_pos."""
    before, after = math.isqrt(len(table)), math.isqrt(count)
    if before == after:
        return table
    square = table.T.view(1, -1, before, before)
    return nn.functional.interpolate(square, size=(after, after), mode="bicubic").flatten(2)[0].T


class QwenVL(VisionLanguage):
    """modeling_qwen.py, QWenModel.forward, which puts rows between the tags of a picture. Prompts of the tests are
    within the trained length, where it scales neither frequencies nor queries."""

    def __init__(self, config: Json) -> None:
        super().__init__(config)
        heads = config["num_attention_heads"]
        kept = ("hidden_size", "max_position_embeddings", "num_attention_heads", "num_hidden_layers", "vocab_size")
        text = Qwen2Config(
            **{name: config[name] for name in kept},
            intermediate_size=config["intermediate_size"] // 2,
            num_key_value_heads=heads,
            rms_norm_eps=config["layer_norm_epsilon"],
            rope_parameters={"rope_type": "default", "rope_theta": config["rotary_emb_base"]},
            tie_word_embeddings=False,
        )
        self.llm = Qwen2ForCausalLM(text)
        self.visual = _Visual(config["visual"])

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        tower = {f"transformer.visual.{name}": tensor for name, tensor in self.visual.state_dict().items()}
        return {**name_as_qwen(self.llm.state_dict()), **tower}

    def load_state_dict(self, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        front = "transformer.visual."
        tower = {name.removeprefix(front): tensor for name, tensor in state_dict.items() if name.startswith(front)}
        self.visual.load_state_dict(tower)
        decoder = {}
        for name in self.llm.state_dict():
            [published] = rename({re.sub("[qkv]_proj", "c_attn", name): torch.empty(0)}, QWEN_NAMES)
            part = re.search("([qkv])_proj", name)
            tensor = state_dict[published]
            decoder[name] = tensor if part is None else tensor.chunk(3)["qkv".index(part[1])]
        return self.llm.load_state_dict(decoder, *args, **kwargs)

    def make_rows(self, **media: Tensor) -> Tensor:
        return torch.cat([self.visual(pixels) for pixels in media["pixel_values"]])


class QwenVLProcessor(Processor):
    """tokenization_qwen.py: from_list_format and _encode_imgurl; visual.py: VisionTransformer.encode."""

    def __init__(self, path: Path, *, visual: Json) -> None:
        super().__init__(path)
        self.side, self.num_rows = visual["image_size"], visual.get("n_queries", 256)
        statistics = (self.settings[f"image_{name}"] for name in ("mean", "std"))
        self.mean, self.std = (torch.tensor(values)[:, None, None] for values in statistics)

    def __call__(self, text: list[str], images: Any = (), add_special_tokens: bool = True, **_: Any) -> Inputs:
        """Published, a picture's path stands between its tags, which is filled up to as many tokens."""
        first, *others = text[0].split(PICTURE)
        assert len(others) == len(images)
        prompt = first
        for number, after in enumerate(others, start=1):
            prompt += f"Picture {number}: <img>{'<imgpad>' * self.num_rows}</img>\n{after}"
        ids = self.tokenizer(prompt, return_tensors="pt", add_special_tokens=add_special_tokens)["input_ids"]
        if not images:
            return Inputs(input_ids=ids)
        squares = [scale(read_picture(image), (self.side, self.side), "bicubic") for image in images]
        pixels = torch.stack([(square / 255 - self.mean) / self.std for square in squares])
        is_row = ids == self.tokenizer.convert_tokens_to_ids("<imgpad>")
        return Inputs(input_ids=ids, is_row=is_row, pixel_values=pixels)

    def _get_num_multimodal_tokens(self, image_sizes: list[tuple[int, int]]) -> dict[str, list[int]]:
        return {"num_image_tokens": [self.num_rows] * len(image_sizes)}
