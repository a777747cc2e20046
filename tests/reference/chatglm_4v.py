"""GLM-4V (arXiv 2406.12793, section 2; its tower is CogVLM's, arXiv 2311.03079, section 2.1): an EVA-CLIP whose norms
are of the updates, a convolution that joins squares of four patches, a gated projector, and a learned row on either
side.

Read from files of THUDM/glm-4v-9b, which the docstrings name; `tests/golden/chatglm_4v` has numbers of these files."""

from __future__ import annotations

import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from original_text import CHATGLM_NAMES, as_chatglm
from reference.vision_language import Inputs, Json, Processor, VisionLanguage, read_picture, scale
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import GlmConfig, GlmForCausalLM

START, PLACE, END = "<|begin_of_image|>", "<|endoftext|>", "<|end_of_image|>"


def _group(**modules: nn.Module) -> nn.ModuleDict:
    return nn.ModuleDict(modules)


class EvaClip(nn.Module):
    """visual.py, EVA2CLIPModel. Under the published names. joined_size: of squares of four patches, before they are
    projected; None: patches are not joined."""

    def __init__(self, vision: Json, size: int, inner_size: int, joined_size: int | None) -> None:
        super().__init__()
        own, patch, eps = vision["hidden_size"], vision["patch_size"], vision["layer_norm_eps"]
        self.heads, self.divisor = vision["num_heads"], vision.get("scaling_factor", 1)
        self.num_squares = (vision["num_positions"] - 1) // (1 if joined_size is None else 4)
        self.patch_embedding = _group(
            proj=nn.Conv2d(3, own, patch, stride=patch), position_embedding=nn.Embedding(vision["num_positions"], own)
        )
        self.patch_embedding.cls_embedding = nn.Parameter(torch.zeros(1, own))
        layers = [
            _group(
                input_layernorm=nn.LayerNorm(own, eps),
                attention=_group(query_key_value=nn.Linear(own, 3 * own), dense=nn.Linear(own, own)),
                mlp=_group(
                    fc1=nn.Linear(own, vision["intermediate_size"]), fc2=nn.Linear(vision["intermediate_size"], own)
                ),
                post_attention_layernorm=nn.LayerNorm(own, eps),
            )
            for _ in range(vision["num_hidden_layers"])
        ]
        self.transformer = _group(layers=nn.ModuleList(layers))
        self.conv = None if joined_size is None else nn.Conv2d(own, joined_size, 2, stride=2)
        self.linear_proj = _group(
            linear_proj=nn.Linear(joined_size or own, size, bias=False),
            norm1=nn.LayerNorm(size),
            dense_h_to_4h=nn.Linear(size, inner_size, bias=False),
            gate_proj=nn.Linear(size, inner_size, bias=False),
            dense_4h_to_h=nn.Linear(inner_size, size, bias=False),
        )
        self.boi = nn.Parameter(torch.zeros(1, 1, size))
        self.eoi = nn.Parameter(torch.zeros(1, 1, size))

    def forward(self, pictures: Tensor) -> Tensor:
        """Rows [N, R + 2, size] of normalized pictures [N, 3, S, S]."""
        embedding: Any = self.patch_embedding
        patches = embedding["proj"](pictures).flatten(2).mT
        first = embedding.cls_embedding.expand(len(patches), 1, -1)
        x = torch.cat((first, patches), dim=1) + embedding["position_embedding"].weight
        layers: Any = self.transformer["layers"]
        for layer in layers:
            x = x + layer["input_layernorm"](self.attend(layer["attention"], x))
            inner = F.gelu(layer["mlp"]["fc1"](x))
            x = x + layer["post_attention_layernorm"](layer["mlp"]["fc2"](inner))
        side, squares = math.isqrt(patches.shape[1]), x[:, 1:]
        if self.conv is not None:
            squares = self.conv(squares.mT.unflatten(2, (side, side))).flatten(2).mT
        glu: Any = self.linear_proj
        inner = F.gelu(glu["norm1"](glu["linear_proj"](squares)))
        rows = glu["dense_4h_to_h"](F.silu(glu["gate_proj"](inner)) * glu["dense_h_to_4h"](inner))
        ends = [end.expand(len(rows), 1, -1) for end in (self.boi, self.eoi)]
        result: Tensor = torch.cat((ends[0], rows, ends[1]), dim=1) / self.divisor
        return result

    def attend(self, attention: Any, x: Tensor) -> Tensor:
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in attention["query_key_value"](x).chunk(3, -1)
        )
        weights = (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1)
        result: Tensor = attention["dense"]((weights @ value).transpose(1, 2).flatten(2))
        return result


class Glm4V(VisionLanguage):
    """modeling_chatglm.py, ChatGLMModel."""

    def __init__(self, config: Json) -> None:
        super().__init__(config)
        heads, dim = config["num_attention_heads"], config["kv_channels"]
        self.sizes = [heads * dim, *[config["multi_query_group_num"] * dim] * 2]
        own = GlmConfig(
            vocab_size=config["padded_vocab_size"],
            hidden_size=config["hidden_size"],
            intermediate_size=config["ffn_hidden_size"],
            num_hidden_layers=config["num_layers"],
            num_attention_heads=heads,
            num_key_value_heads=config["multi_query_group_num"],
            head_dim=dim,
            rms_norm_eps=config["layernorm_epsilon"],
            max_position_embeddings=config["seq_length"],
            attention_bias=config["add_qkv_bias"],
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
            eos_token_id=config["eos_token_id"],
            pad_token_id=config["pad_token_id"],
        )
        self.llm = GlmForCausalLM(own)
        self.vision = EvaClip(config["vision_config"], own.hidden_size, own.intermediate_size, own.hidden_size)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        state = super().state_dict(*args, **kwargs)
        decoder = {name.removeprefix("llm."): tensor for name, tensor in state.items() if name.startswith("llm.")}
        _, named = as_chatglm(self.llm.config.to_dict(), decoder)
        return named | {f"transformer.{name}": tensor for name, tensor in state.items() if name.startswith("vision.")}

    def load_state_dict(self, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        own = {}
        for name, tensor in state_dict.items():
            if name.startswith("transformer.vision."):
                own[name.removeprefix("transformer.")] = tensor
            elif not name.endswith(".inv_freq"):
                for pattern, published in CHATGLM_NAMES:
                    name = name.replace(published, re.sub(r"[\\^]", "", pattern))
                parts = torch.split(tensor, self.sizes) if "qkv_proj" in name else [tensor]
                for part, letter in zip(parts, "qkv", strict=False):
                    own[f"llm.{name}".replace("qkv_proj", f"{letter}_proj")] = part
        return super().load_state_dict(own, *args, **kwargs)

    @property
    def model(self) -> Any:
        return SimpleNamespace(language_model=self.llm.model, get_rope_index=self.get_rope_index)

    def get_rope_index(self, input_ids: Tensor, is_row: Tensor | None = None, **_: Any) -> tuple[Tensor, Tensor]:
        """Positions [1, 1, T], and the next one less T: rows between the two learned ones of a picture have one
        (ChatGLMModel.forward, `new_position_ids`)."""
        positions: list[int] = []
        while len(positions) < input_ids.shape[1]:
            following = positions[-1] + 1 if positions else 0
            if is_row is not None and bool(is_row[0, len(positions)]):
                positions += [following, *[following + 1] * self.vision.num_squares, following + 2]
            else:
                positions.append(following)
        return torch.tensor([[positions]]), torch.tensor([[positions[-1] + 1 - len(positions)]])

    def make_rows(self, **media: Tensor) -> Tensor:
        rows: Tensor = self.vision(media["pixel_values"])
        return rows.flatten(0, 1)

    def forward(self, input_ids: Tensor, is_row: Tensor | None = None, **media: Any) -> Any:
        positions, _ = self.get_rope_index(input_ids, is_row)
        return self.llm(
            inputs_embeds=self.splice(input_ids, is_row, **media), position_ids=positions[0].to(input_ids.device)
        )

    def generate(self, input_ids: Tensor, **inputs: Any) -> Tensor:
        """Greedily, without an end. All tokens are computed again for each."""
        media = {name: value for name, value in inputs.items() if name in ("is_row", "pixel_values")}
        embeddings, (positions, _) = (
            self.splice(input_ids, **media),
            self.get_rope_index(input_ids, media.get("is_row")),
        )
        places, ids = positions[0].to(input_ids.device), input_ids
        for _ in range(inputs["max_new_tokens"]):
            logits = self.llm(inputs_embeds=embeddings, position_ids=places).logits[:, -1]
            logits[:, self.llm.config.eos_token_id] = -torch.inf
            token = logits.argmax(dim=-1, keepdim=True)
            ids = torch.cat((ids, token), dim=1)
            embeddings = torch.cat((embeddings, self.embed(token)), dim=1)
            places = torch.cat((places, places[:, -1:] + 1), dim=1)
        return ids


class Glm4VProcessor(Processor):
    """tokenization_chatglm.py: the three tokens and the pixels of ChatGLM4Tokenizer.apply_chat_template."""

    def __init__(self, path: Path, *, vision: Json) -> None:
        super().__init__(path)
        self.side, self.count = vision["image_size"], vision["num_positions"] // 4
        self.mean, self.std = (torch.tensor(self.settings[f"image_{name}"])[:, None, None] for name in ("mean", "std"))

    def __call__(self, text: list[str], images: Any = (), add_special_tokens: bool = True, **_: Any) -> Inputs:
        written = text[0].replace(START + PLACE + END, START + PLACE * self.count + END)
        ids = torch.tensor([self.tokenizer(written, add_special_tokens=add_special_tokens)["input_ids"]])
        if not images:
            return Inputs(input_ids=ids)
        start, end = self.tokenizer.convert_tokens_to_ids([START, END])
        is_row = ((ids == start).cumsum(1) > (ids == end).cumsum(1)) | (ids == end)
        pictures = [scale(read_picture(image), (self.side, self.side), "bicubic") for image in images]
        pixels = [(picture / 255 - self.mean) / self.std for picture in pictures]
        return Inputs(input_ids=ids, is_row=is_row, pixel_values=torch.stack(pixels))

    def _get_num_multimodal_tokens(self, image_sizes: list[tuple[int, int]]) -> dict[str, list[int]]:
        return {"num_image_tokens": [self.count + 2] * len(image_sizes)}
