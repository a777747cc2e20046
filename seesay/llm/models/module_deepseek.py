"""A causal model of Transformers' modules that it has only inside of DeepSeek-OCR 2: a mixture of experts of DeepSeek's
kind (arXiv 2401.06066) with the attention of a Llama, as in DeepSeek-VL2-Tiny. Imported where such a model is loaded.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from transformers.conversion_mapping import (
    get_checkpoint_conversion_mapping,
    register_checkpoint_conversion_mapping,
)
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.models.deepseek_ocr2.modeling_deepseek_ocr2 import (
    DeepseekOcr2TextModel,
    DeepseekOcr2TextPreTrainedModel,
)


class PlainDeepseekForCausalLM(DeepseekOcr2TextPreTrainedModel):  # type: ignore[misc]
    """The decoder `model` with the head `lm_head`."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model = DeepseekOcr2TextModel(config)
        self.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_output_embeddings(self) -> torch.nn.Module:
        return self.lm_head

    def forward(self, **inputs: object) -> Any:
        """Return logits [B, T, vocab] of what the decoder takes."""
        return CausalLMOutputWithPast(logits=self.lm_head(self.model(**inputs).last_hidden_state))


@cache
def find_plain_deepseek() -> type[PlainDeepseekForCausalLM]:
    """Return the class of the model. Tells Transformers that its files have the tensors of each expert apart."""
    register_checkpoint_conversion_mapping(
        PlainDeepseekForCausalLM.__name__, get_checkpoint_conversion_mapping("qwen2_moe")
    )
    return PlainDeepseekForCausalLM
