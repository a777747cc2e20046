"""Tiny random checkpoints of every supported kind, written by Transformers with `save_pretrained`.

Weights are spread widely on purpose: with a small spread all outputs are alike and a wrong one would pass.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import mxfp4
import torch
import transformers
from audio_checkpoints import write_phi4_multimodal
from enrolment import SIBLING
from ernie_checkpoints import write_ernie_vl
from module_checkpoints import MODULE_CHECKPOINTS, ModuleCheckpoint
from nemotron_checkpoints import write_nemotron_omni, write_original_nemotron_omni
from ocr_checkpoints import write_deepseek_ocr, write_deepseek_ocr2
from original_layouts import name_as_internlm2
from original_text import (
    as_baichuan,
    as_baichuan2,
    as_baichuan2_13b,
    as_chatglm,
    as_deepseek,
    as_minicpm,
    as_mpt,
    as_qwen,
    publish_qwen,
)
from published_originals import write_internvl_chat, write_original_llava
from safetensors.torch import load_file, save_file
from timm_checkpoints import write_fast_vlm, write_perception_lm, write_timm_perception_lm
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    CLIPImageProcessor,
    CLIPVisionConfig,
    CohereConfig,
    CohereForCausalLM,
    DeepseekVLConfig,
    DeepseekVLForConditionalGeneration,
    DeepseekVLHybridConfig,
    DeepseekVLHybridForConditionalGeneration,
    DeepseekVLHybridImageProcessor,
    DeepseekVLHybridProcessor,
    DeepseekVLImageProcessor,
    DeepseekVLProcessor,
    FalconConfig,
    FalconForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3Config,
    Gemma3ForCausalLM,
    Gemma3ForConditionalGeneration,
    Gemma3ImageProcessor,
    Gemma3Processor,
    Gemma3TextConfig,
    GemmaConfig,
    GemmaForCausalLM,
    Glm4Config,
    Glm4ForCausalLM,
    Glm4vConfig,
    Glm4vForConditionalGeneration,
    Glm4vImageProcessor,
    Glm4vProcessor,
    Glm4vVideoProcessor,
    Glm46VConfig,
    Glm46VForConditionalGeneration,
    Glm46VImageProcessor,
    Glm46VProcessor,
    Glm46VVideoProcessor,
    GlmConfig,
    GlmForCausalLM,
    GotOcr2ImageProcessor,
    GraniteConfig,
    GraniteForCausalLM,
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    Idefics3ImageProcessor,
    Idefics3Processor,
    InternVLConfig,
    InternVLForConditionalGeneration,
    InternVLProcessor,
    InternVLVideoProcessor,
    LlamaConfig,
    LlamaForCausalLM,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaImageProcessor,
    LlavaNextConfig,
    LlavaNextForConditionalGeneration,
    LlavaNextImageProcessor,
    LlavaNextProcessor,
    LlavaOnevisionConfig,
    LlavaOnevisionForConditionalGeneration,
    LlavaOnevisionImageProcessor,
    LlavaOnevisionProcessor,
    LlavaOnevisionVideoProcessor,
    LlavaProcessor,
    Ministral3Config,
    Mistral3Config,
    Mistral3ForConditionalGeneration,
    MistralConfig,
    MistralForCausalLM,
    MptConfig,
    MptForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    OlmoConfig,
    OlmoForCausalLM,
    Ovis2Config,
    Ovis2ForConditionalGeneration,
    Ovis2ImageProcessor,
    Ovis2Processor,
    PaliGemmaConfig,
    PaliGemmaForConditionalGeneration,
    PaliGemmaProcessor,
    Phi3Config,
    Phi3ForCausalLM,
    PixtralImageProcessor,
    PixtralProcessor,
    PixtralVisionConfig,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLProcessor,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen2VLImageProcessor,
    Qwen2VLProcessor,
    Qwen2VLVideoProcessor,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLProcessor,
    Qwen3VLVideoProcessor,
    SiglipImageProcessor,
    SiglipVisionConfig,
    SmolLM3Config,
    SmolLM3ForCausalLM,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
    SmolVLMImageProcessor,
    SmolVLMProcessor,
    SmolVLMVideoProcessor,
    Starcoder2Config,
    Starcoder2ForCausalLM,
)
from ultravox_checkpoints import write_ultravox
from voxtral_checkpoints import write_voxtral

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}{{ '@image@' }}{% elif part['type'] == 'video' %}{{ '@video@' }}"
    "{% elif part['type'] == 'audio' %}{{ '@audio@' }}"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SHORT_LIMIT = 40
"""Texts of more tokens take the long factors of `LONGROPE`."""
LONGROPE: dict[str, Any] = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0 + 0.1 * i for i in range(8)],
    "long_factor": [2.0 + 0.5 * i for i in range(8)],
    "original_max_position_embeddings": SHORT_LIMIT,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}
STATISTICS = {"image_mean": [0.5, 0.45, 0.4], "image_std": [0.3, 0.28, 0.27]}
LLAVA_NEXT_RESOLUTIONS = [[12, 24], [24, 12], [24, 24], [36, 12], [12, 36]]
BOS_CHATML = "{{ bos_token }}" + CHATML
MOLMO_TEMPLATE = (
    "{{ eos_token }}{% for message in messages %}{% set content = message['content'] %}{% if content is string %}"
    "{% set text = content %}{% else %}"
    "{% set text = content | selectattr('type', 'equalto', 'text') | map(attribute='text') | join('\n') %}"
    "{% for part in content if part['type'] == 'image' %}{{ '<|image|>' }}{% endfor %}{% endif %}"
    "{% if message['role'] == 'user' %}{{ ' User: ' + text }}"
    "{% else %}{{ ' Assistant: ' + text + eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ ' Assistant:' }}{% endif %}"
)
COGVLM_TEMPLATE = (
    "{% for message in messages %}{% set content = message['content'] %}{% if content is string %}"
    "{% set text = content %}{% else %}"
    "{% set text = content | selectattr('type', 'equalto', 'text') | map(attribute='text') | join('\n') %}"
    "{% for part in content if part['type'] != 'text' %}{{ '<' + part['type'] + '>' }}{% endfor %}{% endif %}"
    "{% if message['role'] == 'user' %}{{ 'Question: ' + text + ' ' }}"
    "{% else %}{{ 'Answer: ' + text + '\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Answer:' }}{% endif %}"
)
QWEN_TEXT = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
}


HEADS: dict[str, Any] = {"num_key_value_heads": 4}
DELTA_NET: dict[str, Any] = {
    "num_hidden_layers": 3, "head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 8, "linear_value_head_dim": 12,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
}  # fmt: skip
STATE_SPACE_SIZES: dict[str, Any] = {
    "num_hidden_layers": 3, "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_n_groups": 2, "mamba_d_state": 12,
    "mamba_d_conv": 3,
}  # fmt: skip
NEMOTRON_SIZES: dict[str, Any] = {
    "mamba_num_heads": 8, "mamba_head_dim": 16, "n_groups": 2, "ssm_state_size": 12, "conv_kernel": 3, "head_dim": 16,
}  # fmt: skip
STATE_SPACE: dict[str, Any] = {
    **STATE_SPACE_SIZES, "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "shared_intermediate_size": 40,
}  # fmt: skip
DELTA_NET_EXPERTS: dict[str, Any] = {
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 40,
}  # fmt: skip
SIX_HEADS: dict[str, Any] = {"hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 6}
MPT_SIZES: dict[str, Any] = {"hidden_size": 96, "num_attention_heads": 6, "attn_config": {"clip_qkv": 4.0}}
GRANITE_FACTORS: dict[str, Any] = {
    "attention_multiplier": 0.25,
    "embedding_multiplier": 12.0,
    "logits_scaling": 4.0,
    "residual_multiplier": 1.4 / 2**0.5,
}


QWEN_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{number}|>" for number in range(205)))
"""The special tokens of the first Qwen, in their order."""


def make_tokenizer(
    template: str | None,
    *,
    has_bos: bool = False,
    more_merges: str = "",
    first: Sequence[str] = (),
    eos_token: str = "<|im_end|>",
    **special: str,
) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer with ChatML tokens and `special` ones, by the attribute name they get.

    has_bos: it puts `<s>` before every text, as the tokenizers of Llama do. more_merges: pairs, such as "a b,ab c".
    first: special tokens that have ids before all others.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {symbol: i for i, symbol in enumerate(alphabet)}
    merges = [("h", "e"), ("t", "he"), ("Ġ", "the"), ("i", "n"), ("F", "r"), ("a", "m"), ("am", "e"), ("Fr", "ame")]
    merges += [(left, right) for left, right in map(str.split, filter(None, more_merges.split(",")))]
    for left, right in merges:
        vocab[left + right] = len(vocab)
    backend = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    split = Regex(r"\p{N}|[^\r\n\p{L}\p{N}]?\p{L}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(split, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    names = {}
    backend.add_special_tokens(list(first))
    if has_bos:
        backend.add_special_tokens(["<s>"])
        bos_id = backend.token_to_id("<s>")
        backend.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", bos_id)]
        )
        names["bos_token"] = "<s>"
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token=eos_token,
        pad_token="<|endoftext|>",
        **names,
        extra_special_tokens={"im_start_token": "<|im_start|>", **special},
    )
    tokenizer.chat_template = template
    return tokenizer


def spread_weights(model: torch.nn.Module, seed: int = 0) -> None:
    """Random weights of about unit gain, norms and layer scales near 1, biases that matter."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            name = name.replace("vision_embed_tokens.", "")  # all of Phi-3-vision's tower
            if (("norm" in name or ".ln_" in name) and name.endswith("weight")) or "lambda" in name:
                parameter.copy_(1 + 0.2 * noise)
            elif parameter.dim() == 1:
                parameter.copy_(0.2 * noise)
            elif ("embed" in name and "patch" not in name) or "cls_token" in name:
                parameter.copy_(noise)
            else:
                parameter.copy_(noise * 1.2 / parameter[0].numel() ** 0.5)


def save_model(model: Any, path: Path, *, embedding_size: float = 1.0) -> None:
    """Write a model with random weights. embedding_size: of the components of token embeddings; where these are tied to
    the head and much larger than what layers add, each token is followed by itself."""
    spread_weights(model)
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(embedding_size)
    model.tie_weights()
    model.eval().save_pretrained(path)


def _text(
    config_class: Any,
    model_class: Any,
    *,
    template: str = CHATML,
    has_bos: bool = False,
    special: Sequence[str] = (),
    **extra: Any,
) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        tokenizer = make_tokenizer(template, has_bos=has_bos, first=special)
        config = config_class(
            **{"vocab_size": 288, **QWEN_TEXT, **extra}, bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
        )  # fmt: skip
        save_model(model_class(config), path)
        tokenizer.save_pretrained(path)

    return write


def _of_modules(name: str, **extra: Any) -> Callable[[Path], None]:
    """A text model for which no family is written, by the beginning of the names of its classes."""
    config_class, model_class = (getattr(transformers, f"{name}{part}") for part in ("Config", "ForCausalLM"))
    return _text(config_class, model_class, **extra)


def _internlm(path: Path) -> None:
    sibling = path / SIBLING
    _text(LlamaConfig, LlamaForCausalLM, attention_bias=True, **HEADS)(sibling)
    shutil.copytree(sibling, path, dirs_exist_ok=True)
    _make_foreign(path, "InternLM", bias=True, rotary={"base": 10000, "type": "dynamic"})


def _internlm2(path: Path) -> None:
    """As published: the configuration's class is code beside the weights. Transformers has the same model as a Llama,
    which is in the folder `SIBLING`."""
    sibling = path / SIBLING
    _text(LlamaConfig, LlamaForCausalLM, has_bos=True, attention_bias=True)(sibling)
    shutil.copytree(sibling, path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("model.safetensors"))
    _make_foreign(path, "InternLM2", bias=True, rope_scaling={"type": "dynamic", "factor": 2.0})
    state = {name.removeprefix("model."): tensor for name, tensor in load_file(sibling / "model.safetensors").items()}
    tensors = name_as_internlm2(state, QWEN_TEXT)
    save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, path / "model.safetensors")


def _internlm3(path: Path) -> None:
    sibling = path / SIBLING
    _text(LlamaConfig, LlamaForCausalLM, head_dim=24)(sibling)
    shutil.copytree(sibling, path, dirs_exist_ok=True)
    _make_foreign(path, "InternLM3", bias=False, qkv_bias=False)


def _original_text(write: Callable[[Path], None], convert: Any) -> Callable[[Path], None]:
    """Return a writer of the model that `write` writes, in the layout of its authors, with that one as its sibling."""

    def write_original(path: Path) -> None:
        sibling = path / SIBLING
        write(sibling)
        if convert in _PREPARED:
            _PREPARED[convert](sibling)
        shutil.copytree(sibling, path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("model.safetensors"))
        tiny = json.loads((sibling / "config.json").read_text())
        config, tensors = convert(tiny, load_file(sibling / "model.safetensors"))
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path / "model.safetensors")
        kind = config["model_type"]
        config["auto_map"] = {"AutoConfig": f"configuration_{kind}.Config", "AutoModel": f"modeling_{kind}.Model"}
        for code in ("configuration", "modeling"):
            (path / f"{code}_{kind}.py").write_text("raise RuntimeError('code of a checkpoint was run')\n")
        (path / "config.json").write_text(json.dumps(config))

    return write_original


def _gpt_oss_mxfp4(path: Path) -> None:
    """As published: experts in MXFP4, [experts, outputs, inputs]. The sibling has the same numbers, multiplied out."""
    sibling = path / SIBLING
    FACTORIES["gpt_oss"](sibling)
    shutil.copytree(sibling, path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("model.safetensors"))
    plain = load_file(sibling / "model.safetensors")
    packed = dict(plain)
    for name in [name for name in plain if name.endswith(("gate_up_proj", "down_proj"))]:
        found = mxfp4.quantize(packed.pop(name).transpose(1, 2))
        plain[name] = found.values.transpose(1, 2).contiguous()
        packed |= {f"{name}_blocks": found.blocks, f"{name}_scales": found.scales}
    save_file(plain, sibling / "model.safetensors", metadata={"format": "pt"})
    save_file(packed, path / "model.safetensors", metadata={"format": "pt"})
    excluded = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": excluded}
    (path / "config.json").write_text(json.dumps(config))


def _phimoe_published(path: Path) -> None:
    """As published: under another name, with LongRoPE and code beside the weights. Transformers computes all texts with
    the short factors, so both are the same here."""
    factors = {"short_factor": [1.0 + 0.1 * i for i in range(8)], "long_factor": [1.0 + 0.1 * i for i in range(8)]}
    scaling = {"type": "longrope", "short_mscale": 1.2, "long_mscale": 1.2, "original_max_position_embeddings": 64}
    FACTORIES["phimoe"](path)
    config = json.loads((path / "config.json").read_text())
    del config["rope_parameters"]
    config |= {"architectures": ["PhiMoEForCausalLM"], "rope_scaling": factors | scaling, "rope_theta": 10000.0}
    (path / "config.json").write_text(json.dumps(config))


def _qwen3_vl_moe_published(path: Path) -> None:
    """As published: experts are [experts, inputs, outputs], which Transformers does not write."""
    FACTORIES["qwen3_vl_moe"](path)
    tensors = load_file(path / "model.safetensors")
    is_turned = {name: ".mlp.experts." in name for name in tensors}
    turned = {name: t.transpose(1, 2).contiguous() if is_turned[name] else t for name, t in tensors.items()}
    save_file(turned, path / "model.safetensors", metadata={"format": "pt"})


def _without_sibling(write: Callable[[Path], None]) -> Callable[[Path], None]:
    """Return a writer of what `write` writes, for a model that has a reference of its own."""

    def write_alone(path: Path) -> None:
        write(path)
        shutil.rmtree(path / SIBLING)

    return write_alone


def _make_unit_head(path: Path) -> None:
    state = load_file(path / "model.safetensors")
    state["lm_head.weight"] = torch.nn.functional.normalize(state["lm_head.weight"])
    save_file(state, path / "model.safetensors", metadata={"format": "pt"})


def _halve_gates(path: Path) -> None:
    """Let the gates of what all tokens go through be a half."""
    state = load_file(path / "model.safetensors")
    halved = {name: tensor * 0 if "shared_expert_gate" in name else tensor for name, tensor in state.items()}
    save_file(halved, path / "model.safetensors", metadata={"format": "pt"})


_PREPARED: Mapping[Any, Callable[[Path], None]] = {as_baichuan2: _make_unit_head, as_deepseek: _halve_gates}
"""What is done to the sibling before it is converted."""


def _make_foreign(path: Path, name: str, **changes: Any) -> None:
    """Let config.json be that of a model whose code lies beside its weights."""
    config = json.loads((path / "config.json").read_text())
    for key in ("attention_bias", "mlp_bias", "rope_parameters"):
        config.pop(key)
    kind = name.lower()
    config |= {"architectures": [f"{name}ForCausalLM"], "model_type": kind, "rope_theta": 10000.0, **changes}
    config["auto_map"] = {
        "AutoConfig": f"configuration_{kind}.{name}Config",
        "AutoModelForCausalLM": f"modeling_{kind}.{name}ForCausalLM",
    }
    for code in ("configuration", "modeling"):
        (path / f"{code}_{kind}.py").write_text("raise RuntimeError('code of a checkpoint was run')\n")
    (path / "config.json").write_text(json.dumps(config))


def _qwen_parts(path: Path) -> tuple[Any, dict[str, Any], dict[str, Any], dict[str, int]]:
    template = CHATML.replace("@image@", "<|vision_start|><|image_pad|><|vision_end|>")
    template = template.replace("@video@", "<|vision_start|><|video_pad|><|vision_end|>")
    tokenizer = make_tokenizer(
        template,
        image_token="<|image_pad|>",
        video_token="<|video_pad|>",
        vision_bos_token="<|vision_start|>",
        vision_eos_token="<|vision_end|>",
    )
    sizes = {"patch_size": 4, "temporal_patch_size": 2, "merge_size": 2}
    processors = {
        "image_processor": Qwen2VLImageProcessor(size={"shortest_edge": 256, "longest_edge": 6400}, **sizes),
        "video_processor": Qwen2VLVideoProcessor(size={"shortest_edge": 128, "longest_edge": 2304}, **sizes),
        "tokenizer": tokenizer,
        "chat_template": template,
    }
    text = {
        "vocab_size": 288,
        **QWEN_TEXT,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]},
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    ids = {
        "image_token_id": tokenizer.convert_tokens_to_ids("<|image_pad|>"),
        "video_token_id": tokenizer.convert_tokens_to_ids("<|video_pad|>"),
        "vision_start_token_id": tokenizer.convert_tokens_to_ids("<|vision_start|>"),
        "vision_end_token_id": tokenizer.convert_tokens_to_ids("<|vision_end|>"),
    }
    return tokenizer, processors, text, ids


def _qwen2_vl(path: Path) -> None:
    _, processors, text, ids = _qwen_parts(path)
    vision = {
        "depth": 2, "embed_dim": 32, "hidden_size": 64, "mlp_ratio": 2, "num_heads": 2,
        "patch_size": 4, "temporal_patch_size": 2, "spatial_merge_size": 2,
    }  # fmt: skip
    config = Qwen2VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=True, **ids)
    save_model(Qwen2VLForConditionalGeneration(config), path)
    Qwen2VLProcessor(**processors).save_pretrained(path)


def _qwen2_5_vl(path: Path) -> None:
    _, processors, text, ids = _qwen_parts(path)
    vision = {
        "depth": 3, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 64,
        "patch_size": 4, "temporal_patch_size": 2, "spatial_merge_size": 2, "window_size": 16,
        "fullatt_block_indexes": [1], "tokens_per_second": 2,
    }  # fmt: skip
    config = Qwen2_5_VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=False, **ids)
    save_model(Qwen2_5_VLForConditionalGeneration(config), path)
    Qwen2_5_VLProcessor(**processors).save_pretrained(path)


def _qwen3_vl(path: Path) -> None:
    _, processors, text, ids = _qwen_parts(path)
    # As published, pictures and videos have the same statistics.
    sizes = {"patch_size": 4, "temporal_patch_size": 2, "merge_size": 2, **STATISTICS}
    processors["image_processor"] = Qwen2VLImageProcessor(size={"shortest_edge": 256, "longest_edge": 6400}, **sizes)
    processors["video_processor"] = Qwen3VLVideoProcessor(size={"shortest_edge": 256, "longest_edge": 9216}, **sizes)
    vision = {
        "depth": 4, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 64,
        "patch_size": 4, "temporal_patch_size": 2, "spatial_merge_size": 2, "num_position_embeddings": 36,
        "deepstack_visual_indexes": [0, 2],
    }  # fmt: skip
    text |= {"num_hidden_layers": 3, "head_dim": 16}
    text["rope_parameters"] |= {"mrope_section": [4, 2, 2], "mrope_interleaved": True}
    config = Qwen3VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=False, **ids)
    save_model(Qwen3VLForConditionalGeneration(config), path)
    Qwen3VLProcessor(**processors).save_pretrained(path)


def _qwen3_5(path: Path, *, kind: str = "Qwen3_5", **more: Any) -> None:
    """Delta nets around one layer of attention, and a tower without inner layers' output."""
    _, processors, text, ids = _qwen_parts(path)
    sizes = {"patch_size": 4, "temporal_patch_size": 2, "merge_size": 2, **STATISTICS}
    processors["image_processor"] = Qwen2VLImageProcessor(size={"shortest_edge": 256, "longest_edge": 6400}, **sizes)
    processors["video_processor"] = Qwen3VLVideoProcessor(size={"shortest_edge": 256, "longest_edge": 9216}, **sizes)
    vision = {
        "depth": 3, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 64,
        "patch_size": 4, "temporal_patch_size": 2, "spatial_merge_size": 2, "num_position_embeddings": 36,
    }  # fmt: skip
    text |= {**DELTA_NET, **more}
    text["rope_parameters"] |= {
        "mrope_section": [2, 1, 1], "mrope_interleaved": True, "partial_rotary_factor": 0.5,
    }  # fmt: skip
    config = getattr(transformers, f"{kind}Config")(
        text_config=text, vision_config=vision, tie_word_embeddings=False, **ids
    )
    save_model(getattr(transformers, f"{kind}ForConditionalGeneration")(config), path)
    Qwen3VLProcessor(**processors).save_pretrained(path)


def _glm4v(path: Path) -> None:
    _write_glm4v(
        path, Glm4vConfig, Glm4vForConditionalGeneration, Glm4vImageProcessor, Glm4vVideoProcessor, Glm4vProcessor
    )


def _glm46v(path: Path) -> None:
    """With biases in the tower's attention."""
    _write_glm4v(
        path, Glm46VConfig, Glm46VForConditionalGeneration, Glm46VImageProcessor, Glm46VVideoProcessor, Glm46VProcessor,
        attention_bias=True,
    )  # fmt: skip


def _write_glm4v(
    path: Path,
    config_class: Any,
    model_class: Any,
    image_processor: Any,
    video_processor: Any,
    processor: Any,
    *,
    attention_bias: bool = False,
) -> None:
    """The tower's table of positions has 5 x 5 of them: frames are smaller and larger."""
    template = CHATML.replace("@image@", "<|begin_of_image|><|image|><|end_of_image|>")
    template = template.replace("@video@", "<|begin_of_video|><|video|><|end_of_video|>")
    tokenizer = make_tokenizer(
        template, image_token="<|image|>", video_token="<|video|>", image_start_token="<|begin_of_image|>",
        image_end_token="<|end_of_image|>", video_start_token="<|begin_of_video|>", video_end_token="<|end_of_video|>",
    )  # fmt: skip
    text = {
        "vocab_size": 288, **QWEN_TEXT, "bos_token_id": None, "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1],
        },
    }  # fmt: skip
    vision = {
        "depth": 3, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 64, "image_size": 20,
        "patch_size": 4, "temporal_patch_size": 2, "spatial_merge_size": 2, "attention_bias": attention_bias,
    }  # fmt: skip
    names = (f"{kind}_{end}token" for kind in ("image", "video") for end in ("", "start_", "end_"))
    ids = {f"{name}_id": getattr(tokenizer, f"{name}_id") for name in names}
    config = config_class(text_config=text, vision_config=vision, tie_word_embeddings=False, **ids)
    save_model(model_class(config), path)
    sizes = {"patch_size": 4, "temporal_patch_size": 2, "merge_size": 2, **STATISTICS}
    processor(
        image_processor=image_processor(size={"shortest_edge": 512, "longest_edge": 12800}, **sizes),
        video_processor=video_processor(size={"shortest_edge": 256, "longest_edge": 9216}, **sizes),
        tokenizer=tokenizer, chat_template=template,
    ).save_pretrained(path)  # fmt: skip


LLAMA4: dict[str, Any] = {
    "num_local_experts": 4, "intermediate_size_mlp": 80, "interleave_moe_layer_step": 2, "head_dim": 16,
    "no_rope_layer_interval": 3, "attention_chunk_size": 24, "floor_scale": 16, "attn_scale": 0.3,
    "num_hidden_layers": 4, "rope_parameters": LLAMA3_ROPE,
}  # fmt: skip


def _llama4(path: Path) -> None:
    """Tiles of 4 x 4 patches, of which squares of four are one row. Chunks end within pictures."""
    template = CHATML.replace("@image@", "<|image|>")
    special = ("image_start", "image_end", "patch", "tile_x_separator", "tile_y_separator", "image")
    tokenizer = make_tokenizer(template, has_bos=True, **{f"{name}_token": f"<|{name}|>" for name in special})
    vision = {
        "hidden_size": 32, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2,
        "image_size": 16, "patch_size": 4, "projector_input_dim": 24, "projector_output_dim": 24,
        "vision_output_dim": 24, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    }  # fmt: skip
    text = {
        "vocab_size": 288, **QWEN_TEXT, **LLAMA4, "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id,
    }  # fmt: skip
    ids = {
        f"{short}_token_index": tokenizer.convert_tokens_to_ids(f"<|{name}|>")
        for short, name in (("boi", "image_start"), ("eoi", "image_end"), ("image", "patch"))
    }
    config = transformers.Llama4Config(text_config=text, vision_config=vision, **ids)
    save_model(transformers.Llama4ForConditionalGeneration(config), path)
    transformers.Llama4Processor(
        image_processor=transformers.Llama4ImageProcessor(size={"height": 16, "width": 16}, max_patches=6),
        tokenizer=tokenizer, patch_size=4, pixel_shuffle_ratio=0.5, chat_template=template,
    ).save_pretrained(path)  # fmt: skip


def _mllama(path: Path) -> None:
    """Tiles of 4 x 4 patches. As published, the token of a picture has no logits, and the template writes the first
    token."""
    template = "{{ bos_token }}" + CHATML.replace("@image@", "<|image|>")
    tokenizer = make_tokenizer(template, has_bos=True, image_token="<|image|>")
    image_token = tokenizer.convert_tokens_to_ids("<|image|>")
    assert image_token == len(tokenizer) - 1
    text = {
        **QWEN_TEXT, "vocab_size": image_token, "num_hidden_layers": 5, "cross_attention_layers": [1, 3],
        "bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }  # fmt: skip
    vision = {
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4, "num_global_layers": 2,
        "attention_heads": 2, "vision_output_dim": 96, "image_size": 16, "patch_size": 4,
        "intermediate_layers_indices": [1, 3],
    }  # fmt: skip
    config = transformers.MllamaConfig(text_config=text, vision_config=vision, image_token_index=image_token)
    save_model(transformers.MllamaForConditionalGeneration(config), path)
    transformers.MllamaProcessor(
        image_processor=transformers.MllamaImageProcessor(size={"height": 16, "width": 16}, max_image_tiles=4),
        tokenizer=tokenizer, chat_template=template,
    ).save_pretrained(path)  # fmt: skip


def _llava(path: Path, *, pads: bool = False) -> None:
    template = CHATML.replace("@image@", "<image>\n")  # as published: the tokenizer alone adds `<s>`
    tokenizer = make_tokenizer(template, has_bos=True, image_token="<image>")
    vision = CLIPVisionConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=2, image_size=20, patch_size=4
    )
    text = LlamaConfig(
        vocab_size=288,
        **QWEN_TEXT,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    config = LlavaConfig(
        vision_config=vision, text_config=text, image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        image_seq_length=25, vision_feature_layer=-2, vision_feature_select_strategy="default",
    )  # fmt: skip
    save_model(LlavaForConditionalGeneration(config), path)
    sizes = {"size": {"shortest_edge": 20}, "crop_size": {"height": 20, "width": 20}}
    LlavaProcessor(
        image_processor=LlavaImageProcessor(do_pad=True, **sizes) if pads else CLIPImageProcessor(**sizes),
        tokenizer=tokenizer, patch_size=4, vision_feature_select_strategy="default", num_additional_image_tokens=1,
        chat_template=template,
    ).save_pretrained(path)  # fmt: skip


def _llava_next(text_class: Any, *, has_bos: bool = True, **extra: Any) -> Callable[[Path], None]:
    """Tiles of 12 pixels, 3 x 3 rows each: an odd number, so that padding is odd and even."""

    def write(path: Path) -> None:
        template = CHATML.replace("@image@", "<image>\n")
        tokenizer = make_tokenizer(template, has_bos=has_bos, image_token="<image>")
        vision = CLIPVisionConfig(
            hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=2, image_size=12,
            patch_size=4,
        )  # fmt: skip
        text = text_class(
            vocab_size=288,
            **QWEN_TEXT,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            **extra,
        )
        config = LlavaNextConfig(
            vision_config=vision, text_config=text, image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
            image_seq_length=9, image_grid_pinpoints=LLAVA_NEXT_RESOLUTIONS,
        )  # fmt: skip
        save_model(LlavaNextForConditionalGeneration(config), path)
        LlavaNextProcessor(
            image_processor=LlavaNextImageProcessor(
                size={"shortest_edge": 12},
                crop_size={"height": 12, "width": 12},
                image_grid_pinpoints=LLAVA_NEXT_RESOLUTIONS,
            ),
            tokenizer=tokenizer, patch_size=4, vision_feature_select_strategy="default", num_additional_image_tokens=1,
            chat_template=template,
        ).save_pretrained(path)  # fmt: skip

    return write


def _gemma3_vision(path: Path) -> None:
    """Pictures of 6 x 6 patches, of which squares of four are one row. Two or three line breaks are one token."""
    template = CHATML.replace("@image@", "<start_of_image>")
    tokenizer = make_tokenizer(
        template, has_bos=True, more_merges="Ċ Ċ,ĊĊ Ċ", boi_token="<start_of_image>",
        eoi_token="<end_of_image>", image_token="<image_soft_token>",
    )  # fmt: skip
    text = Gemma3TextConfig(
        vocab_size=288, **QWEN_TEXT, bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id, head_dim=16, sliding_window=12, sliding_window_pattern=2,
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1_000_000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        },
    )  # fmt: skip
    vision = SiglipVisionConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, image_size=24, patch_size=4,
        vision_use_head=False,
    )  # fmt: skip
    ids = {f"{name}_token_index": tokenizer.convert_tokens_to_ids(tokenizer.special_tokens_map[f"{name}_token"])
           for name in ("boi", "eoi", "image")}  # fmt: skip
    config = Gemma3Config(vision_config=vision, text_config=text, mm_tokens_per_image=9, **ids)
    save_model(Gemma3ForConditionalGeneration(config), path, embedding_size=0.05)
    Gemma3Processor(
        image_processor=Gemma3ImageProcessor(size={"height": 24, "width": 24}, pan_and_scan_min_crop_size=10),
        tokenizer=tokenizer, image_seq_length=9, chat_template=template,
    ).save_pretrained(path)  # fmt: skip


def _paligemma(path: Path, *, text_config: Any = Gemma2Config, **text: Any) -> None:
    """Pictures of 5 x 5 patches, more than the sliding window. The processor adds tokens for places and shapes."""
    template = CHATML.replace("@image@", "<image>")
    tokenizer = make_tokenizer(template, has_bos=True, image_token="<image>")
    processor = PaliGemmaProcessor(
        image_processor=SiglipImageProcessor(size={"height": 20, "width": 20}, image_seq_length=25, **STATISTICS),
        tokenizer=tokenizer, chat_template=template,
    )  # fmt: skip
    vision = SiglipVisionConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, image_size=20, patch_size=4,
        vision_use_head=False,
    )  # fmt: skip
    decoder = text_config(
        **{**QWEN_TEXT, "vocab_size": len(tokenizer), "head_dim": 16, **text}, bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    config = PaliGemmaConfig(
        vision_config=vision, text_config=decoder, projection_dim=QWEN_TEXT["hidden_size"],
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
    )  # fmt: skip
    save_model(PaliGemmaForConditionalGeneration(config), path, embedding_size=0.05)
    processor.save_pretrained(path)


def _pixtral_parts(patch_size: int, merge_size: int) -> tuple[Any, Any, dict[str, Any]]:
    """A processor for pictures of at most 152 pixels, an odd number of rows, the text's configuration, and the
    tower's."""
    template = CHATML.replace("@image@", "[IMG]")
    tokenizer = make_tokenizer(
        template, image_token="[IMG]", image_break_token="[IMG_BREAK]", image_end_token="[IMG_END]"
    )
    size, patch = {"longest_edge": 152}, {"height": patch_size, "width": patch_size}
    processor = PixtralProcessor(
        image_processor=PixtralImageProcessor(size=size, patch_size=patch), tokenizer=tokenizer, patch_size=patch_size,
        spatial_merge_size=merge_size, chat_template=template,
    )  # fmt: skip
    text = MistralConfig(
        vocab_size=288, **QWEN_TEXT, bos_token_id=None, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id, head_dim=24, sliding_window=None,
    )  # fmt: skip
    vision = {
        "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2, "patch_size": patch_size,
        "image_size": 152,
    }  # fmt: skip
    return processor, text, vision


def _pixtral(path: Path) -> None:
    processor, text, vision = _pixtral_parts(8, 1)
    config = LlavaConfig(
        vision_config=PixtralVisionConfig(num_hidden_layers=2, hidden_act="silu", **vision), text_config=text,
        image_token_index=processor.image_token_id, image_seq_length=1, vision_feature_layer=-1,
        vision_feature_select_strategy="full",
    )  # fmt: skip
    save_model(LlavaForConditionalGeneration(config), path)
    processor.save_pretrained(path)


def _mistral3(path: Path) -> None:
    processor, text, vision = _pixtral_parts(4, 2)
    config = Mistral3Config(
        vision_config=PixtralVisionConfig(num_hidden_layers=3, hidden_act="gelu", **vision), text_config=text,
        image_token_index=processor.image_token_id, vision_feature_layer=-2, spatial_merge_size=2,
        tie_word_embeddings=False,
    )  # fmt: skip
    save_model(Mistral3ForConditionalGeneration(config), path)
    processor.save_pretrained(path)


def _ministral3(path: Path) -> None:
    """Queries grow with the place, from 32 on; yarn."""
    processor, text, vision = _pixtral_parts(4, 2)
    sizes = {name: value for name, value in text.to_dict().items() if name in (*QWEN_TEXT, "vocab_size", "head_dim")}
    rotary = {
        "rope_type": "yarn", "rope_theta": 10_000.0, "factor": 16.0, "original_max_position_embeddings": 32,
        "max_position_embeddings": 512, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.5,
    }  # fmt: skip
    decoder = Ministral3Config(
        **{**sizes, "max_position_embeddings": 512}, rope_parameters=rotary, bos_token_id=None,
        eos_token_id=text.eos_token_id, pad_token_id=text.pad_token_id,
    )  # fmt: skip
    config = Mistral3Config(
        vision_config=PixtralVisionConfig(num_hidden_layers=3, hidden_act="gelu", **vision), text_config=decoder,
        image_token_index=processor.image_token_id, vision_feature_layer=-1, spatial_merge_size=2,
        tie_word_embeddings=False,
    )  # fmt: skip
    save_model(Mistral3ForConditionalGeneration(config), path)
    processor.save_pretrained(path)


def _siglip(image_size: int, **more: Any) -> Any:
    return SiglipVisionConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, image_size=image_size,
        patch_size=4, vision_use_head=False, **more,
    )  # fmt: skip


def _qwen_text(tokenizer: Any) -> Any:
    return Qwen2Config(
        vocab_size=288,
        **QWEN_TEXT,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def _llava_interleave(path: Path) -> None:
    template = CHATML.replace("@image@", "<image>")
    tokenizer = make_tokenizer(template, image_token="<image>")
    config = LlavaConfig(
        vision_config=_siglip(14), text_config=_qwen_text(tokenizer), vision_feature_layer=-1,
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"), image_seq_length=9,
        vision_feature_select_strategy="full",
    )  # fmt: skip
    save_model(LlavaForConditionalGeneration(config), path)
    LlavaProcessor(
        image_processor=SiglipImageProcessor(size={"height": 14, "width": 14}), tokenizer=tokenizer, patch_size=4,
        vision_feature_select_strategy="full", num_additional_image_tokens=0, chat_template=template,
    ).save_pretrained(path)  # fmt: skip


def _deepseek_vl(path: Path, *, is_hybrid: bool = False, **vision: Any) -> None:
    """Pictures of 5 x 5 patches, the thinnest of which are 3 pixels; for the SAM of 9 x 9, in windows of 4, the last of
    which are padded."""
    template = CHATML.replace("@image@", "<image_placeholder>")
    tokenizer = make_tokenizer(template, has_bos=True, image_token="<image_placeholder>")
    text = LlamaConfig(
        vocab_size=288, **QWEN_TEXT, bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    own: dict[str, Any] = {
        "vision_config": _siglip(20, **vision), "text_config": text, "tie_word_embeddings": False,
        "image_token_id": tokenizer.convert_tokens_to_ids("<image_placeholder>"),
    }  # fmt: skip
    if is_hybrid:
        high = {
            "model_type": "sam_vision_model", "hidden_size": 32, "mlp_dim": 48, "num_hidden_layers": 3,
            "num_attention_heads": 2, "image_size": 36, "patch_size": 4, "window_size": 4, "output_channels": 12,
            "global_attn_indexes": [1],
        }  # fmt: skip
        model = DeepseekVLHybridForConditionalGeneration(DeepseekVLHybridConfig(high_res_vision_config=high, **own))
        save_model(model, path)
        statistics = {"high_res_image_mean": [0.48, 0.46, 0.41], "high_res_image_std": [0.27, 0.26, 0.28]}
        DeepseekVLHybridProcessor(
            image_processor=DeepseekVLHybridImageProcessor(
                size={"height": 20, "width": 20}, high_res_size={"height": 36, "width": 36}, min_size=3, resample=2,
                **STATISTICS, **statistics,
            ),
            tokenizer=tokenizer, num_image_tokens=25, chat_template=template,
        ).save_pretrained(path)  # fmt: skip
        return
    save_model(DeepseekVLForConditionalGeneration(DeepseekVLConfig(**own)), path)
    DeepseekVLProcessor(
        image_processor=DeepseekVLImageProcessor(size={"height": 20, "width": 20}, min_size=3, **STATISTICS),
        tokenizer=tokenizer, num_image_tokens=25, chat_template=template,
    ).save_pretrained(path)  # fmt: skip


def _deepseek_vl_original(path: Path, *, is_hybrid: bool = False) -> None:
    from vl.published_checkpoints import write_deepseek_vl

    write_deepseek_vl(path, is_hybrid=is_hybrid)


def _ovis2_original(path: Path) -> None:
    from vl.published_checkpoints import write_ovis2

    write_ovis2(path)


def _mini_gemini(**changes: Any) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        from vl.published_checkpoints import write_mini_gemini

        write_mini_gemini(path, **changes)

    return write


def _mono_internvl(path: Path) -> None:
    from vl.published_checkpoints import write_mono_internvl

    write_mono_internvl(path)


def _llava_onevision(
    path: Path, image_mean: Sequence[float] = (0.5, 0.45, 0.4), image_std: Sequence[float] = (0.3, 0.28, 0.27)
) -> None:
    """Tiles of 14 pixels, of which the tower sees 12 (as it sees 378 of 384), and pictures of which lines shrink."""
    template = CHATML.replace("@image@", "<image>").replace("@video@", "<video>")
    tokenizer = make_tokenizer(template, image_token="<image>", video_token="<video>")
    resolutions = [[14 * rows, 14 * columns] for rows in range(1, 4) for columns in range(1, 4)]
    config = LlavaOnevisionConfig(
        vision_config=_siglip(14), text_config=_qwen_text(tokenizer), image_grid_pinpoints=resolutions,
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        video_token_index=tokenizer.convert_tokens_to_ids("<video>"), vision_aspect_ratio="anyres_max_4",
    )  # fmt: skip
    save_model(LlavaOnevisionForConditionalGeneration(config), path)
    size = {"height": 14, "width": 14}
    statistics = {"image_mean": list(image_mean), "image_std": list(image_std)}
    LlavaOnevisionProcessor(
        image_processor=LlavaOnevisionImageProcessor(size=size, image_grid_pinpoints=resolutions, **statistics),
        video_processor=LlavaOnevisionVideoProcessor(size=size, **statistics), tokenizer=tokenizer, num_image_tokens=9,
        vision_feature_select_strategy="full", vision_aspect_ratio="anyres_max_4", chat_template=template,
    ).save_pretrained(path)  # fmt: skip


def _ovis2(
    path: Path,
    *,
    tokenize: str = "softmax",
    covers: bool = True,
    template: str = CHATML.replace("@image@", "<image>\n"),
    **settings: Any,
) -> None:
    """Tiles of 6 x 6 patches, of which squares of four are one row."""
    names = ("atom", "start", "grid", "col", "row", "end")
    tags: dict[str, Any] = {f"{name}_token": f"<IMG_{name.upper()}>" for name in names}
    tokenizer = make_tokenizer(template, **tags)
    first = tokenizer.convert_tokens_to_ids("<IMG_ATOM>")
    vision = {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 24,
        "patch_size": 4, "vocab_size": 45, "hidden_stride": 2, "tokenize_function": tokenize,
    }  # fmt: skip
    config = Ovis2Config(
        vision_config=vision, text_config=_qwen_text(tokenizer), image_token_id=first, hidden_size=64, vocab_size=288,
        visual_indicator_token_ids=[tokenizer.convert_tokens_to_ids(f"<IMG_{name.upper()}>") for name in names[1:]],
        tie_word_embeddings=False,
    )  # fmt: skip
    save_model(Ovis2ForConditionalGeneration(config), path)
    Ovis2Processor(
        image_processor=Ovis2ImageProcessor(
            size={"height": 24, "width": 24}, crop_to_patches=True, use_covering_area_grid=covers,
            **{"max_patches": 6, **STATISTICS, **settings},
        ),
        tokenizer=tokenizer, image_seq_length=9, chat_template=template,
    ).save_pretrained(path)  # fmt: skip


def _internvl(
    path: Path,
    *,
    text_class: Any = Qwen2Config,
    text: Any = MappingProxyType({}),
    vision: dict[str, Any] | None = None,
    **statistics: Any,
) -> None:
    # InternVL with InternLM2: tokenizer and template both write `<s>`.
    template = BOS_CHATML.replace("@image@", "<IMG_CONTEXT>\n").replace("@video@", "<video>\n")
    tokenizer = make_tokenizer(
        template,
        has_bos=True,
        start_image_token="<img>",
        end_image_token="</img>",
        context_image_token="<IMG_CONTEXT>",
        video_token="<video>",
    )
    vision = {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
        "attention_bias": True, "image_size": [16, 16], "patch_size": [4, 4], **(vision or {}),
    }  # fmt: skip
    decoder = text_class(
        **{"vocab_size": 288, **QWEN_TEXT, **text}, bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    config = InternVLConfig(
        vision_config=vision, text_config=decoder, image_token_id=tokenizer.convert_tokens_to_ids("<IMG_CONTEXT>"),
        image_seq_length=4, tie_word_embeddings=False,
    )  # fmt: skip
    save_model(InternVLForConditionalGeneration(config), path)
    size = {"height": 16, "width": 16}
    InternVLProcessor(
        image_processor=GotOcr2ImageProcessor(size=size, min_patches=1, max_patches=6, **statistics),
        video_processor=InternVLVideoProcessor(size=size, **statistics), tokenizer=tokenizer, image_seq_length=4,
        chat_template=template,
    ).save_pretrained(path)  # fmt: skip


def _internvl_chat(text_class: Any, **vision: Any) -> Callable[[Path], None]:
    """As its authors publish it, which is the same model with the statistics of ImageNet."""

    def write(path: Path) -> None:
        statistics = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
        _internvl(path / SIBLING, text_class=text_class, vision=vision, **statistics)
        write_internvl_chat(path, is_internlm2=text_class is LlamaConfig)

    return write


def _original_llava(write_sibling: Callable[..., None], name: str, **options: Any) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        write_sibling(path / SIBLING, **options)
        write_original_llava(path, name)

    return write


def _minicpmv4_6(path: Path, *, mode: str = "16x") -> None:
    """Windows that are merged behind the second of three layers, or, with `mode` "4x", not."""
    names = ("image", "slice", "image_id")
    tags: dict[str, Any] = {
        f"{name}_{end}_token": f"<{slash}{name}>" for name in names for end, slash in (("start", ""), ("end", "/"))
    }
    tokenizer = make_tokenizer(
        CHATML.replace("@image@", "<|image_pad|>\n"), image_token="<|image_pad|>", video_token="<|video_pad|>", **tags
    )
    text = {
        "vocab_size": 288, **QWEN_TEXT, **DELTA_NET, "eos_token_id": tokenizer.eos_token_id, "bos_token_id": None,
        "pad_token_id": tokenizer.pad_token_id,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1], "mrope_interleaved": True,
            "partial_rotary_factor": 0.5,
        },
    }  # fmt: skip
    vision = {
        "hidden_size": 32, "image_size": 28, "intermediate_size": 48, "num_attention_heads": 2, "num_hidden_layers": 3,
        "patch_size": 4,
    }  # fmt: skip
    config = transformers.MiniCPMV4_6Config(
        text_config={"model_type": "qwen3_5_text", **text}, vision_config=vision, insert_layer_id=1,
        image_token_id=tokenizer.convert_tokens_to_ids("<|image_pad|>"), downsample_mode=mode,
        video_token_id=tokenizer.convert_tokens_to_ids("<|video_pad|>"), tie_word_embeddings=False,
    )  # fmt: skip
    save_model(transformers.MiniCPMV4_6ForConditionalGeneration(config), path)
    sizes = {"max_slice_nums": 6, "scale_resolution": 32, "patch_size": 4, "downsample_mode": mode, **STATISTICS}
    transformers.MiniCPMV4_6Processor(
        image_processor=transformers.MiniCPMV4_6ImageProcessor(**sizes),
        video_processor=transformers.MiniCPMV4_6VideoProcessor(**sizes),
        tokenizer=tokenizer, chat_template=tokenizer.chat_template,
    ).save_pretrained(path)  # fmt: skip


def _minicpmv(version: float, *, has_bos: bool = False, **extra: Any) -> Callable[[Path], None]:
    """As published, with a resampler of two heads, each of which has 128 components."""

    def write(path: Path) -> None:
        from reference.minicpmv import MiniCPMV

        template = (BOS_CHATML if has_bos else CHATML).replace("@image@", "<image>./</image>\n")
        template = template.replace("@video@", "<video>./</video>\n")
        names = ("image", "slice", "image_id")
        tags: dict[str, Any] = {
            f"{name}_{end}": f"<{slash}{name}>" for name in names for end, slash in (("start", ""), ("end", "/"))
        }
        tokenizer = make_tokenizer(template, has_bos=has_bos, unk_tag="<unk>", **tags)
        config = {
            "architectures": ["MiniCPMV"], "model_type": "minicpmv", "version": version, "vocab_size": 288,
            **QWEN_TEXT, "hidden_size": 256, "query_num": 3, "drop_vision_last_layer": False, "torch_dtype": "float32",
            "rms_norm_eps": 1e-6, "hidden_act": "silu", "rope_theta": 10000.0, "tie_word_embeddings": False,
            "eos_token_id": tokenizer.eos_token_id, "bos_token_id": tokenizer.bos_token_id,
            "slice_config": {"max_slice_nums": 9, "model_type": "minicpmv"},
            "vision_config": {
                "hidden_size": 32, "image_size": 28, "intermediate_size": 48, "model_type": "siglip",
                "num_attention_heads": 2, "num_hidden_layers": 2, "patch_size": 4,
            },
            **extra,
        }  # fmt: skip
        settings = {
            "image_processor_type": "MiniCPMVImageProcessor", "max_slice_nums": 6, "scale_resolution": 16,
            "patch_size": 4, "use_image_id": version > 2.5, "image_feature_size": 3, "slice_mode": True, "resample": 3,
            "image_mean": [0.5, 0.45, 0.4], "image_std": [0.3, 0.28, 0.27], "version": version,
        }  # fmt: skip
        save_reference(path, MiniCPMV(config), config, settings, tokenizer, "minicpm")

    return write


def _phi3_v(path: Path) -> None:
    from reference.phi3_v import Phi3V

    tokenizer = make_tokenizer(CHATML.replace("@image@", "<|image_1|>\n"), has_bos=True, image_token="<|image|>")
    config = {
        "architectures": ["Phi3VForCausalLM"], "model_type": "phi3_v", "vocab_size": 288, **QWEN_TEXT,
        "embd_layer": {
            "embedding_cls": "image", "hd_transform_order": "sub_glb", "projection_cls": "mlp",
            "use_hd_transform": True, "with_learnable_separator": True,
        },
        "img_processor": {"image_dim_out": 32, "model_name": "tiny", "name": "clip_vision_model", "num_img_tokens": 4},
        "vision_config": {
            "hidden_size": 32, "image_size": 16, "intermediate_size": 48, "num_attention_heads": 2,
            "num_hidden_layers": 3, "patch_size": 4,
        },
        "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "sliding_window": 2048,
        "original_max_position_embeddings": 1024, "tie_word_embeddings": False, "torch_dtype": "float32",
        "rope_scaling": {
            "type": "su", "short_factor": LONGROPE["short_factor"], "long_factor": LONGROPE["long_factor"],
        },
        "bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }  # fmt: skip
    settings = {
        "image_processor_type": "Phi3VImageProcessor", "image_mean": [0.48, 0.46, 0.41], "resample": 2,
        "image_std": [0.27, 0.26, 0.28], "num_crops": 16, "num_img_tokens": 4,
    }  # fmt: skip
    save_reference(path, Phi3V(config), config, settings, tokenizer, "phi3_v")


def _qwen_vl(path: Path) -> None:
    """A grid of 7² patches, for which the positions of 16² and the queries' of 3² are scaled; two heads of 128 in the
    resampler."""
    from reference.qwen_vl import QwenVL

    tags = ("<ref>", "</ref>", "<box>", "</box>", "<quad>", "</quad>", "<img>", "</img>", "<imgpad>")
    tokenizer = make_tokenizer(CHATML.replace("@image@", "<img></img>"), first=(*QWEN_SPECIAL, *tags))
    visual = {
        "heads": 2, "image_size": 28, "image_start_id": tokenizer.convert_tokens_to_ids("<img>"), "layers": 2,
        "mlp_ratio": 1.93, "n_queries": 9, "output_dim": 256, "patch_size": 4, "width": 32,
    }  # fmt: skip
    sizes = {**QWEN_TEXT, "hidden_size": 256, "vocab_size": 488, "rms_norm_eps": 1e-6}
    config = publish_qwen(sizes, visual=visual, torch_dtype="float32")
    settings = {
        "image_processor_type": "QwenVLImageProcessor", "resample": 3,
        "image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711],
    }  # fmt: skip
    save_reference(path, QwenVL(config), config, settings, tokenizer, "qwen")


def _chatglm_4v(path: Path) -> None:
    """As published, with a class token of its own axis. Rows of pictures have one position."""
    from reference.chatglm_4v import Glm4V

    template = CHATML.replace("@image@", "<|begin_of_image|><|endoftext|><|end_of_image|>")
    tokenizer = make_tokenizer(
        template, image_start_token="<|begin_of_image|>", image_end_token="<|end_of_image|>"
    )  # fmt: skip
    text = {
        **QWEN_TEXT,
        "head_dim": 16,
        "rms_norm_eps": 1.5e-7,
        "vocab_size": 288,
        "eos_token_id": tokenizer.eos_token_id,
    }
    config, _ = as_chatglm(text, {})
    config |= {
        "boi_token_id": tokenizer.image_start_token_id, "eoi_token_id": tokenizer.image_end_token_id,
        "pad_token_id": tokenizer.pad_token_id, "torch_dtype": "float32",
        "vision_config": {
            "dropout_prob": 0.0, "hidden_act": "gelu", "hidden_size": 32, "image_size": 24, "in_channels": 3,
            "intermediate_size": 48, "layer_norm_eps": 1e-6, "num_heads": 2, "num_hidden_layers": 2,
            "num_positions": 37, "patch_size": 4, "scaling_factor": 2,
        },
    }  # fmt: skip
    settings = {"image_mean": [0.5, 0.45, 0.4], "image_std": [0.3, 0.28, 0.27], "resample": 3}
    save_reference(path, Glm4V(config), config, settings, tokenizer, "chatglm")


def _cogvlm(
    model: str = "CogVlm", *, tower: Mapping[str, int] = MappingProxyType({}), resample: int = 3, **changes: Any
) -> Callable[[Path], None]:
    """As published: the tokens of pictures are padding. model: of `reference.cogvlm`."""

    def write(path: Path) -> None:
        from reference import cogvlm

        tokenizer = make_tokenizer(COGVLM_TEMPLATE, has_bos=True)
        text = {name: value for name, value in QWEN_TEXT.items() if name != "num_key_value_heads"}
        config = {
            "architectures": ["CogVLMForCausalLM"], **text, "vocab_size": 288, "hidden_act": "silu",
            "rms_norm_eps": 1e-5, "template_version": "chat", "tie_word_embeddings": False, "torch_dtype": "float32",
            "initializer_range": 0.02, "use_cache": True, "bos_token_id": tokenizer.bos_token_id,
            "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id,
            "vision_config": {
                "dropout_prob": 0.0, "hidden_act": "gelu", "hidden_size": 32, "image_size": 12, "in_channels": 3,
                "intermediate_size": 48, "layer_norm_eps": 1e-6, "num_heads": 2, "num_hidden_layers": 2,
                "num_positions": 10, "patch_size": 4, **tower,
            },
            **changes,
        }  # fmt: skip
        settings = {
            "image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711],
            "resample": resample,
        }  # fmt: skip
        save_reference(path, getattr(cogvlm, model)(config), config, settings, tokenizer, "cogvlm")

    return write


def _molmo(**changes: Any) -> Callable[[Path], None]:
    """With crops of 24 pixels, which overlap by 16, and nine rows of each. The tokens of pictures are those behind the
    vocabulary, as published; the template is the one that the published processor has in its code."""

    def write(path: Path) -> None:
        from reference.molmo import PARTS, Molmo

        fillers: dict[str, Any] = {f"filler_{number}": f"|<EXTRA_TOKENS_{number}>|" for number in range(65)}
        size = len(make_tokenizer(None, **fillers))
        tokens: dict[str, Any] = {f"part_{number}": token for number, token in enumerate(PARTS)}
        tokenizer = make_tokenizer(MOLMO_TEMPLATE, eos_token="<|endoftext|>", **fillers, **tokens)
        config = {
            "architectures": ["MolmoForCausalLM"], "model_type": "molmo", "attention_layer_norm": False,
            "clip_qkv": None, "initializer_range": 0.02, "layer_norm_eps": 1e-6, "layer_norm_type": "rms",
            "norm_after": False, "qkv_bias": True, "rope_theta": 10000.0, "tie_word_embeddings": False,
            "torch_dtype": "float32", "use_cache": True, "use_position_ids": True, "weight_tying": False,
            **QWEN_TEXT, "intermediate_size": 192, "embedding_size": size, "vocab_size": size,
            "eos_token_id": tokenizer.eos_token_id,
            "vision_config": {
                "hidden_size": 32, "image_size": 24, "intermediate_size": 48, "num_attention_heads": 2,
                "num_hidden_layers": 9, "patch_size": 4,
            },
            **changes,
        }  # fmt: skip
        settings = {
            "image_processor_type": "MolmoImageProcessor", "base_image_input_size": [24, 24], "do_normalize": True,
            "image_mean": [0.48, 0.46, 0.41], "image_std": [0.27, 0.26, 0.28], "image_padding_mask": True,
            "image_patch_size": 4, "image_token_length_h": 3, "image_token_length_w": 3, "max_crops": 6,
            "overlap_margins": [2, 2], "resample": 2,
        }  # fmt: skip
        small = {"backbone.image_projector.w2.weight": 1 / 40}  # else rows are much larger than embeddings of tokens
        save_reference(path, Molmo(config), config, settings, tokenizer, "molmo", factors=small)

    return write


def _xcomposer2(
    *, side: int, ranks: tuple[int, int], is_tiled: bool = True, tiles: int = 6, **extra: Any
) -> Callable[[Path], None]:
    """As published, with a `vision_config`, whose values are constants in the published code."""

    def write(path: Path) -> None:
        from reference.xcomposer2 import XComposer2

        tokenizer = make_tokenizer(CHATML.replace("@image@", "<ImageHere>"), has_bos=True)
        config = {
            "architectures": ["InternLMXComposer2ForCausalLM"], "model_type": "internlm2", "bias": False,
            "attn_implementation": "flash_attention_2", "hidden_act": "silu", "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0, "rope_scaling": None, "tie_word_embeddings": False, "torch_dtype": "float32",
            "max_length": 16384, "vocab_size": 288, **QWEN_TEXT,
            "bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
            "vision_config": {
                "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2, "num_hidden_layers": 2,
                "patch_size": 4,
            },
            **extra,
        }  # fmt: skip
        settings = {
            "image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711],
            "resample": 2 if is_tiled else 3, **({"hd_num": tiles} if is_tiled else {}),
        }  # fmt: skip
        model = XComposer2(config, is_tiled=is_tiled, ranks=ranks, tile=4 * side)
        save_reference(path, model, config, settings, tokenizer, "internlm_xcomposer2")

    return write


KIMI_TEMPLATE = (
    "{% for message in messages %}{% if loop.first and message['role'] != 'system' %}"
    "{{ '<|im_system|>system<|im_middle|>You are a helpful assistant<|im_end|>' }}{% endif %}"
    "{{ '<|im_' + message['role'] + '|>' + message['role'] + '<|im_middle|>' }}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}{{ '<|media_start|>image<|media_content|><|media_pad|><|media_end|>' }}"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}{{ '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_assistant|>assistant<|im_middle|>' }}{% endif %}"
)
DEEPSEEK_V3_TEXT: dict[str, Any] = {
    **QWEN_TEXT,
    "num_key_value_heads": 4,
    "q_lora_rank": None,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 12,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "n_shared_experts": 2,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 2.446,
    "norm_topk_prob": True,
    "rope_theta": 800000.0,
    "rms_norm_eps": 1e-5,
}


EXPERTS = {f"llm.model.layers.1.mlp.experts.{name}_proj": 8.0 for name in ("gate_up", "down")}
"""Factors of weights that Transformers has joined for all experts: else these add little to the shared ones."""


def _kimi_vl(path: Path) -> None:
    """With a grid of 5 x 5 learned positions, and at most 100 patches before padding."""
    from reference.kimi_vl import PLACE, KimiVL

    parts: dict[str, Any] = {f"part_{part}": f"<|im_{part}|>" for part in ("user", "assistant", "system", "middle")}
    parts |= {f"media_{part}": f"<|media_{part}|>" for part in ("start", "content", "pad", "end")}
    tokenizer = make_tokenizer(KIMI_TEMPLATE, **parts)
    config = {
        "architectures": ["KimiVLForConditionalGeneration"], "model_type": "kimi_vl", "ignore_index": -100,
        "media_placeholder_token_id": tokenizer.convert_tokens_to_ids(PLACE), "pad_token_id": tokenizer.pad_token_id,
        "text_config": {
            **DEEPSEEK_V3_TEXT, "vocab_size": 288, "model_type": "deepseek_v3", "scoring_func": "sigmoid",
            "topk_method": "noaux_tc", "moe_layer_freq": 1, "eos_token_id": tokenizer.eos_token_id,
            "bos_token_id": None, "pad_token_id": tokenizer.pad_token_id,
        },
        "vision_config": {
            "model_type": "moonvit", "patch_size": 4, "num_attention_heads": 2, "num_hidden_layers": 2,
            "hidden_size": 32, "intermediate_size": 48, "merge_kernel_size": [2, 2], "init_pos_emb_height": 5,
            "init_pos_emb_width": 5,
        },
        "torch_dtype": "float32", "vocab_size": 288,
    }  # fmt: skip
    settings = {
        "image_processor_type": "KimiVLImageProcessor", "patch_size": 4, "in_token_limit": 100, "pad_input": True,
        "merge_kernel_size": [2, 2], "num_pooled_tokens": 25, "resample": 3, "image_mean": [0.5, 0.45, 0.4],
        "image_std": [0.3, 0.28, 0.27],
    }  # fmt: skip
    model = KimiVL(config)
    spread_buffers(model)
    save_reference(path, model, config, settings, tokenizer, "kimi_vl", factors=EXPERTS)


DEEPSEEK_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['content'] is string %}{% set text = message['content'] %}{% else %}"
    "{% set found = namespace(text='') %}{% for part in message['content'] %}"
    "{% set found.text = found.text + ('<image>' if part['type'] == 'image' else part['text']) %}{% endfor %}"
    "{% set text = found.text %}{% endif %}{% if message['role'] == 'user' %}"
    "{{ '<|User|>: ' + text.strip() + '\n\n<|Assistant|>:' }}{% else %}{{ text.strip() + eos_token }}{% endif %}"
    "{% endfor %}"
)


def _deepseek_vl2(**text: Any) -> Callable[[Path], None]:
    """With tiles of 22 pixels, whose 5 x 5 patches become 3 x 3 rows, cut into up to four."""

    def write(path: Path) -> None:
        from reference.deepseek_vl2 import DeepseekVL2

        parts: dict[str, Any] = {"image_token": "<image>", "user_token": "<|User|>", "assistant_token": "<|Assistant|>"}
        tokenizer = make_tokenizer(DEEPSEEK_TEMPLATE, **parts)
        tokenizer.bos_token = "<|endoftext|>"
        config = {
            "architectures": ["DeepseekVLV2ForCausalLM"], "model_type": "deepseek_vl_v2", "tile_tag": "2D",
            "global_view_pos": "head", "candidate_resolutions": [[22, 22]], "torch_dtype": "float32",
            "language_config": {
                **DEEPSEEK_V3_TEXT, "model_type": "deepseek_v2", "vocab_size": 288, "topk_method": "greedy",
                "norm_topk_prob": False, "routed_scaling_factor": 1.0, "rope_theta": 10000.0, "qk_nope_head_dim": 16,
                "v_head_dim": 16, "bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id,
                "pad_token_id": tokenizer.pad_token_id, **text,
            },
            "projector_config": {"model_type": "mlp_projector", "n_embed": 64, "input_dim": 32},
            "vision_config": {
                "model_type": "vision", "model_name": "siglip_so400m_patch14_384", "image_size": 22, "patch_size": 4,
                "width": 32, "layers": 2, "heads": 2, "mlp_ratio": 1.6,
            },
        }  # fmt: skip
        settings = {
            "candidate_resolutions": [[22, 22], [22, 44], [44, 22], [44, 44], [88, 22], [22, 88]], "patch_size": 4,
            "downsample_ratio": 2, "image_mean": [0.5, 0.45, 0.4], "image_std": [0.3, 0.28, 0.27], "normalize": True,
            "image_token": "<image>", "resample": 3, "sft_format": "deepseek",
        }  # fmt: skip
        model = DeepseekVL2(config)
        spread_buffers(model)
        save_reference(path, model, config, settings, tokenizer, "deepseek_vl_v2", factors=EXPERTS)

    return write


def spread_buffers(model: Any) -> None:
    """Random corrections of the scores by which DeepSeek-V3 chooses experts: they are no parameters."""
    generator = torch.Generator().manual_seed(1)
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.copy_(0.3 * torch.randn(buffer.shape, generator=generator))


def save_reference(
    path: Path,
    model: Any,
    config: Any,
    settings: Any,
    tokenizer: Any,
    code: str,
    *,
    factors: Mapping[str, float] = MappingProxyType({}),
) -> None:
    """Write a checkpoint of a reference model, with code beside the weights that must not run. factors: of its
    weights."""
    spread_weights(model)
    for name, factor in factors.items():
        model.get_parameter(name).data.mul_(factor)
    model.save(path)
    tokenizer.save_pretrained(path)
    names = {"AutoConfig": "Config", "AutoModelForCausalLM": config["architectures"][0]}
    config["auto_map"] = {auto: f"modeling_{code}.{name}" for auto, name in names.items()}
    (path / f"modeling_{code}.py").write_text("raise RuntimeError('code of a checkpoint was run')\n")
    ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    contents = {"config": config, "processor_config": {"image_processor": settings}, "generation_config": ids}
    for name, content in contents.items():
        (path / f"{name}.json").write_text(json.dumps(content))


SMOLVLM_TEMPLATE = (
    "<|im_start|>{% for message in messages %}{{ message['role'] | capitalize }}"
    "{% if message['content'][0]['type'] == 'image' %}{{ ':' }}{% else %}{{ ': ' }}{% endif %}"
    "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{ line['text'] }}"
    "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n"
    "{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
"""As published: it has no place for videos, for which the processor takes another one."""


def _idefics_parts(image_size: int, num_tokens: int) -> tuple[Any, dict[str, Any]]:
    """The tokenizer, with tokens for the first `num_tokens` rows and columns of tiles; and the configuration. Some of
    its merges cross the ends of the text that a processor writes around a video."""
    numbers = [(row, column) for row in (1, 2) for column in (1, 2)][:num_tokens]
    tiles: dict[str, Any] = {f"row_{row}_{column}": f"<row_{row}_col_{column}>" for row, column in numbers}
    tokenizer = make_tokenizer(
        SMOLVLM_TEMPLATE, image_token="<image>", fake_image_token="<fake_token_around_image>",
        global_image_token="<global-img>", end_of_utterance_token="<end_of_utterance>",
        more_merges="Ġ Y,Ċ Ċ", **tiles,
    )  # fmt: skip
    vision = {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
        "image_size": image_size, "patch_size": 4,
    }  # fmt: skip
    text = LlamaConfig(
        vocab_size=288, **QWEN_TEXT, bos_token_id=None, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    return tokenizer, {
        "vision_config": vision, "text_config": text, "image_token_id": tokenizer.convert_tokens_to_ids("<image>"),
        "pad_token_id": tokenizer.pad_token_id,
    }  # fmt: skip


def _idefics3(path: Path) -> None:
    """Tiles of 16 pixels, up to 2 x 2 of them with 4 rows each; rows and columns of tiles are tokens, as SmolVLM's."""
    tokenizer, config = _idefics_parts(16, 4)
    save_model(Idefics3ForConditionalGeneration(Idefics3Config(scale_factor=2, **config)), path)
    Idefics3Processor(
        image_processor=Idefics3ImageProcessor(
            size={"longest_edge": 32}, max_image_size={"longest_edge": 16}, **STATISTICS
        ),
        tokenizer=tokenizer, image_seq_len=4, chat_template=SMOLVLM_TEMPLATE,
    ).save_pretrained(path)  # fmt: skip


LFM2_TEXT: dict[str, Any] = {"layer_types": ["conv", "full_attention", "conv"], "num_hidden_layers": 3}


def _lfm2_vl(path: Path) -> None:
    """Two or three tiles of 40 pixels with 25 rows each, and 5 x 5 learned positions: pictures have fewer patches, and
    more. Some names of rows and columns of tiles are no tokens."""
    template = CHATML.replace("@image@", "<image>")
    numbers = [(row, column) for row in (1, 2) for column in (1, 2)]
    names: dict[str, Any] = {f"tile_{row}_{column}": f"<|img_row_{row}_col_{column}|>" for row, column in numbers}
    tokenizer = make_tokenizer(
        template, image_token="<image>", image_start_token="<|image_start|>", image_end_token="<|image_end|>",
        image_thumbnail_token="<|img_thumbnail|>", **names,
    )  # fmt: skip
    text = transformers.Lfm2Config(
        **{"vocab_size": 288, **QWEN_TEXT, **LFM2_TEXT}, bos_token_id=None, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    vision = transformers.Siglip2VisionConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, patch_size=4, num_patches=25,
        vision_use_head=False,
    )  # fmt: skip
    config = transformers.Lfm2VlConfig(
        vision_config=vision, text_config=text, image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        projector_hidden_size=40, downsample_factor=2,
    )  # fmt: skip
    save_model(transformers.Lfm2VlForConditionalGeneration(config), path, embedding_size=0.25)
    transformers.Lfm2VlProcessor(
        image_processor=transformers.Lfm2VlImageProcessor(
            tile_size=40, min_tiles=2, max_tiles=3, min_image_tokens=2, max_image_tokens=4, encoder_patch_size=4,
            max_pixels_tolerance=14.0,
            **STATISTICS,
        ),
        tokenizer=tokenizer, chat_template=template,
    ).save_pretrained(path)  # fmt: skip


def _smolvlm(path: Path) -> None:
    """Tiles of 26 pixels, of which the tower sees 24 (as it sees 378 of 384), and fewer than its table has positions;
    rows and columns of tiles are text, as Idefics3's. The head is tied."""
    tokenizer, config = _idefics_parts(30, 0)
    config = SmolVLMConfig(scale_factor=3, tie_word_embeddings=True, **config)
    save_model(SmolVLMForConditionalGeneration(config), path)
    sizes = {"size": {"longest_edge": 52}, "max_image_size": {"longest_edge": 26}, **STATISTICS}
    sampling = {"fps": 1, "max_frames": 64, "video_size": {"longest_edge": 40}}
    SmolVLMProcessor(
        image_processor=SmolVLMImageProcessor(**sizes),
        video_processor=SmolVLMVideoProcessor(**{**sizes, "size": {"longest_edge": 40}}, video_sampling=sampling),
        tokenizer=tokenizer, image_seq_len=4, chat_template=SMOLVLM_TEMPLATE,
    ).save_pretrained(path)  # fmt: skip


def _of_timm(write: Callable[..., tuple[Any, Any]]) -> Callable[[Path], None]:
    """A checkpoint whose tower is a model of timm: `write` makes model and processor for a tokenizer and a decoder."""

    def factory(path: Path) -> None:
        template = CHATML.replace("@image@", "<|image|>").replace("@video@", "<|video|>")
        tokenizer = make_tokenizer(template, image_token="<|image|>", video_token="<|video|>")
        model, processor = write(tokenizer, _qwen_text(tokenizer), STATISTICS, template)
        save_model(model, path)
        processor.save_pretrained(path)

    return factory


FACTORIES: dict[str, Callable[[Path], None]] = {
    "llama": _text(LlamaConfig, LlamaForCausalLM, template=BOS_CHATML, has_bos=True),
    "qwen2": _text(Qwen2Config, Qwen2ForCausalLM, tie_word_embeddings=True),
    "qwen3": _text(Qwen3Config, Qwen3ForCausalLM, head_dim=24),
    "mistral": _text(MistralConfig, MistralForCausalLM, has_bos=True, sliding_window=32),
    "phi3": _text(Phi3Config, Phi3ForCausalLM),
    "gemma": _text(GemmaConfig, GemmaForCausalLM, has_bos=True, head_dim=24),
    "gemma2": _text(Gemma2Config, Gemma2ForCausalLM, has_bos=True, head_dim=16, sliding_window=32),
    "gemma3": _text(
        Gemma3TextConfig, Gemma3ForCausalLM, has_bos=True, head_dim=16, sliding_window=32, sliding_window_pattern=2
    ),
    "internlm2": _internlm2,
    "internlm": _internlm,
    "internlm3": _internlm3,
    "smollm3": _text(SmolLM3Config, SmolLM3ForCausalLM, no_rope_layer_interval=2),
    "starcoder2": _text(Starcoder2Config, Starcoder2ForCausalLM, sliding_window=32, tie_word_embeddings=False),
    "granite": _text(GraniteConfig, GraniteForCausalLM, **GRANITE_FACTORS),
    "olmo": _text(OlmoConfig, OlmoForCausalLM, clip_qkv=1.5),
    "olmo2": _text(Olmo2Config, Olmo2ForCausalLM),
    "cohere": _text(CohereConfig, CohereForCausalLM, logit_scale=0.5, use_qk_norm=True, tie_word_embeddings=False),
    "glm": _text(GlmConfig, GlmForCausalLM, head_dim=24),
    "glm4": _text(Glm4Config, Glm4ForCausalLM, head_dim=16),
    "falcon": _text(FalconConfig, FalconForCausalLM, ffn_hidden_size=96, tie_word_embeddings=False),
    "falcon_groups": _text(
        FalconConfig,
        FalconForCausalLM,
        ffn_hidden_size=96,
        tie_word_embeddings=False,
        new_decoder_architecture=True,
        num_kv_heads=2,
    ),
    "falcon_alibi": _text(
        FalconConfig,
        FalconForCausalLM,
        alibi=True,
        bias=True,
        multi_query=False,
        parallel_attn=False,
        tie_word_embeddings=False,
    ),
    "bloom": _text(BloomConfig, BloomForCausalLM, **SIX_HEADS),
    "mpt": _text(MptConfig, MptForCausalLM, **MPT_SIZES),
    "mpt_original": _original_text(_text(MptConfig, MptForCausalLM, **MPT_SIZES), as_mpt),
    "minicpm": _original_text(_text(GraniteConfig, GraniteForCausalLM, **GRANITE_FACTORS), as_minicpm),
    "baichuan": _original_text(_text(LlamaConfig, LlamaForCausalLM, **HEADS), as_baichuan),
    "baichuan2": _original_text(_text(LlamaConfig, LlamaForCausalLM, **HEADS), as_baichuan2),
    "baichuan2_13b": _without_sibling(
        _original_text(_text(LlamaConfig, LlamaForCausalLM, **SIX_HEADS), as_baichuan2_13b)
    ),
    "chatglm": _original_text(_text(GlmConfig, GlmForCausalLM, head_dim=16), as_chatglm),
    "qwen": _original_text(
        _text(Qwen2Config, Qwen2ForCausalLM, special=QWEN_SPECIAL, vocab_size=480, **HEADS), as_qwen
    ),
    "phi4_mini": _text(
        Phi3Config,
        Phi3ForCausalLM,
        tie_word_embeddings=True,
        original_max_position_embeddings=1024,
        rope_parameters={
            **LONGROPE,
            "partial_rotary_factor": 0.75,
            "original_max_position_embeddings": 1024,
            **{name: LONGROPE[name][:6] for name in ("short_factor", "long_factor")},
        },
    ),
    "phi3_longrope": _text(
        Phi3Config, Phi3ForCausalLM, rope_parameters=LONGROPE, original_max_position_embeddings=SHORT_LIMIT
    ),
    "qwen2_vl": _qwen2_vl,
    "qwen2_5_vl": _qwen2_5_vl,
    "qwen3_vl": _qwen3_vl,
    "lfm2_vl": _lfm2_vl,
    "qwen3_5": _qwen3_5,
    "qwen3_5_moe": partial(_qwen3_5, kind="Qwen3_5Moe", **DELTA_NET_EXPERTS),
    "glm4v": _glm4v,
    "glm46v": _glm46v,
    "chatglm_4v": _chatglm_4v,
    "cogvlm": _cogvlm(),
    "cogvlm2": _cogvlm(num_multi_query_heads=2, tower={"image_size": 24, "num_positions": 37}),
    "cogvlm2_video": _cogvlm(
        "CogVlmVideo",
        architectures=["CogVLMVideoForCausalLM"],
        num_multi_query_heads=2,
        tower={"image_size": 24, "num_positions": 37},
        resample=2,
    ),
    "llama4": _llama4,
    "mllama": _mllama,
    "llama4_text": _text(transformers.Llama4TextConfig, transformers.Llama4ForCausalLM, **LLAMA4),
    "llava": _llava,
    "gemma3_vision": _gemma3_vision,
    "paligemma": partial(_paligemma, text_config=GemmaConfig, num_key_value_heads=1),
    "paligemma2": partial(_paligemma, sliding_window=12),
    "pixtral": _pixtral,
    "mistral3": _mistral3,
    "ministral3": _ministral3,
    "internvl": _internvl,
    "internvl_qwen3_moe": partial(
        _internvl,
        text_class=transformers.Qwen3MoeConfig,
        text={"head_dim": 24, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    ),
    "internvl_helium": partial(_internvl, text_class=transformers.HeliumConfig, text={"head_dim": 16}),
    "internvl_gpt_oss": partial(
        _internvl,
        text_class=transformers.GptOssConfig,
        text={
            "head_dim": 16,
            "sliding_window": 32,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "rope_parameters": None,
        },
    ),
    "mono_internvl": _mono_internvl,
    "mini_gemini": _mini_gemini(),
    "mini_gemini_gemma": _mini_gemini(
        architectures=["MGMGemmaForCausalLM"],
        model_type="mgm_gemma",
        head_dim=24,
        hidden_act="gelu",
        left_out="tie_word_embeddings",
    ),
    "mini_gemini_mixtral": _mini_gemini(
        architectures=["MGMMixtralForCausalLM"], model_type="mgm_mixtral", num_local_experts=4, num_experts_per_tok=2
    ),
    "mini_gemini_hd": _mini_gemini(image_grid=2, image_global=True, image_size_aux=96),
    "internvl_chat": _internvl_chat(LlamaConfig),
    "internvl_chat_6b": _internvl_chat(
        Qwen3Config, hidden_size=48, num_attention_heads=3, attention_bias=False, use_qk_norm=True, norm_type="rms_norm"
    ),
    "deepseek_vl": _deepseek_vl,
    "deepseek_vl_hybrid": partial(_deepseek_vl, is_hybrid=True),
    "deepseek_vl_original": _deepseek_vl_original,
    "deepseek_vl_hybrid_original": partial(_deepseek_vl_original, is_hybrid=True),
    "ovis2": _ovis2,
    "ovis2_original": _ovis2_original,
    "ovis2_hard": partial(_ovis2, tokenize="st_argmax", covers=False),
    "llava_next": _llava_next(LlamaConfig),
    "llava_interleave": _llava_interleave,
    "llava_onevision": _llava_onevision,
    "llava_original": _original_llava(_llava, "LlavaLlamaForCausalLM", pads=True),
    "llava_next_original": _original_llava(_llava_next(MistralConfig, sliding_window=None), "LlavaMistralForCausalLM"),
    "llava_onevision_original": _original_llava(
        _llava_onevision, "LlavaQwenForCausalLM", image_mean=[0.5] * 3, image_std=[0.5] * 3
    ),
    "minicpmv": _minicpmv(2.6),
    "minicpmv_2_5": _minicpmv(2.5, has_bos=True),
    "minicpmv_4_5": _minicpmv(4.5, head_dim=24),
    "minicpmv4_6": _minicpmv4_6,
    "minicpmv4_6_fine": partial(_minicpmv4_6, mode="4x"),
    "phi3_v": _phi3_v,
    "qwen_vl": _qwen_vl,
    "deepseek_vl2": _deepseek_vl2(),
    "deepseek_vl2_sigmoid": _deepseek_vl2(
        topk_method="noaux_tc", scoring_func="sigmoid", norm_topk_prob=True, routed_scaling_factor=2.0, n_group=2
    ),
    "deepseek_vl2_plain": _deepseek_vl2(use_mla=False),
    "deepseek_ocr": write_deepseek_ocr,
    "deepseek_ocr2": write_deepseek_ocr2,
    "ernie4_5_vl": write_ernie_vl,
    "nemotron_h_omni": write_nemotron_omni,
    "nemotron_h_omni_original": write_original_nemotron_omni,
    "voxtral": write_voxtral,
    "ultravox": write_ultravox,
    "phi4_multimodal": write_phi4_multimodal,
    "kimi_vl": _kimi_vl,
    "molmo": _molmo(),
    "molmo_olmo2": _molmo(
        attention_layer_norm=True, norm_after=True, qkv_bias=False, num_key_value_heads=None, rope_theta=500000.0
    ),
    "xcomposer2d5": _xcomposer2(side=6, ranks=(6, 6), tiles=9),
    "xcomposer2": _xcomposer2(side=5, ranks=(6, 6), is_tiled=False, img_size=20),
    "xcomposer2_4khd": _xcomposer2(side=6, ranks=(8, 6)),
    "perception_lm": _of_timm(write_perception_lm),
    "perception_lm_timm": _of_timm(write_timm_perception_lm),
    "fast_vlm": _of_timm(write_fast_vlm),
    "idefics3": _idefics3,
    "smolvlm": _smolvlm,
    "llava_next_mistral": _llava_next(MistralConfig, sliding_window=None),
    "llava_next_llama3": _llava_next(LlamaConfig, rope_parameters=LLAMA3_ROPE),
    "llava_next_qwen": _llava_next(Qwen2Config, has_bos=False),
}

OWN_CODE = Path(__file__).parents[1] / "remote_code"
FACTORIES |= {
    "cohere2": _of_modules("Cohere2", head_dim=16, sliding_window=32, logit_scale=0.5, sliding_window_pattern=2),
    "deepseek_v3": _of_modules(
        "DeepseekV3", num_key_value_heads=4, q_lora_rank=24, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8,
        v_head_dim=12, n_routed_experts=4, num_experts_per_tok=2, n_group=2, topk_group=1, moe_intermediate_size=32,
        first_k_dense_replace=1,
    ),
    "deepseek_v2": _of_modules(
        "DeepseekV2", num_key_value_heads=4, q_lora_rank=None, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=16,
        v_head_dim=16, n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1, moe_intermediate_size=32,
        first_k_dense_replace=1, n_group=1, topk_group=1,
    ),
    "gemma4_text": _text(
        transformers.Gemma4TextConfig, transformers.Gemma4ForCausalLM, head_dim=16, global_head_dim=32,
        sliding_window=16, layer_types=["sliding_attention", "full_attention"] * 2, num_kv_shared_layers=2,
        num_hidden_layers=4, vocab_size_per_layer_input=288, hidden_size_per_layer_input=8,
        final_logit_softcapping=30.0,
    ),
    "jetmoe": _of_modules("JetMoe", kv_channels=16, num_local_experts=4, num_experts_per_tok=2),
    "longcat_flash": _of_modules(
        "LongcatFlash", num_layers=1, num_key_value_heads=4, ffn_hidden_size=96, q_lora_rank=24, kv_lora_rank=16,
        qk_rope_head_dim=8, qk_nope_head_dim=8, head_dim=8, v_head_dim=12, n_routed_experts=4, zero_expert_num=2,
        moe_topk=2, expert_ffn_hidden_size=32,
    ),
    "ernie4_5_moe": _of_modules(
        "Ernie4_5_Moe", moe_num_experts=4, moe_k=2, moe_intermediate_size=32, moe_num_shared_experts=1,
        moe_layer_start_index=1,
    ),
    "glm4_moe": _of_modules(
        "Glm4Moe", n_routed_experts=8, num_experts_per_tok=2, n_group=2, topk_group=1, moe_intermediate_size=32,
        routed_scaling_factor=1.5, use_qk_norm=True, attention_bias=True,
    ),
    "olmoe": _of_modules("Olmoe", num_experts=8, num_experts_per_tok=2),
    "mixtral": _of_modules("Mixtral", num_local_experts=4, num_experts_per_tok=2),
    "phimoe": _of_modules(
        "Phimoe", num_local_experts=4, num_experts_per_tok=2, sliding_window=24, attention_bias=True,
        lm_head_bias=True, router_jitter_noise=0.2,
    ),
    "phimoe_published": _phimoe_published,
    "granitemoe": _of_modules("GraniteMoe", num_local_experts=4, num_experts_per_tok=2, **GRANITE_FACTORS),
    "granitemoeshared": _of_modules(
        "GraniteMoeShared", num_local_experts=4, num_experts_per_tok=2, shared_intermediate_size=32, **GRANITE_FACTORS
    ),
    "deepseek_moe": _original_text(
        _of_modules(
            "Qwen2Moe", num_experts=6, num_experts_per_tok=2, moe_intermediate_size=32, mlp_only_layers=[0],
            shared_expert_intermediate_size=64, use_sliding_window=False, qkv_bias=False, **HEADS,
        ),
        as_deepseek,
    ),
    "qwen2_moe": _of_modules(
        "Qwen2Moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, decoder_sparse_step=1,
        shared_expert_intermediate_size=32, use_sliding_window=False,
    ),
    "granitemoe_swa": _of_modules(
        "GraniteMoeSWA", num_local_experts=4, num_experts_per_tok=2, sliding_window=24,
    ),
    "gpt_neox": _of_modules("GPTNeoX", rotary_pct=0.5),
    "gpt_oss": _of_modules(
        "GptOss", head_dim=16, sliding_window=32, num_local_experts=4, num_experts_per_tok=2, rope_parameters=None
    ),
    "gpt_oss_mxfp4": _gpt_oss_mxfp4,
    "qwen3_vl_moe_published": _qwen3_vl_moe_published,
    "opt": _of_modules("OPT", ffn_dim=96, word_embed_proj_dim=64),
    "lfm2": _of_modules(
        "Lfm2", num_hidden_layers=3, layer_types=["conv", "full_attention", "conv"], block_multiple_of=8,
        tie_word_embeddings=True,
    ),
    "granite4": _of_modules(
        "GraniteMoeHybrid", **GRANITE_FACTORS, **STATE_SPACE, num_local_experts=4, num_experts_per_tok=2
    ),
    "granite4_dense": _of_modules(
        "GraniteMoeHybrid", **GRANITE_FACTORS, **STATE_SPACE, num_local_experts=0, position_embedding_type="rope",
        tie_word_embeddings=True, mamba_conv_bias=False, mamba_proj_bias=True, time_step_limit=[0.1, 2.0],
    ),
    "bamba": _of_modules("Bamba", **STATE_SPACE_SIZES, attn_layer_indices=[1]),
    "falcon_h1": _of_modules(
        "FalconH1", **STATE_SPACE_SIZES, mamba_d_ssm=128, attention_in_multiplier=0.8, attention_out_multiplier=1.3,
        key_multiplier=0.6, embedding_multiplier=2.0, lm_head_multiplier=0.7, mlp_multipliers=[0.8, 1.4],
        ssm_in_multiplier=1.2, ssm_multipliers=[0.9, 1.1, 0.7, 1.3, 0.8], ssm_out_multiplier=0.75,
    ),
    "jamba": _of_modules(
        "Jamba", num_hidden_layers=3, mamba_d_state=6, mamba_d_conv=3, attn_layer_period=3, attn_layer_offset=1,
        num_experts=4,
    ),
    "kimi_linear": _of_modules(
        "KimiLinear", num_hidden_layers=3, layer_types=["linear_attention", "full_attention", "linear_attention"],
        linear_num_heads=4, linear_head_dim=8, num_key_value_heads=4, kv_lora_rank=16, qk_rope_head_dim=8,
        qk_nope_head_dim=16, v_head_dim=12, num_local_experts=4, num_experts_per_tok=2, n_shared_experts=1,
        moe_intermediate_size=32, mlp_layer_types=["dense", "sparse", "sparse"],
    ),
    "nemotron_h": _of_modules("NemotronH", **NEMOTRON_SIZES, hybrid_override_pattern="M-M*-M"),
    "nemotron_h_moe": _of_modules(
        "NemotronH", **NEMOTRON_SIZES, hybrid_override_pattern="MEM*E", n_routed_experts=4, num_experts_per_tok=2,
        moe_intermediate_size=32, moe_shared_expert_intermediate_size=40, routed_scaling_factor=2.5,
    ),
    "qwen3_next": _of_modules("Qwen3Next", **DELTA_NET, **DELTA_NET_EXPERTS, norm_topk_prob=True),
    "qwen3_5_text": _text(transformers.Qwen3_5TextConfig, transformers.Qwen3_5ForCausalLM, **DELTA_NET),
    "qwen3_5_moe_text": _text(
        transformers.Qwen3_5MoeTextConfig, transformers.Qwen3_5MoeForCausalLM, **DELTA_NET, **DELTA_NET_EXPERTS
    ),
    "qwen3_moe": _of_modules(
        "Qwen3Moe", head_dim=24, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, decoder_sparse_step=2
    ),
}  # fmt: skip


def _of_vision_modules(checkpoint: ModuleCheckpoint) -> Callable[[Path], None]:
    def factory(path: Path) -> None:
        template = CHATML.replace("@image@", checkpoint.marker).replace("@video@", checkpoint.video)
        template = template.replace("@audio@", checkpoint.audio)
        tokenizer = make_tokenizer(
            template, has_bos=checkpoint.has_bos, more_merges=checkpoint.more_merges, **checkpoint.special
        )
        ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")}
        model, processor = checkpoint.write(tokenizer, {"vocab_size": 288, **QWEN_TEXT, **ids}, STATISTICS)
        save_model(model, path, embedding_size=checkpoint.embedding_size)
        processor.save_pretrained(path)

    return factory


FACTORIES |= {name: _of_vision_modules(checkpoint) for name, checkpoint in MODULE_CHECKPOINTS.items()}


def _add_code(path: Path, names: Sequence[str], **auto_map: str) -> None:
    """Put the code of a model beside its weights, and name its classes in config.json."""
    for name in names:
        shutil.copy(OWN_CODE / f"{name}.py", path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "auto_map": auto_map}))


def _orbit(path: Path) -> None:
    from remote_code.configuration_orbit import OrbitConfig
    from remote_code.modeling_orbit import OrbitForCausalLM

    tokenizer = make_tokenizer(CHATML)
    ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")}
    save_model(OrbitForCausalLM(OrbitConfig(**ids)), path)
    tokenizer.save_pretrained(path)
    _add_code(
        path,
        ["configuration_orbit", "modeling_orbit"],
        AutoConfig="configuration_orbit.OrbitConfig",
        AutoModelForCausalLM="modeling_orbit.OrbitForCausalLM",
    )


def _orbit_vl(path: Path) -> None:
    from remote_code.configuration_orbit_vl import OrbitVLConfig
    from remote_code.modeling_orbit_vl import OrbitVLForConditionalGeneration

    template = CHATML.replace("@image@", "<image>")
    tokenizer = make_tokenizer(template, image_token="<image>")
    ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad", "image")}
    save_model(OrbitVLForConditionalGeneration(OrbitVLConfig(**ids)), path)
    tokenizer.save_pretrained(path)
    code = "processing_orbit_vl.OrbitVL"
    for file, auto, kind in (
        ("processor", "AutoProcessor", "Processor"),
        ("preprocessor", "AutoImageProcessor", "ImageProcessor"),
    ):
        settings = {"auto_map": {auto: f"{code}{kind}"}}
        (path / f"{file}_config.json").write_text(json.dumps(settings))
    _add_code(
        path,
        ["configuration_orbit", "modeling_orbit", "configuration_orbit_vl", "modeling_orbit_vl", "processing_orbit_vl"],
        AutoConfig="configuration_orbit_vl.OrbitVLConfig",
        AutoModelForImageTextToText="modeling_orbit_vl.OrbitVLForConditionalGeneration",
        AutoProcessor=f"{code}Processor",
    )


FACTORIES |= {"orbit": _orbit, "orbit_vl": _orbit_vl}


def _embedder(tiny: str, kind: str) -> Callable[[Path], None]:
    """A model for late interaction that is made of the tiny checkpoint `tiny`."""

    def write(path: Path) -> None:
        with tempfile.TemporaryDirectory() as folder:
            nested = make_checkpoint(tiny, Path(folder))
            config = getattr(transformers, f"{kind}Config")(
                vlm_config=transformers.AutoConfig.from_pretrained(nested).to_dict(), embedding_dim=24
            )
            processor = transformers.AutoProcessor.from_pretrained(nested)
            model = getattr(transformers, f"{kind}ForRetrieval")(config)
            spread_weights(model)
            model.eval().save_pretrained(path)
            getattr(transformers, f"{kind}Processor")(
                image_processor=processor.image_processor, tokenizer=processor.tokenizer
            ).save_pretrained(path)

    return write


FACTORIES |= {
    "colpali": _embedder("paligemma", "ColPali"),
    "colqwen2": _embedder("qwen2_vl", "ColQwen2"),
    "colqwen2_5": _embedder("qwen2_5_vl", "ColQwen2"),
}


def make_checkpoint(name: str, path: Path) -> Path:
    """Write the tiny checkpoint `name` (a key of `FACTORIES`) into the folder `path` and return it."""
    FACTORIES[name](path)
    return path
