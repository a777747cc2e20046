"""EAGLE-3 heads and predicting layers as they are published: by configurations and the shapes of tensors, each is
loaded on the meta device, or refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from shape_folders import Shapes, write_shapes

from seesay.checkpoint import Checkpoint
from seesay.errors import CheckpointError, ConfigError
from seesay.kernels.absent_gpu import Gpu, absent_gpu
from seesay.llm.models.composed_decoder import ComposedDecoder
from seesay.llm.models.configs.eagle_config import open_head, read_head_config
from seesay.llm.models.configs.reading import read_decoder_config
from seesay.llm.models.eagle_head import EagleHead, load_head
from seesay.llm.models.predicting_decoder import (
    PredictingDecoder,
    find_layer,
    make_predicting_config,
    make_predicting_names,
)

IDS = "eagle_aux_hidden_state_layer_ids"
SESSION_LEN = 4096
HOPPER = Gpu((9, 0), 227 << 10)


def describe(
    kind: str, vocabulary: int, hidden: int, inner: int, layers: int, heads: int, kv_heads: int, **others: Any
) -> dict[str, Any]:
    return {
        "model_type": kind, "vocab_size": vocabulary, "hidden_size": hidden, "intermediate_size": inner,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "hidden_act": "silu", "rms_norm_eps": 1e-6, "max_position_embeddings": 40960, "tie_word_embeddings": False,
        **others,
    }  # fmt: skip


def make_decoder(config: dict[str, Any], folder: Path) -> ComposedDecoder:
    """Return the decoder of a model, on the meta device."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"architectures": ["AnyForCausalLM"], **config}))
    known: Any = Checkpoint.load_config(folder).text_config
    read = read_decoder_config(known, tied_embeddings=config["tie_word_embeddings"], session_len=SESSION_LEN)
    return ComposedDecoder(read, device=torch.device("meta"), dtype=torch.bfloat16)


# --- heads ------------------------------------------------------------------------------------------------------------

LLAMA3: dict[str, Any] = {
    "rope_theta": 500000.0,
    "rope_scaling": {
        "factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
}  # fmt: skip
QWEN: dict[str, Any] = {"head_dim": 128, "rope_theta": 1e6}
EXPERTS: dict[str, Any] = {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768}
MODELS = {
    "Qwen2.5-VL-3B": describe("qwen2", 151936, 2048, 11008, 36, 16, 2, rope_theta=1e6, tie_word_embeddings=True),
    "Qwen2.5-VL-7B": describe("qwen2", 152064, 3584, 18944, 28, 28, 4, rope_theta=1e6),
    "Qwen3-4B": describe("qwen3", 151936, 2560, 9728, 36, 32, 8, **QWEN, tie_word_embeddings=True),
    "Qwen3-8B": describe("qwen3", 151936, 4096, 12288, 36, 32, 8, **QWEN),
    "Qwen3-30B-A3B": describe("qwen3_moe", 151936, 2048, 6144, 48, 32, 4, **QWEN, **EXPERTS),
    "Llama-3.1-8B": describe("llama", 128256, 4096, 14336, 32, 32, 8, **LLAMA3),
    "Llama-3.3-70B": describe("llama", 128256, 8192, 28672, 80, 64, 8, **LLAMA3),
}


def head_of(
    vocabulary: int, hidden: int, inner: int, heads: int, kv_heads: int, *, known: int = 32000, **others: Any
) -> dict[str, Any]:
    """Return the configuration of a head in the form of EAGLE and SpecForge."""
    layer = describe("llama", vocabulary, hidden, inner, 1, heads, kv_heads, draft_vocab_size=known, **others)
    return {"architectures": ["LlamaForCausalLMEagle3"], "torch_dtype": "bfloat16", **layer}


def speculator_of(layer: dict[str, Any], known: int = 32000, **others: Any) -> dict[str, Any]:
    """Return a configuration in the form of Speculators."""
    return {
        "architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3", "draft_vocab_size": known,
        "norm_before_residual": True, "target_hidden_size": None, "transformer_layer_config": layer,
        "speculators_config": {"algorithm": "eagle3", "default_proposal_method": "greedy"}, **others,
    }  # fmt: skip


def list_shapes(config: dict[str, Any], *, layer: str = "midlayer", has_table: bool = False) -> Shapes:
    """Return the tensors of a head with a configuration."""
    own = config.get("transformer_layer_config", config)
    size, inner, vocab, known = (
        own["hidden_size"], own["intermediate_size"], own["vocab_size"],
        config.get("draft_vocab_size") or config["truncated_vocab_size"],
    )  # fmt: skip
    dim = own.get("head_dim") or size // own["num_attention_heads"]
    heads, kv_heads = own["num_attention_heads"] * dim, own["num_key_value_heads"] * dim
    shapes: Shapes = {
        f"{layer}.self_attn.q_proj.weight": (heads, 2 * size),
        f"{layer}.self_attn.k_proj.weight": (kv_heads, 2 * size),
        f"{layer}.self_attn.v_proj.weight": (kv_heads, 2 * size),
        f"{layer}.self_attn.o_proj.weight": (size, heads),
        f"{layer}.mlp.gate_proj.weight": (inner, size),
        f"{layer}.mlp.up_proj.weight": (inner, size),
        f"{layer}.mlp.down_proj.weight": (size, inner),
        f"{layer}.hidden_norm.weight": (size,),
        f"{layer}.input_layernorm.weight": (size,),
        f"{layer}.post_attention_layernorm.weight": (size,),
        "fc.weight": (size, 3 * size),
        "norm.weight": (size,),
        "lm_head.weight": (known, size),
        "d2t": (known,),
        "t2d": (vocab,),
    }
    if has_table:
        shapes["embed_tokens.weight"] = (vocab, size)
    if config.get("fc_norm"):
        shapes |= {f"fc_norm.{i}.weight": (size,) for i in range(3)}
    if config.get("norm_before_fc"):
        shapes["input_norm.weight"] = (3 * size,)
    return shapes


PLACES: dict[str, Any] = {IDS: [2, 18, 33]}
AXES: dict[str, Any] = {"mrope_section": [24, 20, 20], "mrope_interleaved": True}
LLAMA_LAYER = describe("llama", 128256, 4096, 14336, 1, 32, 8, head_dim=128, **LLAMA3)
QWEN_LAYER = describe("llama", 151936, 4096, 12288, 1, 32, 8, **QWEN)
HEADS: dict[str, tuple[str, dict[str, Any], dict[str, Any], tuple[int, ...]]] = {
    "SpecForge, Qwen2.5-VL-7B": (
        "Qwen2.5-VL-7B",
        head_of(
            152064, 3584, 18944, 28, 4, **QWEN, sliding_window=32768, use_sliding_window=False, max_window_layers=28,
            rope_scaling={"type": "mrope", "mrope_section": [16, 24, 24]},
        ),
        {},
        (2, 14, 25),
    ),
    "SpecForge, Qwen3-VL-8B": (
        "Qwen3-8B",
        head_of(
            151936, 4096, 12288, 32, 8, head_dim=128, rope_theta=5e6, target_model_type="qwen3_vl", pretraining_tp=1,
            rope_scaling={"rope_type": "default", **AXES},
        ),
        {},
        (2, 18, 33),
    ),
    "SpecForge, Qwen3-VL-30B-A3B": (
        "Qwen3-30B-A3B",
        head_of(
            151936, 2048, 6144, 32, 4, head_dim=128, rope_theta=5e6, target_model_type="qwen3_vl_moe",
            max_window_layers=None, sliding_window=None, rope_scaling=AXES,
        ),
        {},
        (2, 24, 45),
    ),
    "SpecForge, Qwen3-4B": (
        "Qwen3-4B",
        head_of(151936, 2560, 9728, 32, 8, head_dim=80, rope_theta=1e6, rope_scaling=None, tie_word_embeddings=True),
        {"has_table": True},
        (2, 18, 33),
    ),
    "SpecForge, Qwen3-30B-A3B, EAGLE 3.1": (
        "Qwen3-30B-A3B", head_of(151936, 2048, 12288, 32, 4, **QWEN, fc_norm=True, norm_output=True), {}, (2, 24, 45)
    ),
    "EAGLE, Llama-3.1-8B": (
        "Llama-3.1-8B", head_of(128256, 4096, 14336, 32, 8, **LLAMA3, pad_token_id=0), {}, (2, 16, 29)
    ),
    "SpecForge, Llama-3.3-70B": (
        "Llama-3.3-70B", head_of(128256, 8192, 28672, 64, 8, head_dim=128, **LLAMA3), {"has_table": True}, (2, 40, 77)
    ),
    "layers by id, Qwen3-30B-A3B": (
        "Qwen3-30B-A3B",
        head_of(151936, 2048, 12288, 32, 4, **QWEN, eagle_config={IDS: [1, 23, 44], "use_aux_hidden_state": True}),
        {},
        (2, 24, 45),
    ),
    "a vocabulary by another name": (
        "Llama-3.1-8B",
        head_of(128256, 4096, 14336, 32, 8, known=0, truncated_vocab_size=32000),
        {},
        (2, 16, 29),
    ),
    "Speculators, Llama-3.1-8B": (
        "Llama-3.1-8B", speculator_of(LLAMA_LAYER), {"layer": "layers.0", "has_table": True}, (2, 16, 29)
    ),
    "Speculators, Qwen3-8B": (
        "Qwen3-8B",
        speculator_of(QWEN_LAYER, **PLACES, norm_before_fc=False, embed_requires_grad=False),
        {"layer": "layers.0", "has_table": True},
        (2, 18, 33),
    ),
    "Speculators, a norm before the product": (
        "Llama-3.1-8B", speculator_of(LLAMA_LAYER, 64000, norm_before_fc=True), {"layer": "layers.0"}, (2, 16, 29)
    ),
}  # fmt: skip


def load(folder: Path, model: str, config: dict[str, Any], shapes: Shapes) -> EagleHead:
    written = write_shapes(folder / "head", config, shapes, {"d2t": "I64", "t2d": "BOOL"})
    main = make_decoder(MODELS[model], folder / "model")
    opened = open_head(Checkpoint.load(written))
    with absent_gpu(HOPPER, None):
        return load_head(opened, read_head_config(opened, main.config, session_len=SESSION_LEN), main)


@pytest.mark.parametrize("name", HEADS)
def test_a_published_head_is_loaded(name: str, tmp_path: Path) -> None:
    model, config, options, places = HEADS[name]
    shapes = list_shapes(config, **options)
    head = load(tmp_path, model, config, shapes)
    count = sum(linear.in_features * linear.out_features for linear in head.linears.values())
    assert count == sum(shape[0] * shape[1] for shape in shapes.values() if len(shape) == 2) - (
        0 if "embed_tokens.weight" not in shapes else shapes["embed_tokens.weight"][0] * shapes["norm.weight"][0]
    )
    assert head._given._order == places


OTHERS: dict[str, tuple[str, dict[str, Any], str]] = {
    "of another size": ("Qwen2.5-VL-3B", HEADS["SpecForge, Qwen2.5-VL-7B"][1], "vocab_size=152064 is not the model's"),
    "of another model": ("Llama-3.1-8B", HEADS["SpecForge, Llama-3.3-70B"][1], "hidden_size=8192 is not the model's"),
    "P-EAGLE": (
        "Qwen3-8B",
        {**head_of(151936, 4096, 12288, 32, 8, **QWEN, known=151936), "num_hidden_layers": 4},
        "num_hidden_layers=4: only heads of one layer are supported",
    ),
    "with experts": (
        "Qwen3-30B-A3B",
        {**head_of(151936, 2048, 6144, 32, 4, **QWEN, **EXPERTS), "model_type": "qwen3_moe"},
        "model_type='qwen3_moe': heads with experts are not supported",
    ),
    "DFlash": ("Qwen3-8B", speculator_of(QWEN_LAYER, speculators_model_type="dflash"), "of kind 'dflash'"),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_another_head_is_refused_by_name(name: str, tmp_path: Path) -> None:
    model, config, message = OTHERS[name]
    with pytest.raises(CheckpointError, match=message):
        load(tmp_path, model, config, list_shapes(config))


# --- layers of a checkpoint -------------------------------------------------------------------------------------------

GLM = describe(
    "glm4_moe", 151552, 4096, 10944, 46, 96, 8, head_dim=128, attention_bias=True, use_qk_norm=False,
    partial_rotary_factor=0.5, rope_theta=1e6, first_k_dense_replace=1, n_routed_experts=128, n_shared_experts=1,
    num_experts_per_tok=8, moe_intermediate_size=1408, n_group=1, topk_group=1, norm_topk_prob=True,
    routed_scaling_factor=1.0, num_nextn_predict_layers=1,
)  # fmt: skip
DEEPSEEK = describe(
    "deepseek_v3", 129280, 7168, 18432, 61, 128, 128, first_k_dense_replace=3, n_routed_experts=256,
    n_shared_experts=1, num_experts_per_tok=8, moe_intermediate_size=2048, n_group=8, topk_group=4,
    norm_topk_prob=True, routed_scaling_factor=2.5, num_nextn_predict_layers=1, q_lora_rank=1536, kv_lora_rank=512,
    qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, rope_theta=10000.0,
)  # fmt: skip
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
QWEN3_5 = describe(
    "qwen3_5_text", 248320, 5120, 17408, 64, 24, 4, head_dim=256, full_attention_interval=4,
    linear_num_key_heads=16, linear_num_value_heads=48, linear_key_head_dim=128, linear_value_head_dim=128,
    linear_conv_kernel_dim=4, mtp_num_hidden_layers=1,
    rope_parameters={"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
)  # fmt: skip


def list_feed_forward(prefix: str, size: int, inner: int) -> Shapes:
    shapes: Shapes = {f"{prefix}.{name}_proj.weight": (inner, size) for name in ("gate", "up")}
    return shapes | {f"{prefix}.down_proj.weight": (size, inner)}


def list_experts(layer: str, size: int, inner: int, count: int) -> Shapes:
    shapes = list_feed_forward(f"{layer}.mlp.shared_experts", size, inner)
    for number in range(count):
        shapes |= list_feed_forward(f"{layer}.mlp.experts.{number}", size, inner)
    return shapes | {f"{layer}.mlp.gate.weight": (count, size), f"{layer}.mlp.gate.e_score_correction_bias": (count,)}


def list_join(layer: str, size: int, vocab: int) -> Shapes:
    """Return what a layer behind the last one has beside those of a layer."""
    names = ("input_layernorm", "post_attention_layernorm", "enorm", "hnorm", "shared_head.norm")
    shapes: Shapes = {f"{layer}.{name}.weight": (size,) for name in names}
    shapes |= {f"{layer}.{name}.weight": (vocab, size) for name in ("embed_tokens", "shared_head.head")}
    return shapes | {f"{layer}.eh_proj.weight": (size, 2 * size)}


def list_glm() -> Shapes:
    layer = "model.layers.46"
    attention: Shapes = {
        "q_proj.weight": (12288, 4096), "k_proj.weight": (1024, 4096), "v_proj.weight": (1024, 4096),
        "q_proj.bias": (12288,), "k_proj.bias": (1024,), "v_proj.bias": (1024,), "o_proj.weight": (4096, 12288),
    }  # fmt: skip
    own = {f"{layer}.self_attn.{name}": shape for name, shape in attention.items()}
    return own | list_experts(layer, 4096, 1408, 128) | list_join(layer, 4096, 151552)


def list_deepseek() -> Shapes:
    layer = "model.layers.61"
    attention: Shapes = {
        "q_a_proj": (1536, 7168), "q_a_layernorm": (1536,), "q_b_proj": (24576, 1536),
        "kv_a_proj_with_mqa": (576, 7168), "kv_a_layernorm": (512,), "kv_b_proj": (32768, 512),
        "o_proj": (7168, 16384),
    }  # fmt: skip
    own = {f"{layer}.self_attn.{name}.weight": shape for name, shape in attention.items()}
    return own | list_experts(layer, 7168, 2048, 256) | list_join(layer, 7168, 129280)


def list_qwen() -> Shapes:
    layer = "mtp.layers.0"
    shapes: Shapes = {
        "mtp.fc.weight": (5120, 10240), "mtp.norm.weight": (5120,), "mtp.pre_fc_norm_embedding.weight": (5120,),
        "mtp.pre_fc_norm_hidden.weight": (5120,), f"{layer}.input_layernorm.weight": (5120,),
        f"{layer}.post_attention_layernorm.weight": (5120,), f"{layer}.self_attn.q_proj.weight": (12288, 5120),
        f"{layer}.self_attn.k_proj.weight": (1024, 5120), f"{layer}.self_attn.v_proj.weight": (1024, 5120),
        f"{layer}.self_attn.o_proj.weight": (5120, 6144), f"{layer}.self_attn.q_norm.weight": (256,),
        f"{layer}.self_attn.k_norm.weight": (256,), "model.layers.63.self_attn.q_proj.weight": (12288, 5120),
        "model.embed_tokens.weight": (248320, 5120), "lm_head.weight": (248320, 5120),
    }  # fmt: skip
    return shapes | list_feed_forward(f"{layer}.mlp", 5120, 17408)


def store_in_bytes(shapes: Shapes) -> tuple[Shapes, dict[str, str]]:
    """Return tensors with products in FP8, and their types, as DeepSeek-V3 has them."""
    products = [n for n in shapes if n.endswith("proj.weight") or n.endswith("kv_a_proj_with_mqa.weight")]
    products = [name for name in products if "eh_proj" not in name]
    scales = {f"{name}_scale_inv": tuple(-(-length // 128) for length in shapes[name]) for name in products}
    return shapes | scales, dict.fromkeys(products, "F8_E4M3") | dict.fromkeys(scales, "F32")


LAYERS: dict[str, tuple[dict[str, Any], Shapes, dict[str, str]]] = {
    "GLM-4.5-Air": (GLM, list_glm(), {}),
    "DeepSeek-V3 in bfloat16": (DEEPSEEK, list_deepseek(), {}),
    "Qwen3.5-27B": (QWEN3_5, list_qwen(), {}),
}


def load_layer(folder: Path, config: dict[str, Any], shapes: Shapes, dtypes: dict[str, str]) -> PredictingDecoder:
    written = write_shapes(folder / "model", {"architectures": ["AnyForCausalLM"], **config}, shapes, dtypes)
    checkpoint = Checkpoint.load(written)
    main, names = make_decoder(config, folder / "main"), checkpoint.tensor_names()
    layer = find_layer(names, name_tensor, main.config)
    return PredictingDecoder.load(
        checkpoint,
        make_predicting_config(main.config, layer, names),
        decoder_name=make_predicting_names(layer, name_tensor),
        device=main.device,
        dtype=main.dtype,
    )


def name_tensor(name: str) -> str:
    return name.removeprefix("model.")


@pytest.mark.parametrize("name", LAYERS)
def test_a_published_layer_is_loaded(name: str, tmp_path: Path) -> None:
    with absent_gpu(HOPPER, None):
        decoder = load_layer(tmp_path, *LAYERS[name])
    assert decoder._join.in_features == 2 * decoder.config.hidden_size
    assert decoder.config.num_layers == 1


def test_a_layer_in_blocks_of_fp8_is_loaded(tmp_path: Path) -> None:
    """As DeepSeek-V3 stores it: its routers and its first product have no scales, and nothing says so."""
    shapes, dtypes = store_in_bytes(list_deepseek())
    with absent_gpu(HOPPER, None):
        decoder = load_layer(tmp_path, {**DEEPSEEK, "quantization_config": FP8}, shapes, dtypes)
    assert decoder._join.in_features == 2 * decoder.config.hidden_size


@pytest.mark.parametrize("gone", ["eh_proj.weight", "enorm.weight", "mlp.experts.7.up_proj.weight"])
def test_a_layer_that_lacks_a_tensor_is_refused_by_name(gone: str, tmp_path: Path) -> None:
    shapes = {name: shape for name, shape in list_glm().items() if not name.endswith(gone)}
    with (
        absent_gpu(HOPPER, None),
        pytest.raises((CheckpointError, ConfigError), match=gone.replace("eh_proj", "layers.46.eh_proj")),
    ):
        load_layer(tmp_path, GLM, shapes, {})


@pytest.mark.parametrize("tensor", ["model.mtp_layers.0.input_proj.weight", "model.mtp_linear_proj.0.weight"])
def test_layers_of_other_forms_are_refused_by_name(tensor: str, tmp_path: Path) -> None:
    """MiMo's and ERNIE's."""
    main = make_decoder(MODELS["Qwen3-8B"], tmp_path)
    with pytest.raises(ConfigError, match="the checkpoint has no layer 36 that predicts further tokens"):
        find_layer([tensor, "model.layers.35.self_attn.q_proj.weight"], name_tensor, main.config)
