"""Where a decoder is cut for ranks, and what cannot be cut."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seesay.checkpoint.quantization import Quantization
from seesay.device.ranks import Place, Unconnected
from seesay.errors import ConfigError
from seesay.llm.models.division import NO_GRAIN, WHOLE, Division, Grain, make_division, pick_tile
from seesay.llm.models.spec import DecoderConfig, ExpertsSpec, FeedForwardSpec, LayerSpec, NormSpec, RotarySpec
from seesay.llm.plans.routing import Routing

AWQ = Quantization(format="awq", strategy="group", bits=4, group_size=128)
BLOCKS = Quantization(format="fp8", strategy="block", block_size=(64, 128))


def make_config(*, heads: int, kv_heads: int, inner: int = 18944, head_dim: int = 128) -> DecoderConfig:
    return DecoderConfig(
        vocab_size=152_064,
        hidden_size=3584,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        norm=NormSpec(eps=1e-6),
        attention_scale=1.0,
        rotaries=(RotarySpec(dim=2, sections=(), inv_freq=(1.0,)),),
        layers=(LayerSpec(feed_forward=FeedForwardSpec(size=inner)),),
    )


def share(rank: int, size: int, grain: Grain = NO_GRAIN) -> Division:
    return Division(ranks=Unconnected(Place(rank, size)), grain=grain)


@given(size=st.integers(1, 40_000), num_ranks=st.integers(1, 16), grain=st.sampled_from([NO_GRAIN, Grain(8, 128)]))
def test_slices_of_an_inner_size_lie_side_by_side_on_borders(size: int, num_ranks: int, grain: Grain) -> None:
    slices = [share(rank, num_ranks, grain).inner(size) for rank in range(num_ranks)]
    assert [i for piece in slices for i in piece] == list(range(size))
    tile = pick_tile(size, num_ranks, grain)
    assert all(piece.start % tile == 0 or piece.start == size for piece in slices)
    assert tile % 128 == 0 or grain is NO_GRAIN
    lengths = [len(piece) for piece in slices]
    assert max(lengths) - min(lengths) < 2 * tile
    if grain is NO_GRAIN and size >= num_ranks:
        assert all(lengths) or size < 2 * num_ranks


def test_231_groups_are_116_and_115() -> None:
    grain = Grain.of(AWQ)
    assert grain == (8, 128)
    assert [len(share(rank, 2, grain).inner(29_568)) for rank in range(2)] == [116 * 128, 115 * 128]


@pytest.mark.parametrize(("size", "num_ranks", "tile"), [(11_008, 2, 64), (11_008, 8, 32), (768, 8, 32), (88, 2, 64)])
def test_plain_weights_are_cut_equally_where_tiles_allow_it(size: int, num_ranks: int, tile: int) -> None:
    assert pick_tile(size, num_ranks, NO_GRAIN) == tile


@pytest.mark.parametrize(
    ("heads", "kv_heads", "size", "expected"),
    [(28, 4, 2, [(0, 14, 0, 2), (14, 28, 2, 4)]), (8, 2, 4, [(0, 2, 0, 1), (2, 4, 0, 1), (4, 6, 1, 2), (6, 8, 1, 2)])],
)
def test_query_heads_stay_with_their_keys(
    heads: int, kv_heads: int, size: int, expected: list[tuple[int, ...]]
) -> None:
    config, found = make_config(heads=heads, kv_heads=kv_heads), []
    for rank in range(size):
        division = make_division(config, Unconnected(Place(rank, size)), None)
        own, keys = division.heads(config), division.kv_heads(config)
        found.append((own.start, own.stop, keys.start, keys.stop))
        assert division.num_holders(config) == max(1, size // kv_heads)
        assert {head * kv_heads // heads for head in own} == set(keys)
    assert found == expected


@pytest.mark.parametrize(
    ("changes", "quantization", "size", "message"),
    [
        ({"heads": 28, "kv_heads": 4}, None, 3, "tp=3: 28 query heads and 4 KV heads .* among 1, 2, 4 or 28 ranks"),
        ({"heads": 6, "kv_heads": 3}, None, 2, "6 query heads and 3 KV heads .* among 1, 3 or 6 ranks"),
        ({"heads": 14, "kv_heads": 2, "head_dim": 64}, AWQ, 2, "groups of 128, cannot be divided: use tp=1 or pp=2"),
        ({"heads": 8, "kv_heads": 8, "inner": 512}, AWQ, 8, "512, stored in groups of 128, .* 1, 2 or 4 ranks"),
        ({"heads": 8, "kv_heads": 8, "inner": 512}, BLOCKS, 8, "512, stored in groups of 128, .* 1, 2 or 4 ranks"),
    ],
)
def test_a_number_of_ranks_that_cannot_divide_is_refused_with_those_that_can(
    changes: dict[str, int], quantization: Quantization | None, size: int, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_division(make_config(**changes), Unconnected(Place(0, size)), quantization)


def test_a_vocabulary_smaller_than_the_ranks_need_is_refused() -> None:
    config = replace(make_config(heads=8, kv_heads=8), vocab_size=9)  # of four ranks, three would have all
    with pytest.raises(ConfigError, match="among 1 or 2 ranks"):
        make_division(config, Unconnected(Place(0, 8)), None)


@given(count=st.integers(64 * 16 * 16, 300_000), size=st.integers(1, 16))
def test_every_rank_has_tokens_and_the_last_fewest(count: int, size: int) -> None:
    rows = [share(rank, size).tokens(count) for rank in range(size)]
    length = share(0, size).padded_tokens(count)
    assert [i for own in rows for i in own] == list(range(count))
    assert all(len(own) == length for own in rows[:-1]) and 0 < len(rows[-1]) <= length
    assert size == 1 or length % 64 == 0


def test_experts_are_cut_or_shared() -> None:
    routing = Routing(num_experts=10, num_chosen=2)
    spec = FeedForwardSpec(kind="experts", size=96, experts=ExpertsSpec(routing=routing))
    config = replace(make_config(heads=32, kv_heads=4), layers=(LayerSpec(feed_forward=spec),))
    found = []
    for rank in range(4):
        cut = make_division(config, Unconnected(Place(rank, 4)), None)
        whole = make_division(config, Unconnected(Place(rank, 4)), None, expert_parallel=True)
        assert cut.experts(10) == range(10) and whole.expert_inner(96) == range(96)
        assert cut.expert_inner(96) == cut.inner(96)
        found.append(whole.experts(10))
    assert found == [range(3), range(3, 5), range(5, 8), range(8, 10)]
    with pytest.raises(ConfigError, match="among 1, 2, 4 or 8 ranks"):  # 16 are more than the experts
        make_division(config, Unconnected(Place(0, 16)), None, expert_parallel=True)


def test_one_rank_divides_nothing() -> None:
    config = make_config(heads=28, kv_heads=4)
    assert make_division(config, Unconnected(Place(0, 1)), AWQ) is WHOLE is make_division(config, None, None)
