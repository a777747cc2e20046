"""The protocol of the decoder's operations. Tokens of all rows are packed: no batch axis.

A *row* is a run of new tokens of one sequence. Rows with one token come first; they are the decode rows.
Shapes: T tokens, B rows, M blocks per row, H query heads, G key-value heads, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import numpy as np
import numpy.typing as npt
import torch

from seesay.device.linear.expert_linear import ExpertLinear
from seesay.device.linear.row_quantization import QuantizedRows, RowFormat
from seesay.llm.memory.kv_layout import LayerCache
from seesay.llm.ops.low_rank import SlotFactors, SlotRows
from seesay.llm.plans.routing import Routing
from seesay.llm.plans.window import Window

if TYPE_CHECKING:
    from seesay.kernels.low_rank import SlotProducts

Activation = Literal["silu", "gelu", "gelu_tanh", "clamped_silu"]
"""Of a gate, which is multiplied by the other half. clamped_silu: x · sigmoid(1.702 · x) of x up to 7, and the other
half, between -7 and 7, gets 1 more (OpenAI 2025, gpt-oss)."""
AnyActivation = Literal["silu", "gelu", "gelu_tanh", "clamped_silu", "relu2"]
"""Those, and the square of what is more than 0 (So et al. 2021, Primer), where there is no gate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLayout:
    """The layout of one step's rows, on the host.

    cu_seqlens_q: int64 [B + 1], row b has the tokens cu_seqlens_q[b] … cu_seqlens_q[b + 1] - 1.
    kv_lens: int64 [B], tokens of the row's sequence after this step; its new tokens are the last of these.
    block_table: int64 [B, M], KV blocks of each row, padded with the row's own last one, so that no row reads
        another sequence's block: a NaN stays with the sequence that made it.
    num_decode: the first rows, which have one token each.
    runs: int64 [2, T], the first and the last place of each token's run, of which it sees all; its own place for a
        token outside of all runs, as those of the first `num_decode` rows are. None: there are no runs.
    """

    cu_seqlens_q: npt.NDArray[np.int64]
    kv_lens: npt.NDArray[np.int64]
    block_table: npt.NDArray[np.int64]
    block_size: int
    num_decode: int
    runs: npt.NDArray[np.int64] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeRows:
    """Rows of one token each whose lengths and blocks only the device knows: what a graph is captured with, and
    what it reads again in every replay. Not all implementations take it: see `Ops.takes_device_rows`.

    kv_lens int32 [B]; block_table int32 [B, M], contiguous.
    """

    kv_lens: torch.Tensor
    block_table: torch.Tensor


class LowRankOps(Protocol):
    """Products of low rank that are added to outputs y [T, out] of a layer, for its inputs x [T, in]."""

    def add(self, y: torch.Tensor, x: torch.Tensor, rows: SlotRows, factors: SlotFactors) -> None:
        """Add B A x of each token's slot to y in place (Hu et al. 2021). A x is rounded to the type of x. Other tokens
        stay as they are."""

    def add_and_gate(
        self, y: torch.Tensor, x: torch.Tensor, rows: SlotRows, factors: SlotFactors, activation: Activation
    ) -> torch.Tensor:
        """Return the activation of the first half times the second half of the sum, [T, out / 2]. y may be changed. The
        outputs have halves (see `SlotOutputs`)."""

    def find_products(self, rows: SlotRows, factors: SlotFactors) -> SlotProducts | None:
        """Return what is added in the form that kernels of the product of one row take; None where there are none."""


class Ops(Protocol):
    """The operations. `plan_attention` runs once per step; what it returns is its own and goes to `attend`.

    needs_clean_blocks: whether `attend` reads what lies behind a row's last token in its last block, which then must be
        finite. takes_device_rows: whether `plan_attention` takes `DecodeRows`, and all operations of a decode step may
        be captured in a graph. most_tokens_alone: the largest number of tokens for which `mix_experts` takes a norm at
        no cost. low_rank: those on products of low rank.
    """

    low_rank: ClassVar[LowRankOps]
    needs_clean_blocks: ClassVar[bool]
    takes_device_rows: ClassVar[bool]
    most_tokens_alone: ClassVar[int]

    def rms_norm(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        *,
        residual: torch.Tensor | None = None,
        other: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """x / sqrt(mean(x²) + eps) · weight over the last axis (Zhang & Sennrich 2019). With a residual [T, hidden],
        x is added to that in place, and the norm is that of the sum; with another summand, like x, which may be
        overwritten, x + other is, rounded once."""

    def act_and_mul(self, x: torch.Tensor, activation: Activation) -> torch.Tensor:
        """activation(first half) · second half of the last axis."""

    def quantize_norm(
        self, x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float, form: RowFormat
    ) -> QuantizedRows:
        """`rms_norm` of x [T, hidden], or of x and a residual, as quantized rows."""

    def quantize_activation(self, x: torch.Tensor, activation: Activation, form: RowFormat) -> QuantizedRows:
        """`act_and_mul` of x [T, 2 · size], as quantized rows."""

    def mix_experts(
        self,
        x: torch.Tensor,
        logits: torch.Tensor,
        routing: Routing,
        bias: torch.Tensor | None,
        gate_up: ExpertLinear,
        down: ExpertLinear,
        *,
        activation: AnyActivation,
        norm: tuple[torch.Tensor, float] | None = None,
        add_to: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the sum of share · down(`act_and_mul` of gate_up(x)) over the experts of each token, [T, hidden], for
        x [T, hidden]; or add it to `add_to`, and return that. Experts that the layers do not have are left out. With
        "relu2", there is no gate, and the activation is that of gate_up(x).

        They are chosen by the router's logits [T, experts] and a bias float32 [experts], see `Routing`; logits that are
        not finite choose experts, too. norm: (weight, eps) of an RMS norm that x takes first.
        """

    def rotate_and_write(
        self,
        qkv: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        cache: LayerCache,
        slots: torch.Tensor,
        norms: tuple[torch.Tensor, torch.Tensor, float] | None = None,
        faults: torch.Tensor | None = None,
    ) -> None:
        """Rotate queries and keys in place, and write keys and values to the cache.

        qkv [T, H + 2 G, D] holds queries, keys and values. The first R of the D components are rotated (Su et al. 2021,
        halves paired) by dense cos and sin [T, 1, R], sin's first half being negated already. slots int64 [T]:
        block · block_size + offset in the cache. norms: (weight of queries [D], of keys [D], eps) of an RMS norm before
        the rotation. faults: float32 [T], set to NaN for tokens with a key or value that is not finite in the cache.
        """

    def plan_attention(
        self,
        layout: RowLayout | DecodeRows,
        *,
        windows: frozenset[Window | None],
        device: torch.device,
        dtype: torch.dtype,
    ) -> Any:
        """Index tensors and masks of a step, for layers with any of these windows."""

    def attend(
        self,
        query: torch.Tensor,
        cache: LayerCache,
        plan: Any,
        *,
        scale: float,
        window: Window | None,
        soft_cap: float | None,
        sinks: torch.Tensor | None = None,
        slopes: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Causal attention of query [T, H, D] over the cached keys and values of each token's own sequence → [T, H, D].

        The keys of the new tokens are in the cache already. Token i sees positions i - window + 1 … i, or those of its
        chunk up to i, and all of its run, if the layout of the plan has one.
        Scores s become soft_cap · tanh(s / soft_cap) when a cap is given. Sinks [H] are each head's score of one more
        key that has no value: it takes its share of the softmax (OpenAI 2025, gpt-oss). Slopes [H]: head h's score of
        the key at place j for the query at place i gets slopes[h] · (j - i) more (Press et al. 2022, ALiBi), behind the
        cap. Those of bfloat16 are added before scores are scaled, j and slopes[h] · j being rounded to bfloat16, as
        Falcon does; others are float32.
        """

    def write_latent(
        self,
        rows: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        norm: tuple[torch.Tensor, float],
        cache: LayerCache,
        slots: torch.Tensor,
        faults: torch.Tensor,
    ) -> None:
        """Write latent rows [T, D] to the cache: the first R components are rotated by cos and sin [T, 1, R], see
        `rotate_and_write`, and the others take an RMS norm, (weight [D - R], eps). faults: see there."""

    def attend_latent(self, query: torch.Tensor, cache: LayerCache, plan: Any, *, scale: float) -> torch.Tensor:
        """Causal attention of query [T, H, D] to latent rows of D components: they are keys, and behind their first
        `turned_dim` components, see `KVLayout`, values → [T, H, D - turned_dim]."""

    def forget_blocks(self) -> None:
        """Drop every copy of what blocks contain: blocks were written to by something other than a step."""

    def splice(self, hidden: torch.Tensor, rows: torch.Tensor, embeddings: torch.Tensor) -> None:
        """Write embeddings [R, hidden] over the rows `rows` int64 [R] of hidden [T, hidden], in place."""
