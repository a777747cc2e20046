"""Command-R: attention and feed-forward beside each other from one layer norm, and a factor of logits."""

from __future__ import annotations

from seesay.vl.published import Published
from seesay.vl.text_family import TextFamily


class Cohere(TextFamily):
    """Its tensors are called as Llama's."""

    architectures = ("CohereForCausalLM",)
    published = (
        Published(
            decoder="cohere",
            names=("CohereForAI/c4ai-command-r-v01", "CohereForAI/c4ai-command-r-plus", "CohereForAI/aya-23-8B"),
        ),
    )
