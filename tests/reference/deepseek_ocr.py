"""DeepSeek-OCR (arXiv 2510.18234, section 3): a SAM and a CLIP that sees what the SAM makes, one linear layer, and a
mixture of experts with the attention of a Llama. A page is shown as a whole and, where it is larger than a tile, cut.

Read from the code beside the weights of deepseek-ai/DeepSeek-OCR: order of rows from `DeepseekOCRModel.forward`,
pictures from `DeepseekOCRForCausalLM.infer` of modeling_deepseekocr.py; names of tensors from deepencoder.py. The
towers are those of Transformers' Unlimited-OCR, which has the same.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import torch
from reference.deepseek_vl2 import contain, make_decoder
from reference.experts import join_experts, split_experts
from reference.vision_language import Inputs, Json, Processor, VisionLanguage, read_picture, scale
from torch import Tensor, nn
from transformers.models.unlimited_ocr import UnlimitedOcrVisionConfig
from transformers.models.unlimited_ocr.modeling_unlimited_ocr import UnlimitedOcrVisionModel

PLACE = "<image>"
_PUBLISHED = (
    (r"^llm\.lm_head\.", "lm_head."),
    (r"^llm\.model\.", "model."),
    (r"^(image_newline|view_seperator)$", r"model.\1"),
    (r"^projector\.", "model.projector.layers."),
    (r"^vision\.sam_encoder\.(.*)\.layer_norm(\d)\.", r"vision.sam_encoder.\1.norm\2."),
    (r"\.neck\.conv1\.", ".neck.0."),
    (r"\.neck\.norm1\.", ".neck.1."),
    (r"\.neck\.conv2\.", ".neck.2."),
    (r"\.neck\.norm2\.", ".neck.3."),
    (r"\.proj\.conv1\.", ".net_2."),
    (r"\.proj\.conv2\.", ".net_3."),
    (r"\.patch_embed\.projection\.", ".patch_embed.proj."),
    (r"^vision\.sam_encoder\.layers\.", "vision.sam_encoder.blocks."),
    (r"^vision\.sam_encoder\.", "model.sam_model."),
    (r"^vision\.vision_encoder\.encoder\.", "model.vision_model.transformer."),
    (r"^vision\.vision_encoder\.", "model.vision_model."),
)


def _publish(name: str) -> str:
    for pattern, replacement in _PUBLISHED:
        name = re.sub(pattern, replacement, name)
    return name


class DeepseekOCR(VisionLanguage):
    """Sizes of the towers that are constants of the published code stand in config.json, too."""

    def __init__(self, config: Json) -> None:
        super().__init__(config)
        self.llm = make_decoder(config["language_config"])
        widths = config["vision_config"]["width"]
        sam, clip = widths["sam_vit_b"], widths["clip-l-14-224"]
        own = {"num_hidden_layers": "layers", "num_attention_heads": "heads", "hidden_size": "width"}
        names = ("patch_size", "window_size", "output_channels", "downsample_channels", "global_attn_indexes")
        vision = UnlimitedOcrVisionConfig(
            sam_config={
                **{name: sam[published] for name, published in own.items()},
                **{name: sam[name] for name in names},
                "image_size": config["vision_config"]["image_size"],
                "mlp_dim": 4 * sam["width"],
            },
            encoder_config={
                **{name: clip[published] for name, published in own.items()},
                "image_size": clip["image_size"],
                "patch_size": clip["patch_size"],
                "intermediate_size": 4 * clip["width"],
            },
        )
        self.vision = UnlimitedOcrVisionModel(vision)
        size = config["projector_config"]["n_embed"]
        self.projector = nn.Linear(config["projector_config"]["input_dim"], size)
        self.image_newline, self.view_seperator = nn.Parameter(torch.zeros(size)), nn.Parameter(torch.zeros(size))
        self.unused = nn.Parameter(torch.zeros(clip["width"], 3, clip["patch_size"], clip["patch_size"]))

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        state = super().state_dict(*args, **kwargs)
        found = {"model.vision_model.embeddings.patch_embedding.weight": state.pop("unused")}
        joined: dict[str, list[Tensor]] = {}
        for name, tensor in split_experts(state).items():
            if match := re.fullmatch(r"(vision\.vision_encoder\..*\.self_attn\.)[qkv]_proj\.(\w+)", name):
                joined.setdefault(f"{match[1]}qkv_proj.{match[2]}", []).append(tensor)
            else:
                found[_publish(name)] = tensor
        order = {"q": 0, "k": 1, "v": 2}
        for name in joined:
            parts = {part: state[name.replace("qkv_proj", f"{part}_proj")] for part in order}
            found[_publish(name)] = torch.cat([parts[part] for part in order])
        return found

    def load_state_dict(self, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        given = dict(state_dict)
        own = {"unused": given.pop("model.vision_model.embeddings.patch_embedding.weight")}
        for name in super().state_dict():
            published = _publish(name)
            if match := re.fullmatch(r"(model\.vision_model\..*\.self_attn\.)([qkv])_proj\.(\w+)", published):
                own[name] = given[f"{match[1]}qkv_proj.{match[3]}"].chunk(3)["qkv".index(match[2])]
            elif published in given:
                own[name] = given[published]
        experts = {f"llm.{name}": tensor for name, tensor in given.items() if ".experts." in name}
        return super().load_state_dict({**own, **join_experts(experts)}, *args, **kwargs)

    def make_rows(self, **media: Tensor) -> Tensor:
        rows, first = [], 0
        for index, (high, wide) in enumerate(media["cuts"].tolist()):
            views = [self._see(media["pixel_values"][index : index + 1])[0]]
            if high:
                tiles = self._see(media["pixel_values_local"][first : first + high * wide])
                first += high * wide
                lines = [torch.cat(list(line), dim=1) for line in tiles.view(high, wide, *tiles.shape[1:])]
                views.insert(0, torch.cat(lines))
            rows += [self._end_lines(view) for view in views] + [self.view_seperator[None]]
        return torch.cat(rows)

    def _see(self, pictures: Tensor) -> Tensor:
        """Rows [N, side, side, size] of squares of one side."""
        found: Tensor = self.projector(self.vision(pictures).last_hidden_state)
        side = math.isqrt(found.shape[1])
        return found.view(len(found), side, side, -1)

    def _end_lines(self, view: Tensor) -> Tensor:
        ends = self.image_newline.expand(len(view), 1, -1)
        return torch.cat((view, ends), dim=1).flatten(0, 1)


class DeepseekOCRProcessor(Processor):
    """base, tile: sides in pixels; those of the published code are 1024 and 640."""

    def __init__(self, path: Path, *, config: Json) -> None:
        super().__init__(path)
        self.base, self.tile = config["vision_config"]["image_size"], self.settings["tile_size"]
        self.most = self.settings["max_patches"]
        patch = config["vision_config"]["width"]["sam_vit_b"]["patch_size"]
        self.rows, self.tile_rows = (math.ceil((side // patch) / 4) for side in (self.base, self.tile))
        self.mean, self.std = (torch.tensor(self.settings[f"image_{name}"])[:, None, None] for name in ("mean", "std"))
        self.color = [int(value * 255) for value in self.settings["image_mean"]]

    def choose(self, height: int, width: int) -> tuple[int, int]:
        """The (rows, columns) of tiles; (0, 0) of a picture that is not cut. Of ratios that are as near, the published
        code takes them in the order of a set of Python."""
        if height <= self.tile and width <= self.tile:
            return 0, 0
        sides = range(1, self.most + 1)
        ratios = set()
        for count in range(2, self.most + 1):
            ratios |= {(w, h) for w in range(1, count + 1) for h in range(1, count + 1) if 2 <= w * h <= self.most}
        assert max(max(ratio) for ratio in ratios) in sides
        best, nearest = (1, 1), math.inf
        for wide, high in sorted(ratios, key=lambda ratio: ratio[0] * ratio[1]):
            distance = abs(width / height - wide / high)
            is_filled = height * width > 0.5 * self.tile * self.tile * wide * high
            if distance < nearest or (distance == nearest and is_filled):
                best, nearest = (high, wide), distance
        return best

    def count(self, cut: tuple[int, int]) -> int:
        high, wide = (length * self.tile_rows for length in cut)
        found: int = self.rows * (self.rows + 1) + 1 + high * (wide + 1)
        return found

    def normalize(self, picture: Tensor) -> Tensor:
        found: Tensor = (picture / 255 - self.mean) / self.std
        return found

    def fit(self, picture: Tensor) -> Tensor:
        """As Pillow's `ImageOps.pad`, of which the numbers are taken."""
        square = (self.base, self.base)
        high, wide = contain(picture.shape[1], picture.shape[2], square)
        top, left = round((self.base - high) * 0.5), round((self.base - wide) * 0.5)
        found = torch.tensor(self.color, dtype=torch.uint8)[:, None, None].repeat(1, *square)
        found[:, top : top + high, left : left + wide] = scale(picture, (high, wide), "bicubic")
        return self.normalize(found)

    def __call__(self, text: list[str], images: Any = (), add_special_tokens: bool = True, **_: Any) -> Inputs:
        cuts = [self.choose(image.height, image.width) for image in images]
        first, *pieces = text[0].split(PLACE)
        written = first + "".join(PLACE * self.count(cut) + piece for cut, piece in zip(cuts, pieces, strict=True))
        ids = torch.tensor([self.tokenizer(written, add_special_tokens=add_special_tokens)["input_ids"]])
        if not cuts:
            return Inputs(input_ids=ids)
        wholes: list[Tensor] = []
        tiles: list[Tensor] = []
        for image, (high, wide) in zip(images, cuts, strict=True):
            picture = read_picture(image)
            wholes.append(self.fit(picture))
            if high:
                large = self.normalize(scale(picture, (high * self.tile, wide * self.tile), "bicubic"))
                for line in torch.split(large, self.tile, dim=1):
                    tiles += torch.split(line, self.tile, dim=2)
        local = {"pixel_values_local": torch.stack(tiles)} if tiles else {}
        return Inputs(
            input_ids=ids,
            is_row=ids == self.tokenizer.convert_tokens_to_ids(PLACE),
            pixel_values=torch.stack(wholes),
            cuts=torch.tensor(cuts),
            **local,
        )

    def _get_num_multimodal_tokens(self, image_sizes: list[tuple[int, int]]) -> dict[str, list[int]]:
        return {"num_image_tokens": [self.count(self.choose(height, width)) for height, width in image_sizes]}
