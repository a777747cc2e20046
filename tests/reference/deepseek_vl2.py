"""DeepSeek-VL2 (arXiv 2412.10302, section 2): a SigLIP on the whole picture and on tiles of it, squares of four rows
joined by two linear layers, a learned row behind each line of a view and one between the views; and a mixture of
experts with latent attention (DeepSeek-V2, DeepSeek-V3) or with that of a Llama.

Read from github.com/deepseek-ai/DeepSeek-VL2, deepseek_vl2/models: the SigLIP from siglip_vit.py; the linear layers and
the order of rows from `MlpProjector` and `prepare_inputs_embeds` of modeling_deepseek_vl_v2.py; pictures and the prompt
from `tokenize_with_images` of processing_deepseek_vl_v2.py.
"""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from PIL import ImageOps
from reference.experts import join_experts, split_experts
from reference.vision_language import Inputs, Json, Processor, VisionLanguage, read_picture, scale
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import DeepseekV2Config, DeepseekV2ForCausalLM, DeepseekV3Config, DeepseekV3ForCausalLM
from transformers.generation import GenerationMixin
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.models.deepseek_ocr2 import modeling_deepseek_ocr2 as ocr

PLACE = "<image>"


class _PlainCausal(ocr.DeepseekOcr2TextPreTrainedModel, GenerationMixin):  # type: ignore[misc]
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model = ocr.DeepseekOcr2TextModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_output_embeddings(self) -> Any:
        return self.lm_head

    def forward(self, input_ids: Any = None, **inputs: Any) -> Any:
        for name in ("logits_to_keep", "return_dict"):
            inputs.pop(name, None)
        found = self.model(input_ids=input_ids, **inputs)
        logits = self.lm_head(found.last_hidden_state)
        return CausalLMOutputWithPast(logits=logits, past_key_values=found.past_key_values)


def make_decoder(text: Json) -> Any:
    kept = {name: value for name, value in text.items() if name not in ("model_type", "use_mla")}
    if text.get("scoring_func") == "sigmoid":
        return DeepseekV3ForCausalLM(DeepseekV3Config(**kept))
    if text.get("use_mla", True):
        return DeepseekV2ForCausalLM(DeepseekV2Config(**kept))
    num_dense, count = text["first_k_dense_replace"], text["num_hidden_layers"]
    kinds = ["dense"] * num_dense + ["sparse"] * (count - num_dense)
    latent = ("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "norm_topk_prob")
    own = {name: value for name, value in kept.items() if name not in (*latent, "first_k_dense_replace")}
    return _PlainCausal(ocr.DeepseekOcr2TextConfig(**own, mlp_layer_types=kinds))


class _Block(nn.Module):
    def __init__(self, size: int, inner: int, heads: int, gelu: str) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(size, eps=1e-6), nn.LayerNorm(size, eps=1e-6)
        self.attn = nn.ModuleDict({"qkv": nn.Linear(size, 3 * size), "proj": nn.Linear(size, size)})
        self.mlp = nn.ModuleDict({"fc1": nn.Linear(size, inner), "fc2": nn.Linear(inner, size)})
        self.heads, self.gelu = heads, gelu

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.attn["qkv"](self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])).softmax(dim=-1)
        x = x + self.attn["proj"]((weights @ v).transpose(1, 2).flatten(2))
        inner = F.gelu(self.mlp["fc1"](self.norm2(x)), approximate=self.gelu)
        result: Tensor = x + self.mlp["fc2"](inner)
        return result


class Siglip(nn.Module):
    """The authors' SigLIP (siglip_vit.py). gelu: `tanh` in DeepSeek-VL2, `none` in DeepSeek-VL."""

    def __init__(self, vision: Json, gelu: str = "tanh") -> None:
        super().__init__()
        size, patch = vision["width"], vision["patch_size"]
        self.patch_embed = nn.ModuleDict({"proj": nn.Conv2d(3, size, patch, stride=patch)})
        self.pos_embed = nn.Parameter(torch.zeros(1, (vision["image_size"] // patch) ** 2, size))
        inner = int(size * vision["mlp_ratio"])
        self.blocks = nn.Sequential(*[_Block(size, inner, vision["heads"], gelu) for _ in range(vision["layers"])])
        self.norm = nn.LayerNorm(size, eps=1e-6)
        self.attn_pool = nn.ModuleDict({"norm": nn.LayerNorm(size)})  # not used

    def forward(self, tiles: Tensor) -> Tensor:
        x = self.patch_embed["proj"](tiles).flatten(2).transpose(1, 2) + self.pos_embed
        result: Tensor = self.norm(self.blocks(x))
        return result


class DeepseekVL2(VisionLanguage):
    def __init__(self, config: Json) -> None:
        super().__init__(config)
        self.llm = make_decoder(config["language_config"])
        self.vision = Siglip(config["vision_config"])
        size, own = config["projector_config"]["n_embed"], config["vision_config"]["width"]
        self.projector = nn.ModuleDict(
            {"layers": nn.Sequential(nn.Linear(4 * own, size), nn.GELU(), nn.Linear(size, size))}
        )
        self.image_newline, self.view_seperator = nn.Parameter(torch.zeros(size)), nn.Parameter(torch.zeros(size))
        self.is_whole_first = config["global_view_pos"] == "head"

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        state = split_experts(super().state_dict(*args, **kwargs))
        return {f"language.{n[4:]}" if n.startswith("llm.") else n: tensor for n, tensor in state.items()}

    def load_state_dict(self, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        front = "language."
        own = {f"llm.{n[len(front) :]}" if n.startswith(front) else n: tensor for n, tensor in state_dict.items()}
        return super().load_state_dict(join_experts(own), *args, **kwargs)

    def make_rows(self, **media: Tensor) -> Tensor:
        rows, first = [], 0
        for high, wide in media["cuts"].tolist():
            tiles = media["pixel_values"][first : first + 1 + high * wide]
            first += len(tiles)
            found = self.vision(tiles)
            side = math.isqrt(found.shape[1])
            squares = found.transpose(1, 2).unflatten(2, (side, side))
            squares = F.unfold(F.pad(squares, (0, side % 2, 0, side % 2)), kernel_size=2, stride=2).transpose(1, 2)
            side = math.isqrt(squares.shape[1])
            views = self.projector["layers"](squares).unflatten(1, (side, side))
            lines = [torch.cat(list(line), dim=1) for line in views[1:].unflatten(0, (high, wide))]
            both = [self._end_lines(view) for view in (views[0], torch.cat(lines))]
            first_view, last_view = both if self.is_whole_first else both[::-1]
            rows += [first_view, self.view_seperator[None], last_view]
        return torch.cat(rows)

    def _end_lines(self, view: Tensor) -> Tensor:
        ends = self.image_newline.expand(len(view), 1, -1)
        return torch.cat((view, ends), dim=1).flatten(0, 1)


class DeepseekVL2Processor(Processor):
    """More than two pictures of a prompt are not cut."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.resolutions, patch = self.settings["candidate_resolutions"], self.settings["patch_size"]
        self.side: int = self.resolutions[0][0]
        self.rows: int = math.ceil((self.side // patch) / self.settings["downsample_ratio"])
        self.mean, self.std = (torch.tensor(self.settings[f"image_{name}"])[:, None, None] for name in ("mean", "std"))
        self.color = [int(value * 255) for value in self.settings["image_mean"]]

    def choose(self, height: int, width: int, is_cut: bool) -> tuple[int, int]:
        """The (height, width) of the canvas whose tiles show a picture."""
        if not is_cut:
            return self.side, self.side
        best, most, least = (0, 0), 0, math.inf
        for wide, high in self.resolutions:
            factor = min(wide / width, high / height)
            shown = min(int(width * factor) * int(height * factor), width * height)
            wasted = wide * high - shown
            if shown > most or (shown == most and wasted < least):
                best, most, least = (high, wide), shown, wasted
        return best

    def fit(self, picture: Tensor, canvas: tuple[int, int]) -> Tensor:
        """As Pillow's `ImageOps.pad`, of which the numbers are taken; pixels are scaled as elsewhere in the tests."""
        high, wide = contain(picture.shape[1], picture.shape[2], canvas)
        top, left = round((canvas[0] - high) * 0.5), round((canvas[1] - wide) * 0.5)
        found = torch.tensor(self.color, dtype=torch.uint8)[:, None, None].repeat(1, *canvas)
        found[:, top : top + high, left : left + wide] = scale(picture, (high, wide), "bicubic")
        return (found / 255 - self.mean) / self.std

    def count(self, canvas: tuple[int, int]) -> int:
        high, wide = (length // self.side * self.rows for length in canvas)
        return self.rows * (self.rows + 1) + 1 + high * (wide + 1)

    def __call__(self, text: list[str], images: Any = (), add_special_tokens: bool = True, **_: Any) -> Inputs:
        canvases = [self.choose(image.height, image.width, len(images) <= 2) for image in images]
        first, *pieces = text[0].split(PLACE)
        written = first + "".join(
            PLACE * self.count(canvas) + piece for canvas, piece in zip(canvases, pieces, strict=True)
        )
        ids = torch.tensor([self.tokenizer(written, add_special_tokens=add_special_tokens)["input_ids"]])
        if not canvases:
            return Inputs(input_ids=ids)
        tiles = []
        for image, canvas in zip(images, canvases, strict=True):
            picture = read_picture(image)
            tiles.append(self.fit(picture, (self.side, self.side)))
            large = self.fit(picture, canvas)
            for line in torch.split(large, self.side, dim=1):
                tiles += torch.split(line, self.side, dim=2)
        return Inputs(
            input_ids=ids,
            is_row=ids == self.tokenizer.convert_tokens_to_ids(PLACE),
            pixel_values=torch.stack(tiles),
            cuts=torch.tensor([[length // self.side for length in canvas] for canvas in canvases]),
        )

    def _get_num_multimodal_tokens(self, image_sizes: list[tuple[int, int]]) -> dict[str, list[int]]:
        counts = []
        for height, width in image_sizes:
            canvas = self.choose(height, width, is_cut=True)
            counts.append(self.count(canvas))
        return {"num_image_tokens": counts}


def contain(height: int, width: int, canvas: tuple[int, int]) -> tuple[int, int]:
    """The (height, width) that Pillow's `ImageOps.contain` fits a picture to. Published: an error if nothing is left of
    a side."""
    own: Any = SimpleNamespace(width=width, height=height, size=(width, height), resize=lambda size, *_, **__: size)
    found: Any = ImageOps.contain(own, canvas[::-1])
    return max(1, found[1]), max(1, found[0])
