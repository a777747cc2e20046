"""Molmo (arXiv 2409.17146, section 2): CLIP on overlapping crops and on the whole picture, two of its layers joined,
learned vectors for padding, attention over squares of four patches, and a gated feed-forward before a decoder whose
embedding table has rows of its own for the tokens of pictures.

Read from the files of the hub: the tower, layers -2 and -9, padding's vectors and pooling from modeling_molmo.py;
crops, their order, the padding's shares (those of the crops come first, that of the whole picture last, as -1) and the
resize in float from image_preprocessing_molmo.py; the prompt from preprocessing_molmo.py. Conversations are those of
github.com/allenai/molmo: olmo/data/data_formatter.py has the spaces, model_preprocessor.py what ends an answer."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from reference.vision_language import Inputs, Json, Processor, VisionLanguage, read_picture
from torch import Tensor, nn
from transformers import Olmo2Config, Olmo2ForCausalLM, Qwen2Config, Qwen2ForCausalLM

LAYERS = (-2, -9)
NUM_ADDED = 128
PARTS = ("<im_start>", "<im_end>", "<im_patch>", "<im_col>", "<|image|>")


class _Attention(nn.Module):
    def __init__(self, in_size: int, size: int, heads: int) -> None:
        super().__init__()
        self.wq, self.wk, self.wv = (nn.Linear(in_size, size) for _ in range(3))
        self.wo = nn.Linear(size, size)
        self.heads = heads

    def forward(self, queries: Tensor, values: Tensor) -> Tensor:
        q, k, v = (
            layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer, x in ((self.wq, queries), (self.wk, values), (self.wv, values))
        )
        weights = (q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])).softmax(dim=-1)
        result: Tensor = self.wo((weights @ v).transpose(1, 2).flatten(2))
        return result


class _Mlp(nn.Module):
    def __init__(self, size: int, inner: int) -> None:
        super().__init__()
        self.w1, self.w2 = nn.Linear(size, inner), nn.Linear(inner, size)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.w1(x)
        result: Tensor = self.w2(inner * torch.sigmoid(1.702 * inner))
        return result


class _Block(nn.Module):
    def __init__(self, size: int, inner: int, heads: int) -> None:
        super().__init__()
        self.attention, self.feed_forward = _Attention(size, size, heads), _Mlp(size, inner)
        self.attention_norm, self.ffn_norm = (nn.LayerNorm(size, eps=1e-5) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        normed = self.attention_norm(x)
        x = x + self.attention(normed, normed)
        result: Tensor = x + self.feed_forward(self.ffn_norm(x))
        return result


class _Tower(nn.Module):
    def __init__(self, vision: Json) -> None:
        super().__init__()
        size, patch = vision["hidden_size"], vision["patch_size"]
        self.class_embedding = nn.Parameter(torch.zeros(size))
        self.positional_embedding = nn.Parameter(torch.zeros(1 + (vision["image_size"] // patch) ** 2, size))
        self.patch_embedding = nn.Linear(3 * patch**2, size, bias=False)
        self.pre_ln = nn.LayerNorm(size, eps=1e-5)
        blocks = [
            _Block(size, vision["intermediate_size"], vision["num_attention_heads"])
            for _ in range(vision["num_hidden_layers"])
        ]
        self.transformer = nn.ModuleDict({"resblocks": nn.Sequential(*blocks)})

    def forward(self, patches: Tensor) -> Tensor:
        """[N, patches, layers · size] of patches [N, patches, 3·p·p], pixel by pixel."""
        front = self.class_embedding.expand(len(patches), 1, -1)
        x = self.pre_ln(torch.cat((front, self.patch_embedding(patches)), dim=1) + self.positional_embedding)
        found = []
        for block in self.transformer["resblocks"].children():
            x = block(x)
            found.append(x[:, 1:])
        return torch.cat([found[layer] for layer in LAYERS], dim=-1)


class _Projector(nn.Module):
    def __init__(self, size: int, inner: int, out: int) -> None:
        super().__init__()
        self.w1, self.w3 = (nn.Linear(size, inner, bias=False) for _ in range(2))
        self.w2 = nn.Linear(inner, out, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.w2(nn.functional.silu(self.w1(x)) * self.w3(x))
        return result


class _Backbone(nn.Module):
    def __init__(self, vision: Json, inner: int, out: int) -> None:
        super().__init__()
        size = vision["hidden_size"]
        self.image_vit = _Tower(vision)
        self.pad_embed = nn.Parameter(torch.zeros(2, len(LAYERS) * size))
        self.image_pooling_2d = _Attention(len(LAYERS) * size, size, vision["num_attention_heads"])
        self.image_projector = _Projector(size, inner, out)
        self.side = vision["image_size"] // vision["patch_size"]

    def forward(self, patches: Tensor, masks: Tensor) -> Tensor:
        """[N, side² / 4, out] of crops, of whose patches a share `masks` [N, side²] is not padding."""
        x = self.image_vit(patches)
        is_padding = masks == 0
        is_partly = (masks < 1) & ~is_padding
        x = x + is_padding[..., None] * self.pad_embed[0] + is_partly[..., None] * self.pad_embed[1]
        half = self.side // 2
        squares = x.view(len(x), half, 2, half, 2, -1).transpose(2, 3).reshape(len(x) * half**2, 4, -1)
        pooled = self.image_pooling_2d(squares.mean(dim=1, keepdim=True), squares)
        result: Tensor = self.image_projector(pooled.view(len(x), half**2, -1))
        return result


class Molmo(VisionLanguage):
    def __init__(self, config: Json) -> None:
        super().__init__(config)
        self.is_behind = config["norm_after"]
        size, self.inner = config["hidden_size"], config["intermediate_size"] // 2
        own: Json = {
            "hidden_size": size, "intermediate_size": self.inner, "rms_norm_eps": config["layer_norm_eps"],
            "rope_theta": config["rope_theta"], "vocab_size": config["embedding_size"] + NUM_ADDED,
            "tie_word_embeddings": False, "eos_token_id": config["eos_token_id"],
            "pad_token_id": None, "bos_token_id": None,
            "num_key_value_heads": config["num_key_value_heads"] or config["num_attention_heads"],
            **{name: config[name] for name in ("num_hidden_layers", "num_attention_heads", "max_position_embeddings")},
        }  # fmt: skip
        self.llm = Olmo2ForCausalLM(Olmo2Config(**own)) if self.is_behind else Qwen2ForCausalLM(Qwen2Config(**own))
        self.llm.lm_head = nn.Linear(size, config["embedding_size"], bias=False)
        self.backbone = _Backbone(config["vision_config"], self.inner, size)

    # --- the published layout -----------------------------------------------------------------------------------------

    def _norm_names(self) -> tuple[tuple[str, str], ...]:
        if self.is_behind:
            return ("attn_norm", "post_attention_layernorm"), ("ff_norm", "post_feedforward_layernorm")
        return ("attn_norm", "input_layernorm"), ("ff_norm", "post_attention_layernorm")

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        state = {f"model.vision_backbone.{name}": tensor for name, tensor in self.backbone.state_dict().items()}
        own = self.llm.state_dict()
        table, front = own["model.embed_tokens.weight"], "model.transformer."
        state[front + "wte.embedding"], state[front + "wte.new_embedding"] = table[:-NUM_ADDED], table[-NUM_ADDED:]
        state[front + "ln_f.weight"], state[front + "ff_out.weight"] = own["model.norm.weight"], own["lm_head.weight"]
        for number in range(len(self.llm.model.layers)):
            here, there = f"model.layers.{number}.", f"{front}blocks.{number}."
            for end in ("weight", "bias"):
                joined = [own.get(f"{here}self_attn.{part}_proj.{end}") for part in "qkv"]
                if joined[0] is not None:
                    state[f"{there}att_proj.{end}"] = torch.cat(joined)
            state[there + "ff_proj.weight"] = torch.cat(
                [own[f"{here}mlp.{part}_proj.weight"] for part in ("up", "gate")]
            )
            names = [("attn_out", "self_attn.o_proj"), ("ff_out", "mlp.down_proj"), *self._norm_names()]
            names += [(name, f"self_attn.{name}") for name in ("q_norm", "k_norm")]
            for published, name in names:
                if f"{here}{name}.weight" in own:
                    state[f"{there}{published}.weight"] = own[f"{here}{name}.weight"]
        return state

    def load_state_dict(self, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        """Copy into what `state_dict` shows of each tensor, which for joined ones is a copy: these are split."""
        front = "model.vision_backbone."
        tower = {name.removeprefix(front): tensor for name, tensor in state_dict.items() if name.startswith(front)}
        self.backbone.load_state_dict(tower)
        front, own = "model.transformer.", {}
        own["model.embed_tokens.weight"] = torch.cat(
            [state_dict[f"{front}wte.{part}embedding"] for part in ("", "new_")]
        )
        own["model.norm.weight"], own["lm_head.weight"] = (
            state_dict[front + "ln_f.weight"],
            state_dict[front + "ff_out.weight"],
        )
        heads = [getattr(self.llm.model.layers[0].self_attn, f"{part}_proj").out_features for part in "qkv"]
        for number in range(len(self.llm.model.layers)):
            here, there = f"model.layers.{number}.", f"{front}blocks.{number}."
            for end in ("weight", "bias"):
                if f"{there}att_proj.{end}" in state_dict:
                    for part, tensor in zip("qkv", torch.split(state_dict[f"{there}att_proj.{end}"], heads)):
                        own[f"{here}self_attn.{part}_proj.{end}"] = tensor
            for part, tensor in zip(("up", "gate"), state_dict[there + "ff_proj.weight"].chunk(2)):
                own[f"{here}mlp.{part}_proj.weight"] = tensor
            names = [("attn_out", "self_attn.o_proj"), ("ff_out", "mlp.down_proj"), *self._norm_names()]
            names += [(name, f"self_attn.{name}") for name in ("q_norm", "k_norm")]
            for published, name in names:
                if f"{there}{published}.weight" in state_dict:
                    own[f"{here}{name}.weight"] = state_dict[f"{there}{published}.weight"]
        return self.llm.load_state_dict(own)

    # --- pictures -----------------------------------------------------------------------------------------------------

    def splice(self, input_ids: Tensor, is_row: Tensor | None = None, **media: Any) -> Tensor:
        """Rows are added to the embeddings of the tokens in their places."""
        embeddings = self.embed(input_ids)
        if is_row is not None:
            patches, masks, places = media["pixel_values"], media["image_masks"], media["image_input_idx"]
            rows = self.backbone(patches.view(len(masks), masks.shape[1], -1).to(embeddings), masks).flatten(0, 1)
            kept = places >= 0
            assert sorted(places[kept].tolist()) == is_row[0].nonzero()[:, 0].tolist()
            embeddings[0, places[kept]] += rows[kept]
        return embeddings


class Cropper:
    """Makes crops of pictures, [side, side, 3] each, with what is not padding in them, and the order of their rows."""

    def __init__(self, settings: Json) -> None:
        self.patch, [self.crop, _] = settings["image_patch_size"], settings["base_image_input_size"]
        self.most, self.margins = settings["max_crops"], settings["overlap_margins"]
        self.mean, self.std = (np.array(settings[f"image_{name}"], dtype=np.float32) for name in ("mean", "std"))
        self.side = settings["image_token_length_h"]
        self.margin = sum(self.margins) * self.patch
        self.window = self.crop - self.margin

    def find_tiling(self, height: int, width: int) -> tuple[int, int]:
        """The (rows, columns) of crops: of as few as leave the picture in its size at least, those that enlarge it
        least; where none are, those that shrink it least."""
        tilings = [(i, j) for i in range(1, self.most + 1) for j in range(1, self.most // i + 1)]
        tilings.sort(key=lambda each: (math.prod(each), each[0]))
        sizes = np.array(tilings, dtype=np.int32) * self.window
        own = np.array([height - self.margin, width - self.margin], dtype=np.float32)
        with np.errstate(divide="ignore"):
            scales = (sizes.astype(np.float32) / own).min(axis=1)
        if (scales < 1).all():
            return tilings[int(scales.argmax())]
        return tilings[int(np.where(scales < 1, np.float32(10e9), scales).argmin())]

    def fit(self, picture: Tensor, size: tuple[int, int]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """A picture uint8 [3, H, W] scaled as float and put in the middle of `size`: normalized [h, w, 3], and where
        it is. Published: an error if nothing is left of a side."""
        own = [np.float32(length) for length in picture.shape[1:]]
        factor = min(np.float32(size[0]) / own[0], np.float32(size[1]) / own[1])
        high, wide = (max(1, int(length * factor)) for length in own)
        channels = [Image.fromarray(channel.float().numpy() / 255) for channel in picture]
        pixels = [np.asarray(channel.resize((wide, high), Image.Resampling.BILINEAR)) for channel in channels]
        top, left = (size[0] - high) // 2, (size[1] - wide) // 2
        canvas, mask = np.zeros((*size, 3), dtype=np.float32), np.zeros(size, dtype=bool)
        canvas[top : top + high, left : left + wide] = np.stack(pixels, axis=-1).clip(0, 1)
        mask[top : top + high, left : left + wide] = True
        return (canvas - self.mean) / self.std, mask

    def cut(self, pixels: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """[patches, p·p·…] of [side, side, …]."""
        count, patch = self.crop // self.patch, self.patch
        squares = pixels.reshape(count, patch, count, patch, -1).swapaxes(1, 2)
        return squares.reshape(count**2, -1)

    def __call__(self, picture: Tensor) -> tuple[Tensor, Tensor, list[list[int]]]:
        """Patches [N, patches, size] of all crops, the share of each that is not padding, and lines of row numbers."""
        height, width = picture.shape[1:]
        rows, columns = self.find_tiling(height, width)
        large, mask = self.fit(picture, (rows * self.window + self.margin, columns * self.window + self.margin))
        whole, _ = self.fit(picture, (self.crop, self.crop))
        patches, masks = [self.cut(whole)], []
        for i in range(rows):
            for j in range(columns):
                place = tuple(slice(k * self.window, k * self.window + self.crop) for k in (i, j))
                patches.append(self.cut(large[place]))
                masks.append(self.cut(mask[place].astype(np.float32)).mean(axis=1))
        masks.append(np.full_like(masks[0], -1))  # as published: behind the crops, though the whole picture comes first
        return torch.tensor(np.stack(patches)), torch.tensor(np.stack(masks)), self.order(rows, columns)

    def keep(self, index: int, count: int) -> range:
        """The rows of a crop, along one axis, that no neighbour has."""
        first = 0 if index == 0 else self.margins[0] // 2
        return range(first, self.side if index == count - 1 else self.side - self.margins[1] // 2)

    def order(self, rows: int, columns: int) -> list[list[int]]:
        """The row numbers in the lines of the picture that the crops make, behind those of the whole one."""
        square = self.side**2
        return [
            [square * (1 + i * columns + j) + y * self.side + x for j in range(columns) for x in self.keep(j, columns)]
            for i in range(rows)
            for y in self.keep(i, rows)
        ]


class MolmoProcessor(Processor):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.cropper = Cropper(self.settings)
        self.ids = dict(zip(PARTS, self.tokenizer.convert_tokens_to_ids(list(PARTS)), strict=True))

    def write(self, lines: list[list[int]]) -> list[int]:
        """The ids of a picture's tokens: two views, each in lines."""
        side, (start, end, patch, column, _) = self.cropper.side, self.ids.values()
        views = ([side] * side, [len(line) for line in lines])
        return [
            token
            for view in views
            for token in (start, *(each for length in view for each in (*[patch] * length, column)), end)
        ]

    def __call__(self, text: list[str], images: Any = (), add_special_tokens: bool = True, **_: Any) -> Inputs:
        """Pictures stand where the text has <|image|>."""
        chunks = [
            self.tokenizer(chunk, add_special_tokens=add_special_tokens)["input_ids"]
            for chunk in re.split(r"<\|image\|>", text[0])
        ]
        assert len(chunks) == len(images) + 1
        return self.join(chunks, images)

    def process(self, text: str, images: Any) -> Inputs:
        """The prompt that the published processor makes of a question: pictures before all of it."""
        asked = self.tokenizer(f" User: {text} Assistant:", add_special_tokens=False)["input_ids"]
        return self.join([[self.tokenizer.eos_token_id], *[[]] * (len(images) - 1), asked], images)

    def join(self, chunks: list[list[int]], images: Any) -> Inputs:
        ids = list(chunks[0])
        patches, masks, places = list[Tensor](), list[Tensor](), list[Tensor]()
        for image, chunk in zip(images, chunks[1:], strict=True):
            cut, shares, lines = self.cropper(read_picture(image))
            written = self.write(lines)
            spots = [len(ids) + place for place, token in enumerate(written) if token == self.ids["<im_patch>"]]
            square = self.cropper.side**2
            where = torch.full((len(cut) * square,), -100)
            where[torch.tensor([*range(square), *(row for line in lines for row in line)])] = torch.tensor(spots)
            patches, masks, places = [*patches, cut], [*masks, shares], [*places, where]
            ids += written + chunk
        made = torch.tensor([ids])
        if not patches:
            return Inputs(input_ids=made)
        return Inputs(
            input_ids=made,
            is_row=made == self.ids["<im_patch>"],
            pixel_values=torch.cat(patches).flatten(0, 1),
            image_masks=torch.cat(masks),
            image_input_idx=torch.cat(places),
        )

    def _get_num_multimodal_tokens(self, image_sizes: list[tuple[int, int]]) -> dict[str, list[int]]:
        counts = []
        for size in image_sizes:
            rows, columns = self.cropper.find_tiling(*size)
            high, wide = (sum(len(self.cropper.keep(i, count)) for i in range(count)) for count in (rows, columns))
            side = self.cropper.side
            counts.append(4 + side * (side + 1) + high * (wide + 1))
        return {"num_image_tokens": counts}
