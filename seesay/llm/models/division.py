"""How a decoder is divided among ranks: which heads, inner components, experts and tokens each of them has.

Outputs of a half layer's first product are divided and with them the inputs of its second one, so that the halves need
one sum over the ranks each, at the residual (Shoeybi et al. 2019, Megatron-LM). All ranks find the same borders.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from seesay.device.ranks import ALONE, Place, Ranks
from seesay.errors import ConfigError
from seesay.llm.models.mixer_spec import LatentSpec
from seesay.llm.models.spec import DecoderConfig, FeedForwardSpec

if TYPE_CHECKING:
    from seesay.checkpoint.quantization import Quantization

_MOST_RANKS = 64
_TILE = 64
"""Inner components are cut at multiples of this where they can be, of less where that makes slices equal."""
_LEAST_TILE = 16


class Grain(NamedTuple):
    """The numbers of outputs, and of inputs, that a format of weights stores together, and which are not cut apart."""

    outputs: int = 1
    inputs: int = 1

    @classmethod
    def of(cls, quantization: Quantization | None) -> Grain:
        """Return the grain of a checkpoint's quantized layers."""
        if quantization is None or not quantization.is_stored:
            return NO_GRAIN
        if quantization.strategy == "block":
            return cls(*quantization.block_size)
        if quantization.format == "mxfp4":
            return cls(inputs=quantization.group_size or 1)
        if quantization.is_packed:
            per_word = 32 // quantization.bits
            return cls(per_word, math.lcm(per_word, quantization.group_size or 1))
        return NO_GRAIN


NO_GRAIN = Grain()


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """The share of one rank. ranks: what it exchanges sums through; None where nothing is divided. has_whole_experts: a
    rank has some of the experts, and not a slice of each."""

    ranks: Ranks | None = None
    grain: Grain = NO_GRAIN
    has_whole_experts: bool = False

    @property
    def place(self) -> Place:
        return ALONE if self.ranks is None else self.ranks.place

    @property
    def is_first(self) -> bool:
        """Whether this rank adds what is added once, such as the bias behind a product whose inputs are divided."""
        return self.place.rank == 0

    def evenly(self, count: int) -> range:
        """Return this rank's part of `count` things, which all ranks have equally many of."""
        return _cut_evenly(count, self.place)

    def heads(self, config: DecoderConfig) -> range:
        """Return the query heads of this rank."""
        return self.evenly(config.num_heads)

    def kv_heads(self, config: DecoderConfig) -> range:
        """Return the key-value heads that those query heads need: with fewer heads than ranks, several have one."""
        count, (rank, size) = config.num_kv_heads, (self.place.rank, self.place.size)
        if count >= size:
            return _cut_evenly(count, self.place)
        first = rank * count // size
        return range(first, first + 1)

    def num_holders(self, config: DecoderConfig) -> int:
        """Return the number of ranks that have the same key-value head."""
        return max(1, self.place.size // config.num_kv_heads)

    def inner(self, size: int) -> range:
        """Return the components of this rank of an inner size."""
        return _cut(size, pick_tile(size, self.place.size, self.grain), self.place)

    def experts(self, count: int) -> range:
        """Return the experts of this rank."""
        return _cut(count, 1, self.place) if self.has_whole_experts else range(count)

    def expert_inner(self, size: int) -> range:
        """Return the components of this rank of the inner size of each of its experts."""
        return range(size) if self.has_whole_experts else self.inner(size)

    def tokens(self, count: int) -> range:
        """Return the rows of this rank of a table of so many tokens: as many as `padded_tokens` says, the last rank
        fewer."""
        length, rank = self.padded_tokens(count), self.place.rank
        return range(rank * length, min((rank + 1) * length, count))

    def padded_tokens(self, count: int) -> int:
        """Return the number of rows of a table of so many tokens that each rank has, padding included."""
        size = self.place.size
        length = -(-count // size)
        aligned = -(-length // _TILE) * _TILE
        return aligned if size > 1 and aligned * (size - 1) < count else length


WHOLE = Division()
"""Nothing is divided."""


def make_division(
    config: DecoderConfig,
    ranks: Ranks | None,
    quantization: Quantization | None,
    *,
    expert_parallel: bool = False,
) -> Division:
    """Return one rank's share of a decoder. expert_parallel: of experts, each rank has whole ones. Raises `ConfigError`
    that names the numbers of ranks among which the decoder can be divided, if this is none of them."""
    if ranks is None or (size := ranks.place.size) == 1:
        if expert_parallel:
            raise ConfigError("expert_parallel needs tp of 2 or more")
        return WHOLE
    _refuse_undivided(config, expert_parallel=expert_parallel)
    division = Division(ranks=ranks, grain=Grain.of(quantization), has_whole_experts=expert_parallel)
    if not _divides(config, size, division):
        raise _make_size_error(config, size, division)
    return division


def _refuse_undivided(config: DecoderConfig, *, expert_parallel: bool) -> None:
    """Raise `ConfigError` for a decoder that no number of ranks can divide."""
    if expert_parallel and not any(layer.feed_forward.experts for layer in config.layers):
        raise ConfigError("expert_parallel: this model has no experts")
    if any(layer.attends_media for layer in config.layers):
        raise ConfigError("tp: a decoder that attends to pictures beside the text is not divided here; use tp=1")


def _make_size_error(config: DecoderConfig, size: int, division: Division) -> ConfigError:
    """Return the error that names the numbers of ranks that can divide the decoder: `size` cannot."""
    grain = division.grain
    sizes = [n for n in range(1, _MOST_RANKS + 1) if _divides(config, n, division)]
    *others, last = map(str, sizes)
    advice = "cannot be divided: use tp=1 or pp=2"
    if others:
        advice = f"can be divided among {', '.join(others)} or {last} ranks"
    grouped = f", stored in groups of {max(grain)}," if max(grain) > 1 else ""
    states = " and layers with states" if config.num_taps else ""
    inner = min(spec.size for spec in _kinds(config))
    return ConfigError(
        f"tp={size}: {config.num_heads} query heads and {config.num_kv_heads} KV heads of size {config.head_dim} with "
        f"inner layers of {inner}{states}{grouped} {advice}"
    )


def pick_tile(size: int, num_ranks: int, grain: Grain) -> int:
    """Return the number of inner components that are not cut apart: what the format of the weights stores together,
    else the largest power of two that gives equal slices, or that leaves no rank without any."""
    if max(grain) > 1:
        return math.lcm(*grain)
    tiles = [1 << bits for bits in range(_TILE.bit_length() - 1, -1, -1)]
    even = (tile for tile in tiles if tile >= _LEAST_TILE and size % (tile * num_ranks) == 0)
    some = (tile for tile in tiles if -(-size // tile) >= num_ranks)
    return next(even, None) or next(some, 1)


def _divides(config: DecoderConfig, size: int, division: Division) -> bool:
    """Return whether so many ranks can divide the decoder as `division` does."""
    grain = division.grain
    num_heads, num_kv_heads = config.num_heads, config.num_kv_heads
    if num_heads % size or (num_kv_heads % size and size % num_kv_heads):
        return False
    if not all(layer.other is None or layer.other.divides(size) for layer in config.layers):
        return False
    if size > 1 and not _has_whole_groups(config, size, grain):
        return False
    has_tokens = -(-config.vocab_size // size) * (size - 1) < config.vocab_size
    return has_tokens and all(count >= size for spec in _kinds(config) for count in _count_pieces(spec, size, division))


def _has_whole_groups(config: DecoderConfig, size: int, grain: Grain) -> bool:
    """Return whether the heads of one of so many ranks are whole groups of what is stored together. The rows of latent
    attention, which all ranks have, are not cut."""
    latent = next((layer.other for layer in config.layers if isinstance(layer.other, LatentSpec)), None)
    if latent is not None:
        num_heads, plain = config.num_heads // size, latent.plain_dim
        outputs = (num_heads * (plain + other) for other in (latent.turned_dim, latent.value_dim))
        return not (num_heads * latent.value_dim % grain.inputs or any(count % grain.outputs for count in outputs))
    width, kv_width = (config.head_dim * max(1, count // size) for count in (config.num_heads, config.num_kv_heads))
    return not (width % math.lcm(*grain) or kv_width % grain.outputs)


def _count_pieces(spec: FeedForwardSpec, num_ranks: int, division: Division) -> Iterator[int]:
    """Yield the number of pieces, between which a feed-forward may be cut, of everything in it that is cut."""

    def count(size: int) -> int:
        return -(-size // pick_tile(size, num_ranks, division.grain))

    if spec.experts is None or not division.has_whole_experts:
        yield count(spec.size)
    else:
        yield spec.experts.routing.num_experts
    if spec.experts is not None and spec.experts.shared_size:
        yield count(spec.experts.shared_size)


def _kinds(config: DecoderConfig) -> set[FeedForwardSpec]:
    return {layer.feed_forward for layer in config.layers if layer.half != "mixer"}


def _cut_evenly(count: int, place: Place) -> range:
    length = count // place.size
    return range(place.rank * length, (place.rank + 1) * length)


def _cut(size: int, tile: int, place: Place) -> range:
    """Return the rank's slice of tiles; where they cannot be equal, some ranks have one tile more."""
    num_tiles = -(-size // tile)
    start, stop = (min(size, -(-rank * num_tiles // place.size) * tile) for rank in (place.rank, place.rank + 1))
    return range(start, stop)
