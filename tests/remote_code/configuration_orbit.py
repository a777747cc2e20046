"""The configuration of a text model that Transformers does not have."""

from __future__ import annotations

from typing import Any, ClassVar

from transformers import PretrainedConfig


class OrbitConfig(PretrainedConfig):  # type: ignore[misc, unused-ignore]
    """width: components of a hidden state. max_turns: positions that are learned."""

    model_type = "orbit"
    attribute_map: ClassVar = {
        "hidden_size": "width",
        "num_hidden_layers": "depth",
        "num_attention_heads": "num_heads",
        "num_key_value_heads": "num_groups",
        "max_position_embeddings": "max_turns",
    }

    def __init__(
        self,
        vocab_size: int = 288,
        width: int = 64,
        depth: int = 3,
        num_heads: int = 4,
        num_groups: int = 2,
        max_turns: int = 512,
        **options: Any,
    ) -> None:
        self.vocab_size, self.width, self.depth, self.max_turns = vocab_size, width, depth, max_turns
        self.num_heads, self.num_groups = num_heads, num_groups
        super().__init__(**options)
