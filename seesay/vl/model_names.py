"""Models by the names that people know them by: what each runs as, or why it does not run. For docs/models.md, and for
the error that an architecture gets which nothing here can run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelName:
    """A name, an id on the hub, and the architecture in its config.json. tower: the `model_type` of its vision_config,
    where that decides. why_not: why this model does not run, though others of its architecture do."""

    name: str
    example: str
    architecture: str
    tower: str = ""
    why_not: str = ""


_LONGROPE = "LongRoPE, which Transformers' modules choose by the longest text of a step"
MODEL_NAMES: tuple[ModelName, ...] = (
    ModelName(name="Baichuan", example="baichuan-inc/Baichuan-7B", architecture="BaiChuanForCausalLM"),
    ModelName(name="Baichuan2 7B", example="baichuan-inc/Baichuan2-7B-Chat", architecture="BaichuanForCausalLM"),
    ModelName(name="Baichuan2 13B", example="baichuan-inc/Baichuan2-13B-Chat", architecture="BaichuanForCausalLM"),
    ModelName(name="ChatGLM2, ChatGLM3", example="THUDM/chatglm3-6b", architecture="ChatGLMModel"),
    ModelName(name="ChemVLM 8B", example="AI4Chem/ChemVLM-8B", architecture="InternVLChatModel"),
    ModelName(name="ChemVLM 26B", example="AI4Chem/ChemVLM-26B", architecture="InternVLChatModel"),
    ModelName(name="Code Llama", example="codellama/CodeLlama-7b-Instruct-hf", architecture="LlamaForCausalLM"),
    ModelName(name="CodeGeeX4", example="THUDM/codegeex4-all-9b", architecture="ChatGLMModel"),
    ModelName(name="CogVLM-Chat", example="THUDM/cogvlm-chat-hf", architecture="CogVLMForCausalLM"),
    ModelName(name="CogVLM2-Chat", example="THUDM/cogvlm2-llama3-chat-19B", architecture="CogVLMForCausalLM"),
    ModelName(name="CogVLM2-Video", example="THUDM/cogvlm2-video-llama3-chat", architecture="CogVLMVideoForCausalLM"),
    ModelName(name="Dbrx", example="databricks/dbrx-instruct", architecture="DbrxForCausalLM"),
    ModelName(name="DeepSeek-MoE", example="deepseek-ai/deepseek-moe-16b-chat", architecture="DeepseekForCausalLM"),
    ModelName(name="DeepSeek-V2", example="deepseek-ai/DeepSeek-V2-Lite-Chat", architecture="DeepseekV2ForCausalLM"),
    ModelName(name="DeepSeek-V2.5", example="deepseek-ai/DeepSeek-V2.5", architecture="DeepseekV2ForCausalLM"),
    ModelName(name="DeepSeek-VL", example="deepseek-ai/deepseek-vl-7b-chat", architecture="MultiModalityCausalLM"),
    ModelName(
        name="DeepSeek-VL in Transformers' layout",
        example="deepseek-community/deepseek-vl-7b-chat",
        architecture="DeepseekVLHybridForConditionalGeneration",
    ),
    ModelName(name="Falcon", example="tiiuae/falcon-7b-instruct", architecture="FalconForCausalLM"),
    ModelName(name="Gemma", example="google/gemma-7b-it", architecture="GemmaForCausalLM"),
    ModelName(name="Gemma2", example="google/gemma-2-9b-it", architecture="Gemma2ForCausalLM"),
    ModelName(name="GLM4", example="THUDM/glm-4-9b-chat", architecture="ChatGLMModel"),
    ModelName(name="GLM-4V", example="THUDM/glm-4v-9b", architecture="ChatGLMModel", tower="clip_vision_model"),
    ModelName(name="InternLM", example="internlm/internlm-chat-7b", architecture="InternLMForCausalLM"),
    ModelName(
        name="InternLM2, InternLM2.5", example="internlm/internlm2_5-7b-chat", architecture="InternLM2ForCausalLM"
    ),
    ModelName(
        name="InternLM-XComposer2",
        example="internlm/internlm-xcomposer2-vl-7b",
        architecture="InternLMXComposer2ForCausalLM",
    ),
    ModelName(
        name="InternLM-XComposer2.5",
        example="internlm/internlm-xcomposer2d5-7b",
        architecture="InternLMXComposer2ForCausalLM",
    ),
    ModelName(
        name="InternLM-XComposer2.5 in 4 bits",
        example="internlm/internlm-xcomposer2d5-7b-4bit",
        architecture="InternLMXComposer2ForCausalLM",
    ),
    ModelName(name="InternVL v1.1 - v1.5", example="OpenGVLab/InternVL-Chat-V1-5", architecture="InternVLChatModel"),
    ModelName(name="InternVL2", example="OpenGVLab/InternVL2-8B", architecture="InternVLChatModel"),
    ModelName(name="InternVL2.5(MPO)", example="OpenGVLab/InternVL2_5-8B-MPO", architecture="InternVLChatModel"),
    ModelName(name="Llama, Llama2", example="meta-llama/Llama-2-7b-chat-hf", architecture="LlamaForCausalLM"),
    ModelName(name="Llama3, Llama3.1", example="meta-llama/Llama-3.1-8B-Instruct", architecture="LlamaForCausalLM"),
    ModelName(name="Llama3.2", example="meta-llama/Llama-3.2-3B-Instruct", architecture="LlamaForCausalLM"),
    ModelName(
        name="Llama3.2-VL",
        example="meta-llama/Llama-3.2-11B-Vision-Instruct",
        architecture="MllamaForConditionalGeneration",
    ),
    ModelName(name="LLaVA 1.5", example="llava-hf/llava-1.5-7b-hf", architecture="LlavaForConditionalGeneration"),
    ModelName(
        name="LLaVA 1.6", example="llava-hf/llava-v1.6-vicuna-7b-hf", architecture="LlavaNextForConditionalGeneration"
    ),
    ModelName(
        name="LLaVA 1.5, 1.6 as first published",
        example="liuhaotian/llava-v1.6-vicuna-7b",
        architecture="LlavaLlamaForCausalLM",
    ),
    ModelName(
        name="MiniCPM3",
        example="openbmb/MiniCPM3-4B",
        architecture="MiniCPM3ForCausalLM",
        why_not=f"{_LONGROPE}; nearest: MiniCPM",
    ),
    ModelName(name="MiniCPM-Llama3-V-2_5", example="openbmb/MiniCPM-Llama3-V-2_5", architecture="MiniCPMV"),
    ModelName(name="MiniCPM-V-2_6", example="openbmb/MiniCPM-V-2_6", architecture="MiniCPMV"),
    ModelName(name="MiniGeminiGemma", example="YanweiLi/MGM-2B", architecture="MGMGemmaForCausalLM"),
    ModelName(name="MiniGeminiMixtral", example="YanweiLi/MGM-8x7B", architecture="MGMMixtralForCausalLM"),
    ModelName(name="MiniGeminiLlama", example="YanweiLi/MGM-7B", architecture="MGMLlamaForCausalLM"),
    ModelName(name="Mistral", example="mistralai/Mistral-7B-Instruct-v0.3", architecture="MistralForCausalLM"),
    ModelName(name="Mixtral", example="mistralai/Mixtral-8x7B-Instruct-v0.1", architecture="MixtralForCausalLM"),
    ModelName(name="Molmo", example="allenai/Molmo-7B-D-0924", architecture="MolmoForCausalLM"),
    ModelName(
        name="Mono-InternVL",
        example="OpenGVLab/Mono-InternVL-2B",
        architecture="InternVLChatModel",
        tower="intern_vit_patch",
    ),
    ModelName(name="Phi-3-mini", example="microsoft/Phi-3-mini-4k-instruct", architecture="Phi3ForCausalLM"),
    ModelName(name="Phi-3-vision", example="microsoft/Phi-3-vision-128k-instruct", architecture="Phi3VForCausalLM"),
    ModelName(name="Phi-3.5-mini", example="microsoft/Phi-3.5-mini-instruct", architecture="Phi3ForCausalLM"),
    ModelName(name="Phi-3.5-MoE", example="microsoft/Phi-3.5-MoE-instruct", architecture="PhiMoEForCausalLM"),
    ModelName(name="Phi-3.5-vision", example="microsoft/Phi-3.5-vision-instruct", architecture="Phi3VForCausalLM"),
    ModelName(name="Qwen", example="Qwen/Qwen-7B-Chat", architecture="QWenLMHeadModel"),
    ModelName(name="Qwen1.5", example="Qwen/Qwen1.5-7B-Chat", architecture="Qwen2ForCausalLM"),
    ModelName(name="Qwen1.5-MoE", example="Qwen/Qwen1.5-MoE-A2.7B-Chat", architecture="Qwen2MoeForCausalLM"),
    ModelName(name="Qwen2", example="Qwen/Qwen2-7B-Instruct", architecture="Qwen2ForCausalLM"),
    ModelName(name="Qwen2-MoE", example="Qwen/Qwen2-57B-A14B-Instruct", architecture="Qwen2MoeForCausalLM"),
    ModelName(name="Qwen2-VL", example="Qwen/Qwen2-VL-7B-Instruct", architecture="Qwen2VLForConditionalGeneration"),
    ModelName(name="Qwen2.5", example="Qwen/Qwen2.5-7B-Instruct", architecture="Qwen2ForCausalLM"),
    ModelName(name="Qwen-VL", example="Qwen/Qwen-VL-Chat", architecture="QWenLMHeadModel", tower="clip_vision_model"),
    ModelName(name="StarCoder2", example="bigcode/starcoder2-15b-instruct-v0.1", architecture="Starcoder2ForCausalLM"),
    ModelName(name="Yi", example="01-ai/Yi-1.5-9B-Chat", architecture="LlamaForCausalLM"),
)
"""The models of LMDeploy's tables of supported models, version 0.6.5, sections 1.4.1 and 1.4.2."""

REASONS: Mapping[str, str] = {
    "Phi4MMForCausalLM": "adapters lie between its tensors; nearest: the same model in Transformers' layout, revision "
    "refs/pr/70 of microsoft/Phi-4-multimodal-instruct",
}
"""Why the models of an architecture (or of one with a tower, as in the registry) do not run, and what does."""
