"""The head of a model for late interaction, which makes a vector of the hidden state of each token."""

from __future__ import annotations

from seesay.checkpoint.parts import Source
from seesay.device.linear.linear import Linear
from seesay.llm.models.spec import DecoderConfig

PROJECTION = "embedding_head"
"""Its name among the decoder's layers."""


def make_projections(config: DecoderConfig) -> dict[str, Linear]:
    """Return the head that makes vectors of hidden states, by its name, if there is one. All ranks have all of it."""
    if not config.projection_size:
        return {}
    source = Source(module=PROJECTION, num_outputs=config.projection_size, picks=(range(config.projection_size),))
    return {PROJECTION: Linear(config.hidden_size, sources=[source], is_quantizable=False)}
