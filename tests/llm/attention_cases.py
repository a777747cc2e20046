"""Rows of queries over a paged cache for tests of attention, with what it must give, in float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from triton_cases import DEVICE, DTYPES, assert_close, random

from seesay.llm.memory.kv_layout import KVFormat, KVLayout, LayerCache
from seesay.llm.ops import Ops, RowLayout
from seesay.llm.ops.kv_codec import read_tokens, write_tokens
from seesay.llm.ops.torch_ops import TorchOps
from seesay.llm.plans.window import Chunk, Window


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """rows: (new tokens, all tokens), those with one new token first. run: tokens see each other in groups of so many
    places; None: each sees those before it alone. prompts: the first so many tokens of each row are one run.
    slopes: the type of ALiBi's; None: none."""

    rows: list[tuple[int, int]]
    heads: tuple[int, int] = (6, 2)
    dim: int = 32
    block_size: int = 64
    window: Window | None = None
    soft_cap: float | None = None
    has_sinks: bool = False
    run: int | None = None
    slopes: torch.dtype | None = None
    prompts: tuple[int, ...] = ()
    format: KVFormat = "plain"
    dtype: torch.dtype = torch.float32

    @property
    def name(self) -> str:
        parts = [f"{n}of{length}" for n, length in self.rows[:3]], self.heads, self.dim, self.block_size
        more = f"{f'runs of {self.run}-' if self.run else ''}{'sinks-' if self.has_sinks else ''}"
        more += f"{self.slopes}-" if self.slopes else ""
        more += f"prompts of {self.prompts}-" if self.prompts else ""
        return f"{parts}-{self.window}-{self.soft_cap}-{more}{self.dtype}-{self.format}"

    @property
    def sinks(self) -> torch.Tensor | None:
        return random(self.heads[0], dtype=self.dtype, seed=7) * 3 if self.has_sinks else None

    @property
    def head_slopes(self) -> torch.Tensor | None:
        """Uneven ones, of which some let the first keys vanish and some do not."""
        if self.slopes is None:
            return None
        return torch.tensor([0.7**head for head in range(self.heads[0])], dtype=self.slopes, device=DEVICE)

    @property
    def options(self) -> dict[str, Any]:
        shared = {"scale": self.dim**-0.5, "window": self.window, "soft_cap": self.soft_cap, "sinks": self.sinks}
        return {**shared, "slopes": self.head_slopes}

    @property
    def num_decode(self) -> int:
        """The rows of one token outside of all runs: those in one are computed like rows of several tokens."""
        if self.run is not None:
            return 0
        prompts = self.prompts or (0,) * len(self.rows)
        return sum(n == 1 and length > prompt for (n, length), prompt in zip(self.rows, prompts, strict=True))

    def find_runs(self, row: int) -> np.ndarray:
        """The first and the last place of the run of each new token of a row, [2, n]."""
        num_new, length = self.rows[row]
        places = np.arange(length - num_new, length)
        if self.run is not None:
            first = places // self.run * self.run
            return np.stack((first, np.minimum(first + self.run, length) - 1))
        prompt = self.prompts[row] if self.prompts else 0
        return np.where(places < prompt, [[0], [prompt - 1]], places)


def attend_exactly(query: Any, keys: Any, values: Any, case: Any, row: int, scale: Any) -> Any:
    """One row in float64: query [n, H, D] over keys and values [L, G, D]; its tokens are the last n of L."""
    n, length, group = len(query), len(keys), case.heads[0] // case.heads[1]
    own = torch.arange(length - n, length, device=DEVICE)[:, None]
    seen = torch.arange(length, device=DEVICE)[None]
    first, last = torch.from_numpy(case.find_runs(row)).to(DEVICE)[:, :, None]
    hidden = seen > own
    if case.window is not None:
        chunk = case.window.size if isinstance(case.window, Chunk) else None
        hidden |= seen <= own - case.window if chunk is None else seen < own // chunk * chunk
    hidden &= (seen < first) | (seen > last)
    output = torch.empty(query.shape, dtype=torch.float64, device=DEVICE)
    for head in range(case.heads[0]):
        scores = query[:, head].double() @ keys[:, head // group].double().t() * scale
        if case.soft_cap is not None:
            scores = case.soft_cap * torch.tanh(scores / case.soft_cap)
        if case.slopes is not None:
            slope = case.head_slopes[head]
            if case.slopes == torch.bfloat16:
                scores = scores + ((slope * seen.bfloat16()).double() - slope.double() * own) * scale
            else:
                scores = scores + slope.double() * (seen - own)
        scores = scores.masked_fill(hidden, float("-inf"))
        if case.sinks is not None:
            scores = torch.cat((scores, case.sinks[head].double().expand(n, 1)), dim=1)
        output[:, head] = scores.softmax(-1)[:, :length] @ values[:, head // group].double()
    return output


def build(case: Case, *, is_clean: bool = False) -> Any:
    """The query, the cache, the layout, and the exact output. What is unused in the cache is NaN, also as a scale,
    unless it `is_clean`."""
    num_blocks = [-(-length // case.block_size) for _, length in case.rows]
    ids = np.random.default_rng(0).permutation(sum(num_blocks) + 2)
    num_heads, num_kv_heads = case.heads
    kv_layout = KVLayout(
        format=case.format,
        dtype=case.dtype,
        block_size=case.block_size,
        num_kv_heads=num_kv_heads,
        head_dim=case.dim,
    )
    cache = LayerCache.zeros(kv_layout, len(ids), DEVICE)
    if not is_clean:
        cache.data.fill_(float("nan") if case.format == "plain" else 0xFF)
    table = np.zeros((len(case.rows), max(num_blocks, default=0)), dtype=np.int64)
    queries, expected, used, scale = [], [], 0, case.dim**-0.5
    for index, ((num_new, length), count) in enumerate(zip(case.rows, num_blocks, strict=True)):
        own = ids[used : used + count]
        used += count
        table[index, :count], table[index, count:] = own, own[-1]
        pairs = random(length, 2, num_kv_heads, case.dim, dtype=case.dtype, seed=index)
        places = own[np.arange(length) // case.block_size] * case.block_size + np.arange(length) % case.block_size
        slots = torch.from_numpy(places).to(DEVICE)
        write_tokens(cache, slots, pairs)
        pairs = read_tokens(cache, slots, torch.float32)
        queries.append(random(num_new, num_heads, case.dim, dtype=case.dtype, seed=100 + index))
        expected.append(attend_exactly(queries[-1], pairs[:, 0], pairs[:, 1], case, index, scale))
    layout = RowLayout(
        cu_seqlens_q=np.cumsum([0] + [n for n, _ in case.rows]),
        kv_lens=np.array([length for _, length in case.rows], dtype=np.int64),
        block_table=table,
        block_size=case.block_size,
        num_decode=case.num_decode,
        runs=np.concatenate([case.find_runs(row) for row in range(len(case.rows))], axis=1)
        if case.run or case.prompts
        else None,
    )
    empty = torch.empty(0, num_heads, case.dim, dtype=case.dtype, device=DEVICE)
    return torch.cat([empty, *queries]), cache, layout, torch.cat([empty.double(), *expected])


def random_cases(seed: int, count: int, *, longest: int = 3000) -> list[Case]:
    """Random shapes: borders of blocks, contexts up to about `longest`, many rows."""
    rng = np.random.default_rng(seed)
    cases = []
    for _ in range(count):
        rows = [(1, int(rng.integers(1, longest))) for _ in range(rng.integers(0, 6))]
        for _ in range(rng.integers(0, 5)):
            num_new = int(rng.integers(2, longest // 5))
            rows.append((num_new, num_new + int(rng.choice([0, 1, 63, 64, 65, int(rng.integers(longest * 2 // 3))]))))
        kv_heads = int(rng.choice([1, 2, 4]))
        run = [None, None, 256, 19][rng.integers(4)]
        prompts = tuple(_draw_prompt(rng, *row) for row in rows) if run is None and rng.integers(2) else ()
        cases.append(
            Case(
                rows=rows,
                heads=(kv_heads * int(rng.choice([1, 2, 4, 7, 8])), kv_heads),
                dim=int(rng.choice([16, 64, 80, 96, 128, 256])),
                block_size=int(rng.choice([1, 13, 16, 32, 64, 64, 64, 128])),
                window=[None, None, 1, 37, 512, Chunk(50), Chunk(512)][rng.integers(7)],
                soft_cap=[None, None, 20.0][rng.integers(3)],
                has_sinks=bool(rng.integers(3) == 0),
                run=run,
                prompts=prompts,
                slopes=[None, None, torch.float32, torch.bfloat16][rng.integers(4)],
                dtype=DTYPES[rng.integers(len(DTYPES))],
            )
        )
    return cases


def _draw_prompt(rng: np.random.Generator, num_new: int, length: int) -> int:
    """The tokens of a prompt: all, none of the new ones, or some of several new ones."""
    return int(rng.choice([length, length - num_new, length - num_new // 2])) if num_new > 1 else length - 1


def check_attention(ops: Ops, case: Case, *, float32_factor: float) -> None:
    """Compare attention with that in float64, twice with one plan. float32_factor: see `assert_close`."""
    if isinstance(ops, TorchOps) and not (case.rows and all(length < 4096 for _, length in case.rows)):
        pytest.skip("too large for torch's masks, or empty")
    query, cache, layout, expected = build(case, is_clean=isinstance(ops, TorchOps))
    # The query lies inside a wider tensor, as in the decoder.
    wide = torch.cat((query, query.new_full((len(query), 2, case.dim), float("nan"))), dim=1)
    plan = ops.plan_attention(layout, windows=frozenset([case.window]), device=DEVICE, dtype=case.dtype)
    for _ in range(2):
        output = ops.attend(wide[:, : case.heads[0]], cache, plan, **case.options)
        assert_close(output, expected, factor=float32_factor if case.dtype == torch.float32 else 1)
