"""The shapes of what a layer may have in the place of attention, or beside it, as frozen values."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

from seesay.llm.plans.traits import NO_KV, KVShape, StateTensor


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaNetSpec:
    """A gated delta net. Each key head is for several value heads. num_taps: tokens of its convolution. is_grouped: the
    checkpoint has what belongs to a key head together. rank: of what decays and gates are products of; each component
    of a key then has a decay of its own, and there are as many key heads as value heads. 0: each head has one decay."""

    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    num_taps: int
    is_grouped: bool = False
    rank: int = 0

    def divides(self, num_ranks: int) -> bool:
        """Return whether each of so many ranks can have the same share."""
        return not self.num_key_heads % num_ranks

    def divide(self, num_ranks: int) -> Self:
        """Return the share of each of so many ranks."""
        heads = self.num_key_heads // num_ranks, self.num_value_heads // num_ranks
        return replace(self, num_key_heads=heads[0], num_value_heads=heads[1])

    @property
    def key_size(self) -> int:
        return self.num_key_heads * self.key_dim

    @property
    def value_size(self) -> int:
        return self.num_value_heads * self.value_dim

    @property
    def conv_size(self) -> int:
        """Components that go through the convolution."""
        return 2 * self.key_size + self.value_size

    @property
    def total_size(self) -> int:
        """The sum of the inner sizes of all matrices that a token is multiplied with."""
        if self.rank:
            return self.conv_size + 2 * (self.value_size + self.rank) + self.key_size + self.num_value_heads
        return self.conv_size + 2 * (self.value_size + self.num_value_heads)

    @property
    def kv_shape(self) -> KVShape:
        return NO_KV

    @property
    def state(self) -> tuple[StateTensor, ...]:
        """The state that a layer keeps of a sequence."""
        matrices = StateTensor((self.num_value_heads, self.key_dim, self.value_dim), is_exact=True)
        return StateTensor((self.num_taps - 1, self.conv_size)), matrices


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentSpec:
    """Attention to latent rows. rank: of the latent vector. query_rank: of what queries are products of; 0: of the
    layer's input. Of a head's query and key, `turned_dim` components are rotated, and the key's are all heads';
    `plain_dim` are not. turns_neighbours: see `DecoderConfig`."""

    rank: int
    query_rank: int
    turned_dim: int
    plain_dim: int
    value_dim: int
    turns_neighbours: bool
    num_heads: int
    num_taps: ClassVar[int] = 0
    state: ClassVar[tuple[StateTensor, ...]] = ()

    def divides(self, num_ranks: int) -> bool:
        """Each rank has the rows of all tokens, and some of the heads that attend to them."""
        del num_ranks
        return True

    def divide(self, num_ranks: int) -> Self:
        """See `DeltaNetSpec`."""
        del num_ranks
        return self

    @property
    def row_size(self) -> int:
        """Components of a token's row."""
        return self.rank + self.turned_dim

    @property
    def total_size(self) -> int:
        """The sum of the inner sizes of all matrices that a token is multiplied with."""
        per_head = 2 * self.plain_dim + self.turned_dim + 2 * self.value_dim
        return self.query_rank + self.row_size + self.num_heads * per_head

    @property
    def kv_shape(self) -> KVShape:
        return KVShape(num_kv_heads=1, head_dim=self.row_size, turned_dim=self.turned_dim)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvolutionSpec:
    """A gated convolution over `num_taps` tokens, of `size` components."""

    size: int
    num_taps: int
    has_bias: bool

    def divides(self, num_ranks: int) -> bool:
        """See `DeltaNetSpec`."""
        return not self.size % num_ranks

    def divide(self, num_ranks: int) -> Self:
        """See `DeltaNetSpec`."""
        return replace(self, size=self.size // num_ranks)

    @property
    def kv_shape(self) -> KVShape:
        return NO_KV

    @property
    def total_size(self) -> int:
        """The sum of the inner sizes of all matrices that a token is multiplied with."""
        return 4 * self.size

    @property
    def state(self) -> tuple[StateTensor, ...]:
        """The state that a layer keeps of a sequence."""
        return (StateTensor((self.num_taps - 1, self.size)),)


GateNorm = Literal["none", "behind", "before"]
"""Whether outputs are normed, within each group, behind the product with their gates, or before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSpaceSpec:
    """A selective state space. Each group of heads has one key and one query of `state_size` components. num_taps:
    tokens of its convolution. step_limits: of time steps. step_rank: keys, queries and time steps are products of what
    comes out of the convolution, the last ones of so many components, and are normed (Mamba in Jamba); 0: they are
    products of the layer's input (Mamba-2). in_scales: of gates, values, keys, queries and time steps."""

    num_heads: int
    head_dim: int
    num_groups: int
    state_size: int
    num_taps: int
    has_conv_bias: bool
    has_bias: bool
    has_output_bias: bool
    norm: GateNorm = "behind"
    step_limits: tuple[float, float] = (0.0, math.inf)
    step_rank: int = 0
    in_scales: tuple[float, ...] = ()

    def divides(self, num_ranks: int) -> bool:
        """Each rank has whole groups, or a part of the only one."""
        return not self.num_heads % num_ranks and (self.num_groups == 1 or not self.num_groups % num_ranks)

    def divide(self, num_ranks: int) -> Self:
        """See `DeltaNetSpec`."""
        return replace(self, num_heads=self.num_heads // num_ranks, num_groups=max(1, self.num_groups // num_ranks))

    @property
    def value_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def key_size(self) -> int:
        return self.num_groups * self.state_size

    @property
    def conv_size(self) -> int:
        """Components that go through the convolution."""
        return self.value_size + (0 if self.step_rank else 2 * self.key_size)

    @property
    def in_size(self) -> int:
        """Components of the first product."""
        return self.value_size + self.conv_size + (0 if self.step_rank else self.num_heads)

    @property
    def total_size(self) -> int:
        """The sum of the inner sizes of all matrices that a token is multiplied with."""
        return self.in_size + self.value_size

    @property
    def kv_shape(self) -> KVShape:
        return NO_KV

    @property
    def state(self) -> tuple[StateTensor, ...]:
        """The state that a layer keeps of a sequence."""
        matrices = StateTensor((self.num_groups, self.state_size, self.value_size // self.num_groups), is_exact=True)
        return StateTensor((self.num_taps - 1, self.conv_size)), matrices


MixerSpec = DeltaNetSpec | LatentSpec | ConvolutionSpec | StateSpaceSpec
"""What a layer may have in the place of attention."""
