"""Ultravox (https://github.com/fixie-ai/ultravox, ultravox/model): Whisper's encoder over windows of its length, behind
which the rest is filled up and hidden by a mask; eight rows stacked and projected behind a norm; and a Llama.

Read from `UltravoxProcessor.__call__` of ultravox_processing.py, `ModifiedWhisperEncoder.forward` and
`UltravoxProjector.forward` of ultravox_model.py. Several sounds of a prompt are computed one after another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers
from reference.vision_language import Json, VisionLanguage
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.whisper.modeling_whisper import WhisperEncoder

MARKER = "<|audio|>"
_HOP = 160


class Projector(nn.Module):
    def __init__(self, config: Json) -> None:
        super().__init__()
        self.stack, inner, size = config["stack_factor"], config["hidden_size"], config["text_config"]["hidden_size"]
        self.ln_pre = LlamaRMSNorm(config["audio_config"]["d_model"] * self.stack, eps=1e-6)
        self.linear_1 = nn.Linear(config["audio_config"]["d_model"] * self.stack, inner, bias=False)
        self.linear_2 = nn.Linear(inner // 2, size, bias=False)
        is_mid = config["projector_ln_mid"]
        self.ln_mid: nn.Module = LlamaRMSNorm(inner // 2, eps=1e-6) if is_mid else nn.Identity()
        self.ln_post: nn.Module = nn.Identity() if is_mid else LlamaRMSNorm(size, eps=1e-6)

    def forward(self, rows: Tensor) -> Tensor:
        count, length, size = rows.shape
        filled = math.ceil(length / self.stack) * self.stack
        stacked = F.pad(rows, (0, 0, 0, filled - length)).view(count, filled // self.stack, size * self.stack)
        value, gate = self.linear_1(self.ln_pre(stacked)).chunk(2, dim=-1)
        found: Tensor = self.ln_post(self.linear_2(self.ln_mid(F.silu(gate) * value)))
        return found


class Ultravox(VisionLanguage):
    def __init__(self, config: Json) -> None:
        super().__init__({"tie_word_embeddings": config["text_config"].get("tie_word_embeddings", False)})
        self.audio_tower = WhisperEncoder(transformers.WhisperConfig(**config["audio_config"]))
        self.multi_modal_projector = Projector(config)
        self.language_model = transformers.AutoModelForCausalLM.from_config(
            transformers.CONFIG_MAPPING[config["text_config"]["model_type"]](**config["text_config"])
        )

    @property
    def llm(self) -> Any:
        return self.language_model

    def encode(self, frames: Tensor, length: int) -> Tensor:
        """Return the rows [1, T / 2, size] of frames [1, bins, T], of which the first `length` are heard."""
        tower = self.audio_tower
        x = F.gelu(tower.conv2(F.gelu(tower.conv1(frames)))).permute(0, 2, 1)
        x = x + tower.embed_positions.weight[: x.shape[1]]
        heard = torch.arange(x.shape[1]) < (length - 1) // 2 + 1
        mask = torch.zeros(1, 1, 1, x.shape[1]).masked_fill(~heard, torch.finfo(x.dtype).min)
        for layer in tower.layers:
            x = layer(x, mask.expand(-1, -1, x.shape[1], -1))
        rows: Tensor = tower.layer_norm(x)
        return rows

    def make_rows(self, **media: Any) -> Tensor:
        """Return the rows of the sounds, whose spectrograms are `sound0`, `sound1`, …, each [bins, T]."""
        found, window = [], 2 * self.audio_tower.config.max_source_positions
        for number in range(len(media)):
            frames = media[f"sound{number}"]
            for start in range(0, frames.shape[1], window):
                chunk = frames[None, :, start : start + window]
                length = chunk.shape[2]
                if start:
                    chunk = F.pad(chunk, (0, window - length))
                rows = self.multi_modal_projector(self.encode(chunk, length))[0]
                found.append(rows[: math.ceil(length / (2 * self.multi_modal_projector.stack))])
        return torch.cat(found)


def process(path: Path, messages: Sequence[Json], sounds: Sequence[npt.NDArray[np.float32]], config: Json) -> Json:
    """Return the input of the model for a conversation with these sounds."""
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(path)
    extractor = transformers.WhisperFeatureExtractor(feature_size=config["audio_config"]["num_mel_bins"])
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    pieces = tokenizer(text.split(MARKER), add_special_tokens=False)["input_ids"]
    ids, is_row, media = list(pieces[0]), [False] * len(pieces[0]), {}
    window, per_row = 2 * config["audio_config"]["max_source_positions"], 2 * config["stack_factor"]
    for number, (samples, piece) in enumerate(zip(sounds, pieces[1:], strict=True)):
        samples = np.pad(samples, (0, max(0, 2 * _HOP - len(samples))))
        made = extractor(
            [samples], sampling_rate=16000, padding="longest", pad_to_multiple_of=_HOP, truncation=False,
            return_attention_mask=True, return_tensors="pt",
        )  # fmt: skip
        frames, length = made["input_features"][0], int(made["attention_mask"].sum())
        media[f"sound{number}"] = frames
        chunks = [min(length - start, window) for start in range(0, length, window)]
        num_rows = sum(math.ceil(each / per_row) for each in chunks)
        ids += [tokenizer.eos_token_id] * num_rows + piece
        is_row += [True] * num_rows + [False] * len(piece)
    places = {"is_row": torch.tensor([is_row])} if media else {}
    return {"input_ids": torch.tensor([ids]), **places, **media}
