"""Granite 3: a Llama with factors of embeddings, scores, residual stream and logits."""

from __future__ import annotations

from seesay.vl.published import Published
from seesay.vl.text_family import TextFamily


class Granite(TextFamily):
    """Its tensors are called as Llama's."""

    architectures = ("GraniteForCausalLM",)
    published = (
        Published(
            decoder="granite", names=("ibm-granite/granite-3.3-8b-instruct", "ibm-granite/granite-3.1-2b-instruct")
        ),
    )
