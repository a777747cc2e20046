"""Tiny random text backbones as Transformers writes them, and helpers to run them here. Used by the golden tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from seesay.checkpoint import Checkpoint
from seesay.checkpoint.model_config import ModelConfig
from seesay.llm.models.composed_decoder import ComposedDecoder
from seesay.llm.models.configs.reading import read_decoder_config
from seesay.llm.plans.sampling_params import SamplingParams
from seesay.llm.plans.step_plan import AddedBlocks, Row, StepPlan
from seesay.llm.running.runner import ModelRunner
from seesay.llm.running.runner_limits import RunnerLimits
from seesay.llm.scheduling.plan_deltas import make_begun
from seesay.llm.scheduling.sequence import Sequence as TokenSequence
from seesay.values import MultimodalInput
from seesay.vl.registry import find_family

VOCAB = 160
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 60,
    "intermediate_size": 88,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.8,
    "short_factor": [1.0 + 0.1 * i for i in range(4)],
    "long_factor": [2.0 + 0.5 * i for i in range(4)],
    "original_max_position_embeddings": 64,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
MROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 2, 1]}
GEMMA3_LAYERS = ["sliding_attention", "full_attention", "sliding_attention"]
GEMMA3_ROPE = {  # as published
    "rope_theta": 100000.0,
    "rope_local_base_freq": 1000.0,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    "query_pre_attn_scalar": 20,
}

GRANITE = {
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.3,
    "logits_scaling": 4.0,
    "attention_multiplier": 0.2,
    "tie_word_embeddings": True,
}

GLM_EXPERTS = {
    "n_routed_experts": 8, "num_experts_per_tok": 3, "n_group": 4, "topk_group": 2, "moe_intermediate_size": 24,
    "routed_scaling_factor": 2.5, "n_shared_experts": 1, "use_qk_norm": True, "attention_bias": True, "head_dim": 16,
}  # fmt: skip
ERNIE_EXPERTS = {
    "moe_num_experts": 6, "moe_k": 2, "moe_intermediate_size": 24, "moe_num_shared_experts": 2,
    "moe_norm_min": 0.3,
}  # fmt: skip
LLAMA4 = {
    "num_local_experts": 5, "intermediate_size_mlp": 72, "interleave_moe_layer_step": 2, "head_dim": 10,
    "no_rope_layer_interval": 3, "attention_chunk_size": 7, "floor_scale": 5, "attn_scale": 0.3,
    "rope_parameters": LLAMA3,
}  # fmt: skip
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}

PHI_EXPERTS = {
    "num_local_experts": 6, "num_experts_per_tok": 2, "attention_bias": True, "lm_head_bias": True,
    "router_jitter_noise": 0.2, "sliding_window": 11,
    "rope_parameters": LONGROPE | {
        "partial_rotary_factor": 1.0, "short_factor": [1.0 + 0.1 * i for i in range(5)],
        "long_factor": [1.0 + 0.1 * i for i in range(5)], "short_mscale": 1.2, "long_mscale": 1.2,
    },
}  # fmt: skip
DELTA_NET = {
    "head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 6, "linear_key_head_dim": 8,
    "linear_value_head_dim": 10, "layer_types": ["linear_attention", "full_attention", "linear_attention"],
}  # fmt: skip
STATE_SPACE = {
    "mamba_n_heads": 6, "mamba_d_head": 20, "mamba_n_groups": 2, "mamba_d_state": 12, "mamba_d_conv": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
}  # fmt: skip
BAMBA = {name: value for name, value in STATE_SPACE.items() if name != "layer_types"} | {"attn_layer_indices": [1]}
STATE_SPACE_BESIDE = {
    "mamba_n_heads": 6, "mamba_d_ssm": 48, "mamba_n_groups": 2, "mamba_d_state": 12, "mamba_d_conv": 3,
    "attention_in_multiplier": 0.8, "attention_out_multiplier": 1.3, "key_multiplier": 0.6,
    "embedding_multiplier": 2.0, "lm_head_multiplier": 0.7, "mlp_multipliers": [0.8, 1.4], "ssm_in_multiplier": 1.2,
    "ssm_multipliers": [0.9, 1.1, 0.7, 1.3, 0.8], "ssm_out_multiplier": 0.75,
}  # fmt: skip
NEMOTRON = {
    "mamba_num_heads": 6, "mamba_head_dim": 20, "n_groups": 2, "ssm_state_size": 12, "conv_kernel": 3, "head_dim": 10,
}  # fmt: skip
NEMOTRON_EXPERTS = NEMOTRON | {
    "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "routed_scaling_factor": 1.5,
    "moe_shared_expert_intermediate_size": 40,
}  # fmt: skip
JAMBA = {"mamba_d_state": 6, "mamba_d_conv": 3, "attn_layer_period": 3, "attn_layer_offset": 1, "mamba_dt_rank": 5}
LFM2 = {"layer_types": ["conv", "full_attention", "conv"], "block_multiple_of": 8, "tie_word_embeddings": True}
KIMI_LINEAR: dict[str, Any] = {
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "mlp_layer_types": ["dense", "sparse", "sparse"],
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 12,
    "linear_num_heads": 6,
    "linear_head_dim": 8,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 32,
}
LATENT = {
    "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "first_k_dense_replace": 1,
    "n_shared_experts": 2, "routed_scaling_factor": 1.5, "kv_lora_rank": 16, "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12, "v_head_dim": 10, "num_key_value_heads": 6,
}  # fmt: skip
MSCALE = YARN | {"mscale_all_dim": 0.7, "mscale": 0.7}
QWEN3_5_ROPE = MROPE | {"mrope_section": [2, 1, 1], "mrope_interleaved": True, "partial_rotary_factor": 0.5}

BACKBONES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-llama3-rope": ("Llama", {"rope_parameters": LLAMA3, "head_dim": 16, "tie_word_embeddings": True}),
    "llama-linear-rope": ("Llama", {"rope_parameters": LINEAR}),
    "llama-dynamic-rope": ("Llama", {"rope_parameters": DYNAMIC}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen2-yarn": ("Qwen2", {"rope_parameters": YARN, "hidden_act": "gelu"}),
    "qwen2-some-windows": ("Qwen2", {"use_sliding_window": True, "sliding_window": 13, "max_window_layers": 1}),
    "qwen3": ("Qwen3", {"head_dim": 16, "num_key_value_heads": 3}),
    "mistral-window": ("Mistral", {"sliding_window": 11, "head_dim": 10, "hidden_act": "gelu_pytorch_tanh"}),
    "phi3": ("Phi3", {}),
    "phi3-longrope": ("Phi3", {"rope_parameters": LONGROPE, "original_max_position_embeddings": 64}),
    "gemma": ("Gemma", {"head_dim": 12, "tie_word_embeddings": True, "hidden_act": "gelu"}),
    "gemma2": ("Gemma2", {"head_dim": 16, "tie_word_embeddings": True, "sliding_window": 9}),
    "gemma3": ("Gemma3", {"head_dim": 16, "sliding_window": 9, "layer_types": GEMMA3_LAYERS, **GEMMA3_ROPE}),
    "smollm3": ("SmolLM3", {"no_rope_layer_interval": 2, "tie_word_embeddings": True}),
    "starcoder2": ("Starcoder2", {"sliding_window": 9, "tie_word_embeddings": True}),
    "granite": ("Granite", GRANITE),
    "olmo": ("Olmo", {"clip_qkv": 0.8}),
    "olmo2": ("Olmo2", {}),
    "cohere": ("Cohere", {"use_qk_norm": True, "tie_word_embeddings": True, "logit_scale": 0.25}),
    "glm": ("Glm", {"head_dim": 12}),
    "glm4": ("Glm4", {"head_dim": 8}),
    "falcon": ("Falcon", {"tie_word_embeddings": True, "ffn_hidden_size": 88}),
    "falcon-groups": ("Falcon", {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": True}),
    "falcon-sequential": ("Falcon", {"parallel_attn": False, "multi_query": False, "bias": True}),
    "falcon-alibi": ("Falcon", {"alibi": True, "parallel_attn": False, "multi_query": False, "bias": True}),
    "bloom": ("Bloom", {"tie_word_embeddings": True}),
    "mpt": ("Mpt", {"tie_word_embeddings": True, "attn_config": {"clip_qkv": 0.8}}),
    "mixtral": ("Mixtral", EXPERTS | {"num_local_experts": 5, "sliding_window": 11}),
    "qwen2-moe": ("Qwen2Moe", EXPERTS | {"shared_expert_intermediate_size": 20, "norm_topk_prob": True}),
    "qwen3-moe": ("Qwen3Moe", EXPERTS | {"head_dim": 16, "num_experts_per_tok": 3, "decoder_sparse_step": 2}),
    "gpt-oss": ("GptOss", {"num_local_experts": 5, "num_experts_per_tok": 2, "head_dim": 16, "sliding_window": 9}),
    "llama4": ("Llama4", LLAMA4),
    "olmoe": ("Olmoe", EXPERTS),
    "granite-moe": ("GraniteMoe", GRANITE | {"num_local_experts": 5, "num_experts_per_tok": 2}),
    "granite-moe-shared": (
        "GraniteMoeShared",
        GRANITE | {"num_local_experts": 5, "num_experts_per_tok": 2, "shared_intermediate_size": 20},
    ),
    "granite-hybrid": (
        "GraniteMoeHybrid",
        GRANITE | STATE_SPACE | {"num_local_experts": 5, "num_experts_per_tok": 2, "shared_intermediate_size": 20},
    ),
    "bamba": ("Bamba", BAMBA | {"rope_parameters": {"rope_theta": 10000.0, "partial_rotary_factor": 0.4}}),
    "falcon-h1": ("FalconH1", STATE_SPACE_BESIDE),
    "falcon-h1-normed": ("FalconH1", STATE_SPACE_BESIDE | {"mamba_rms_norm": True, "mamba_n_heads": 4}),
    "jamba": ("Jamba", JAMBA | {"num_experts": 4, "expert_layer_period": 2, "expert_layer_offset": 1}),
    "jamba-dense": ("Jamba", JAMBA | {"num_experts": 1, "mamba_conv_bias": False, "mamba_proj_bias": True}),
    "nemotron-h": ("NemotronH", NEMOTRON | {"hybrid_override_pattern": "M-*-M"}),
    "nemotron-h-moe": ("NemotronH", NEMOTRON_EXPERTS | {"hybrid_override_pattern": "MEM*E-"}),
    "phi-moe": ("Phimoe", PHI_EXPERTS),
    "glm4-moe": ("Glm4Moe", GLM_EXPERTS),
    "lfm2": ("Lfm2", LFM2),
    "lfm2-bias": ("Lfm2", LFM2 | {"conv_bias": True, "block_auto_adjust_ff_dim": False, "conv_L_cache": 5}),
    "kimi-linear": ("KimiLinear", KIMI_LINEAR),
    "kimi-linear-query-rank": ("KimiLinear", KIMI_LINEAR | {"q_lora_rank": 24, "linear_conv_kernel_dim": 3}),
    "deepseek-v2": ("DeepseekV2", LATENT | {"q_lora_rank": None, "head_dim": 8}),
    "deepseek-v3": (
        "DeepseekV3",
        LATENT | {"q_lora_rank": 24, "n_group": 2, "topk_group": 1, "rope_parameters": MSCALE},
    ),
    "ernie4.5-moe": ("Ernie4_5_Moe", ERNIE_EXPERTS),
    "qwen3-vl-moe": (
        "Qwen3VLMoe",
        EXPERTS | {"rope_parameters": MROPE | {"mrope_interleaved": True}, "head_dim": 10},
    ),
    "glm4v-moe": (
        "Glm4vMoe",
        GLM_EXPERTS | {"rope_parameters": MROPE | {"mrope_section": [2, 1, 1], "partial_rotary_factor": 0.5}},
    ),
    "qwen2.5-vl": ("Qwen2_5_VL", {"rope_parameters": MROPE}),
    "qwen3-vl": ("Qwen3VL", {"rope_parameters": MROPE | {"mrope_interleaved": True}, "head_dim": 10}),
    "glm4v": ("Glm4v", {"rope_parameters": MROPE | {"mrope_section": [2, 1, 1], "partial_rotary_factor": 0.8}}),
    "qwen3-next": ("Qwen3Next", DELTA_NET | EXPERTS | {"shared_expert_intermediate_size": 20, "norm_topk_prob": True}),
    "qwen3.5": ("Qwen3_5", DELTA_NET | {"rope_parameters": QWEN3_5_ROPE}),
    "qwen3.5-moe": (
        "Qwen3_5Moe",
        DELTA_NET | EXPERTS | {"shared_expert_intermediate_size": 20, "rope_parameters": QWEN3_5_ROPE},
    ),
    "qwen2-vl": ("Qwen2VL", {"rope_parameters": MROPE, "tie_word_embeddings": True}),
}


@dataclass(frozen=True)
class Backbone:
    """A model of Transformers and the folder it was saved to."""

    model: Any
    path: Path

    @property
    def text_config(self) -> Any:
        return ModelConfig.of(self.model.config.get_text_config())

    @property
    def is_multimodal(self) -> bool:
        return hasattr(self.model.config, "vision_config")

    def logits(self, token_ids: np.ndarray, positions: np.ndarray) -> torch.Tensor:
        """Transformers' logits [T, vocab]."""
        with torch.inference_mode():
            ids, places = torch.tensor(token_ids)[None], torch.tensor(positions)
            places = places[:, None] if positions.ndim == 2 else places[None]
            logits: torch.Tensor = self.model(input_ids=ids, position_ids=places, use_cache=False).logits[0]
            return logits

    def greedy(self, token_ids: np.ndarray, num_new: int) -> list[int]:
        with torch.inference_mode():
            ids = torch.tensor(token_ids)[None]
            output = self.model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=num_new, do_sample=False, eos_token_id=None
            )
        new: list[int] = output[0, len(token_ids) :].tolist()
        return new


def make_backbone(name: str, folder: Path, **sizes: Any) -> Backbone:
    """Save a model whose weights are large and whose norms are uneven, so that a wrong one gives other logits."""
    kind, changes = BACKBONES[name]
    sizes = SIZES | changes | sizes
    if kind in ("Glm4v", "Glm4vMoe", "Qwen2_5_VL", "Qwen2VL", "Qwen3VL", "Qwen3VLMoe", "Qwen3_5", "Qwen3_5Moe"):
        tied = sizes["tie_word_embeddings"]
        vision = {"depth": 1, "num_heads": 2, "intermediate_size": 8, "mlp_ratio": 1, "deepstack_visual_indexes": []}
        vision |= (
            {"hidden_size": 60, "embed_dim": 16} if kind == "Qwen2VL" else {"hidden_size": 16, "out_hidden_size": 60}
        )
        config = getattr(transformers, f"{kind}Config")(
            text_config=sizes, vision_config=vision, tie_word_embeddings=tied
        )
        model_class = getattr(transformers, f"{kind}ForConditionalGeneration")
    else:
        config = getattr(transformers, f"{kind}TextConfig" if kind in ("Gemma3", "Llama4") else f"{kind}Config")(
            **sizes
        )
        model_class = getattr(transformers, f"{kind}ForCausalLM")
    torch.manual_seed(sum(map(ord, name)))
    model = model_class(config).eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            parameter.normal_(0.0, 0.2)
            if "norm" in parameter_name and parameter_name.endswith("weight"):
                parameter.add_(1.0)
    model.generation_config = transformers.GenerationConfig(pad_token_id=0)
    model.save_pretrained(folder)
    return Backbone(model=model, path=folder)


def decoder_name(name: str) -> str | None:
    """The decoder's name of a tensor, in the layout that Transformers 5 writes and in that of the hub."""
    if ".visual." in name or name.startswith("visual."):
        return None
    return name.removeprefix("model.").removeprefix("language_model.")


def names_of(checkpoint: Checkpoint) -> Callable[[str], str | None]:
    """Return what names a checkpoint's tensors: its family where that has patterns of names, else `decoder_name`."""
    family = find_family(checkpoint.architecture)
    return family.weights.decoder_name if family.weights.decoder_patterns else decoder_name


def make_saver(tmp_path_factory: pytest.TempPathFactory, **sizes: Any) -> Callable[[str], Backbone]:
    """Return `make_backbone` by name, which makes each once."""

    @cache
    def get(name: str) -> Backbone:
        return make_backbone(name, tmp_path_factory.mktemp(name), **sizes)

    return get


def load_runner(
    backbone: Backbone,
    *,
    checkpoint: Checkpoint | None = None,
    dtype: torch.dtype = torch.float32,
    block_size: int = 4,
    num_blocks: int = 400,
    num_host_slots: int = 0,
    device: str = "cpu",
    session_len: int = 256,
    max_verified_tokens: int = 0,
    **options: Any,
) -> ModelRunner:
    """`options` are those of `read_decoder_config`."""
    checkpoint = checkpoint or Checkpoint.load(backbone.path)
    config = checkpoint.model_config
    is_tied = bool(config.tie_word_embeddings)
    decoder = ComposedDecoder.load(
        checkpoint,
        read_decoder_config(checkpoint.text_config, tied_embeddings=is_tied, session_len=session_len, **options),
        decoder_name=names_of(checkpoint),
        device=torch.device(device),
        dtype=dtype,
    )
    limits = RunnerLimits(
        max_batch_size=8,
        max_step_tokens=150,
        session_len=session_len,
        block_size=block_size,
        max_verified_tokens=max_verified_tokens,
    )
    runner = ModelRunner(decoder, limits)
    runner.allocate_cache(num_blocks=num_blocks, share=0.5, num_host_slots=num_host_slots)
    return runner


def composed(runner: ModelRunner) -> ComposedDecoder:
    """Return the decoder of a runner, whose layers can be looked at."""
    assert isinstance(runner.decoder, ComposedDecoder)
    return runner.decoder


def make_prompt(backbone: Backbone, length: int, seed: int) -> MultimodalInput:
    """Random tokens; on a multimodal backbone with three-dimensional positions as a picture makes them."""
    rng = np.random.default_rng(seed)
    positions = np.arange(length)
    if backbone.is_multimodal:
        positions = np.stack(
            [positions, positions + rng.integers(0, 9, length), positions + rng.integers(0, 5, length)]
        )
    return MultimodalInput(
        token_ids=rng.integers(3, VOCAB, length), positions=positions, next_position=int(positions.max()) + 1
    )


def begin(runner: ModelRunner, tables: Mapping[TokenSequence, Sequence[int]]) -> None:
    """Let a runner know these sequences, with their block tables."""
    runner.apply(
        StepPlan(
            begun=tuple(map(make_begun, tables)),
            added_blocks=tuple(AddedBlocks(seq.seq_id, tuple(blocks)) for seq, blocks in tables.items()),
        )
    )


class Driver:
    """Feeds sequences to a runner in rows of at most `chunk` tokens, all sequences together, blocks in mixed order."""

    def __init__(self, runner: ModelRunner, *, chunk: int = 1 << 30) -> None:
        self._runner = runner
        self._chunk = chunk
        self._free = np.random.default_rng(1).permutation(runner.num_blocks).tolist()

    def generate(
        self,
        prompts: Sequence[MultimodalInput],
        params: Sequence[SamplingParams],
        embeddings: Mapping[bytes, torch.Tensor] | None = None,
    ) -> tuple[list[list[int]], list[torch.Tensor]]:
        """Generated ids, and logits of all positions for those that ask for them."""
        sequences = {i: TokenSequence(i, prompt, p) for i, (prompt, p) in enumerate(zip(prompts, params, strict=True))}
        scaling = self._runner.decoder.traits.length_scaling
        has_states = self._runner.decoder.traits.has_states
        for sequence in sequences.values():  # as the scheduler sets it; no text here grows beyond the limit
            sequence.state_slot = self._runner.num_states - 1 - sequence.seq_id if has_states else -1
            sequence.stretch = 0.0 if scaling is None else scaling.find_stretch(sequence.num_positions)
        computed = dict.fromkeys(sequences, 0)
        begin(self._runner, dict.fromkeys(sequences.values(), ()))
        blocks: dict[int, list[int]] = {i: [] for i in sequences}
        logits: dict[int, list[torch.Tensor]] = {i: [] for i in sequences}
        while live := [s for i, s in sequences.items() if s.num_generated < params[i].max_new_tokens]:
            rows, added = [], []
            for sequence in live:
                start = computed[sequence.seq_id]
                count = min(self._chunk, sequence.num_tokens - start)
                own = blocks[sequence.seq_id]
                num_held = len(own)
                while len(own) * self._runner.block_size < start + count:
                    own.append(self._free.pop())
                added.append(AddedBlocks(sequence.seq_id, tuple(own[num_held:])))
                is_last = start + count == sequence.num_tokens
                rows.append(Row(seq_id=sequence.seq_id, start=start, num_tokens=count, samples=is_last))
                computed[sequence.seq_id] += count
            plan = StepPlan(rows=tuple(rows), added_blocks=tuple(added))
            result = self._runner.run(plan, embeddings or {})
            assert not result.errors, result.errors
            for row in result.rows:
                if row.logits is not None:
                    logits[row.seq_id].append(row.logits.values)
            for seq_id, token_ids in result.token_ids.items():
                for token_id in token_ids:
                    sequences[seq_id].append(token_id)
        self._runner.apply(StepPlan(ended_ids=tuple(sequences)))
        joined = [torch.cat(parts) if parts else torch.empty(0) for parts in logits.values()]
        return [s.generated_ids.tolist() for s in sequences.values()], joined
