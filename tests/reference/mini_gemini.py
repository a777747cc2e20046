"""Mini-Gemini (arXiv 2403.18814): a CLIP whose rows look for details in a ConvNeXt's, and a Llama, Gemma or Mixtral.

Read from the files of github.com/dvlab-research/MGM: what is taken of the towers from clip_encoder.py and
openclip_encoder.py, which has timm's ConvNeXt; tiles and attention from `encode_images` and `unified_resampler` of
mgm_arch.py; the prompt and the larger picture from mm_utils.py, the smaller one from model_vqa.py. The Gemma of
Transformers 4.38, which mgm_gemma.py takes, multiplies rows of pictures by the factor of its embeddings, too."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from reference.vision_language import Inputs, Json, Processor, VisionLanguage, read_picture
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import (
    CLIPVisionConfig,
    CLIPVisionModel,
    GemmaConfig,
    GemmaForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
)

MARKER = "<image>"
MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
"""Those of CLIP."""
DECODERS: Any = {
    "MGMLlamaForCausalLM": (LlamaConfig, LlamaForCausalLM),
    "MGMGemmaForCausalLM": (GemmaConfig, GemmaForCausalLM),
    "MGMMixtralForCausalLM": (MixtralConfig, MixtralForCausalLM),
}


def stretch(x: Tensor, size: tuple[int, int]) -> Tensor:
    return F.interpolate(x, size=size, mode="bilinear", align_corners=False)


def cut(x: Tensor, count: int) -> Tensor:
    """The tiles [count², C, h, w] of [1, C, H, W], line by line."""
    height, width = x.shape[2] // count, x.shape[3] // count
    tiles = [
        x[0, :, row * height : (row + 1) * height, column * width : (column + 1) * width]
        for row in range(count)
        for column in range(count)
    ]
    return torch.stack(tiles)


class MiniGemini(VisionLanguage):
    """With the published names: those of the two towers are below `model.`, as those of the Llama are."""

    def __init__(self, config: Json) -> None:
        super().__init__(config)
        from timm.models.convnext import ConvNeXt

        own = {name: value for name, value in config.items() if name not in ("architectures", "model_type")}
        config_class, llm_class = DECODERS[config["architectures"][0]]
        self.llm = llm_class(config_class(**own))
        self.config.tie_word_embeddings = self.llm.config.tie_word_embeddings
        self.factor = config["hidden_size"] ** 0.5 if llm_class is GemmaForCausalLM else 1.0
        self.clip = CLIPVisionModel(CLIPVisionConfig(**config["vision_config"]))
        trunk: Any = ConvNeXt(depths=(2, 1, 3, 1), dims=(8, 12, 16, 20))
        self.stem, self.stages = trunk.stem, trunk.stages
        size, detail_size = config["vision_config"]["hidden_size"], config["mm_hidden_size_aux"]
        self.query, self.key, self.value = (
            nn.Sequential(nn.LayerNorm(inner), nn.Linear(inner, size)) for inner in (size, detail_size, detail_size)
        )
        out = config["hidden_size"]
        self.mm_projector = nn.Sequential(nn.Linear(size, out), nn.GELU(), nn.Linear(out, out))
        self.layer: int = config["mm_vision_select_layer"]
        self.count, self.has_whole = config.get("image_grid", 1), config.get("image_global", False)
        self.side: int = config["vision_config"]["image_size"]

    NAMES = (
        ("llm.", ""),
        ("clip.", "model.vision_tower.vision_tower."),
        ("stem.", "model.vision_tower_aux.vision_stem."),
        ("stages.", "model.vision_tower_aux.vision_stages."),
        ("query.", "model.vlm_uni_query_projector."),
        ("key.", "model.vlm_uni_aux_projector."),
        ("value.", "model.vlm_uni_val_projector."),
        ("mm_projector.", "model.mm_projector."),
    )

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Views of the tensors by their published names. Of tied weights one is published."""
        named: dict[str, Tensor] = {}
        for name, tensor in super().state_dict(*args, **kwargs).items():
            own, published = next(pair for pair in self.NAMES if name.startswith(pair[0]))
            found = published + name.removeprefix(own)
            if own == "clip." and ".vision_model." not in found:
                found = found.replace("vision_tower.vision_tower.", "vision_tower.vision_tower.vision_model.")
            if found != "lm_head.weight" or not self.llm.config.tie_word_embeddings:
                named |= split_experts(found, tensor)
        return named

    def load_state_dict(self, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        own = self.state_dict()
        assert own.keys() == state_dict.keys()
        for name, tensor in own.items():
            tensor.copy_(state_dict[name])

    def find_details(self, pixels: Tensor) -> Tensor:
        x, found = self.stem(pixels), []
        for stage in self.stages:
            x = stage(x)
            found.append(x)
        return torch.cat([found[0], *(stretch(each, found[0].shape[2:]) for each in found[1:])], dim=1)

    def mine(self, pixels: Tensor, details: Tensor) -> Tensor:
        """Rows [N, g², size] of N tiles."""
        rows = self.clip(pixels, output_hidden_states=True).hidden_states[self.layer][:, 1:]
        grid = math.isqrt(rows.shape[1])
        high, wide = details.shape[2] // grid, details.shape[3] // grid
        query, mined = self.query(rows), torch.zeros_like(rows)
        for place in range(grid**2):
            top, left = place // grid * high, place % grid * wide
            part = details[:, :, top : top + high, left : left + wide].flatten(2).transpose(1, 2)
            scores = self.key(part) @ query[:, place, :, None] / math.sqrt(query.shape[-1])
            mined[:, place] = (scores.softmax(dim=1) * self.value(part)).sum(dim=1)
        both: Tensor = rows + mined
        return both

    def make_rows(self, **media: Tensor) -> Tensor:
        found = []
        for pixels in media["pixel_values"]:
            picture = pixels[None]
            details = self.find_details(picture)
            small = stretch(picture, (self.side * self.count,) * 2)
            rows = self.mine(cut(small, self.count), cut(details, self.count)).flatten(0, 1)
            if self.has_whole:
                smaller = stretch(small, (self.side, self.side))
                size = details.shape[2] // self.count, details.shape[3] // self.count
                rows = torch.cat([self.mine(smaller, stretch(details, size))[0], rows])
            found.append(self.mm_projector(rows))
        return self.factor * torch.cat(found)


def split_experts(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """The experts of a layer under the names of Mixtral's checkpoints; another tensor as it is."""
    place, _, kind = name.partition(".mlp.")
    if kind == "gate.weight":
        return {f"{place}.block_sparse_moe.gate.weight": tensor}
    if not kind.startswith("experts."):
        return {name: tensor}
    halves = {"w2": tensor}
    if kind == "experts.gate_up_proj":
        halves = dict(zip(("w1", "w3"), tensor.chunk(2, dim=1), strict=True))
    return {
        f"{place}.block_sparse_moe.experts.{number}.{half}.weight": expert
        for half, experts in halves.items()
        for number, expert in enumerate(experts)
    }


class MiniGeminiProcessor(Processor):
    """The texts around pictures are tokenized one by one. The last token stands where a row goes. Pictures are padded
    to squares of the mean colour."""

    def __init__(self, path: Path, *, config: Json) -> None:
        from transformers import PreTrainedTokenizerFast

        self.tokenizer = PreTrainedTokenizerFast.from_pretrained(str(path))
        vision = config["vision_config"]
        views = config.get("image_grid", 1) ** 2 + config.get("image_global", False)
        self.count = views * (vision["image_size"] // vision["patch_size"]) ** 2
        self.side, self.place = config["image_size_aux"], config["vocab_size"] - 1
        assert config["image_aspect_ratio"] == "pad"

    def fit(self, image: Image.Image) -> Tensor:
        side = max(image.size)
        square = Image.new("RGB", (side, side), tuple(int(value * 255) for value in MEAN))
        square.paste(image, ((side - image.width) // 2, (side - image.height) // 2))
        pixels = read_picture(square.resize((self.side, self.side), Image.Resampling.BICUBIC)) / 255
        return (pixels - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]

    def __call__(self, text: list[str], images: Any = (), add_special_tokens: bool = True, **_: Any) -> Inputs:
        first, *others = text[0].split(MARKER)
        ids = list(self.tokenizer(first, add_special_tokens=add_special_tokens)["input_ids"])
        is_row = [False] * len(ids)
        for piece in others:
            more = self.tokenizer(piece, add_special_tokens=False)["input_ids"]
            ids += [self.place] * self.count + more
            is_row += [True] * self.count + [False] * len(more)
        inputs = Inputs(input_ids=torch.tensor([ids]))
        if not images:
            return inputs
        pixels = torch.stack([self.fit(image) for image in images])
        return Inputs(**inputs, is_row=torch.tensor([is_row]), pixel_values=pixels)

    def _get_num_multimodal_tokens(self, image_sizes: list[tuple[int, int]]) -> dict[str, list[int]]:
        return {"num_image_tokens": [self.count] * len(image_sizes)}
