"""DeepSeek-VL as its authors publish it (arXiv 2403.05525): a SigLIP, or a SigLIP and a SAM that see the same picture
in two sizes, two linear layers, and a Llama.

Read from github.com/deepseek-ai/DeepSeek-VL, deepseek_vl/models: the SigLIP from siglip_vit.py, the SAM from sam.py;
what the towers see from clip_encoder.py; the linear layers from projector.py; pictures from image_processing_vlm.py.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from reference.deepseek_vl2 import Siglip
from reference.vision_language import Inputs, Json, Processor, VisionLanguage, read_picture, scale
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM

PLACE = "<image_placeholder>"
_FRONT = "language_model."


class _ChannelNorm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(size)), nn.Parameter(torch.zeros(size))

    def forward(self, x: Tensor) -> Tensor:
        normed = F.layer_norm(x.movedim(1, -1), self.weight.shape, self.weight, self.bias, eps=1e-6)
        return normed.movedim(-1, 1)


class _SamBlock(nn.Module):
    """window: side of the windows in which rows see each other; 0 where they see all. side: of the patches' grid."""

    def __init__(self, sam: Json, window: int, side: int) -> None:
        super().__init__()
        size, inner = sam["hidden_size"], sam["mlp_dim"]
        self.heads, self.window = sam["num_attention_heads"], window
        self.norm1, self.norm2 = nn.LayerNorm(size, eps=1e-6), nn.LayerNorm(size, eps=1e-6)
        self.attn = nn.ModuleDict({"qkv": nn.Linear(size, 3 * size), "proj": nn.Linear(size, size)})
        for axis in "hw":
            table = torch.zeros(2 * (window or side) - 1, size // self.heads)
            self.attn.register_parameter(f"rel_pos_{axis}", nn.Parameter(table))
        self.mlp = nn.ModuleDict({"lin1": nn.Linear(size, inner), "lin2": nn.Linear(inner, size)})

    def forward(self, x: Tensor) -> Tensor:
        """Rows [side, side, size] of one picture."""
        side, step = len(x), self.window or len(x)
        padded = F.pad(self.norm1(x), (0, 0, 0, -side % step, 0, -side % step))
        lines = [
            torch.cat([self.attend(part) for part in torch.split(line, step, dim=1)], dim=1)
            for line in torch.split(padded, step)
        ]
        seen = torch.cat(lines)
        x = x + seen[:side, :side]
        result: Tensor = x + self.mlp["lin2"](F.gelu(self.mlp["lin1"](self.norm2(x))))
        return result

    def attend(self, x: Tensor) -> Tensor:
        side = len(x)
        q, k, v = self.attn["qkv"](x).unflatten(-1, (3, self.heads, -1)).permute(2, 3, 0, 1, 4)
        places = torch.arange(side)
        distance = places[:, None] - places + side - 1
        high, wide = (self.attn.get_parameter(f"rel_pos_{axis}")[distance] for axis in "hw")
        scores = torch.einsum("nhwd,nijd->nhwij", q, k) / math.sqrt(q.shape[-1])
        scores = scores + torch.einsum("nhwd,hid->nhwi", q, high)[..., None]
        scores = scores + torch.einsum("nhwd,wjd->nhwj", q, wide)[..., None, :]
        weights = scores.flatten(3).softmax(dim=-1).view_as(scores)
        found = torch.einsum("nhwij,nijd->hwnd", weights, v).flatten(2)
        result: Tensor = self.attn["proj"](found)
        return result


class _Sam(nn.Module):
    """rows: side of the grid of rows. Published: the channels are stretched to 96 x 96, four times that of 24 x 24."""

    def __init__(self, sam: Json, rows: int) -> None:
        super().__init__()
        size, patch, out = sam["hidden_size"], sam["patch_size"], sam["output_channels"]
        side = sam["image_size"] // patch
        self.rows = rows
        self.patch_embed = nn.ModuleDict({"proj": nn.Conv2d(3, size, patch, stride=patch)})
        self.pos_embed = nn.Parameter(torch.zeros(1, side, side, size))
        global_layers = sam["global_attn_indexes"]
        self.first = global_layers[0]
        windows = [0 if i in global_layers else sam["window_size"] for i in range(sam["num_hidden_layers"])]
        self.blocks = nn.ModuleList([_SamBlock(sam, window, side) for window in windows])
        self.neck, self.neck_hd = _make_neck(size, out), _make_neck(size, out)
        widths = ((out, 2 * out), (2 * out, 4 * out))
        self.downsamples = nn.Sequential(*[nn.Conv2d(*width, 3, stride=2, padding=1, bias=False) for width in widths])
        self.hd_alpha_downsamples = nn.Parameter(torch.zeros(1))

    def forward(self, picture: Tensor) -> Tensor:
        """Rows [R, channels] of one picture [3, H, H]: those of the last block, and those of the first that sees the
        whole picture, times a learned number."""
        x = self.patch_embed["proj"](picture[None])[0].permute(1, 2, 0) + self.pos_embed[0]
        kept = x
        for index, block in enumerate(self.blocks.children()):
            x = block(x)
            kept = x if index == self.first else kept
        last, more = (
            self.shrink(neck(each.permute(2, 0, 1)[None])) for neck, each in ((self.neck, x), (self.neck_hd, kept))
        )
        return (last + more * self.hd_alpha_downsamples).flatten(2)[0].T

    def shrink(self, channels: Tensor) -> Tensor:
        size = (4 * self.rows, 4 * self.rows)
        found: Tensor = self.downsamples(F.interpolate(channels, size=size, mode="bilinear", align_corners=False))
        return found


def _make_neck(size: int, out: int) -> nn.Sequential:
    first, second = nn.Conv2d(size, out, 1, bias=False), nn.Conv2d(out, out, 3, padding=1, bias=False)
    return nn.Sequential(first, _ChannelNorm(out), second, _ChannelNorm(out))


def _make_siglip(tower: Json) -> Siglip:
    names = {"width": "hidden_size", "layers": "num_hidden_layers", "heads": "num_attention_heads"}
    sizes = {own: tower[name] for own, name in names.items()}
    ratio = tower["intermediate_size"] / tower["hidden_size"]
    same = {name: tower[name] for name in ("image_size", "patch_size")}
    return Siglip({**sizes, **same, "mlp_ratio": ratio}, gelu="none")


class DeepseekVL(VisionLanguage):
    """Under the published names. Sizes of the towers stand beside their names in config.json."""

    def __init__(self, config: Json) -> None:
        super().__init__(config)
        self.llm = LlamaForCausalLM(LlamaConfig(**config["language_config"]))
        params, size = config["vision_config"]["params"], config["aligner_config"]["params"]["n_embed"]
        own = config["aligner_config"]["params"]["input_dim"]
        self.is_hybrid = config["vision_config"]["cls"] == "HybridVisionTower"
        if not self.is_hybrid:
            self.vision_model = nn.ModuleDict({"vision_tower": _make_siglip(params)})
            self.aligner = nn.ModuleDict(
                {"layers": nn.Sequential(nn.Linear(own, size), nn.GELU(), nn.Linear(size, size))}
            )
            return
        low, high = params["low_res_cfg"], params["high_res_cfg"]
        towers = {"low": _make_siglip(low), "high": _Sam(high, low["image_size"] // low["patch_size"])}
        parts: dict[str, nn.Module] = {
            f"vision_tower_{name}": nn.ModuleDict({"vision_tower": tower}) for name, tower in towers.items()
        }
        parts |= {f"{name}_layer_norm": nn.LayerNorm(own) for name in towers}  # not used
        self.vision_model = nn.ModuleDict(parts)
        halves = {f"{name}_up_proj": nn.Linear(own, size // 2) for name in towers}
        self.aligner = nn.ModuleDict({**halves, "layers": nn.Sequential(nn.GELU(), nn.Linear(size, size))})

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        state = super().state_dict(*args, **kwargs)
        return {_FRONT + n[4:] if n.startswith("llm.") else n: tensor for n, tensor in state.items()}

    def load_state_dict(self, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        own = {f"llm.{n[len(_FRONT) :]}" if n.startswith(_FRONT) else n: tensor for n, tensor in state_dict.items()}
        return super().load_state_dict(own, *args, **kwargs)

    def make_rows(self, **media: Tensor) -> Tensor:
        if not self.is_hybrid:
            found = self.vision_model["vision_tower"](media["pixel_values"])
        else:
            model: Any = self.vision_model
            low = model["vision_tower_low"]["vision_tower"](media["pixel_values"])
            sam = model["vision_tower_high"]["vision_tower"]
            high = torch.stack([sam(picture) for picture in media["high_res_pixel_values"]])
            found = torch.cat((self.aligner["high_up_proj"](high), self.aligner["low_up_proj"](low)), dim=-1)
        rows: Tensor = self.aligner["layers"](found).flatten(0, 1)
        return rows


class DeepseekVLProcessor(Processor):
    def __init__(self, path: Path, *, config: Json) -> None:
        from transformers import PreTrainedTokenizerFast

        self.tokenizer = PreTrainedTokenizerFast.from_pretrained(str(path))
        self.settings = json.loads((path / "preprocessor_config.json").read_text())
        self.num_rows: int = json.loads((path / "processor_config.json").read_text())["num_image_tokens"]
        self.params = config["vision_config"]["params"]
        self.color = [int(value * 255) for value in self.settings["image_mean"]]

    def fit(self, image: Any) -> Tensor:
        """The picture [3, S, S] from 0 to 1 in the middle of one color: its longer side is that of the square."""
        side, least = self.settings["image_size"], self.settings["min_size"]
        longest = max(image.height, image.width)
        high, wide = (max(int(length / longest * side), least) for length in (image.height, image.width))
        square = torch.tensor(self.color, dtype=torch.uint8)[:, None, None].repeat(1, side, side)
        top, left = (side - high) // 2, (side - wide) // 2
        square[:, top : top + high, left : left + wide] = scale(read_picture(image), (high, wide), "bicubic")
        return square / 255

    def prepare(self, image: Any) -> dict[str, Tensor]:
        """What the towers see. The processor normalizes the picture for one; each of two towers does that itself, and
        the smaller picture is made of the larger one, in float."""
        square = self.fit(image)
        if "low_res_cfg" not in self.params:
            return {"pixel_values": normalize(square, self.settings["image_mean"], self.settings["image_std"])}
        low, high = self.params["low_res_cfg"], self.params["high_res_cfg"]
        size = (low["image_size"], low["image_size"])
        small = F.interpolate(square[None], size=size, mode="bilinear", align_corners=False, antialias=True)[0]
        return {
            "pixel_values": normalize(small, low["pixel_mean"], low["pixel_std"]),
            "high_res_pixel_values": normalize(square, high["pixel_mean"], high["pixel_std"]),
        }

    def __call__(self, text: list[str], images: Any = (), add_special_tokens: bool = True, **_: Any) -> Inputs:
        written = text[0].replace(PLACE, PLACE * self.num_rows)
        ids = torch.tensor([self.tokenizer(written, add_special_tokens=add_special_tokens)["input_ids"]])
        prepared = [self.prepare(image) for image in images]
        if not prepared:
            return Inputs(input_ids=ids)
        is_row = ids == self.tokenizer.convert_tokens_to_ids(PLACE)
        pixels = {name: torch.stack([each[name] for each in prepared]) for name in prepared[0]}
        return Inputs(input_ids=ids, is_row=is_row, **pixels)

    def _get_num_multimodal_tokens(self, image_sizes: list[tuple[int, int]]) -> dict[str, list[int]]:
        return {"num_image_tokens": [self.num_rows for _ in image_sizes]}


def normalize(picture: Tensor, mean: list[float], std: list[float]) -> Tensor:
    return (picture - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
