"""Configurations whose classes are code beside the weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from seesay.checkpoint import Checkpoint
from seesay.errors import CheckpointError

SIZES = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}


def load(folder: Path, **config: object) -> Checkpoint:
    (folder / "config.json").write_text(json.dumps({**SIZES, "auto_map": {"AutoConfig": "code.Config"}, **config}))
    (folder / "code.py").write_text("raise RuntimeError('code of a checkpoint was run')\n")
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    return Checkpoint.load(folder)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"model_type": "internlm"}, {"attention_bias": True, "mlp_bias": False}),
        ({"model_type": "internlm", "bias": False}, {"attention_bias": False, "mlp_bias": False}),
        ({"model_type": "internlm2"}, {"attention_bias": True, "mlp_bias": False}),
        ({"model_type": "internlm2", "bias": False}, {"attention_bias": False, "mlp_bias": False}),
        ({"model_type": "internlm3"}, {"attention_bias": False, "mlp_bias": False}),
        ({"model_type": "internlm3", "bias": True, "qkv_bias": True}, {"attention_bias": True, "mlp_bias": True}),
    ],
)
def test_they_are_read_as_a_known_one(tmp_path: Path, config: dict[str, object], expected: dict[str, bool]) -> None:
    found = load(tmp_path, **config).text_config
    assert {name: getattr(found, name) for name in expected} == expected
    assert found.hidden_size == 32 and found.num_key_value_heads == 1


def test_the_rotary_embedding_of_internlm(tmp_path: Path) -> None:
    rotary = {"base": 5000, "type": "dynamic"}
    parameters = load(tmp_path, model_type="internlm", rotary=rotary, max_position_embeddings=64).text_config
    assert parameters.rope_parameters == {"rope_type": "dynamic", "factor": 1.0, "rope_theta": 5000}
    plain = load(tmp_path, model_type="internlm", max_position_embeddings=64).text_config
    assert plain.rope_parameters["rope_type"] == "default" and plain.rope_parameters["rope_theta"] == 10000
    with pytest.raises(CheckpointError, match=r"rotary must have the type"):
        load(tmp_path, model_type="internlm", rotary={"type": "spiral"}).hf_config()


def test_what_the_known_one_cannot_say_is_refused(tmp_path: Path) -> None:
    checkpoint = load(tmp_path, model_type="internlm3", bias=False, qkv_bias=True)
    with pytest.raises(CheckpointError, match=r"config\.json: bias=False with another qkv_bias"):
        checkpoint.hf_config()


KIMI_K2 = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "kimi_k2", "n_routed_experts": 4, "n_shared_experts": 1,
    "num_experts_per_tok": 2, "scoring_func": "sigmoid", "topk_method": "noaux_tc", "moe_layer_freq": 1,
    "rope_theta": 50000.0, "seq_aux": True, "torch_dtype": "bfloat16",
}  # fmt: skip
OWN_LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "own_llama", "vocab_size": 100, "intermediate_size": 48,
    "rms_norm_eps": 1e-5, "rope_theta": 5000.0, "torch_dtype": "bfloat16",
}  # fmt: skip


def test_a_known_architecture_of_an_unknown_type_is_that_architecture(tmp_path: Path) -> None:
    kimi = load(tmp_path, **KIMI_K2)
    assert kimi.architecture == "DeepseekV3ForCausalLM"
    assert (kimi.text_config.model_type, kimi.text_config.n_routed_experts) == ("deepseek_v3", 4)
    assert kimi.text_config.rope_parameters["rope_theta"] == 50000
    own = load(tmp_path, **OWN_LLAMA).text_config
    assert (own.model_type, own.rms_norm_eps, own.rope_parameters["rope_theta"]) == ("llama", 1e-5, 5000)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({**KIMI_K2, "scoring_func": "softmax"}, "scoring_func must be 'sigmoid', got 'softmax'"),
        (
            {**OWN_LLAMA, "residual_scale": 2},
            r"a LlamaForCausalLM the configuration has unknown fields \(residual_scale;",
        ),
        ({**OWN_LLAMA, "rms_norm_eps": None, "vocab_size": None}, r"lacks fields \(rms_norm_eps, vocab_size;"),
        ({**OWN_LLAMA, "rope_theta": None}, r"lacks fields \(rope_theta;"),
        ({**OWN_LLAMA, "architectures": ["OwnForCausalLM"]}, "model_type 'own_llama' is unknown"),
    ],
)
def test_what_a_known_architecture_cannot_say_is_refused(
    tmp_path: Path, config: dict[str, object], message: str
) -> None:
    with pytest.raises(CheckpointError, match=rf"config\.json: .*{message}"):
        load(tmp_path, **config).hf_config()


CHATGLM = {
    "model_type": "chatglm", "num_layers": 1, "ffn_hidden_size": 48, "seq_length": 64, "padded_vocab_size": 100,
    "multi_query_attention": True, "multi_query_group_num": 1, "kv_channels": 16,
}  # fmt: skip
BAICHUAN = {"model_type": "baichuan", "architectures": ["BaichuanForCausalLM"]}
MPT = {"model_type": "mpt", "d_model": 32, "n_heads": 2, "n_layers": 1}
SIGLIP = {"model_name": "siglip_large_patch16_384", "image_size": 384, "select_feature": "same", "select_layer": -1}
SAM = {"model_name": "sam_b_downsample", "image_size": 1024}
ALIGNER = {"params": {"projector_type": "mlp_gelu", "depth": 2}}
DEEPSEEK_VL = {
    "model_type": "multi_modality", "architectures": ["MultiModalityCausalLM"],
    "language_config": {"model_type": "llama", "vocab_size": 100}, "aligner_config": ALIGNER,
    "vision_config": {"cls": "CLIPVisionTower", "params": SIGLIP},
}  # fmt: skip
HYBRID = {"cls": "HybridVisionTower", "params": {"low_res_cfg": SIGLIP, "high_res_cfg": SAM}}
HYBRID_ALIGNER = {"params": {"projector_type": "low_high_hybrid_split_mlp_gelu", "depth": 2}}
DEEPSEEK_HYBRID = {**DEEPSEEK_VL, "vision_config": HYBRID, "aligner_config": HYBRID_ALIGNER}


def with_tower(**fields: object) -> dict[str, object]:
    return {**DEEPSEEK_VL, "vision_config": {"cls": "CLIPVisionTower", "params": {**SIGLIP, **fields}}}


AIM = {"model_type": "aimv2", "hidden_size": 32, "num_attention_heads": 2, "use_bias": False}
VISUAL_TOKENIZER = {"model_type": "aimv2_visual_tokenizer", "backbone_config": AIM, "hidden_stride": 2}
OVIS = {
    "model_type": "ovis", "architectures": ["Ovis"], "llm_config": {"model_type": "qwen2", "vocab_size": 100},
    "visual_tokenizer_config": VISUAL_TOKENIZER,
}  # fmt: skip


def with_tokenizer(**fields: object) -> dict[str, object]:
    return {**OVIS, "visual_tokenizer_config": {**VISUAL_TOKENIZER, **fields}}


QWEN = {
    "model_type": "qwen", "intermediate_size": 96, "kv_channels": 16, "vocab_size": 100, "seq_length": 64,
    "max_position_embeddings": 256, "layer_norm_epsilon": 1e-5,
}  # fmt: skip
VISUAL = {"heads": 2, "image_size": 28, "layers": 2, "mlp_ratio": 4.9231, "patch_size": 4, "width": 26}
QWEN_VL = {**QWEN, "hidden_size": 256, "kv_channels": 128, "visual": {**VISUAL, "output_dim": 256}}
SIZES_4V = {"image_size": 24, "patch_size": 4, "num_positions": 37}


def test_layouts_of_authors_are_read_as_models_with_the_same_layers(tmp_path: Path) -> None:
    first = load(tmp_path, **{**BAICHUAN, "architectures": ["BaiChuanForCausalLM"]}, max_position_embeddings=64)
    assert first.text_config.model_type == "llama" and first.text_config.qkv_layout == "joined"
    assert not first.text_config.has_unit_head
    second = load(tmp_path, **BAICHUAN, max_position_embeddings=64).text_config
    assert second.has_unit_head and not second.has_alibi
    large = load(tmp_path, **BAICHUAN, model_max_length=4096, vocab_size=125696).text_config
    assert large.has_unit_head and large.has_alibi and large.max_position_embeddings == 4096
    first_large = load(tmp_path, **BAICHUAN, model_max_length=4096, vocab_size=64000).text_config
    assert first_large.has_alibi and not first_large.has_unit_head
    minicpm = load(tmp_path, model_type="minicpm", scale_emb=12, scale_depth=1.4, dim_model_base=8, num_hidden_layers=4)
    factors = minicpm.text_config
    assert (factors.embedding_multiplier, factors.logits_scaling, factors.tie_word_embeddings) == (12.0, 4.0, True)
    assert factors.residual_multiplier == pytest.approx(0.7) and factors.attention_multiplier == 0.25
    glm = load(tmp_path, **CHATGLM, rope_ratio=500).text_config
    assert (glm.model_type, glm.rope_parameters["rope_theta"]) == ("glm", 5e6)
    assert (glm.rope_parameters["partial_rotary_factor"], glm.num_key_value_heads) == (0.5, 1)


def test_deepseek_vl_has_towers_of_published_sizes(tmp_path: Path) -> None:
    low = load(tmp_path, **DEEPSEEK_VL)
    assert low.architecture == "DeepseekVLForConditionalGeneration" and low.text_config.vocab_size == 100
    vision = low.model_config.vision_config
    assert (vision.hidden_size, vision.num_hidden_layers, vision.patch_size) == (1024, 24, 16)
    assert low.model_config.tower_statistics == {"low": None}
    both = load(tmp_path, **DEEPSEEK_HYBRID)
    assert both.architecture == "DeepseekVLHybridForConditionalGeneration"
    high = both.model_config.high_res_vision_config
    assert (high.hidden_size, high.mlp_dim, high.global_attn_indexes) == (768, 3072, [2, 5, 8, 11])


def test_ovis_is_an_ovis2_without_tokens_for_pictures(tmp_path: Path) -> None:
    checkpoint = load(tmp_path, **OVIS)
    assert checkpoint.architecture == "Ovis2ForConditionalGeneration" and checkpoint.text_config.vocab_size == 100
    config = checkpoint.model_config
    assert not config.has_media_tokens and config.vision_config.hidden_stride == 2
    assert (config.vision_config.hidden_size, config.vision_config.mlp_bias) == (32, False)


def test_the_first_qwen_is_a_qwen2(tmp_path: Path) -> None:
    checkpoint = load(tmp_path, **QWEN, rotary_emb_base=1000000)
    found = checkpoint.text_config
    assert (found.model_type, found.num_key_value_heads, found.intermediate_size) == ("qwen2", 2, 48)
    assert (found.rms_norm_eps, found.rope_parameters["rope_theta"]) == (1e-5, 1e6)
    assert (found.trained_length, found.max_position_embeddings) == (64, 256)
    assert found.doubles_ntk and found.use_logn_attn and not checkpoint.tower_type
    plain = load(tmp_path, **QWEN, use_dynamic_ntk=False, use_logn_attn=False).text_config
    assert not plain.doubles_ntk and not plain.use_logn_attn and plain.trained_length == 256


def test_qwen_vl_has_the_tower_of_its_own_fields(tmp_path: Path) -> None:
    checkpoint = load(tmp_path, **QWEN_VL)
    vision = checkpoint.model_config.vision_config
    assert checkpoint.tower_type == "clip_vision_model" and checkpoint.text_config.model_type == "qwen2"
    assert (vision.intermediate_size, vision.num_hidden_layers, vision.image_size) == (128, 2, 28)
    assert (checkpoint.model_config.num_queries, checkpoint.model_config.num_query_heads) == (256, 2)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (BAICHUAN, "model_max_length must be a positive integer"),
        ({**MPT, "no_bias": False}, "no_bias=False is not supported"),
        ({**MPT, "norm_type": "rmsnorm"}, "norm_type='rmsnorm' is not supported"),
        ({**MPT, "logit_scale": "inv_sqrt_d_model"}, "logit_scale='inv_sqrt_d_model' is not supported"),
        ({**MPT, "logit_scale": 2.0}, "logit_scale='2.0' is not supported"),
        ({**MPT, "attn_config": {"alibi": False}}, "attn_config.alibi=False is not supported"),
        ({**MPT, "attn_config": {"qk_ln": True}}, "attn_config.qk_ln=True is not supported"),
        ({**MPT, "attn_config": {"alibi_bias_max": 0}}, "alibi_bias_max must be a number above 0"),
        ({**MPT, "attn_config": [8]}, "attn_config must be an object"),
        ({"model_type": "minicpm", "num_experts": 8}, "num_experts=8 is not supported"),
        ({"model_type": "minicpm", "sparse_config": {"kernel_size": 32}}, "sparse_config"),
        ({"model_type": "minicpm", "scale_depth": "deep"}, "scale_depth must be a number above 0"),
        ({"model_type": "minicpm", "dim_model_base": 0}, "dim_model_base must be"),
        ({**CHATGLM, "rmsnorm": False}, "rmsnorm=False is not supported"),
        ({**CHATGLM, "original_rope": False}, "original_rope=False is not supported"),
        ({**DEEPSEEK_VL, "vision_config": [1]}, "vision_config must be an object"),
        ({**DEEPSEEK_VL, "vision_config": {"cls": "Eye", "params": SIGLIP}}, "cls must be CLIPVisionTower or Hybrid"),
        ({**DEEPSEEK_VL, "vision_config": {"cls": "CLIPVisionTower"}}, "vision_config.params must be an object"),
        ({**DEEPSEEK_VL, "aligner_config": HYBRID_ALIGNER}, "projector_type must be mlp_gelu with a CLIPVisionTower"),
        ({**DEEPSEEK_VL, "aligner_config": {"params": {"projector_type": "mlp_gelu"}}}, "params.depth must be 2"),
        ({**DEEPSEEK_VL, "language_config": None}, "language_config must be an object"),
        (with_tower(model_name="sam_b_downsample"), "model_name of a siglip_vision_model must be siglip_large"),
        (with_tower(model_name=["x"]), "model_name of a siglip_vision_model must be siglip_large"),
        (with_tower(select_layer=-2), "select_layer must be -1"),
        (with_tower(image_size=None), "image_size must be a positive integer"),
        (
            {**DEEPSEEK_HYBRID, "vision_config": {**HYBRID, "params": {"concat_type": "add"}}},
            "concat_type must be tuple, got 'add'",
        ),
        ({**OVIS, "llm_config": [1]}, "llm_config must be an object"),
        (
            with_tokenizer(model_type="siglip_visual_tokenizer"),
            "model_type must be aimv2_visual_tokenizer, got 'siglip",
        ),
        (with_tokenizer(drop_cls_token=True), "drop_cls_token must be False"),
        (with_tokenizer(depths="4|8"), "depths must be None"),
        (with_tokenizer(backbone_config=None), "backbone_config must be an aimv2"),
        ({**QWEN, "no_bias": False}, "no_bias=False is not supported"),
        ({**QWEN, "rotary_pct": 0.5}, "rotary_pct=0.5 is not supported"),
        ({**QWEN, "audio": {"n_mels": 80}}, "Qwen-Audio"),
        ({**QWEN, "kv_channels": 128}, "kv_channels=128: 2 heads of that size are not hidden_size=32"),
        ({**QWEN, "kv_channels": "wide"}, "kv_channels must be"),
        ({**QWEN, "seq_length": None}, "seq_length must be a positive integer"),
        ({**QWEN, "rotary_emb_base": -1}, "rotary_emb_base must be a number above 0"),
        ({**QWEN_VL, "visual": 3}, "visual must be an object, got '3'"),
        ({**QWEN_VL, "visual": {**VISUAL, "output_dim": 128}}, "visual.output_dim=128 must be a multiple of 128 and"),
        ({**QWEN_VL, "visual": {**VISUAL, "output_dim": 256, "layers": 10**9}}, "layers must be an integer from 1 to"),
        ({**QWEN_VL, "visual": {**VISUAL, "output_dim": 256, "heads": "all"}}, "heads must be an integer from 1 to"),
        ({**QWEN_VL, "visual": {**VISUAL, "output_dim": 256, "n_queries": 10}}, "n_queries=10 must be a square"),
        ({**QWEN_VL, "visual": {**VISUAL, "output_dim": 256, "patch_size": 5}}, "image_size=28 must be 1 to 256"),
        ({**QWEN_VL, "visual": {**VISUAL, "output_dim": 256, "mlp_ratio": "x"}}, "mlp_ratio must be a number above 0"),
        ({**QWEN_VL, "visual": {**VISUAL, "output_dim": 256, "image_size": 2048, "patch_size": 1}}, "1 to 256 patches"),
        ({**CHATGLM, "vision_config": {"hidden_size": 8}}, "image_size must be an integer from 1 to"),
        ({**CHATGLM, "vision_config": {**SIZES_4V, "num_positions": 36}}, "num_positions=36 must be 1 more than"),
        ({**CHATGLM, "vision_config": {**SIZES_4V, "scaling_factor": 0}}, "scaling_factor must be a number above 0"),
        ({**CHATGLM, "vision_config": [8]}, "vision_config must be an object"),
        ({**CHATGLM, "multi_query_group_num": None}, "multi_query_group_num must be a positive integer"),
    ],
)
def test_what_the_layers_cannot_do_is_refused(tmp_path: Path, config: dict[str, object], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        load(tmp_path, **config).hf_config()


@pytest.mark.parametrize("kind", ["internlm9", None, ["internlm2"]])
def test_unknown_ones_are_refused_by_name(tmp_path: Path, kind: object) -> None:
    with pytest.raises(CheckpointError, match="code from checkpoints is not run"):
        load(tmp_path, model_type=kind).hf_config()
