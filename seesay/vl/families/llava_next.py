"""LLaVA-NeXT (LLaVA-1.6): a newline ends each line of the tiles, without the padding around the picture."""

from __future__ import annotations

from seesay.vl.bases.any_resolution import NEWLINE, AnyResolutionFamily
from seesay.vl.bases.arrangement import Rows, chain, end_lines
from seesay.vl.family import Features
from seesay.vl.published import Published


class LlavaNext(AnyResolutionFamily):
    """Pictures."""

    architectures = ("LlavaNextForConditionalGeneration",)
    published = (
        Published(
            decoder="llama",
            names=(
                "llava-hf/llava-v1.6-vicuna-7b-hf",
                "llava-hf/llava-v1.6-34b-hf",
                "llava-hf/llama3-llava-next-8b-hf",
            ),
        ),
        Published(decoder="mistral", names=("llava-hf/llava-v1.6-mistral-7b-hf",)),
        Published(decoder="qwen2", names=("llava-hf/llava-next-72b-hf",)),
        Published(
            architecture="LlavaLlamaForCausalLM",
            decoder="llama",
            names=("liuhaotian/llava-v1.6-vicuna-7b", "liuhaotian/llava-v1.6-34b", "lmms-lab/llama3-llava-next-8b"),
        ),
        Published(
            architecture="LlavaMistralForCausalLM", decoder="mistral", names=("liuhaotian/llava-v1.6-mistral-7b",)
        ),
        Published(architecture="LlavaQwenForCausalLM", decoder="qwen2", names=("lmms-lab/llava-next-72b",)),
    )
    strategies = ("default",)
    processor = "LlavaNextImageProcessor"

    def arrange(self, whole: Rows, lines: Rows) -> Features:
        return {"rows": chain(whole, end_lines(lines, NEWLINE))}
