"""Decoders of all kinds in the deterministic mode: logits of a token have the same bits in every step. Their sizes are
odd, so that rows do not end where a vector of the CPU ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
import torch
from llm.backbones import BACKBONES, VOCAB, Backbone, composed, load_runner, make_saver

from seesay.device.determinism import deterministic
from seesay.device.query import cpu_threads
from seesay.engine.core.loading.deterministic import name_layers
from seesay.llm.memory.kv_cache import KVCache, make_layouts
from seesay.llm.models.composed_decoder import ComposedDecoder
from seesay.llm.models.decoder import ModelInput
from seesay.llm.ops import RowLayout

BLOCK_SIZE, LENGTH = 4, 45
CPU = torch.device("cpu")
REFUSED = {
    "qwen2-moe", "llama4", "lfm2", "lfm2-bias", "deepseek-v2", "deepseek-v3", "qwen3-next", "qwen3.5", "qwen3.5-moe",
    "bamba", "falcon-h1", "falcon-h1-normed", "granite-hybrid", "jamba", "jamba-dense", "nemotron-h", "nemotron-h-moe",
    "kimi-linear", "kimi-linear-query-rank",
}  # fmt: skip
ROUNDED = ("qwen2", "gemma2", "falcon-alibi", "gpt-oss")
"""Those that are computed in bfloat16, too."""
CUTS = [[LENGTH], [3, *([1] * 5), LENGTH - 8], [7, 30, 1, LENGTH - 38]]
"""Tokens of the steps."""


class Chunk(NamedTuple):
    """Tokens start … stop - 1 of sequence `number`."""

    number: int
    start: int
    stop: int


@pytest.fixture(scope="module")
def save(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Backbone]:
    return make_saver(tmp_path_factory)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, torch.float32) for name in BACKBONES), *((name, torch.bfloat16) for name in ROUNDED)]
)
def test_logits_have_the_same_bits_in_every_step(
    name: str, dtype: torch.dtype, save: Callable[[str], Backbone]
) -> None:
    with deterministic(dtype):
        decoder = composed(load_runner(save(name), dtype=dtype))
    refused = list(name_layers(decoder.config, CPU))
    assert bool(refused) == (name in REFUSED), refused
    if refused:
        pytest.skip(f"is refused: {refused[0]}")
    ids = torch.randint(3, VOCAB, (3, LENGTH), generator=torch.Generator().manual_seed(1))
    expected = compute(decoder, ids, [[Chunk(0, 0, LENGTH)]])[0]
    for cut in CUTS[1:]:
        ends = np.cumsum([0, *cut]).tolist()
        steps = [[Chunk(0, start, stop)] for start, stop in pairwise(ends)]
        assert torch.equal(compute(decoder, ids, steps)[0], expected), cut
    assert torch.equal(compute(decoder, ids, [[Chunk(0, 0, LENGTH)]], num_threads=2)[0], expected)
    # Beside other sequences, as the second row and as the last one.
    beside = [
        [Chunk(1, 0, 11), Chunk(0, 0, 20)],
        *([Chunk(2, i, i + 1), Chunk(0, 20 + i, 21 + i), Chunk(1, 11 + i, 12 + i)] for i in range(3)),
        [Chunk(1, 14, 15), Chunk(2, 3, 30), Chunk(0, 23, LENGTH)],
    ]
    assert torch.equal(compute(decoder, ids, beside)[0], expected)


def test_without_the_mode_bits_differ(save: Callable[[str], Backbone]) -> None:
    decoder = composed(load_runner(save("qwen2")))
    ids = torch.randint(3, VOCAB, (1, LENGTH), generator=torch.Generator().manual_seed(1))
    whole = compute(decoder, ids, [[Chunk(0, 0, LENGTH)]])[0]
    single = compute(decoder, ids, [[Chunk(0, i, i + 1)] for i in range(LENGTH)])[0]
    assert not torch.equal(whole, single)
    torch.testing.assert_close(whole, single, rtol=1e-3, atol=1e-3)


def compute(
    decoder: ComposedDecoder, ids: torch.Tensor, steps: Sequence[Sequence[Chunk]], num_threads: int = 1
) -> torch.Tensor:
    """Return the logits [S, LENGTH, vocab] of the sequences after these steps, of which each has the rows of one token
    first."""
    count, per_row = len(ids), -(-LENGTH // BLOCK_SIZE)
    layouts = make_layouts(decoder.traits.kv_shapes, block_size=BLOCK_SIZE, dtype=decoder.dtype)
    caches = KVCache(layouts, num_blocks=count * per_row, device=CPU).layers
    logits = torch.zeros(count, LENGTH, decoder.traits.vocab_size, dtype=decoder.dtype)
    for chunks in steps:
        rows = sorted(chunks, key=lambda chunk: chunk.stop - chunk.start > 1)
        tables = np.array([range(row.number * per_row, (row.number + 1) * per_row) for row in rows])
        places = [np.arange(row.start, row.stop) for row in rows]
        slots = [
            table[place // BLOCK_SIZE] * BLOCK_SIZE + place % BLOCK_SIZE
            for table, place in zip(tables, places, strict=True)
        ]
        positions = torch.from_numpy(np.concatenate(places))
        inputs = ModelInput(
            input_ids=torch.cat([ids[row.number, row.start : row.stop] for row in rows]),
            positions=positions if decoder.traits.num_position_axes == 1 else positions.repeat(3, 1),
            slot_mapping=torch.from_numpy(np.concatenate(slots)),
            layout=RowLayout(
                cu_seqlens_q=np.cumsum([0, *(row.stop - row.start for row in rows)]),
                kv_lens=np.array([row.stop for row in rows]),
                block_table=tables,
                block_size=BLOCK_SIZE,
                num_decode=sum(row.stop - row.start == 1 for row in rows),
            ),
            faults=torch.zeros(len(positions)),
            stretches=torch.zeros(len(positions), dtype=torch.float64)
            if decoder.traits.length_scaling is not None
            else None,
        )
        with torch.inference_mode(), cpu_threads(num_threads):
            made = decoder.logits(decoder.forward(inputs, caches))
        first = 0
        for row in rows:
            logits[row.number, row.start : row.stop] = made[first : first + row.stop - row.start]
            first += row.stop - row.start
    return logits
