"""OLMo 1: layer norms without weights, and queries, keys and values within limits."""

from __future__ import annotations

from seesay.vl.published import Published
from seesay.vl.text_family import TextFamily


class Olmo(TextFamily):
    """Its tensors are called as Llama's."""

    architectures = ("OlmoForCausalLM",)
    published = (Published(decoder="olmo", names=("allenai/OLMo-1B-hf", "allenai/OLMo-7B-0724-Instruct-hf")),)
