"""A model of texts with pictures that Transformers does not have: a row of each patch, by two linear layers."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from .configuration_orbit_vl import OrbitVLConfig
from .modeling_orbit import OrbitModel


class OrbitVLForConditionalGeneration(PreTrainedModel, GenerationMixin):  # type: ignore[misc, unused-ignore]
    config_class = OrbitVLConfig
    base_model_prefix = "model"
    _supports_sdpa = _supports_attention_backend = True

    def __init__(self, config: OrbitVLConfig) -> None:
        super().__init__(config)
        width = config.text_config.width
        self.patches = nn.Sequential(nn.Linear(3 * config.patch**2, width), nn.GELU(), nn.Linear(width, width))
        self.language_model = OrbitModel(config.text_config)
        self.lm_head = nn.Linear(width, config.text_config.vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.language_model.embed_tokens

    def get_output_embeddings(self) -> nn.Linear:
        return self.lm_head

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        pixel_values: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        logits_to_keep: int = 0,
        **options: Any,
    ) -> CausalLMOutputWithPast:
        options.pop("return_dict", None)
        if inputs_embeds is None:
            inputs_embeds = self.get_input_embeddings()(input_ids)
        if pixel_values is not None and input_ids is not None:
            rows = self.patches(pixel_values.flatten(0, 1))
            places = (input_ids == self.config.image_token_id)[..., None].expand_as(inputs_embeds)
            inputs_embeds = inputs_embeds.masked_scatter(places, rows.to(inputs_embeds.dtype))
        output = self.language_model(inputs_embeds=inputs_embeds, **options)
        hidden = output.last_hidden_state[:, -logits_to_keep:] if logits_to_keep else output.last_hidden_state
        return CausalLMOutputWithPast(logits=self.lm_head(hidden), past_key_values=output.past_key_values)
