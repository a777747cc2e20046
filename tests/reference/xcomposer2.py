"""InternLM-XComposer2 (arXiv 2401.16420), 4KHD (arXiv 2404.06512) and 2.5 (arXiv 2407.03320): CLIP on squares, or on
tiles and the whole picture; two linear layers; a Llama that adds something of low rank to rows of pictures in all of
its linear layers. Tensors have the published names.

Read from the files of the hub: the last hidden state without its norm, without the class token, joined squares and
learned rows from build_mlp.py; ranks and factors of the additions from PLoRA there and its calls in
modeling_internlm2.py; squares and <s> before each text from `encode_img` and `interleav_wrap_chat` of
modeling_internlm_xcomposer2.py (-vl and 4KHD); tiles from ixc_utils.py; <s> before the first text alone and six tiles
for each of several pictures from `interleav_wrap_chat` of 2.5."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import torch
from original_layouts import name_as_internlm2
from reference.phi3_v import Tiler
from reference.vision_language import Inputs, Json, Processor, VisionLanguage, read_picture, scale
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import CLIPVisionConfig, CLIPVisionModel, LlamaConfig, LlamaForCausalLM

PICTURE = "<ImageHere>"
SHORT = {"gate": "w1", "down": "w2", "up": "w3"}


class Places:
    """Which tokens of the text that is computed are rows of pictures: bool [1, T]; None for none."""

    mask: Tensor | None = None


class _PLoRA(nn.Linear):
    """A linear layer that adds scale · B A x to rows of pictures."""

    def __init__(self, plain: nn.Linear, first: nn.Linear, scale: float, places: Places) -> None:
        super().__init__(plain.in_features, plain.out_features, bias=False)
        self.Plora_A = first
        self.Plora_B = nn.Linear(first.out_features, plain.out_features, bias=False)
        self.scale, self.places = scale, places

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        if self.places.mask is not None:
            y = y + self.places.mask[..., None].to(y) * self.scale * self.Plora_B(self.Plora_A(x))
        return y


class _Tower(nn.Module):
    def __init__(self, config: CLIPVisionConfig) -> None:
        super().__init__()
        self.vision_model = CLIPVisionModel(config)


class _Vit(nn.Module):
    def __init__(self, config: CLIPVisionConfig) -> None:
        super().__init__()
        self.vision_tower = _Tower(config)


class XComposer2(VisionLanguage):
    """ranks: of the additions to queries, keys and values, and of all others."""

    splits_rows = True

    def __init__(self, config: Json, *, is_tiled: bool, ranks: tuple[int, int], tile: int) -> None:
        super().__init__(config)
        kept = ("hidden_size", "intermediate_size", "max_position_embeddings", "num_attention_heads")
        more = ("num_hidden_layers", "num_key_value_heads", "rms_norm_eps", "vocab_size")
        self.text = {name: config[name] for name in (*kept, *more)}
        rope = {"rope_type": "default", "rope_theta": config["rope_theta"]}
        self.llm = LlamaForCausalLM(LlamaConfig(**self.text, rope_parameters=rope, tie_word_embeddings=False))
        self.places = Places()
        self._pending: Tensor | None = None
        self._add_low_ranks(*ranks)
        self.llm.model.register_forward_pre_hook(self._place, with_kwargs=True)
        vision = CLIPVisionConfig(**{**config["vision_config"], "image_size": tile})
        size, self.is_tiled, self.tile = config["hidden_size"], is_tiled, tile
        joined = vision.hidden_size * (4 if is_tiled else 1)
        self.vit = _Vit(vision)
        self.vision_proj = nn.Sequential(nn.Linear(joined, size), nn.GELU(), nn.Linear(size, size))
        if is_tiled:
            self.plora_glb_GN = nn.Parameter(torch.zeros(1, 1, joined))
            self.plora_sub_GN = nn.Parameter(torch.zeros(1, 1, 1, joined))

    def _add_low_ranks(self, narrow: int, rank: int) -> None:
        """Of 4KHD, those to queries, keys and values are multiplied by 16 / rank: the others have the factor 1."""
        size, inner = self.text["hidden_size"], self.text["intermediate_size"]
        qkv_scale = 1.0 if narrow == rank else 16 / narrow
        for layer in self.llm.model.layers:
            attention, mlp = layer.self_attn, layer.mlp
            shared = nn.Linear(size, narrow, bias=False)
            for name in ("q_proj", "k_proj", "v_proj"):
                setattr(attention, name, _PLoRA(getattr(attention, name), shared, qkv_scale, self.places))
            ones = [(mlp, "gate_proj", size), (mlp, "up_proj", size), (mlp, "down_proj", inner)]
            for parent, name, width in [(attention, "o_proj", size), *ones]:
                first = nn.Linear(width, rank, bias=False)
                setattr(parent, name, _PLoRA(getattr(parent, name), first, 1.0, self.places))

    @classmethod
    def load(cls, path: Path) -> XComposer2:
        state = load_file(path / "model.safetensors")
        config = json.loads((path / "config.json").read_text())
        positions = state["vit.vision_tower.vision_model.embeddings.position_embedding.weight"]
        tile = math.isqrt(len(positions)) * config["vision_config"]["patch_size"]
        ranks = [len(state[f"model.layers.0.attention.{name}.Plora_A.weight"]) for name in ("wqkv", "wo")]
        model = cls(config, is_tiled="plora_glb_GN" in state, ranks=(ranks[0], ranks[1]), tile=tile)
        model.load_state_dict(state)
        return model.eval()

    # --- published names ----------------------------------------------------------------------------------------------

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        own = {name: value for name, value in super().state_dict().items() if not name.startswith("llm.")}
        decoder = {name.removeprefix("model."): value for name, value in self.llm.state_dict().items()}
        named = name_as_internlm2(decoder, self.text)
        for name, value in decoder.items():
            if "Plora_A" in name and not re.search(r"[kv]_proj", name):
                named[_publish(name)] = value
        return {**own, **named}

    def load_state_dict(self, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        groups, heads = self.text["num_key_value_heads"], self.text["num_attention_heads"]
        size = self.text["hidden_size"] // heads
        counts = (heads // groups, 1, 1)
        loaded = {
            name: value for name, value in state_dict.items() if name.startswith(("vit.", "vision_proj.", "plora"))
        }
        for name in self.llm.state_dict():
            stored = state_dict[_publish(name.removeprefix("model."))]
            if (part := re.search(r"([qkv])_proj\.(?!Plora_A)", name)) is not None:
                parts = stored.view(groups, -1, size, stored.shape[1]).split(counts, dim=1)
                stored = parts["qkv".index(part[1])].flatten(0, 2)
            loaded[f"llm.{name}"] = stored
        return super().load_state_dict(loaded, *args, **kwargs)

    # --- forward ------------------------------------------------------------------------------------------------------

    def forward(self, input_ids: Tensor, is_row: Tensor | None = None, **media: Any) -> Any:
        self._pending = is_row
        return super().forward(input_ids, is_row=is_row, **media)

    def generate(self, input_ids: Tensor, **inputs: Any) -> Tensor:
        self._pending = inputs.get("is_row")
        return super().generate(input_ids, **inputs)

    def _place(self, _: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Tell the layers where rows of pictures are, in the text that comes next; generated tokens are none."""
        self.places.mask = kwargs.pop("is_row", self._pending)
        self._pending = None
        return args, kwargs

    def make_rows(self, **media: Tensor) -> Tensor:
        if not self.is_tiled:
            squares: Tensor = self.vision_proj(self.encode(media["pixel_values"]))
            return squares.flatten(0, 1)
        rows = []
        for tiles, (height, width) in zip(media["pixel_values"], media["image_sizes"].tolist(), strict=True):
            lines, columns = height // self.tile, width // self.tile
            whole, *others = self.join(self.encode(tiles[: 1 + lines * columns]))
            grid = [torch.cat(others[line * columns : (line + 1) * columns], dim=1) for line in range(lines)]
            views = (self.end_lines(whole), self.plora_glb_GN.view(1, -1), self.end_lines(torch.cat(grid)))
            rows.append(self.vision_proj(torch.cat(views)))
        return torch.cat(rows)

    def encode(self, pixels: Tensor) -> Tensor:
        """[N, patches, hidden] behind the last layer, without its norm."""
        hidden: Tensor = self.vit.vision_tower.vision_model(pixels, output_hidden_states=True).hidden_states[-1]
        return hidden[:, 1:]

    def join(self, hidden: Tensor) -> Tensor:
        """[N, side, side, 4 · hidden], each of the four patches of a square."""
        side = math.isqrt(hidden.shape[1])
        square = hidden.view(len(hidden), side, side, -1)
        return torch.cat([square[:, row::2, column::2] for row in (0, 1) for column in (0, 1)], dim=-1)

    def end_lines(self, lines: Tensor) -> Tensor:
        end = self.plora_sub_GN.view(1, 1, -1).expand(len(lines), -1, -1)
        return torch.cat((lines, end), dim=1).flatten(0, 1)


def _publish(name: str) -> str:
    """The published name of a tensor of the decoder."""
    for before, after in {
        "embed_tokens.": "model.tok_embeddings.",
        "norm.": "model.norm.",
        "lm_head.": "output.",
    }.items():
        if name.startswith(before):
            return after + name.removeprefix(before)
    name = re.sub(r"self_attn\.[qkv]_proj", "attention.wqkv", name).replace("self_attn.o_proj", "attention.wo")
    name = re.sub(r"mlp\.(\w+)_proj", lambda found: f"feed_forward.{SHORT[found[1]]}", name)
    name = name.replace("input_layernorm", "attention_norm").replace("post_attention_layernorm", "ffn_norm")
    return f"model.{name}"


class _CappedTiler(Tiler):
    """That of 2.5: no more tiles in the longer side than the picture fills, white below it."""

    def find_size(self, width: int, height: int) -> tuple[int, int]:
        filled, _ = super().find_size(width, height)
        new_width = min(math.ceil(width / self.tile) * self.tile, filled)
        return new_width, max(1, int(new_width / (width / height)))

    def split_white(self, missing: int) -> tuple[int, int]:
        return 0, missing


class XComposer2Processor(Processor):
    """The text around pictures is tokenized piece by piece. `most`: tiles of each of several pictures; 0: as of one."""

    most = 0

    def __init__(self, path: Path, model: XComposer2) -> None:
        super().__init__(path)
        self.side: int = model.tile
        self.image_token = model.text["vocab_size"] - 1  # published: no token
        self.grid: int = self.side // model.vit.vision_tower.vision_model.config.patch_size
        self.tiler: Tiler | None = None
        if model.is_tiled:
            layer = model.llm.model.layers[0].self_attn
            is_4khd = layer.q_proj.Plora_A.out_features != layer.o_proj.Plora_A.out_features
            self.most = 0 if is_4khd else 6
            self.tiler = self._make_tiler(self.settings["hd_num"])
        self.mean, self.std = (torch.tensor(self.settings[f"image_{name}"])[:, None, None] for name in ("mean", "std"))

    def __call__(self, text: list[str], images: Any = (), add_special_tokens: bool = True, **_: Any) -> Inputs:
        first, *others = text[0].split(PICTURE)
        assert len(others) == len(images)
        ids = self.tokenizer(first, add_special_tokens=add_special_tokens)["input_ids"]
        begins = not self.most and add_special_tokens
        if self.most and len(images) > 1:
            single, self.tiler = self.tiler, self._make_tiler(self.most)
            made = self._write(ids, others, images, begins=begins)
            self.tiler = single
            return made
        return self._write(ids, others, images, begins=begins)

    def _make_tiler(self, most: int) -> Tiler:
        return (_CappedTiler if self.most else Tiler)({**self.settings, "num_crops": most}, self.side)

    def _write(self, ids: list[int], others: list[str], images: Any, *, begins: bool) -> Inputs:
        """The prompt that goes on behind `ids`. begins: each text that is not empty begins with <s>."""
        media = self.read([read_picture(image) for image in images]) if images else {}
        sizes = media["image_sizes"].tolist() if "image_sizes" in media else [(self.side, self.side)] * len(images)
        is_row = [False] * len(ids)
        for (height, width), after in zip(sizes, others, strict=True):
            count = self.count(height, width)
            following = self.tokenizer(after, add_special_tokens=begins)["input_ids"] if after else []
            ids += [self.image_token] * count + following
            is_row += [True] * count + [False] * len(following)
        if images:
            media["is_row"] = torch.tensor([is_row])
        return Inputs(input_ids=torch.tensor([ids]), **media)

    def read(self, pictures: list[Tensor]) -> Inputs:
        if self.tiler is not None:
            return self.tiler.join([self.tiler.pad(picture) for picture in pictures])
        squares = [scale(picture, (self.side, self.side), "bicubic") for picture in pictures]
        return Inputs(pixel_values=torch.stack([(square / 255 - self.mean) / self.std for square in squares]))

    def count(self, height: int, width: int) -> int:
        """Rows of a padded picture."""
        if self.tiler is None:
            return self.grid**2
        lines, columns, rows = height // self.side, width // self.side, self.grid // 2
        return (lines * columns + 1) * rows**2 + 1 + (lines + 1) * rows

    def _get_num_multimodal_tokens(self, image_sizes: list[tuple[int, int]]) -> dict[str, list[int]]:
        counts = []
        for height, width in image_sizes:
            if self.tiler is None:
                counts.append(self.count(height, width))
                continue
            new_width, new_height = self.tiler.find_size(max(width, height), min(width, height))
            new_height += -new_height % self.side
            counts.append(self.count(*((new_height, new_width) if width >= height else (new_width, new_height))))
        return {"num_image_tokens": counts}
