"""Baichuan 2 of 13B (arXiv 2309.10305, section 2.2): a Llama with ALiBi (Press et al. 2022) in place of rotary turns,
whose head has rows of unit length. Tensors have the published names.

Read from modeling_baichuan.py of baichuan-inc/Baichuan2-13B-Chat, whose functions the docstrings name;
`tests/golden/baichuan2_13b` has numbers of this file."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from original_text import SIZES
from safetensors.torch import load_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM


def list_slopes(num_heads: int) -> list[float]:
    """One slope per head (_get_interleave): a geometric series, to which every second term of the next finer one is
    added."""
    exponent = math.log2(num_heads)
    if exponent == int(exponent):
        return [2 ** -(i * 8 / num_heads) for i in range(1, num_heads + 1)]
    lower = 2 ** int(exponent)
    return list_slopes(lower) + list_slopes(2 * lower)[0::2][: num_heads - lower]


class Baichuan13B(LlamaForCausalLM):  # type: ignore[misc]  # Transformers' classes have no types
    """Each forward adds the biases of all heads to the scores, in place of a mask (BaichuanModel.get_alibi_mask). Rows
    of the head have unit length (NormHead)."""

    @classmethod
    def load(cls, path: Path) -> Baichuan13B:
        published = json.loads((path / "config.json").read_text())
        kept = (*SIZES, "rms_norm_eps", "hidden_act", "tie_word_embeddings", "eos_token_id", "pad_token_id")
        config = LlamaConfig(
            **{name: published[name] for name in kept}, max_position_embeddings=published["model_max_length"]
        )
        config._attn_implementation = "eager"
        model = cls(config)
        state = {}
        for name, tensor in load_file(path / "model.safetensors").items():
            if ".W_pack." in name:
                for part, own in zip("qkv", tensor.chunk(3), strict=True):
                    state[name.replace("W_pack", f"{part}_proj")] = own
            else:
                state[name] = tensor
        state["lm_head.weight"] = torch.nn.functional.normalize(state["lm_head.weight"])
        model.load_state_dict(state)
        model.model.rotary_emb.inv_freq.zero_()  # turns by nothing
        loaded: Baichuan13B = model.eval()
        return loaded

    def forward(self, input_ids: Tensor, attention_mask: Any = None, **more: Any) -> Any:
        """A text alone: nothing is padded."""
        cache = more.get("cache", more.get("past_key_values"))  # the first name since Transformers 5.24
        num_known = cache.get_seq_length() if cache is not None else 0
        keys = torch.arange(num_known + input_ids.shape[1])
        distances = keys[None] - keys[num_known:, None]
        slopes = torch.tensor(list_slopes(self.config.num_attention_heads))[:, None, None]
        bias = (slopes * distances).masked_fill(distances > 0, float("-inf"))
        return super().forward(input_ids=input_ids, attention_mask=bias[None].to(self.dtype), **more)
