"""A text model that Transformers does not have: learned positions, a norm behind each layer, attention and feed-forward
side by side. Attention asks Transformers' interface."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.cache_utils import DynamicCache
from transformers.masking_utils import create_causal_mask
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .configuration_orbit import OrbitConfig


class OrbitAttention(nn.Module):
    is_causal = True

    def __init__(self, config: OrbitConfig, layer_idx: int) -> None:
        super().__init__()
        self.config, self.layer_idx = config, layer_idx
        self.head_dim = config.width // config.num_heads
        self.num_key_value_groups = config.num_heads // config.num_groups
        self.scaling = 0.8 * self.head_dim**-0.5
        sizes = (config.width, config.num_groups * self.head_dim, config.num_groups * self.head_dim)
        self.query, self.key, self.value = (nn.Linear(config.width, size) for size in sizes)
        self.out = nn.Linear(config.width, config.width, bias=False)

    def forward(self, x: torch.Tensor, mask: Any, cache: Any, **options: Any) -> torch.Tensor:
        shape = (*x.shape[:2], -1, self.head_dim)
        query, key, value = (part(x).view(shape).transpose(1, 2) for part in (self.query, self.key, self.value))
        if cache is not None:
            key, value = cache.update(key, value, self.layer_idx)
        attend = ALL_ATTENTION_FUNCTIONS[self.config._attn_implementation]
        found, _ = attend(self, query, key, value, mask, scaling=self.scaling, dropout=0.0, **options)
        output: torch.Tensor = self.out(found.reshape(*x.shape[:2], -1))
        return output


class OrbitLayer(nn.Module):
    def __init__(self, config: OrbitConfig, layer_idx: int) -> None:
        super().__init__()
        self.attention = OrbitAttention(config, layer_idx)
        self.up, self.down = nn.Linear(config.width, 2 * config.width), nn.Linear(2 * config.width, config.width)
        self.norm = nn.LayerNorm(config.width)

    def forward(self, x: torch.Tensor, mask: Any, cache: Any, **options: Any) -> torch.Tensor:
        attended = self.attention(x, mask, cache, **options)
        output: torch.Tensor = self.norm(x + attended + self.down(torch.tanh(self.up(x))))
        return output


class OrbitPreTrainedModel(PreTrainedModel):  # type: ignore[misc, unused-ignore]
    config_class = OrbitConfig
    base_model_prefix = "model"
    _supports_sdpa = _supports_attention_backend = True


class OrbitModel(OrbitPreTrainedModel):
    def __init__(self, config: OrbitConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.width)
        self.turns = nn.Embedding(config.max_turns, config.width)
        self.layers = nn.ModuleList(OrbitLayer(config, index) for index in range(config.depth))
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.embed_tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.embed_tokens = value

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: Any = None,
        inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        **options: Any,
    ) -> BaseModelOutputWithPast:
        x = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        past_key_values = options.get("cache", past_key_values)  # the name since Transformers 5.24
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)
        if position_ids is None:
            known = 0 if past_key_values is None else past_key_values.get_seq_length()
            position_ids = torch.arange(known, known + x.shape[1], device=x.device)[None]
        mask = create_causal_mask(
            config=self.config,
            inputs_embeds=x,
            attention_mask=attention_mask,
            past_key_values=past_key_values,
            position_ids=position_ids,
        )
        x = x + self.turns(position_ids)
        for layer in self.layers:
            x = layer(x, mask, past_key_values)
        return BaseModelOutputWithPast(last_hidden_state=x, past_key_values=past_key_values)


class OrbitForCausalLM(OrbitPreTrainedModel, GenerationMixin):  # type: ignore[misc, unused-ignore]
    def __init__(self, config: OrbitConfig) -> None:
        super().__init__(config)
        self.model = OrbitModel(config)
        self.lm_head = nn.Linear(config.width, config.vocab_size, bias=False)
        self.post_init()

    def get_output_embeddings(self) -> nn.Linear:
        return self.lm_head

    def forward(
        self, input_ids: torch.Tensor | None = None, logits_to_keep: int = 0, **options: Any
    ) -> CausalLMOutputWithPast:
        options.pop("return_dict", None)
        output = self.model(input_ids=input_ids, **options)
        hidden = output.last_hidden_state[:, -logits_to_keep:] if logits_to_keep else output.last_hidden_state
        return CausalLMOutputWithPast(logits=self.lm_head(hidden), past_key_values=output.past_key_values)
