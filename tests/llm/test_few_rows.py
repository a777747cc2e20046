"""Steps of few tokens, where some linear layers have fused kernels and others do not: each layer goes its own way. The
tests run in Triton's interpreter: `kernels/test_interpreter.py` runs this file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from llm import backbones
from pairs import mark_after, parametrize_sweep
from triton_cases import IS_INTERPRETED

from seesay.checkpoint import Checkpoint
from seesay.device.linear import linear as linear_module
from seesay.device.linear.matmul import make_product
from seesay.llm.memory.kv_cache import KVCache, make_layouts
from seesay.llm.models.composed_decoder import ComposedDecoder
from seesay.llm.models.configs.reading import read_decoder_config
from seesay.llm.models.decoder import ModelInput
from seesay.llm.ops import RowLayout, SlotRows
from seesay.llm.ops.low_rank import sort_by_slot
from seesay.llm.ops.torch_ops import TorchOps

CPU = torch.device("cpu")
QKV, OUT, GATE_UP, DOWN, HEAD = (100, 60), (60, 60), (176, 60), (60, 88), (160, 60)
"""Shapes of the weights of a test backbone's layers."""


@pytest.mark.skipif(not IS_INTERPRETED, reason="needs the interpreter")
@parametrize_sweep(
    max_rows=[{QKV: 32, DOWN: 32}, {OUT: 32, GATE_UP: 32, HEAD: 32}, {QKV: 1, OUT: 2, GATE_UP: 32, DOWN: 3}],
    num_tokens=[1, 3],
)
def test_layers_without_a_kernel_compute_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, max_rows: dict[tuple[int, int], int], num_tokens: int
) -> None:
    from seesay.kernels.few_rows.few_row_matmul import multiply

    used = set()

    def make_with_kernel(weight: torch.Tensor, bias: torch.Tensor | None) -> Any:
        shape = (weight.shape[0], weight.shape[1])

        def fused(x: torch.Tensor, **options: Any) -> Any:
            used.add(shape)
            return multiply(x, weight, bias, **options)

        limit = max_rows.get(shape, 0)
        return replace(make_product(weight, bias), fused=partial(fused) if limit else None, max_fused_rows=limit)

    backbone = backbones.make_backbone("llama", tmp_path)
    expected = compute(backbone, num_tokens)
    monkeypatch.setattr(linear_module, "make_product", make_with_kernel)
    found = compute(backbone, num_tokens)
    assert used == {shape for shape, limit in max_rows.items() if limit >= num_tokens}
    assert expected.std() > 0.3
    torch.testing.assert_close(found, expected, atol=0.05, rtol=0.02)


@pytest.mark.skipif(not IS_INTERPRETED, reason="needs the interpreter")
@pytest.mark.parametrize(
    "name", mark_after(3, ("starcoder2", "glm4", "falcon-groups", "granite", "olmo2", "cohere", "falcon"))
)
def test_kernels_of_few_rows_serve_all_kinds_of_layers(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from seesay.kernels.few_rows.few_row_matmul import multiply

    calls = []

    def make_with_kernel(weight: torch.Tensor, bias: torch.Tensor | None) -> Any:
        def fused(x: torch.Tensor, **options: Any) -> Any:
            calls.append(options)
            return multiply(x, weight, bias, **options)

        return replace(make_product(weight, bias), fused=fused, max_fused_rows=32)

    backbone = backbones.make_backbone(name, tmp_path)
    expected = compute(backbone, 3)
    monkeypatch.setattr(linear_module, "make_product", make_with_kernel)
    found = compute(backbone, 3)
    assert len(calls) == 4 * backbone.text_config.num_hidden_layers + 1
    assert expected.std() > 0.3
    torch.testing.assert_close(found, expected, atol=0.1, rtol=0.03)


@pytest.mark.skipif(not IS_INTERPRETED, reason="needs the interpreter")
@pytest.mark.parametrize("num_tokens", [1, 3])
@pytest.mark.parametrize("name", mark_after(2, ("llama", "starcoder2", "cohere", "olmo2", "granite", "falcon-groups")))
def test_adapters_keep_the_kernels_of_few_rows(
    name: str, num_tokens: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What they add comes before an activation, and behind a norm. The product of one row does all of it; that of
    several adds to the residual alone."""
    from seesay.kernels.few_rows.few_row_matmul import multiply
    from seesay.llm.ops.triton_ops import TritonOps

    calls = []

    def make_with_kernel(weight: torch.Tensor, bias: torch.Tensor | None) -> Any:
        def fused(x: torch.Tensor, **options: Any) -> Any:
            calls.append(options)
            return multiply(x, weight, bias, **options)

        return replace(make_product(weight, bias), fused=fused, max_fused_rows=32, fuses_low_rank=True)

    backbone = backbones.make_backbone(name, tmp_path)
    adapt = partial(fill_slots, num_tokens)
    plain, expected = compute(backbone, num_tokens), compute(backbone, num_tokens, adapt=adapt)
    monkeypatch.setattr(linear_module, "make_product", make_with_kernel)
    monkeypatch.setattr(TorchOps, "low_rank", TritonOps.low_rank)
    found = compute(backbone, num_tokens, adapt=adapt)
    num_layers = backbone.text_config.num_hidden_layers
    assert len(calls) == 4 * num_layers + 1
    assert sum("products" in options for options in calls) == (4 * num_layers if num_tokens == 1 else 0)
    if num_tokens > 1:
        assert not any(options.get("norm") or options.get("activation") for options in calls)
    assert (expected[:2] - plain[:2]).abs().amax(1).min() > 0.05
    torch.testing.assert_close(found, expected, atol=0.02, rtol=0.02)


def fill_slots(num_tokens: int, decoder: ComposedDecoder) -> SlotRows:
    """Fill two slots with numbers, and return them for the first two of up to three tokens."""
    adapters = decoder.make_adapters(num_slots=2, max_rank=4)
    generator = torch.Generator().manual_seed(1)
    adapters._slots.copy_(torch.randn(adapters._slots.shape, generator=generator) * 0.1)
    adapters._host_ranks[:] = [[3], [4]]  # of all layers
    adapters._ranks.copy_(torch.from_numpy(adapters._host_ranks))
    found = sort_by_slot(np.array([1, 0, -1])[:num_tokens])
    tokens, tiles = torch.from_numpy(found.tokens), torch.from_numpy(found.tiles)
    return SlotRows(tokens=tokens, tiles=tiles, tile_rows=found.tile_rows, runs=found.runs)


def compute(
    backbone: backbones.Backbone, num_tokens: int, adapt: Callable[[ComposedDecoder], SlotRows] | None = None
) -> torch.Tensor:
    """Logits of a row of tokens, in float16, which few-row kernels take."""
    checkpoint = Checkpoint.load(backbone.path)
    config = read_decoder_config(checkpoint.text_config)
    decoder = ComposedDecoder.load(
        checkpoint, config, decoder_name=backbones.names_of(checkpoint), device=CPU, dtype=torch.float16
    )  # fmt: skip
    cache = KVCache(make_layouts(config.traits.kv_shapes, block_size=4, dtype=torch.float16), num_blocks=1, device=CPU)
    numbers = torch.arange(num_tokens)
    inputs = ModelInput(
        input_ids=numbers * 7 + 3,
        positions=numbers,
        slot_mapping=numbers,
        layout=RowLayout(
            cu_seqlens_q=np.array([0, num_tokens]),
            kv_lens=np.array([num_tokens]),
            block_table=np.array([[0]]),
            block_size=4,
            num_decode=0,
        ),
        faults=torch.zeros(num_tokens),
    )
    if adapt is not None:
        inputs = replace(inputs, adapters=adapt(decoder))
    with torch.inference_mode():
        return decoder.logits(decoder.forward(inputs, cache.layers)).float()
