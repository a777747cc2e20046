"""Attention over copies that are kept from step to step against attention that gathers everything anew, in random
histories: rows come, leave, are preempted and come back, blocks are used again, caches change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pairs import num_examples

from seesay.llm.memory.kv_layout import KVFormat, KVLayout, LayerCache
from seesay.llm.ops import RowLayout, decode_kv_copy
from seesay.llm.ops.kv_codec import write_tokens
from seesay.llm.ops.torch_ops import TorchOps

HEADS, KV_HEADS, DIM, BLOCK, NUM_BLOCKS = 4, 2, 8, 4, 40
WINDOWS = (None, 5)
FORMATS: tuple[KVFormat, ...] = ("plain", "int8")
LAYERS = len(FORMATS)
LAYOUTS = [
    KVLayout(format=format, dtype=torch.float32, block_size=BLOCK, num_kv_heads=KV_HEADS, head_dim=DIM)
    for format in FORMATS
]


class World:
    """Sequences with blocks in a paged cache of two layers, one of them quantized, and two implementations that see the
    same steps."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(0)
        self.caches = [LayerCache.zeros(layout, NUM_BLOCKS, torch.device("cpu")) for layout in LAYOUTS]
        for cache in self.caches:
            self.fill(cache, list(range(NUM_BLOCKS)))
        self.free = list(range(NUM_BLOCKS))
        self.rows: list[dict[str, Any]] = []
        self.ops = TorchOps()
        self.num_followed = 0

    def fill(self, cache: LayerCache, blocks: list[int]) -> None:
        """Write keys and values at random to all slots of these blocks."""
        slots = torch.tensor(blocks)[:, None] * BLOCK + torch.arange(BLOCK)
        write_tokens(cache, slots.flatten(), torch.randn(slots.numel(), 2, KV_HEADS, DIM))

    def join(self, length: int) -> None:
        """A sequence with `length` tokens in the cache, in whatever blocks were freed last."""
        blocks = [self.free.pop() for _ in range(-(-(length + 1) // BLOCK))]
        for cache in self.caches:
            self.fill(cache, blocks)
        self.rows.append({"length": length, "blocks": blocks})

    def load(self, index: int) -> None:
        """A row's first block is written to by something other than a step, as when it is loaded from the host."""
        for cache in self.caches:
            self.fill(cache, self.rows[index]["blocks"][:1])
        self.ops.forget_blocks()

    def leave(self, index: int) -> None:
        self.free += reversed(self.rows.pop(index)["blocks"])

    def make_layout(self) -> RowLayout:
        for row in self.rows:
            row["length"] += 1
            if row["length"] > len(row["blocks"]) * BLOCK:
                row["blocks"].append(self.free.pop(0))
        width = max(len(row["blocks"]) for row in self.rows)
        table = [row["blocks"] + row["blocks"][-1:] * (width - len(row["blocks"])) for row in self.rows]
        return RowLayout(
            cu_seqlens_q=np.arange(len(self.rows) + 1),
            kv_lens=np.array([row["length"] for row in self.rows]),
            block_table=np.array(table),
            block_size=BLOCK,
            num_decode=len(self.rows),
        )

    def step(self, *, num_layers: int = LAYERS, soft_cap: float | None = None) -> None:
        """One decode step for all rows; with `num_layers` 1 it fails after the first layer."""
        if not self.rows:
            return
        layout, plain = self.make_layout(), TorchOps()
        options: dict[str, Any] = {"windows": frozenset(WINDOWS), "device": torch.device("cpu"), "dtype": torch.float32}
        plan = self.ops.plan_attention(layout, **options)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(decode_kv_copy, "MAX_KEPT_TOKENS", 0)
            plain_plan = plain.plan_attention(layout, **options)
        assert plan.context is not None and plain_plan.context is None
        self.num_followed += plan.context.follows
        last = layout.kv_lens - 1
        slots = layout.block_table[np.arange(len(last)), last // BLOCK] * BLOCK + last % BLOCK
        for cache, window in list(zip(self.caches, WINDOWS, strict=True))[:num_layers]:
            pairs = torch.randn(len(last), 2, KV_HEADS, DIM)
            write_tokens(cache, torch.from_numpy(slots), pairs)
            query = torch.randn(len(last), HEADS, DIM)
            how: dict[str, Any] = {"scale": 0.4, "window": window, "soft_cap": soft_cap}
            expected = plain.attend(query, cache, plain_plan, **how)
            torch.testing.assert_close(self.ops.attend(query, cache, plan, **how), expected, atol=1e-5, rtol=1e-5)


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("join"), st.integers(1, 9)),
        st.tuples(st.just("leave"), st.integers(0, 3)),
        st.tuples(st.just("load"), st.integers(0, 3)),
        st.tuples(st.just("steps"), st.integers(1, 6)),
        st.tuples(st.just("fail"), st.just(0)),
        st.tuples(st.just("swap"), st.just(0)),
        st.tuples(st.just("recompute"), st.just(0)),
        st.tuples(st.just("move cache"), st.just(0)),
    ),
    max_size=14,
)


@settings(max_examples=num_examples(60), deadline=None)
@given(actions=ACTIONS, soft_cap=st.sampled_from([None, 3.0]))
def test_copies_never_differ_from_the_cache(actions: Any, soft_cap: Any) -> None:
    torch.manual_seed(0)
    world = World()
    world.join(6)
    for name, number in actions:
        if name == "join" and len(world.rows) < 4:
            world.join(number)
        elif name == "leave" and number < len(world.rows):
            world.leave(number)
        elif name == "load" and number < len(world.rows):
            world.load(number)
        elif name == "steps":
            for _ in range(number):
                if sum(row["length"] for row in world.rows) < 90:
                    world.step(soft_cap=soft_cap)
        elif name == "fail":
            world.step(num_layers=1)
        elif name == "swap":
            world.rows.reverse()
        elif name == "recompute":  # the step is computed a second time
            for row in world.rows:
                row["length"] -= 1
        elif name == "move cache":
            world.caches = [replace(cache, data=cache.data.clone()) for cache in world.caches]
        world.step(soft_cap=soft_cap)


def test_copies_are_used_while_nothing_changes() -> None:
    world = World()
    world.join(6)
    world.join(3)
    for _ in range(12):
        world.step()
    assert world.num_followed >= 9


def test_prefills_and_large_batches_drop_the_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.join(6)
    world.step()
    layout = RowLayout(
        cu_seqlens_q=np.array([0, 2]),
        kv_lens=np.array([2]),
        block_table=np.array([[0]]),
        block_size=BLOCK,
        num_decode=0,
    )
    assert world.ops._kept.begin_step(layout, frozenset([None])) is None
    assert not world.ops._kept._copies
    world.step()
    assert world.num_followed == 0
    monkeypatch.setattr(decode_kv_copy, "MAX_KEPT_TOKENS", 8)
    assert world.ops._kept.begin_step(world.make_layout(), frozenset([None])) is None
    assert not world.ops._kept._copies


def test_rows_of_proposed_tokens_see_what_takes_their_places() -> None:
    """A row of a token, and one of the token proposed behind it, in the same blocks: where that was wrong, both have
    the next places in the step after."""
    world = World()
    world.join(6)
    [row] = world.rows
    world.rows.append({"length": row["length"] + 1, "blocks": row["blocks"]})
    for _ in range(9):
        world.step()
    assert world.num_followed == 0
