"""Granite 3: a Llama with factors of embeddings, scores, residual stream and logits. Granite 4 has state spaces between
layers of attention."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from seesay.checkpoint import Checkpoint
from seesay.processors.text.tokenizer import Tokenizer
from seesay.vl.published import Published
from seesay.vl.text_family import TextFamily
from seesay.vl.weight_map import GRANITE_MOE_DECODER


class Granite(TextFamily):
    """Its tensors are called as Llama's."""

    architectures = ("GraniteForCausalLM",)
    published = (
        Published(
            decoder="granite", names=("ibm-granite/granite-3.3-8b-instruct", "ibm-granite/granite-3.1-2b-instruct")
        ),
    )


class Granite4(TextFamily):
    """Feed-forwards are called as those beside experts, also where there are no experts."""

    architectures: ClassVar[tuple[str, ...]] = ("GraniteMoeHybridForCausalLM",)
    published: ClassVar[tuple[Published, ...]] = (
        Published(
            decoder="granitemoehybrid",
            names=(
                "ibm-granite/granite-4.0-h-tiny",
                "ibm-granite/granite-4.0-h-small",
                "ibm-granite/granite-4.0-h-micro",
                "ibm-granite/granite-4.0-micro",
            ),
        ),
    )
    weights = replace(TextFamily.weights, decoder_patterns=GRANITE_MOE_DECODER)

    def __init__(self, checkpoint: Checkpoint, tokenizer: Tokenizer) -> None:
        if not checkpoint.text_config.num_local_experts:
            alone = ((r"\.shared_mlp\.", ".mlp."), *GRANITE_MOE_DECODER)
            self.weights = replace(type(self).weights, decoder_patterns=alone)
        super().__init__(checkpoint, tokenizer)
