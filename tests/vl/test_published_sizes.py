"""Configurations of published models, by the shapes in their config.json: each is read, its decoder is composed on the
meta device, and has as many parameters as its authors say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from seesay.checkpoint import Checkpoint
from seesay.checkpoint.model_config import ModelConfig
from seesay.llm.models.composed_decoder import ComposedDecoder
from seesay.llm.models.configs.reading import read_decoder_config


def _shape(
    kind: str, vocabulary: int, hidden: int, inner: int, layers: int, heads: int, kv_heads: int, **others: Any
) -> dict[str, Any]:
    return {
        "model_type": kind, "vocab_size": vocabulary, "hidden_size": hidden, "intermediate_size": inner,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "max_position_embeddings": 4096, "tie_word_embeddings": False, **others,
    }  # fmt: skip


_TIED = {"tie_word_embeddings": True}
_GRANITE_MOE = {"num_experts_per_tok": 8, **_TIED}
_QWEN3 = {"head_dim": 128}
MODELS: dict[str, tuple[float, dict[str, Any]]] = {
    "meta-llama/Llama-3.1-8B-Instruct": (8.03, _shape("llama", 128256, 4096, 14336, 32, 32, 8)),
    "meta-llama/Llama-3.1-70B-Instruct": (70.6, _shape("llama", 128256, 8192, 28672, 80, 64, 8)),
    "meta-llama/Llama-3.2-1B-Instruct": (1.24, _shape("llama", 128256, 2048, 8192, 16, 32, 8, head_dim=64, **_TIED)),
    "meta-llama/Llama-3.2-3B-Instruct": (3.21, _shape("llama", 128256, 3072, 8192, 28, 24, 8, head_dim=128, **_TIED)),
    "01-ai/Yi-1.5-9B-Chat": (8.83, _shape("llama", 64000, 4096, 11008, 48, 32, 4)),
    "mistralai/Mistral-7B-Instruct-v0.3": (7.25, _shape("mistral", 32768, 4096, 14336, 32, 32, 8)),
    "Qwen/Qwen2.5-0.5B-Instruct": (0.494, _shape("qwen2", 151936, 896, 4864, 24, 14, 2, **_TIED)),
    "Qwen/Qwen2.5-7B-Instruct": (7.62, _shape("qwen2", 152064, 3584, 18944, 28, 28, 4)),
    "Qwen/Qwen2.5-72B-Instruct": (72.7, _shape("qwen2", 152064, 8192, 29568, 80, 64, 8)),
    "Qwen/Qwen3-0.6B": (0.596, _shape("qwen3", 151936, 1024, 3072, 28, 16, 8, **_QWEN3, **_TIED)),
    "Qwen/Qwen3-8B": (8.19, _shape("qwen3", 151936, 4096, 12288, 36, 32, 8, **_QWEN3)),
    "Qwen/Qwen3-32B": (32.8, _shape("qwen3", 151936, 5120, 25600, 64, 64, 8, **_QWEN3)),
    "microsoft/Phi-3-mini-4k-instruct": (3.82, _shape("phi3", 32064, 3072, 8192, 32, 32, 32)),
    "google/gemma-2-9b-it": (9.24, _shape("gemma2", 256000, 3584, 14336, 42, 16, 8, head_dim=256, **_TIED)),
    "google/gemma-7b-it": (8.54, _shape("gemma", 256000, 3072, 24576, 28, 16, 16, head_dim=256, **_TIED)),
    "google/gemma-3-1b-it": (1.0, _shape("gemma3_text", 262144, 1152, 6912, 26, 4, 1, head_dim=256, **_TIED)),
    "HuggingFaceTB/SmolLM3-3B": (3.08, _shape("smollm3", 128256, 2048, 11008, 36, 16, 4, **_TIED)),
    "bigcode/starcoder2-15b": (15.96, _shape("starcoder2", 49152, 6144, 24576, 40, 48, 4)),
    "allenai/OLMo-2-1124-7B-Instruct": (7.3, _shape("olmo2", 100352, 4096, 11008, 32, 32, 32)),
    "allenai/OLMo-2-0325-32B-Instruct": (32.2, _shape("olmo2", 100352, 5120, 27648, 64, 40, 8)),
    "ibm-granite/granite-3.1-8b-instruct": (8.17, _shape("granite", 49155, 4096, 12800, 40, 32, 8, **_TIED)),
    "CohereForAI/c4ai-command-r-v01": (35.0, _shape("cohere", 256000, 8192, 22528, 40, 64, 64, **_TIED)),
    "THUDM/glm-4-9b-chat-hf": (9.4, _shape("glm", 151552, 4096, 13696, 40, 32, 2, head_dim=128, attention_bias=True)),
    "THUDM/GLM-4-32B-0414": (32.6, _shape("glm4", 151552, 6144, 23040, 61, 48, 2, head_dim=128)),
    "mistralai/Mixtral-8x7B-Instruct-v0.1": (46.7, _shape("mixtral", 32000, 4096, 14336, 32, 32, 8)),
    "mistralai/Mixtral-8x22B-Instruct-v0.1": (140.6, _shape("mixtral", 32768, 6144, 16384, 56, 48, 8)),
    "Qwen/Qwen1.5-MoE-A2.7B-Chat": (
        14.3,
        _shape(
            "qwen2_moe", 151936, 2048, 5632, 24, 16, 16, num_experts=60, num_experts_per_tok=4,
            moe_intermediate_size=1408, shared_expert_intermediate_size=5632,
        ),
    ),
    "Qwen/Qwen2-57B-A14B-Instruct": (
        57.4,
        _shape(
            "qwen2_moe", 151936, 3584, 18944, 28, 28, 4, num_experts=64, num_experts_per_tok=8,
            moe_intermediate_size=2560, shared_expert_intermediate_size=20480,
        ),
    ),
    "Qwen/Qwen3-30B-A3B": (
        30.5,
        _shape(
            "qwen3_moe", 151936, 2048, 6144, 48, 32, 4, num_experts=128, num_experts_per_tok=8,
            moe_intermediate_size=768, **_QWEN3,
        ),
    ),
    "Qwen/Qwen3-235B-A22B": (
        235.1,
        _shape(
            "qwen3_moe", 151936, 4096, 12288, 94, 64, 4, num_experts=128, num_experts_per_tok=8,
            moe_intermediate_size=1536, **_QWEN3,
        ),
    ),
    "allenai/OLMoE-1B-7B-0924-Instruct": (
        6.92, _shape("olmoe", 50304, 2048, 1024, 16, 16, 16, num_experts=64, num_experts_per_tok=8)
    ),
    "microsoft/Phi-3.5-MoE-instruct": (
        41.9, _shape("phimoe", 32064, 4096, 6400, 32, 32, 8, attention_bias=True, lm_head_bias=True)
    ),
    "ibm-granite/granite-3.1-3b-a800m-instruct": (
        3.3, _shape("granitemoe", 49155, 1536, 512, 32, 24, 8, num_local_experts=40, **_GRANITE_MOE)
    ),
    "ibm-granite/granite-3.1-1b-a400m-instruct": (
        1.33, _shape("granitemoe", 49155, 1024, 512, 24, 16, 8, num_local_experts=32, **_GRANITE_MOE)
    ),
    "deepseek-ai/deepseek-moe-16b-chat": (
        16.4,
        _shape(
            "deepseek", 102400, 2048, 10944, 28, 16, 16, architectures=["DeepseekForCausalLM"], n_routed_experts=64,
            n_shared_experts=2, num_experts_per_tok=6, moe_intermediate_size=1408, first_k_dense_replace=1,
        ),
    ),
    "openai/gpt-oss-20b": (
        20.9, _shape("gpt_oss", 201088, 2880, 2880, 24, 64, 8, head_dim=64, num_local_experts=32, num_experts_per_tok=4)
    ),
    "openai/gpt-oss-120b": (
        116.8,
        _shape("gpt_oss", 201088, 2880, 2880, 36, 64, 8, head_dim=64, num_local_experts=128, num_experts_per_tok=4),
    ),
    "zai-org/GLM-4.5-Air": (
        106.8,
        _shape(
            "glm4_moe", 151552, 4096, 10944, 46, 96, 8, head_dim=128, n_routed_experts=128, n_shared_experts=1,
            num_experts_per_tok=8, moe_intermediate_size=1408, first_k_dense_replace=1, attention_bias=True,
        ),
    ),
    "baidu/ERNIE-4.5-21B-A3B-PT": (
        21.8,
        _shape(
            "ernie4_5_moe", 103424, 2560, 12288, 28, 20, 4, moe_num_experts=64, moe_k=6, moe_num_shared_experts=2,
            moe_intermediate_size=1536, moe_layer_start_index=1, **_TIED,
        ),
    ),
    "meta-llama/Llama-3.2-11B-Vision-Instruct": (
        9.71, _shape("mllama_text_model", 128256, 4096, 14336, 40, 32, 8)
    ),
}  # fmt: skip
"""Billions of parameters of the decoder, with those of both tables of tokens, of one if it is tied. Of Llama 3.2 Vision
without what makes keys and values of pictures, which the tower has."""


@pytest.mark.parametrize("name", MODELS)
def test_a_published_decoder_has_its_size(name: str, tmp_path: Path) -> None:
    billions, config = MODELS[name]
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["AnyForCausalLM"], **config}))
    known = Checkpoint.load_config(tmp_path).text_config
    assert isinstance(known, ModelConfig)
    decoder = ComposedDecoder(
        read_decoder_config(known, tied_embeddings=config["tie_word_embeddings"]),
        device=torch.device("meta"), dtype=torch.bfloat16,
    )  # fmt: skip
    layers = [layer for path, layer in decoder.linears.items() if path != "lm_head"]
    table = (decoder.config.vocab_size + decoder.config.num_added_tokens) * decoder.config.hidden_size
    num_tables = 1 if decoder.config.tied_embeddings else 2
    count = sum(layer.in_features * layer.out_features for layer in layers) + num_tables * table
    assert count / 1e9 == pytest.approx(billions, rel=0.012)
