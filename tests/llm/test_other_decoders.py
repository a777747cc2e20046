"""The runner works with every `Decoder`: here with one that has a layer without weights of its own and no kernels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from llm.backbones import Driver

from seesay.checkpoint.parts import plain_weight
from seesay.device.linear.layer_loading import LoadedLayers
from seesay.llm.memory.kv_layout import LayerCache
from seesay.llm.models.decoder import ModelInput
from seesay.llm.ops import RowLayout
from seesay.llm.plans.sampling_params import SamplingParams
from seesay.llm.plans.traits import DecoderTraits, KVShape
from seesay.llm.running.runner import ModelRunner
from seesay.llm.running.runner_limits import RunnerLimits
from seesay.values import MultimodalInput

CPU = torch.device("cpu")
VOCAB, SIZE = 23, 6


class MeanDecoder:
    """A token's hidden state is the mean of the embeddings of its text up to it; these are the cached values."""

    needs_clean_blocks = True
    device, dtype = CPU, torch.float32

    def __init__(self, table: torch.Tensor) -> None:
        self.traits = DecoderTraits(
            vocab_size=VOCAB,
            embedding_size=SIZE,
            kv_shapes=(KVShape(num_kv_heads=1, head_dim=SIZE),),
            flops_per_token=SIZE,
        )
        self._table = plain_weight("table", VOCAB, SIZE)
        self._table.data = table
        self.weights = LoadedLayers({}, [self._table], name_of=str, device=CPU, dtype=torch.float32)

    def forget_blocks(self) -> None:
        pass

    def forward(
        self, inputs: ModelInput, caches: Sequence[LayerCache], wanted: torch.Tensor | None = None
    ) -> torch.Tensor:
        [cache], layout = caches, inputs.layout
        assert isinstance(layout, RowLayout)
        slots = cache.data.view(-1, 2, SIZE)
        slots[inputs.slot_mapping] = self._table.data[inputs.input_ids][:, None].expand(-1, 2, -1)
        hidden = []
        for row, stop in enumerate(layout.kv_lens.tolist()):
            places = np.arange(stop)
            found = layout.block_table[row, places // layout.block_size] * layout.block_size
            values = slots[torch.from_numpy(found + places % layout.block_size), 1]
            count = int(layout.cu_seqlens_q[row + 1] - layout.cu_seqlens_q[row])
            means = values.cumsum(0) / torch.arange(1, stop + 1)[:, None]
            hidden.append(means[stop - count :])
        everything = torch.cat(hidden)
        return everything if wanted is None else everything[wanted]

    def warm_up(self, inputs: ModelInput, caches: Sequence[LayerCache], wanted: torch.Tensor) -> None:
        self.logits(self.forward(inputs, caches, wanted))

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden @ self._table.data.t()


def answer(table: torch.Tensor, token_ids: list[int], num_new: int) -> list[int]:
    for _ in range(num_new):
        token_ids = [*token_ids, int((table @ table[token_ids].mean(0)).argmax())]
    return token_ids[-num_new:]


@pytest.mark.parametrize("chunk", [3, 1 << 30])
def test_the_runner_needs_no_more_of_a_decoder_than_its_protocol(chunk: int) -> None:
    table = torch.randn(VOCAB, SIZE, generator=torch.Generator().manual_seed(1))
    limits = RunnerLimits(max_batch_size=4, max_step_tokens=40, session_len=64, block_size=4)
    runner = ModelRunner(MeanDecoder(table), limits)
    runner.allocate_cache(num_blocks=40, share=0.5)
    runner.warm_up()
    rng = np.random.default_rng(0)
    texts = [rng.integers(0, VOCAB, length) for length in (11, 2, 7)]
    prompts = [MultimodalInput(token_ids=ids, positions=np.arange(len(ids)), next_position=len(ids)) for ids in texts]
    tokens, _ = Driver(runner, chunk=chunk).generate(prompts, [SamplingParams(max_new_tokens=9)] * 3)
    assert tokens == [answer(table, ids.tolist(), 9) for ids in texts]
    assert len({tuple(ids) for ids in tokens}) > 1
