"""A decoder of a layer that takes hidden states of a model beside its tokens, to predict further ones."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from seesay.llm.memory.kv_layout import LayerCache
from seesay.llm.models.composed_decoder import ComposedDecoder
from seesay.llm.models.decoder import ModelInput
from seesay.llm.models.layer import Layer


class StateDecoder(ComposedDecoder):
    """A `Decoder` whose tokens take hidden states [R, hidden] of the model, which come as the embeddings of its input.
    The tokens of a step without any take those that it carries from the step before: of the same rows, in their order.
    """

    _carried: torch.Tensor

    def reserve(self, max_tokens: int) -> None:
        """Make room for the states of a step."""
        self._carried = self.make_states(max_tokens)

    def make_states(self, count: int) -> torch.Tensor:
        """Return the states [count, hidden] of tokens that have none: zeros."""
        return torch.zeros(count, self.config.hidden_size, device=self.device, dtype=self.dtype)

    def carry(self, states: torch.Tensor) -> None:
        """Let the tokens of the next step take `states` [n, hidden], unless it brings others."""
        self._carried[: len(states)].copy_(states)

    def carried(self, count: int) -> torch.Tensor:
        """Return what the next step's first `count` tokens take, [count, hidden]: what this one's made."""
        return self._carried[:count]

    @property
    def known_ids(self) -> torch.Tensor | None:
        """The tokens that it knows, int64 [K]; None: all of them."""
        return None

    def known_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the logits [N, K] of the tokens that it knows."""
        return self.logits(hidden)

    def _find_states(self, inputs: ModelInput) -> torch.Tensor:
        """Return the state of each token: [T, hidden]."""
        count = len(inputs.input_ids)
        if inputs.splice_rows is None or inputs.splice_embeddings is None:
            return self._carried[:count]
        states = self.make_states(count)
        return states.index_copy_(0, inputs.splice_rows, inputs.splice_embeddings.to(states.dtype))

    def _compute(
        self,
        inputs: ModelInput,
        layers: Sequence[Layer],
        caches: Sequence[LayerCache],
        wanted: torch.Tensor | None,
    ) -> torch.Tensor:
        delta, residual, left = self._run_layers(self.embed(inputs), inputs, layers[:1], caches[:1], wanted)
        states = self._take_own(residual if delta is None else residual + delta)
        states = states if left is None else states.index_select(0, left)
        hidden = self._norm(states)
        self.carry(self._pass_on(states, hidden))
        return hidden

    def _take_own(self, residual: torch.Tensor) -> torch.Tensor:
        """Return the states [n, hidden] of the residual stream behind the layer."""
        return residual

    def _pass_on(self, states: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """Return what the next token takes: the states before or behind the last norm."""
        del hidden
        return states
