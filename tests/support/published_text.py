"""Text models as they lie on the hub, and what configurations of text decoders had before Transformers 5: see
`published_layouts`."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from original_layouts import CODE
from transformers.convert_slow_tokenizer import bytes_to_unicode

Json = dict[str, Any]


def text_settings(tiny: Json, **published: Any) -> Json:
    """The text settings that were published before Transformers 5, with the sizes of a tiny checkpoint."""
    sizes = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    kept = (*sizes, "vocab_size", "max_position_embeddings", "rms_norm_eps", "hidden_act", "initializer_range")
    rope = tiny["rope_parameters"]
    return {
        **{name: tiny[name] for name in kept if name in tiny},
        "attention_dropout": 0.0,
        "rope_theta": rope.get("full_attention", rope)["rope_theta"],
        "use_cache": True,
        "torch_dtype": "float32",
        **published,
    }


def _plain(*kept: str, **published: Any) -> Callable[[Json], Json]:
    """Return what makes a configuration with these options of the tiny one, and those that were published."""

    def make(tiny: Json) -> Json:
        ids = {name: tiny[name] for name in ("bos_token_id", "eos_token_id") if tiny[name] is not None}
        own = {name: tiny[name] for name in ("architectures", "model_type", "tie_word_embeddings", *kept)}
        return {**text_settings(tiny), **own, **ids, **published}

    return make


def _llama3_1(tiny: Json) -> Json:
    rope = dict(tiny["rope_parameters"])
    theta = rope.pop("rope_theta")
    return _plain(
        eos_token_id=[tiny["eos_token_id"], tiny["pad_token_id"]],
        mlp_bias=False,
        pretraining_tp=1,
        rope_scaling=rope,
        rope_theta=theta,
    )(tiny)


def _gemma(tiny: Json) -> Json:
    activation = "gelu_pytorch_tanh"
    return _plain(
        attention_bias=False, head_dim=tiny["head_dim"], hidden_act=activation, hidden_activation=activation,
        pad_token_id=0, rope_scaling=None,
    )(tiny)  # fmt: skip


def _gemma2(tiny: Json) -> Json:
    kept = ("head_dim", "hidden_activation", "query_pre_attn_scalar", "sliding_window", "attn_logit_softcapping")
    own = {name: tiny[name] for name in (*kept, "final_logit_softcapping")}
    return _plain(**own, attention_bias=False, cache_implementation="hybrid", hidden_act="gelu_pytorch_tanh")(tiny)


def _gemma3(tiny: Json) -> Json:
    return {
        **_gemma2(tiny),
        "rope_local_base_freq": tiny["rope_parameters"]["sliding_attention"]["rope_theta"],
        "rope_scaling": None,
        "sliding_window_pattern": tiny["sliding_window_pattern"],
    }


def _phi3(tiny: Json) -> Json:
    rope = tiny["rope_parameters"]
    code = "modeling_phi3.Phi3ForCausalLM"
    return _plain(
        auto_map={"AutoConfig": "configuration_phi3.Phi3Config", "AutoModelForCausalLM": code},
        original_max_position_embeddings=tiny["original_max_position_embeddings"],
        rope_scaling={"long_factor": rope["long_factor"], "short_factor": rope["short_factor"], "type": "su"},
        sliding_window=262144,
        embd_pdrop=0.0,
        resid_pdrop=0.0,
    )(tiny)


def _phi4_mini(tiny: Json) -> Json:
    rope = tiny["rope_parameters"]
    factors = {name: rope[name] for name in ("long_factor", "short_factor")}
    return {
        **_phi3(tiny),
        "attention_bias": False,
        "full_attn_mod": 1,
        "interpolate_factor": 1,
        "lm_head_bias": False,
        "mlp_bias": False,
        "partial_rotary_factor": rope["partial_rotary_factor"],
        "rope_scaling": {**factors, "type": "longrope"},
    }


def _publish_bloom(tiny: Json) -> Json:
    kept = ("architectures", "bos_token_id", "eos_token_id", "layer_norm_epsilon", "model_type", "vocab_size")
    return {
        **{name: tiny[name] for name in kept},
        "apply_residual_connection_post_layernorm": False,
        "attention_dropout": 0.0,
        "attention_softmax_in_fp32": True,
        "bias_dropout_fusion": True,
        "hidden_dropout": 0.0,
        "initializer_range": 0.02,
        "masked_softmax_fusion": True,
        "n_embed": tiny["hidden_size"],
        "n_inner": None,
        "n_layer": tiny["n_layer"],
        "num_attention_heads": tiny["n_head"],
        "offset_alibi": 100,
        "pad_token_id": 3,
        "pretraining_tp": 2,
        "seq_length": 2048,
        "skip_bias_add": True,
        "slow_but_exact": False,
        "unk_token_id": 0,
        "use_cache": True,
    }


def write_tiktoken(source: Path) -> str:
    """Return the lines of the .tiktoken file with the tokens of the folder's tokenizer."""
    letters = bytes_to_unicode()
    byte_of = {letter: byte for byte, letter in letters.items()}
    vocab = json.loads((source / "tokenizer.json").read_text())["model"]["vocab"]
    tokens = [bytes(map(byte_of.__getitem__, token)) for token in sorted(vocab, key=vocab.__getitem__)]
    return "".join(f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(tokens))


QWEN_FILES: Mapping[str, Any] = {
    "tokenizer.json": None,
    "qwen.tiktoken": write_tiktoken,
    "tokenizer_config.json": {
        "auto_map": {"AutoTokenizer": ["tokenization_qwen.QWenTokenizer", None]}, "model_max_length": 8192,
        "tokenizer_class": "QWenTokenizer",
    },
    **{f"{name}_qwen.py": CODE for name in ("configuration", "modeling", "tokenization")},
}  # fmt: skip
"""The files of the first Qwen, whose tokenizer is code beside its table."""


def publish_first_qwen(tiny: Json) -> Json:
    unused = {"softmax_in_fp32": False, "use_cache_kernel": False, "use_cache_quantization": False}
    return {**tiny, **unused, "torch_dtype": "float32", "transformers_version": "4.32.0"}


@dataclass(frozen=True, kw_only=True)
class Layout:
    """tiny: the tiny checkpoint. changes: of its config.json, for what the release has and the tiny one has not.
    rename: its tensors' prefixes to the published ones. extra: tensors beside them. tokenizer: entries of
    tokenizer_config.json. files: further files, or what makes
    one of the tiny checkpoint's folder; None deletes one. template_file: where the template lies."""

    tiny: str
    config: Callable[[Json], Json]
    changes: Mapping[str, Any] = field(default_factory=dict)
    rename: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, torch.Tensor] = field(default_factory=dict)
    tokenizer: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, Any] = field(default_factory=dict)
    template_file: str | None = None


LLAMA3_ROPE = {
    "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 256,
}  # fmt: skip
_INV_FREQ = {f"model.layers.{layer}.self_attn.rotary_emb.inv_freq": torch.ones(8) for layer in range(2)}


TEXT_LAYOUTS: Mapping[str, Layout] = {
    "Llama-2-7b-chat-hf": Layout(
        tiny="llama",
        config=_plain(pretraining_tp=1, rope_scaling=None, transformers_version="4.32.0.dev0"),
        extra=_INV_FREQ,
        tokenizer={"tokenizer_class": "LlamaTokenizer", "legacy": False, "padding_side": "right"},
        files={"special_tokens_map.json": {"bos_token": "<s>", "eos_token": "<|im_end|>"}},
        template_file="tokenizer_config.json",
    ),
    "Llama-3.1-8B-Instruct": Layout(
        tiny="llama",
        config=_llama3_1,
        changes={"rope_parameters": {**LLAMA3_ROPE, "rope_type": "llama3", "rope_theta": 500000.0}},
        tokenizer={"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": True},
        template_file="tokenizer_config.json",
    ),
    "gemma-2b-it": Layout(tiny="gemma", config=_gemma, template_file="tokenizer_config.json"),
    "gemma-2-2b-it": Layout(tiny="gemma2", config=_gemma2, template_file="tokenizer_config.json"),
    "gemma-3-1b-it": Layout(tiny="gemma3", config=_gemma3, template_file="tokenizer_config.json"),
    "SmolLM3-3B": Layout(
        tiny="smollm3",
        config=_plain(
            attention_bias=False, layer_types=["full_attention"] * 2, max_window_layers=28, mlp_bias=False,
            no_rope_layer_interval=2, no_rope_layers=[1, 0], pretraining_tp=2, rope_scaling=None, sliding_window=None,
            use_sliding_window=False,
        ),
        template_file="chat_template.jinja",
    ),
    "Qwen2.5-0.5B-Instruct": Layout(
        tiny="qwen2",
        config=_plain(use_sliding_window=False, sliding_window=32768, max_window_layers=21),
        tokenizer={"tokenizer_class": "Qwen2Tokenizer", "add_bos_token": False, "bos_token": None},
        template_file="tokenizer_config.json",
    ),
    "Qwen-7B-Chat": Layout(
        tiny="qwen", config=publish_first_qwen, files=QWEN_FILES, template_file="chat_template.jinja"
    ),
    "Qwen3-0.6B": Layout(
        tiny="qwen3",
        config=_plain(
            head_dim=24, attention_bias=False, max_window_layers=28, rope_scaling=None, sliding_window=None,
            use_sliding_window=False,
        ),
        tokenizer={"tokenizer_class": "Qwen2Tokenizer"},
        template_file="tokenizer_config.json",
    ),
    "Mistral-7B-Instruct-v0.1": Layout(
        tiny="mistral",
        config=_plain(sliding_window=32),
        tokenizer={"tokenizer_class": "LlamaTokenizer", "legacy": True, "use_default_system_prompt": False},
        files={"params.json": {"dim": 64}, "consolidated.safetensors": {"tok_embeddings.weight": torch.zeros(4, 4)}},
        template_file="tokenizer_config.json",
    ),
    "Phi-3-mini-128k-instruct": Layout(
        tiny="phi3_longrope",
        config=_phi3,
        tokenizer={"tokenizer_class": "LlamaTokenizer", "legacy": False},
        files={"configuration_phi3.py": CODE, "modeling_phi3.py": CODE, "sample_finetune.py": CODE},
        template_file="tokenizer_config.json",
    ),
    "Phi-4-mini-instruct": Layout(
        tiny="phi4_mini",
        config=_phi4_mini,
        files={"configuration_phi3.py": CODE, "modeling_phi3.py": CODE},
        template_file="tokenizer_config.json",
    ),
    "Yi-1.5-9B-Chat": Layout(
        tiny="llama",
        config=_plain(attention_bias=False, pad_token_id=0, pretraining_tp=1, rope_scaling=None),
        changes={"rope_parameters": {"rope_type": "default", "rope_theta": 5000000.0}},
        tokenizer={"tokenizer_class": "LlamaTokenizer", "legacy": True},
        template_file="tokenizer_config.json",
    ),
    "starcoder2-3b": Layout(
        tiny="starcoder2",
        config=_plain(
            "norm_epsilon", "sliding_window", embedding_dropout=0.1, mlp_type="default", norm_type="layer_norm",
            residual_dropout=0.1, use_bias=True,
        ),
        template_file="tokenizer_config.json",
    ),
    "granite-3.1-8b-instruct": Layout(
        tiny="granite",
        config=_plain(
            "attention_multiplier", "embedding_multiplier", "logits_scaling", "residual_multiplier",
            attention_bias=False, mlp_bias=False, rope_scaling=None,
        ),
        template_file="tokenizer_config.json",
    ),
    "OLMo-7B-0424-hf": Layout(
        tiny="olmo",
        config=_plain("clip_qkv", attention_bias=False, pretraining_tp=1, rope_scaling=None),
        template_file="tokenizer_config.json",
    ),
    "OLMo-2-1124-7B-Instruct": Layout(
        tiny="olmo2",
        config=_plain(attention_bias=False, rope_scaling=None),
        template_file="tokenizer_config.json",
    ),
    "c4ai-command-r-plus": Layout(
        tiny="cohere",
        config=_plain("layer_norm_eps", "logit_scale", "use_qk_norm", attention_bias=False, model_max_length=131072),
        template_file="tokenizer_config.json",
    ),
    "glm-4-9b-chat-hf": Layout(
        tiny="glm",
        config=_plain("head_dim", attention_bias=True, partial_rotary_factor=0.5, rope_scaling=None),
        template_file="tokenizer_config.json",
    ),
    "GLM-4-9B-0414": Layout(
        tiny="glm4",
        config=_plain("head_dim", attention_bias=True, partial_rotary_factor=0.5, rope_scaling=None),
        template_file="tokenizer_config.json",
    ),
    "falcon-rw-1b": Layout(
        tiny="falcon_alibi",
        config=_plain(
            "ffn_hidden_size", "layer_norm_epsilon", "multi_query", "parallel_attn", alibi=True, bias=True,
            apply_residual_connection_post_layernorm=False, attention_dropout=0.0, hidden_dropout=0.0,
            auto_map={"AutoConfig": "configuration_falcon.FalconConfig"},
        ),
        files={"configuration_falcon.py": CODE, "modeling_falcon.py": CODE},
        template_file="tokenizer_config.json",
    ),
    "bloomz-560m": Layout(
        tiny="bloom",
        config=_publish_bloom,
        rename={"transformer.": ""},
        template_file="tokenizer_config.json",
    ),
    "falcon-7b-instruct": Layout(
        tiny="falcon",
        config=_plain(
            "ffn_hidden_size", "layer_norm_epsilon", "multi_query", "new_decoder_architecture", "parallel_attn",
            alibi=False, apply_residual_connection_post_layernorm=False, bias=False, hidden_dropout=0.0,
            auto_map={"AutoConfig": "configuration_falcon.FalconConfig"},
        ),
        files={"configuration_falcon.py": CODE, "modeling_falcon.py": CODE},
        template_file="tokenizer_config.json",
    ),
}  # fmt: skip
