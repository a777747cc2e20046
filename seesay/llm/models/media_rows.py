"""Linear layers that compute rows of media otherwise than rows of text. A step without rows of media is computed as if
there were no such layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import NamedTuple, Protocol

import torch

from seesay.checkpoint.parts import Source
from seesay.device.linear.linear import Linear
from seesay.llm.models.decoder import RowSplit
from seesay.llm.models.norm import Delta, Norm
from seesay.llm.models.spec import MediaRowsSpec


class SplitLinear:
    """A linear layer at `path` of a decoder's layer.

    `sources`, `inputs`, `has_own_bias` and `bias_sources` as in `Linear`. text: what computes rows of text, and all
    rows where `media` is None. linears: all linear layers that it is made of, by their paths in the decoder's layer;
    those for rows of media are below `media.`.
    media_bias: whether weights of their own have a bias.
    """

    def __init__(
        self,
        path: str,
        in_features: int,
        out_features: int | None = None,
        *,
        bias: bool,
        has_own_bias: bool = True,
        sources: Sequence[Source] | None = None,
        inputs: range | None = None,
        media: MediaRowsSpec | None,
        media_bias: bool | None = None,
        bias_sources: Sequence[Source | None] | None = None,
    ) -> None:
        make = partial(
            Linear,
            in_features,
            out_features,
            has_own_bias=has_own_bias,
            sources=sources,
            inputs=inputs,
            bias_sources=bias_sources,
        )
        self.text = make(bias=bias)
        self.linears: Mapping[str, Linear] = {path: self.text}
        self._media: _MediaRows | None = None
        if media is None:
            return
        if media.rank is None:
            bias = bias if media_bias is None else media_bias
            self._media = _OwnWeights(f"media.{path}", make(bias=bias))
        else:
            if sources is None:
                sources = [Source(module=path.rpartition(".")[2], num_outputs=self.text.out_features)]
            first = partial(Linear, in_features, media.rank, bias=False, inputs=inputs)
            self._media = _LowRank(f"media.{path}", first, sources, media.rank, media.scale)
        self.linears = {**self.linears, **self._media.linears}

    def __call__(self, x: torch.Tensor, rows: RowSplit | None) -> torch.Tensor:
        """Return the output [T, out] for x [T, in]."""
        if rows is None or self._media is None:
            return self.text(x)
        return self._media.compute(self.text, x, rows)

    def multiply(self, norm: Norm, delta: Delta, residual: torch.Tensor, rows: RowSplit | None) -> torch.Tensor:
        """Add `delta` to the residual in place, and return the output for the norm of the sum."""
        if rows is None or self._media is None:
            return norm.multiply(self.text, delta, residual)
        return self._media.compute(self.text, norm.add(delta, residual), rows)


class _MediaRows(Protocol):
    """How rows of media are computed. linears: the linear layers of that, by their paths in the decoder's layer."""

    linears: Mapping[str, Linear]

    def compute(self, text: Linear, x: torch.Tensor, rows: RowSplit) -> torch.Tensor:
        """Return the output for all rows x [T, in], of which those of text are computed by `text`."""
        ...


class _OwnWeights:
    """Rows of media have weights of their own."""

    def __init__(self, path: str, own: Linear) -> None:
        self._own = own
        self.linears: Mapping[str, Linear] = {path: own}

    def compute(self, text: Linear, x: torch.Tensor, rows: RowSplit) -> torch.Tensor:
        output = x.new_empty(len(x), text.out_features)
        for linear, chosen in ((text, rows.text), (self._own, rows.media)):
            if len(chosen):
                output.index_copy_(0, chosen, linear(x.index_select(0, chosen)))
        return output


class _Pair(NamedTuple):
    """Adds second(first(x)) to outputs `start` … `stop` - 1."""

    first: Linear
    second: Linear
    start: int
    stop: int


class _LowRank:
    """Something of low rank is added to rows of media: scale · B A x, for each stored module that the outputs come
    from. `A` and `B` are its `lora_a`, which `make_first` makes, and `lora_b`."""

    def __init__(
        self, path: str, make_first: Callable[[], Linear], sources: Sequence[Source], rank: int, scale: float
    ) -> None:
        parent = path.rpartition(".")[0]
        self._scale = scale
        self._pairs: list[_Pair] = []
        self.linears: Mapping[str, Linear] = {}
        start = 0
        for module, group in groupby(sources, key=lambda source: source.module):
            outputs = [replace(source, module="lora_b") for source in group]
            first, second = make_first(), Linear(rank, bias=False, sources=outputs)
            self.linears |= {f"{parent}.{module}.lora_a": first, f"{parent}.{module}.lora_b": second}
            self._pairs.append(_Pair(first, second, start, start + second.out_features))
            start += second.out_features

    def compute(self, text: Linear, x: torch.Tensor, rows: RowSplit) -> torch.Tensor:
        output = text(x)
        chosen = x.index_select(0, rows.media)
        for first, second, start, stop in self._pairs:
            output[:, start:stop].index_add_(0, rows.media, second(first(chosen)), alpha=self._scale)
        return output
