"""A layer in which tokens attend to media beside the text (Llama 3.2 Vision, Meta 2024; gates: Alayrac et al. 2022)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F

from seesay.checkpoint.parts import Weight, plain_weight
from seesay.device.linear.linear import Linear
from seesay.llm.memory.kv_layout import LayerCache
from seesay.llm.models.decoder import MediaAttention
from seesay.llm.models.division import Division
from seesay.llm.models.feed_forward import make_feed_forward
from seesay.llm.models.mixers.attention import AttentionStep
from seesay.llm.models.norm import make_norm
from seesay.llm.models.residual import LayerDelta, settle
from seesay.llm.models.spec import DecoderConfig
from seesay.llm.ops import Ops


class MediaLayer:
    """A `Layer` without a cache: keys and values of all such layers are the embeddings of media, [rows, layers · 2 ·
    G · D], which the tower makes. Only tokens that see media are computed."""

    def __init__(self, config: DecoderConfig, index: int, ops: Ops, division: Division) -> None:
        name, spec, hidden = f"layers.{index}", config.layers[index], config.hidden_size
        self._heads = (config.num_heads, config.head_dim)
        self._num_kv_heads, self._scale = config.num_kv_heads, config.attention_scale
        width = 2 * config.num_kv_heads * config.head_dim
        first = width * sum(layer.attends_media for layer in config.layers[:index])
        self._own = slice(first, first + width)
        self._query = Linear(hidden, config.num_heads * config.head_dim, bias=False)
        self._out = Linear(config.num_heads * config.head_dim, hidden, bias=False)
        self._feed_forward = make_feed_forward(hidden, spec.feed_forward, ops, None, layer=name, division=division)
        self._input_norm = make_norm(f"{name}.input_layernorm", hidden, config.norm, ops)
        self._inner_norm = make_norm(f"{name}.post_attention_layernorm", hidden, config.norm, ops)
        self._query_norm = make_norm(f"{name}.cross_attn.q_norm", config.head_dim, config.norm, ops)
        self._gates = [plain_weight(f"{name}.cross_attn_{part}_gate", 1) for part in ("attn", "mlp")]
        own = {"cross_attn.q_proj": self._query, "cross_attn.o_proj": self._out, **self._feed_forward.linears}
        self.linears: Mapping[str, Linear] = {f"{name}.{path}": linear for path, linear in own.items()}
        norms = (self._input_norm, self._inner_norm, self._query_norm)
        self.norms: tuple[Weight, ...] = (*(weight for norm in norms for weight in norm.weights), *self._gates)

    @property
    def kind(self) -> tuple[object, ...]:
        return "media", *(linear.method.name for linear in self.linears.values())

    def run(
        self,
        delta: LayerDelta,
        residual: torch.Tensor,
        cache: LayerCache,
        step: AttentionStep,
        wanted: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor | None, torch.Tensor]:
        added = settle(delta)
        if step.media is not None:
            residual = residual if added is None else residual.add_(added)
            self.run_few(residual, cache, step)
            added = None
        if wanted is not None:
            added = None if added is None else added.index_select(0, wanted)
            residual = residual.index_select(0, wanted)
        return added, residual

    def run_few(self, residual: torch.Tensor, cache: LayerCache, step: AttentionStep) -> None:
        del cache  # it is some other layer's
        if (media := step.media) is None:
            return
        x = residual.index_select(0, media.rows)
        attended = self._attend(self._query(self._input_norm(x)), media)
        x.addcmul_(self._out(attended), self._gates[0].data.tanh())
        x.addcmul_(self._feed_forward.run(self._inner_norm, None, x, None), self._gates[1].data.tanh())
        residual.index_copy_(0, media.rows, x)

    def _attend(self, query: torch.Tensor, media: MediaAttention) -> torch.Tensor:
        """Return the attended values [R, H · D] of queries [R, H · D]."""
        num_heads, head_dim = self._heads
        query = self._query_norm(query.view(-1, head_dim)).view(-1, num_heads, head_dim)
        output = torch.empty_like(query)
        for seen in media.seen:
            pieces = [embedding[:, self._own].to(query.dtype) for embedding in seen.embeddings]
            whole = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
            pairs = whole.view(len(whole), 2, self._num_kv_heads, head_dim)
            keys, values = pairs.permute(1, 2, 0, 3)[:, None]
            own = query[seen.start : seen.stop].transpose(0, 1)[None]
            mixed = F.scaled_dot_product_attention(own, keys, values, scale=self._scale, enable_gqa=True)
            output[seen.start : seen.stop] = mixed[0].transpose(0, 1)
        return output.flatten(1)
