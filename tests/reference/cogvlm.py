"""CogVLM (arXiv 2311.03079) and CogVLM2 (arXiv 2408.16500): a Llama of whose linear layers there are two, one of which
computes rows of pictures. Published, a row is a picture's where its token and the one behind it have the picture's
type: so the last row of a picture, a learned one, is computed as text. There is one picture in a published prompt.

Read from the files of the hub's CogVLM2: tower, squares of rows and the two learned rows from visual.py; experts, their
bias, grouped heads, `get_expert_mask` and `build_position_ids` from modeling_cogvlm.py, with the prompt, the size and
the bicubic resize of `build_conversation_input_ids`; the rotation of halves and its base from util.py. Those of CogVLM
(no bias, as many keys as queries, no squares) are the paper's and its checkpoint's shapes.

CogVLM2-Video is read from modeling_cogvlm.py of the hub's cogvlm2-llama3-caption, the same class: the one weight of
each layer, `build_position_ids`, and `build_conversation_input_ids` with ShortSideScale and the digits between frames;
torchvision's CenterCropVideo; and the frames at whole seconds from CogVLM2's video_demo. There is one video in a
published prompt."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from reference.chatglm_4v import EvaClip
from reference.vision_language import Inputs, Json, Processor, VisionLanguage, read_picture, scale
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

MARKER = "<image>"
_NAMES = (
    (
        r"^model\.layers\.(\d+)\.self_attn\.(language|vision)_expert_query_key_value\.",
        r"layers.\1.self_attn.qkv_proj.\2.",
    ),
    (r"^model\.layers\.(\d+)\.self_attn\.(language|vision)_expert_dense\.", r"layers.\1.self_attn.o_proj.\2."),
    (r"^model\.layers\.(\d+)\.mlp\.(language|vision)_mlp\.(\w+)\.", r"layers.\1.mlp.\3.\2."),
    (r"^model\.", ""),
)
"""Published names, and those of Transformers' Llama with two layers in place of each."""


class Experts(nn.Module):
    """Two linear layers, by whose `is_vision` bool [T] the rows of x [1, T, size] choose."""

    def __init__(self, language: nn.Linear, *, bias: bool) -> None:
        super().__init__()
        self.language = language
        self.vision = nn.Linear(language.in_features, language.out_features, bias=bias)
        self.is_vision = torch.zeros(0, dtype=torch.bool)

    def forward(self, x: Tensor) -> Tensor:
        assert x.shape[:2] == (1, len(self.is_vision)), "one prompt at a time"
        chosen: Tensor = torch.where(self.is_vision.to(x.device)[:, None], self.vision(x), self.language(x))
        return chosen


class Alone(nn.Module):
    """The language's linear layer for all rows."""

    def __init__(self, language: nn.Linear, **_: Any) -> None:
        super().__init__()
        self.language = language

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.language(x)
        return result


class _Decoder(nn.Module):
    """The Llama without its head. `is_row`: where rows of pictures are, num_rows of each. It owns no weights."""

    def __init__(self, llm: Any, num_rows: int) -> None:
        super().__init__()
        self._llm, self._num_rows = [llm], num_rows
        self.config = llm.config

    def forward(self, inputs_embeds: Tensor, position_ids: Tensor, is_row: Tensor | None = None) -> Any:
        llm = self._llm[0]
        is_vision = torch.zeros(inputs_embeds.shape[1], dtype=torch.bool) if is_row is None else is_row[0].cpu()
        number = is_vision.cumsum(0) % self._num_rows
        is_vision = is_vision & (number != 0)
        for module in llm.modules():
            if isinstance(module, Experts):
                module.is_vision = is_vision
        everything = torch.ones(
            inputs_embeds.shape[:2], device=inputs_embeds.device
        )  # else equal positions begin texts
        return llm.model(inputs_embeds=inputs_embeds, position_ids=position_ids, attention_mask=everything)


class CogVlm(VisionLanguage):
    splits_rows = True
    layer: type[nn.Module] = Experts

    def __init__(self, config: Json) -> None:
        super().__init__(config)
        groups = config.get("num_multi_query_heads")
        heads, size = config["num_attention_heads"], config["hidden_size"]
        self.sizes = [size, *[(groups or heads) * size // heads] * 2]
        own = LlamaConfig(
            vocab_size=config["vocab_size"],
            hidden_size=size,
            intermediate_size=config["intermediate_size"],
            num_hidden_layers=config["num_hidden_layers"],
            num_attention_heads=heads,
            num_key_value_heads=groups or heads,
            rms_norm_eps=config["rms_norm_eps"],
            max_position_embeddings=config["max_position_embeddings"],
            rope_parameters={"rope_type": "default", "rope_theta": 500000.0 if groups else 10000.0},
            eos_token_id=config["eos_token_id"],
            pad_token_id=None,
        )
        self.llm = LlamaForCausalLM(own)
        for path, module in list(self.llm.model.named_modules()):
            if isinstance(module, nn.Linear):
                parent, _, last = path.rpartition(".")
                bias = bool(groups) and last in ("q_proj", "k_proj", "v_proj")
                setattr(self.llm.model.get_submodule(parent), last, self.layer(module, bias=bias))
        joined_size = config["vision_config"]["hidden_size"] if groups else None
        self.vision = EvaClip(config["vision_config"], size, own.intermediate_size, joined_size)
        self.decoder = _Decoder(self.llm, self.vision.num_squares + 2)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        state = super().state_dict(*args, **kwargs)
        named = {}
        for name, tensor in state.items():
            if name.startswith("vision."):
                named[f"model.{name}"] = tensor
            elif "_proj." not in name:
                named[name.removeprefix("llm.")] = tensor
            elif ".mlp." in name:
                path, module, kind, last = name.removeprefix("llm.").rsplit(".", 3)
                named[f"{path}.{kind}_mlp.{module}.{last}"] = tensor
            elif ".o_proj." in name:
                named[re.sub(r"^llm\.(.*)\.o_proj\.(\w+)\.", r"\1.\2_expert_dense.", name)] = tensor
            elif ".q_proj." in name:
                parts = [state[name.replace(".q_proj.", f".{letter}_proj.")] for letter in "qkv"]
                name = re.sub(r"^llm\.(.*)\.q_proj\.(\w+)\.", r"\1.\2_expert_query_key_value.", name)
                named[name] = torch.cat(parts)
        return named

    def load_state_dict(self, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        own = {}
        for name, tensor in state_dict.items():
            if name.startswith("model.vision."):
                own[name.removeprefix("model.")] = tensor
            elif name.startswith("lm_head."):
                own[f"llm.{name}"] = tensor
            elif not name.endswith(".inv_freq"):
                for published, ours in _NAMES:
                    name = re.sub(published, ours, name)
                parts = torch.split(tensor, self.sizes) if ".qkv_proj." in name else [tensor]
                for part, letter in zip(parts, "qkv", strict=False):
                    own[f"llm.model.{name}".replace("qkv_proj", f"{letter}_proj")] = part
        return super().load_state_dict(own, *args, **kwargs)

    @property
    def model(self) -> Any:
        return SimpleNamespace(language_model=self.decoder, get_rope_index=self.get_rope_index)

    def get_rope_index(self, input_ids: Tensor, is_row: Tensor | None = None, **_: Any) -> tuple[Tensor, Tensor]:
        """Positions [1, 1, T], and the next one less T: patches of a picture have one, between those of its two learned
        rows."""
        num_rows = self.vision.num_squares
        positions: list[int] = []
        while len(positions) < input_ids.shape[1]:
            following = positions[-1] + 1 if positions else 0
            if is_row is not None and bool(is_row[0, len(positions)]):
                positions += [following, *[following + 1] * num_rows, following + 2]
            else:
                positions.append(following)
        return torch.tensor([[positions]]), torch.tensor([[positions[-1] + 1 - len(positions)]])

    def make_rows(self, **media: Tensor) -> Tensor:
        rows: Tensor = self.vision(media["pixel_values"])
        return rows.flatten(0, 1)

    def forward(self, input_ids: Tensor, is_row: Tensor | None = None, **media: Any) -> Any:
        positions, _ = self.get_rope_index(input_ids, is_row)
        embeddings = self.splice(input_ids, is_row, **media)
        hidden = self.decoder(
            inputs_embeds=embeddings, position_ids=positions[0].to(input_ids.device), is_row=is_row
        ).last_hidden_state
        return SimpleNamespace(logits=self.lm_head(hidden))

    def generate(self, input_ids: Tensor, **inputs: Any) -> Tensor:
        """Greedily, without an end. All tokens are computed again for each."""
        media = {name: value for name, value in inputs.items() if name in ("is_row", "pixel_values")}
        is_row, ids = media.get("is_row"), input_ids
        embeddings, (positions, _) = self.splice(input_ids, **media), self.get_rope_index(input_ids, is_row)
        places = positions[0].to(input_ids.device)
        for _ in range(inputs["max_new_tokens"]):
            hidden = self.decoder(inputs_embeds=embeddings, position_ids=places, is_row=is_row).last_hidden_state
            logits = self.lm_head(hidden[:, -1])
            logits[:, self.llm.config.eos_token_id] = -torch.inf
            token = logits.argmax(dim=-1, keepdim=True)
            ids = torch.cat((ids, token), dim=1)
            embeddings = torch.cat((embeddings, self.embed(token)), dim=1)
            places = torch.cat((places, places[:, -1:] + 1), dim=1)
            if is_row is not None:
                is_row = nn.functional.pad(is_row, (0, 1))
        return ids


class CogVlmVideo(CogVlm):
    layer = Alone

    def get_rope_index(self, input_ids: Tensor, is_row: Tensor | None = None, **_: Any) -> tuple[Tensor, Tensor]:
        """build_position_ids: rows count up at the ends of their run, and where it begins anew inside of these."""
        rows = torch.zeros(input_ids.shape[1], dtype=torch.bool) if is_row is None else is_row[0].cpu()
        before, behind = rows.roll(1), rows.roll(-1)
        before[0] = behind[-1] = False
        inner = rows & before & behind
        steps = ~inner | ~inner.roll(1)
        steps[0] = False
        positions = steps.cumsum(0)
        return positions[None, None], positions[-1:][None] + 1 - len(positions)


class CogVlmProcessor(Processor):
    """The texts around pictures are tokenized one by one; only what comes before the first one has the tokenizer's
    beginning of a text."""

    def __init__(self, path: Path, *, config: Json) -> None:
        super().__init__(path)
        vision = config["vision_config"]
        joins = 4 if config.get("num_multi_query_heads") else 1
        self.side, self.count = vision["image_size"], (vision["num_positions"] - 1) // joins + 2
        self.pad_id = config["pad_token_id"]
        self.mean, self.std = (torch.tensor(self.settings[f"image_{name}"])[:, None, None] for name in ("mean", "std"))

    def __call__(self, text: list[str], images: Any = (), add_special_tokens: bool = True, **_: Any) -> Inputs:
        ids: list[int] = []
        is_row: list[bool] = []
        for number, chunk in enumerate(text[0].split(MARKER)):
            if number:
                ids += [self.pad_id] * self.count
                is_row += [True] * self.count
            begins = add_special_tokens and not number
            ids += self.tokenizer(chunk, add_special_tokens=begins)["input_ids"]
            is_row += [False] * (len(ids) - len(is_row))
        if not images:
            return Inputs(input_ids=torch.tensor([ids]))
        pictures = [scale(read_picture(image), (self.side, self.side), "bicubic") for image in images]
        pixels = [(picture / 255 - self.mean) / self.std for picture in pictures]
        return Inputs(input_ids=torch.tensor([ids]), is_row=torch.tensor([is_row]), pixel_values=torch.stack(pixels))

    def _get_num_multimodal_tokens(self, image_sizes: list[tuple[int, int]]) -> dict[str, list[int]]:
        return {"num_image_tokens": [self.count] * len(image_sizes)}


class CogVlmVideoProcessor(CogVlmProcessor):
    """Pictures are videos of one frame. Behind each frame of a chat model stands its second."""

    def __init__(self, path: Path, *, config: Json) -> None:
        super().__init__(path, config=config)
        self.tells_time = config["template_version"] == "chat"
        self.video_processor = SimpleNamespace(model_input_names=[])

    def __call__(
        self,
        text: list[str],
        images: Any = (),
        add_special_tokens: bool = True,
        videos: Any = (),
        video_metadata: Any = (),
        **_: Any,
    ) -> Inputs:
        pictures: Any = iter((read_picture(image)[None], {"fps": 1, "frames_indices": [0]}) for image in images)
        clips: Any = iter(zip(map(torch.as_tensor, videos), video_metadata, strict=True))
        ids, is_row, pixels = list[int](), list[bool](), list[Tensor]()
        for number, piece in enumerate(re.split("(<image>|<video>)", text[0])):
            if not number % 2:
                ids += self.tokenizer(piece, add_special_tokens=add_special_tokens and not number)["input_ids"]
                is_row += [False] * (len(ids) - len(is_row))
                continue
            frames, times = next(pictures) if piece == "<image>" else next(clips)
            pixels.append(self.transform(frames))
            for index in times["frames_indices"]:
                ids += [self.pad_id] * self.count
                is_row += [True] * self.count
                if self.tells_time:
                    second = str(int(index / times["fps"] + 0.5))
                    ids += self.tokenizer.encode(second, add_special_tokens=False)
                    is_row += [False] * (len(ids) - len(is_row))
        if not pixels:
            return Inputs(input_ids=torch.tensor([ids]))
        return Inputs(input_ids=torch.tensor([ids]), is_row=torch.tensor([is_row]), pixel_values=torch.cat(pixels))

    def transform(self, frames: Tensor) -> Tensor:
        """Normalize frames [N, 3, H, W], scale the shorter side, and cut out the middle."""
        size, (height, width) = self.side, frames.shape[2:]
        if width < height:
            scaled = (int(float(height) / width * size), size)
        else:
            scaled = (size, int(float(width) / height * size))
        normal = (frames / 255.0 - self.mean) / self.std
        resized = nn.functional.interpolate(normal, size=scaled, mode="bilinear", align_corners=False)
        top, left = (round((length - size) / 2.0) for length in scaled)
        return resized[:, :, top : top + size, left : left + size]

    def _get_num_multimodal_tokens(self, image_sizes: list[tuple[int, int]]) -> dict[str, list[int]]:
        return {"num_image_tokens": [self.count] * len(image_sizes)}
