"""MiniCPM: a Llama with factors, under names of its own; read as a Granite."""

from __future__ import annotations

from seesay.vl.published import Published
from seesay.vl.text_family import TextFamily


class MiniCPM(TextFamily):
    """Configuration and model are code beside the weights; none of it is run."""

    architectures = ("MiniCPMForCausalLM",)
    published = (Published(decoder="granite", names=("openbmb/MiniCPM-2B-sft-bf16", "openbmb/MiniCPM-2B-dpo-bf16")),)
