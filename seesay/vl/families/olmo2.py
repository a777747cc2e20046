"""OLMo 2: norms behind attention and feed-forward, and of queries and keys over all heads."""

from __future__ import annotations

from seesay.vl.published import Published
from seesay.vl.text_family import TextFamily


class Olmo2(TextFamily):
    """Its tensors are called as Llama's."""

    architectures = ("Olmo2ForCausalLM",)
    published = (
        Published(decoder="olmo2", names=("allenai/OLMo-2-1124-7B-Instruct", "allenai/OLMo-2-0325-32B-Instruct")),
    )
