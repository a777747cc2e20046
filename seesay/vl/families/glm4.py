"""GLM-4 in Transformers' layouts: half of each head is rotated, neighbouring components together; since 0414 with norms
around attention and feed-forward."""

from __future__ import annotations

from seesay.vl.published import Published
from seesay.vl.text_family import TextFamily
from seesay.vl.weight_map import BARE_DECODER, GLM4_DECODER, WeightMap


class Glm(TextFamily):
    """The first GLM-4."""

    architectures = ("GlmForCausalLM",)
    published = (Published(decoder="glm", names=("THUDM/glm-4-9b-chat-hf",)),)


class Glm4(TextFamily):
    """GLM-4-0414."""

    architectures = ("Glm4ForCausalLM",)
    published = (Published(decoder="glm4", names=("THUDM/GLM-4-9B-0414", "THUDM/GLM-4-32B-0414")),)
    weights = WeightMap(
        decoder={**BARE_DECODER, "model.": "", "lm_head.": "lm_head."},
        decoder_patterns=GLM4_DECODER,
    )
