"""Phi-3-vision (arXiv 2404.14219, section 6): CLIP on tiles and on the whole picture, squares of four patches joined,
learned rows at the ends of lines and between the two views, two linear layers behind all of them.

Each statement was read from a published file of microsoft/Phi-3-vision-128k-instruct on the hub:

* `Phi3V.make_rows`, `encode` and `end_lines`: image_embedding_phi3_v.py, hd_feature_transform and what it calls.
* `Tiler`: image_processing_phi3_v.py, HD_transform, padding_336 and preprocess.
* `Phi3VProcessor`: processing_phi3_v.py, _convert_images_texts_to_inputs; num_img_tokens of the image processor.

`tests/golden` holds numbers that these files computed.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import torch
from reference.vision_language import Inputs, Json, Processor, VisionLanguage, read_picture, scale
from torch import Tensor, nn
from transformers import CLIPVisionConfig, CLIPVisionModel, Phi3Config, Phi3ForCausalLM


class _Tower(nn.Module):
    def __init__(self, config: CLIPVisionConfig) -> None:
        super().__init__()
        self.vision_model = CLIPVisionModel(config)


class _Vision(nn.Module):
    def __init__(self, config: CLIPVisionConfig, size: int) -> None:
        super().__init__()
        joined = 4 * config.hidden_size
        self.img_processor = _Tower(config)
        self.glb_GN = nn.Parameter(torch.zeros(1, 1, joined))
        self.sub_GN = nn.Parameter(torch.zeros(1, 1, 1, joined))
        self.img_projection = nn.Sequential(nn.Linear(joined, size), nn.GELU(), nn.Linear(size, size))


class Phi3V(VisionLanguage):
    def __init__(self, config: Json) -> None:
        super().__init__(config)
        left_out = ("vision_config", "model_type", "auto_map", "architectures", "embd_layer", "img_processor")
        own = {key: value for key, value in config.items() if key not in left_out}
        if (scaling := own.get("rope_scaling")) and scaling["type"] == "su":
            own["rope_scaling"] = {**scaling, "type": "longrope"}
        vision = CLIPVisionConfig(**config["vision_config"])
        self.llm = Phi3ForCausalLM(Phi3Config(**own))  # with the tower where published checkpoints have it
        self.llm.model.vision_embed_tokens = _Vision(vision, config["hidden_size"])
        self.tile = vision.image_size

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        state = super().state_dict(*args, **kwargs)
        return {name.removeprefix("llm."): tensor for name, tensor in state.items()}

    def load_state_dict(self, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        return self.llm.load_state_dict(state_dict, *args, **kwargs)

    @property
    def vision(self) -> Any:
        return self.llm.model.vision_embed_tokens

    def make_rows(self, **media: Tensor) -> Tensor:
        pixel_values, image_sizes = media["pixel_values"], media["image_sizes"]
        rows = []
        for tiles, (height, width) in zip(pixel_values, image_sizes.tolist(), strict=True):
            lines, columns = height // self.tile, width // self.tile
            whole, *others = self.encode(tiles[: 1 + lines * columns])
            grid = [torch.cat(others[line * columns : (line + 1) * columns], dim=1) for line in range(lines)]
            views = (self.end_lines(torch.cat(grid)), self.vision.glb_GN.view(1, -1), self.end_lines(whole))
            rows.append(self.vision.img_projection(torch.cat(views)))
        return torch.cat(rows)

    def encode(self, tiles: Tensor) -> Tensor:
        """[N, side, side, 4 · hidden], each of the four patches of a square."""
        tower = self.vision.img_processor.vision_model
        hidden = tower(tiles, output_hidden_states=True).hidden_states[-2][:, 1:]
        side = math.isqrt(hidden.shape[1])
        square = hidden.view(len(tiles), side, side, -1)
        return torch.cat([square[:, row::2, column::2] for row in (0, 1) for column in (0, 1)], dim=-1)

    def end_lines(self, lines: Tensor) -> Tensor:
        end = self.vision.sub_GN.view(1, 1, -1).expand(len(lines), -1, -1)
        return torch.cat((lines, end), dim=1).flatten(0, 1)


class Tiler:
    """Makes padded pictures of pictures, and tiles of these."""

    def __init__(self, settings: Json, tile: int) -> None:
        self.tile, self.most = tile, settings["num_crops"]
        self.mean, self.std = (torch.tensor(settings[f"image_{name}"])[:, None, None] for name in ("mean", "std"))

    def find_size(self, width: int, height: int) -> tuple[int, int]:
        """(width, height) of a lying picture, before it is padded."""
        ratio = width / height
        fitting = [count for count in range(1, self.most + 1) if count * math.ceil(count / ratio) <= self.most]
        new_width = max(fitting) * self.tile
        return new_width, max(1, int(new_width / ratio))  # published: an error if it has no height

    def pad(self, picture: Tensor) -> Tensor:
        """uint8 [3, H, W] scaled, white above and below of a lying picture, left and right of a tall one."""
        is_tall = picture.shape[2] < picture.shape[1]
        lying = picture.transpose(1, 2).contiguous() if is_tall else picture
        width, height = self.find_size(lying.shape[2], lying.shape[1])
        bars = (0, 0, *self.split_white(-height % self.tile))
        padded = nn.functional.pad(scale(lying, (height, width), "bilinear"), bars, value=255)
        return padded.transpose(1, 2) if is_tall else padded

    def split_white(self, missing: int) -> tuple[int, int]:
        """Lines above and below a lying picture."""
        return missing // 2, missing - missing // 2

    def cut(self, picture: Tensor) -> Tensor:
        """The whole picture as a tile, then its tiles, row by row."""
        whole = nn.functional.interpolate(picture[None], size=(self.tile, self.tile), mode="bicubic")
        lines = torch.split(picture, self.tile, dim=1)
        return torch.cat([whole, *(tile[None] for line in lines for tile in torch.split(line, self.tile, dim=2))])

    def join(self, pictures: list[Tensor]) -> Inputs:
        """The tiles of padded pictures, as many of each, and the sizes of these."""
        tiles = [self.cut((picture / 255 - self.mean) / self.std) for picture in pictures]
        most = max(map(len, tiles))
        padded = [torch.cat((each, torch.zeros(most - len(each), *each.shape[1:]))) for each in tiles]
        sizes = torch.tensor([list(picture.shape[1:]) for picture in pictures])
        return Inputs(pixel_values=torch.stack(padded), image_sizes=sizes)

    def __call__(self, images: Any) -> Inputs:
        """The inputs of the tower for PIL pictures."""
        return self.join([self.pad(read_picture(image)) for image in images])


class Phi3VProcessor(Processor):
    def __init__(self, path: Path, *, tile: int) -> None:
        super().__init__(path)
        self.tile, self.tiler = tile, Tiler(self.settings, tile)

    def __call__(self, text: list[str], images: Any = (), add_special_tokens: bool = True, **_: Any) -> Inputs:
        pictures = [self.tiler.pad(read_picture(image)) for image in images]
        chunks = [
            self.tokenizer(chunk, add_special_tokens=add_special_tokens)["input_ids"]
            for chunk in re.split(r"<\|image_\d+\|>", text[0])
        ]
        assert len(chunks) == len(pictures) + 1
        image_token = self.tokenizer.convert_tokens_to_ids("<|image|>")  # published: minus the picture's number
        ids = list(chunks[0])
        for picture, chunk in zip(pictures, chunks[1:], strict=True):
            ids += [image_token] * self.count(*picture.shape[1:]) + chunk
        if not pictures:
            return Inputs(input_ids=torch.tensor([ids]))
        return Inputs(
            input_ids=torch.tensor([ids]),
            is_row=torch.tensor([ids]) == image_token,
            **self.tiler.join(pictures),
        )

    def count(self, height: int, width: int) -> int:
        lines, columns = height // self.tile, width // self.tile
        return (lines * columns + 1) * self.side**2 + 1 + (lines + 1) * self.side

    @property
    def side(self) -> int:
        """Rows of a tile in a line."""
        return int(self.settings["num_img_tokens"] ** 0.5)

    def _get_num_multimodal_tokens(self, image_sizes: list[tuple[int, int]]) -> dict[str, list[int]]:
        counts = []
        for height, width in image_sizes:
            new_width, new_height = self.tiler.find_size(max(width, height), min(width, height))
            new_height += -new_height % self.tile
            counts.append(self.count(*((new_height, new_width) if width >= height else (new_width, new_height))))
        return {"num_image_tokens": counts}
