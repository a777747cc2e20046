"""What a Nemotron-H may not be, and the names that published ones have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from llm.backbones import NEMOTRON, NEMOTRON_EXPERTS, SIZES
from transformers import NemotronHConfig, Qwen3Config

from seesay.checkpoint import Checkpoint
from seesay.errors import CheckpointError
from seesay.llm.models.configs.reading import read_decoder_config
from seesay.llm.models.spec import DecoderConfig
from seesay.vl.families.hybrids import NemotronH

STATES, NAMES = "linear_attention", NemotronH.weights.decoder_name


def read(folder: Path, config_class: type = NemotronHConfig, /, **changes: Any) -> DecoderConfig:
    config_class(**SIZES | changes, architectures=["NemotronHForCausalLM"]).save_pretrained(folder)
    return read_decoder_config(Checkpoint.load_config(folder).text_config)


def test_layers_are_halves(tmp_path: Path) -> None:
    """Layers of a feed-forward keep nothing, neither of tokens nor of the sequence."""
    decoder = read(tmp_path, **NEMOTRON_EXPERTS, hybrid_override_pattern="M-*EM")
    assert [layer.half for layer in decoder.layers] == ["mixer", "feed_forward", "mixer", "feed_forward", "mixer"]
    assert [shape.num_kv_heads for shape in decoder.traits.kv_shapes] == [0, 0, 2, 0, 0]
    assert [len(state) for state in decoder.traits.state_shapes] == [2, 0, 0, 0, 2]
    kinds = [layer.feed_forward.kind for layer in decoder.layers if layer.half == "feed_forward"]
    assert kinds == ["plain", "experts"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (NEMOTRON_EXPERTS | {"layers_block_type": ["moe"], "moe_latent_size": 16}, "moe_latent_size=16 is not"),
        ({"layers_block_type": [STATES], "mamba_hidden_act": "gelu"}, "mamba_hidden_act='gelu' is not supported"),
        ({"layers_block_type": ["mlp"], "mlp_hidden_act": "relu6"}, "mlp_hidden_act='relu6' is not supported"),
        ({"layers_block_type": [STATES], "n_groups": 4}, "6 heads of a state space cannot be in 4 groups"),
        ({"layers_block_type": [STATES], "n_groups": 0}, "n_groups must be an integer from 1 to 256, got 0"),
        ({"layers_block_type": [STATES], "conv_kernel": -3}, "conv_kernel must be an integer from 1 to 256, got -3"),
        ({"layers_block_type": [STATES], "mamba_num_heads": 0}, "mamba_num_heads must be"),
        ({"layers_block_type": [STATES], "ssm_state_size": 10**9}, "ssm_state_size must be"),
        (NEMOTRON_EXPERTS | {"layers_block_type": ["moe"], "num_experts_per_tok": 5}, "cannot take 5 of 4 experts"),
    ],
)
def test_what_is_not_supported_is_named(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=message):
        read(tmp_path, **NEMOTRON | changes)


def test_a_gate_has_no_squares(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="hidden_act='relu2' is not supported"):
        read(tmp_path, Qwen3Config, hidden_act="relu2")


@pytest.mark.parametrize(
    ("published", "own"),
    [
        ("backbone.embeddings.weight", "embed_tokens.weight"),
        ("backbone.norm_f.weight", "norm.weight"),
        ("backbone.layers.3.norm.weight", "layers.3.input_layernorm.weight"),
        ("backbone.layers.3.mixer.norm.weight", "layers.3.mamba.norm.weight"),
        ("backbone.layers.3.mixer.A_log", "layers.3.mamba.A_log"),
        ("model.layers.3.mixer.k_proj.weight", "layers.3.self_attn.k_proj.weight"),
        ("backbone.layers.3.mixer.up_proj.weight", "layers.3.mlp.up_proj.weight"),
        ("backbone.layers.3.mixer.experts.7.up_proj.weight", "layers.3.mlp.experts.7.up_proj.weight"),
        ("backbone.layers.3.mixer.gate.e_score_correction_bias", "layers.3.mlp.gate.e_score_correction_bias"),
        ("lm_head.weight", "lm_head.weight"),
        ("mtp.layers.0.norm.weight", None),
    ],
)
def test_published_names(published: str, own: str | None) -> None:
    assert NAMES(published) == own
