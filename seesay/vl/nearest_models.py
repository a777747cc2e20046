"""Models that run in place of those that cannot, by their `model_type`: for the errors that these get."""

from __future__ import annotations

from collections.abc import Mapping

_STAND_INS: Mapping[str, tuple[str, ...]] = {
    "CohereForAI/aya-23-8B": ("cohere_compass", "cohere_compass_text"),
    "HuggingFaceM4/Idefics3-8B-Llama3": ("idefics", "idefics2"),
    "HuggingFaceTB/SmolVLM-Instruct": (
        "lfm3_vl", "pp_formulanet", "kosmos-2.5", "granite_docling",
    ),
    "Qwen/Qwen2.5-7B-Instruct": (
        "albert", "axk2", "bart", "bert", "bert-generation", "big_bird", "bigbird_pegasus", "biogpt", "blenderbot",
        "blenderbot-small", "blt", "bridgetower", "camembert", "codegen", "cpmant", "ctrl", "data2vec-text",
        "deberta", "deberta-v2", "distilbert", "doge", "electra", "ernie", "flaubert", "fsmt", "gpt2", "gpt_neo",
        "gpt_neox_japanese", "gptj", "hrm_text", "inkling2_text", "inkling_text", "led", "longt5", "m2m_100",
        "marian", "mbart", "megatron-bert", "modernbert", "modernbert-decoder", "mpnet", "mt5", "mvp", "nllb-moe",
        "openai-gpt", "pegasus", "pegasus_x", "plbart", "prophetnet", "qdqbert", "reformer", "rembert", "roberta",
        "roberta-prelayernorm", "roc_bert", "roformer", "switch_transformers", "t5", "t5gemma", "umt5", "xglm", "xlm",
        "xlm-prophetnet", "xlm-roberta", "xlm-roberta-xl", "xlnet", "xmod",
    ),
    "Qwen/Qwen2.5-VL-7B-Instruct": (
        "blip", "blip-2", "evolla", "florence2", "git", "hunyuan_vl", "inkling2",
        "inkling_mm_model", "kosmos-2", "nemotron_h_omni", "ovis2_5", "paddleocr_vl", "pix2struct", "qwen2_5_omni",
        "qwen2_5_omni_thinker", "step3p7", "trocr", "udop", "vision-encoder-decoder",
    ),
    "Qwen/Qwen3-8B": (
        "bailing_hybrid", "dots3_note", "dots3_note_text", "glm_moe_dsa", "hy_v4", "qwen4_exp_text",
    ),
    "Qwen/Qwen3-VL-2B-Instruct": (
        "qwen3_omni_moe", "qwen3_omni_moe_thinker", "qwen4_exp",
    ),
    "allenai/Molmo-7B-D-0924": ("molmo2",),
    "allenai/OLMo-2-1124-7B-Instruct": ("olmo_hybrid",),
    "deepseek-ai/DeepSeek-V2-Lite-Chat": ("deepseek_v32", "deepseek_v4"),
    "deepseek-ai/DeepSeek-OCR": ("unlimited_ocr",),
    "google/gemma-2-9b-it": ("recurrent_gemma", "gemma3n_text"),
    "google/gemma-3-4b-it": ("diffusion_gemma", "gemma3n", "gemma4", "pi0", "t5gemma2", "gemma4_unified"),
    "llava-hf/llava-v1.6-mistral-7b-hf": ("chameleon", "emu3", "granite4_vision"),
    "meta-llama/Llama-3.1-8B-Instruct": ("diffllama",),
    "meta-llama/Llama-3.2-3B-Instruct": (
        "lfm2_moe", "lfm3", "mamba", "mamba2", "rwkv", "xlstm",
    ),
    "mistralai/Mistral-7B-Instruct-v0.3": ("zamba", "zamba2", "zaya", "mistral_large4"),
    "mistralai/Mixtral-8x7B-Instruct-v0.1": ("minimax",),
    "openbmb/MiniCPM-2B-sft-bf16": ("minicpm3",),
    "openbmb/MiniCPM-V-4.6": ("minicpm_ocr", "minicpmv4_7"),
    "tiiuae/falcon-7b-instruct": ("falcon_mamba",),
    "zai-org/GLM-4.1V-9B-Thinking": ("glm5_next", "glm_ocr"),
    "zai-org/GLM-4.6V-Flash": ("glmga",),
}  # fmt: skip
"""The types that a model stands in for, by its id on the hub: of the same authors, or for the same use."""
NEAREST: Mapping[str, str] = {kind: name for name, kinds in _STAND_INS.items() for kind in kinds}


def describe_nearest(model_type: object) -> str:
    """Return the end of a message about a model of this type that does not run, or nothing."""
    name = NEAREST.get(model_type) if isinstance(model_type, str) else None
    return f"; nearest: {name}" if name else ""
