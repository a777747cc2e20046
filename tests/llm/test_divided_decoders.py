"""Decoders divided among ranks: in every format, by kernels of few rows, over real processes, with new weights."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from decoder_steps import LENGTH, NEXT, Steps, compute_steps
from forked_ranks import run_forked_ranks
from fused_products import make_fused
from llm import backbones
from other_weights import copy_with_other_weights, read_weights
from pairs import mark_after, parametrize_sweep
from quantized_folders import FORMS, PACKED_FORMS, set_config, write_quantized
from thread_ranks import ThreadRanks, run_ranks
from torch import distributed

from seesay.checkpoint import Checkpoint, TensorSlices
from seesay.checkpoint.quantization import InFlight
from seesay.checkpoint.tensor_source import GivenTensor, HandedTensors
from seesay.device.backends import has_kernels
from seesay.device.linear import linear as linear_module
from seesay.device.ranks import Place, Ranks, TorchRanks, Unconnected
from seesay.errors import CheckpointError, ConfigError
from seesay.llm.models import residual
from seesay.llm.models.composed_decoder import ComposedDecoder
from seesay.llm.models.configs.reading import read_decoder_config
from seesay.llm.models.layer_states import LayerStates

CPU = torch.device("cpu")
SIZES = {"hidden_size": 64, "intermediate_size": 104, "num_attention_heads": 4, "num_key_value_heads": 2}
QUANTIZED = {**SIZES, "hidden_size": 128, "head_dim": 128, "intermediate_size": 416, "num_hidden_layers": 2}
"""Three groups of 128 and one of 32; 13 groups of 32."""
FUSED = (
    "llama", "gemma2", "starcoder2", "granite", "olmo2", "cohere", "glm4", "falcon-groups", "falcon-alibi", "mpt",
    "mixtral", "qwen2-moe", "glm4-moe", "qwen3.5", "qwen3-next", "granite-hybrid", "falcon-h1", "jamba", "lfm2-bias",
    "nemotron-h", "nemotron-h-moe",
)  # fmt: skip
OTHERS = [
    name
    for name in backbones.BACKBONES
    if name not in (*FUSED, "qwen3")  # which has three key heads
]
ORDERED = [form for form in PACKED_FORMS if "order" in form]
FORMATS = FORMS | {form: each for form, each in PACKED_FORMS.items() if form not in ORDERED}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], backbones.Backbone]:
    return backbones.make_saver(tmp_path_factory, **SIZES)


@pytest.fixture(scope="module")
def six_heads(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], backbones.Backbone]:
    return backbones.make_saver(tmp_path_factory)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return backbones.make_backbone("llama", tmp_path_factory.mktemp("wide"), **QUANTIZED, attention_bias=False).path


def load(
    path: Path,
    ranks: Ranks | None = None,
    *,
    quantization: InFlight | None = None,
    device: torch.device = CPU,
    expert_parallel: bool = False,
    num_deep_layers: int = 0,
) -> ComposedDecoder:
    checkpoint = Checkpoint.load(path, quantization=quantization)
    config = read_decoder_config(
        checkpoint.text_config, tied_embeddings=bool(checkpoint.model_config.tie_word_embeddings), session_len=256
    )
    names = backbones.names_of(checkpoint)
    return ComposedDecoder.load(
        checkpoint,
        replace(config, num_deep_layers=num_deep_layers),
        decoder_name=names,
        device=device,
        dtype=torch.float32,
        ranks=ranks,
        expert_parallel=expert_parallel,
    )


def check_ranks(path: Path, size: int, expected: Steps, **options: Any) -> None:
    for found in run_ranks(size, lambda ranks: compute_steps(load(path, ranks, **options))):
        torch.testing.assert_close(found, expected, atol=3e-4 * float(expected.prompt.std()), rtol=1e-4)


@pytest.mark.parametrize("name", mark_after(len(FUSED), [*FUSED, *OTHERS]))
def test_kernels_of_few_rows_compute_the_same(
    name: str, six_heads: Callable[[str], backbones.Backbone], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = six_heads(name).path
    expected = compute_steps(load(path))
    assert expected.prompt.std() > 0.1
    monkeypatch.setattr(linear_module, "make_product", make_fused)
    check_ranks(path, 2, expected)


@pytest.mark.parametrize("name", ["llama", "gemma2", "granite", "mixtral", "starcoder2", "olmo2", "falcon"])
def test_two_pieces_compute_the_same(
    name: str, saved: Callable[[str], backbones.Backbone], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums of one are begun before the other is computed; layers whose halves are one sum have no pieces."""
    path = saved(name).path
    expected = compute_steps(load(path))
    monkeypatch.setattr(residual, "MIN_PIECE_TOKENS", 2)
    check_ranks(path, 2, expected)

    def count(ranks: Ranks) -> list[tuple[int, ...]]:
        assert isinstance(ranks, ThreadRanks)
        compute_steps(load(path, ranks))
        return [shape for _, shape in ranks.calls if shape[0] in (6, 5)]

    pieces = [(6, 64), (5, 64)] * 2
    for shapes in run_ranks(2, count):
        assert [shape for shape in shapes if shape[1] == 64][:4] == pieces if name != "falcon" else not shapes


def test_deep_embeddings_and_kept_states_join_two_pieces(
    saved: Callable[[str], backbones.Backbone], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are taken between layers, where the sums of the last pieces are still open."""
    path = saved("llama").path

    def compute(ranks: Ranks | None = None) -> tuple[Steps, torch.Tensor]:
        decoder = load(path, ranks, num_deep_layers=2)
        decoder.layer_states = LayerStates((0, 1))
        return compute_steps(decoder), decoder.layer_states.states

    expected, states = compute()
    assert (expected.prompt - compute_steps(load(path)).prompt).abs().max() > 0.1
    monkeypatch.setattr(residual, "MIN_PIECE_TOKENS", 2)
    for steps, kept in run_ranks(2, compute):
        torch.testing.assert_close(steps, expected, atol=3e-4 * float(expected.prompt.std()), rtol=1e-4)
        torch.testing.assert_close(kept, states, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("form", ["awq, groups of 32", "gptq, symmetric", "fp8, blocks of 128"])
def test_two_pieces_of_quantized_weights_compute_the_same(
    form: str, wide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = write_quantized(wide, tmp_path, FORMATS[form])
    expected = compute_steps(load(path))
    monkeypatch.setattr(residual, "MIN_PIECE_TOKENS", 2)
    check_ranks(path, 2, expected)


@parametrize_sweep(form=FORMATS, size=[2, 4])
def test_every_format_is_divided(form: str, size: int, wide: Path, tmp_path: Path) -> None:
    path, _ = write_quantized(wide, tmp_path, FORMATS[form])
    expected = compute_steps(load(path))
    check_ranks(path, size, expected)
    assert (expected.prompt - compute_steps(load(wide)).prompt).abs().max() > 0.01


@pytest.mark.parametrize("form", ORDERED)
def test_inputs_in_order_of_activations_are_refused(form: str, wide: Path, tmp_path: Path) -> None:
    path, _ = write_quantized(wide, tmp_path, PACKED_FORMS[form])
    with pytest.raises(CheckpointError, match=r"g_idx' has groups whose inputs are far apart .* use tp=1 or pp=2"):
        load(path, Unconnected(Place(0, 2)))


def test_steps_of_a_state_space_that_cut_blocks_apart_are_refused(tmp_path: Path) -> None:
    """Behind keys and queries, the first product has one output for each head."""
    sizes = {
        "hidden_size": 128, "intermediate_size": 256, "shared_intermediate_size": 64, "num_attention_heads": 4,
        "mamba_n_heads": 8, "mamba_d_head": 32, "mamba_d_state": 32,
    }  # fmt: skip
    source = backbones.make_backbone("granite-hybrid", tmp_path / "model", **sizes).path
    path, _ = write_quantized(source, tmp_path, FORMS["fp8, small blocks"], lambda name: ".mamba.in_proj." in name)
    left = [name.removesuffix(".weight") for name in read_weights(source) if ".mamba.in_proj." not in name]
    set_config(path, quantization_config={**FORMS["fp8, small blocks"].config, "modules_to_not_convert": left})
    assert load(path).weights.tensors()
    with pytest.raises(CheckpointError, match=r"mamba\.in_proj.*: elements 640 to 644 cut groups .*; use tp=1 or pp=2"):
        load(path, Unconnected(Place(0, 2)))


@pytest.mark.parametrize("quantization", ["int8", "fp8"])
def test_quantizing_in_flight_takes_scales_of_the_slice(quantization: InFlight, wide: Path) -> None:
    """A rank's scale of an output is that of its inputs, so results are near those of one rank, and not equal."""
    plain = compute_steps(load(wide)).prompt
    whole = (compute_steps(load(wide, quantization=quantization)).prompt - plain).abs().mean()
    found, other = run_ranks(2, lambda ranks: compute_steps(load(wide, ranks, quantization=quantization)).prompt)
    assert torch.equal(found, other)
    assert 0 < (found - plain).abs().mean() < 1.5 * whole


def test_there_is_one_sum_per_half_layer(saved: Callable[[str], backbones.Backbone]) -> None:
    """And one of the embeddings; of the last layer, those of the tokens whose logits are wanted."""

    def count(ranks: Ranks) -> list[tuple[str, tuple[int, ...]]]:
        assert isinstance(ranks, ThreadRanks)
        compute_steps(load(path, ranks))
        return ranks.calls

    for name, per_layer in (("llama", 2), ("falcon", 1), ("cohere", 1), ("gemma2", 2)):
        path = saved(name).path
        num_layers = load(path).config.num_layers
        expected = []
        for num_tokens in (LENGTH, *NEXT):
            expected += [("sum", (num_tokens, 64))] * (1 + num_layers * per_layer)
            expected.append(("gather", (num_tokens, 128)))
        calls = run_ranks(2, count)
        assert all(each[: len(expected)] == expected for each in calls)
        behind = [("sum", (LENGTH, 64))] * (1 + (num_layers - 1) * per_layer)
        last = [*behind, *[("sum", (1, 64))] * per_layer, ("gather", (1, 128))]
        assert calls[0][len(expected) :] == [*last, *behind]


def test_ranks_read_what_they_have_and_nothing_else(
    saved: Callable[[str], backbones.Backbone], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved("starcoder2").path
    read, elements = TensorSlices.read, dict[str, np.ndarray]()

    def watch(self: TensorSlices, picks: tuple[range, ...]) -> torch.Tensor:
        counts = elements.setdefault(self._name, np.zeros(self._shape, dtype=int))
        counts[np.ix_(*picks)] += 1
        return read(self, picks)

    monkeypatch.setattr(TensorSlices, "read", watch)
    for rank in range(2):
        load(path, Unconnected(Place(rank, 2)))
    for name, counts in elements.items():
        is_whole = "norm" in name
        assert (counts == (2 if is_whole else 1)).all(), name
    assert elements.keys() == read_weights(path).keys()


@pytest.mark.parametrize("form", [None, "awq, groups of 32", "fp8, blocks of 128", "compressed-tensors, int8 channels"])
def test_new_weights_are_sliced_alike(form: str | None, wide: Path, tmp_path: Path) -> None:
    other = copy_with_other_weights(wide, tmp_path / "other")
    first, second = wide, other
    if form is not None:
        (first, _), (second, _) = (
            write_quantized(each, tmp_path / str(i), FORMATS[form]) for i, each in enumerate((wide, other))
        )
    before, after = compute_steps(load(first)), compute_steps(load(second))
    tensors = {name: GivenTensor.of(name, tensor) for name, tensor in read_weights(second).items()}
    layer = HandedTensors({name: tensor for name, tensor in tensors.items() if ".layers.1." in name})
    partly = load(first)
    partly.weights.replace(layer, is_partial=True)
    mixed = compute_steps(partly)

    def replace_weights(ranks: Ranks) -> list[Steps]:
        decoder = load(first, ranks)
        weights, found = decoder.weights, []
        weights.check(Checkpoint.load(second), is_partial=False)
        found.append(compute_steps(decoder))
        weights.replace(layer, is_partial=True)
        found.append(compute_steps(decoder))
        weights.drop()
        assert not weights.tensors()
        weights.replace(HandedTensors(tensors), is_partial=False)
        return [*found, compute_steps(decoder)]

    for rank in run_ranks(2, replace_weights):
        for found, expected in zip(rank, (before, mixed, after), strict=True):
            torch.testing.assert_close(found, expected, atol=3e-4 * float(expected.prompt.std()), rtol=1e-4)


def test_a_bias_that_another_rank_adds_may_be_replaced(saved: Callable[[str], backbones.Backbone]) -> None:
    path = saved("starcoder2").path
    tensors = {n: GivenTensor.of(n, t + 1) for n, t in read_weights(path).items() if ".layers.1.mlp.c_proj." in n}
    assert len(tensors) == 2
    whole = load(path)
    whole.weights.replace(HandedTensors(tensors), is_partial=True)

    def compute(ranks: Ranks) -> Steps:
        decoder = load(path, ranks)
        [bias] = [name for name in tensors if name.endswith("bias")]
        own = decoder.weights.name_of(bias)
        assert own is not None
        assert decoder.weights.is_unread(own) == (ranks.place.rank > 0) == (own not in decoder.weights.parts())
        decoder.weights.check(HandedTensors(tensors), is_partial=True)
        decoder.weights.replace(HandedTensors(tensors), is_partial=True)
        return compute_steps(decoder)

    expected = compute_steps(whole)
    for found in run_ranks(2, compute):
        torch.testing.assert_close(found, expected, atol=1e-3 * float(expected.prompt.std()), rtol=1e-4)


@parametrize_sweep(name=["mixtral", "qwen2-moe", "glm4-moe", "qwen3-moe", "ernie4.5-moe"], size=[2, 4])
def test_experts_are_divided_as_a_whole(name: str, size: int, saved: Callable[[str], backbones.Backbone]) -> None:
    """Numbers of experts that ranks share unequally, too; and new weights."""
    path = saved(name).path
    check_ranks(path, size, compute_steps(load(path)), expert_parallel=True)
    tensors = {n: GivenTensor.of(n, t * 1.1) for n, t in read_weights(path).items() if ".layers.2.mlp." in n}
    whole = load(path)
    whole.weights.replace(HandedTensors(tensors), is_partial=True)
    shares = list[set[int]]()

    def compute(ranks: Ranks) -> Steps:
        decoder = load(path, ranks, expert_parallel=True)
        shares.append({int(name.split(".")[4]) for name in decoder.weights.parts() if ".mlp.experts." in name})
        decoder.weights.check(HandedTensors(tensors), is_partial=True)
        decoder.weights.replace(HandedTensors(tensors), is_partial=True)
        return compute_steps(decoder)

    expected = compute_steps(whole)
    for found in run_ranks(size, compute):
        torch.testing.assert_close(found, expected, atol=3e-4 * float(expected.prompt.std()), rtol=1e-4)
    assert sum(map(len, shares)) == len(set().union(*shares)) > 1


def test_a_model_without_experts_has_none_to_divide(saved: Callable[[str], backbones.Backbone]) -> None:
    with pytest.raises(ConfigError, match="expert_parallel: this model has no experts"):
        load(saved("llama").path, Unconnected(Place(0, 2)), expert_parallel=True)


def test_traits_are_those_of_the_rank(saved: Callable[[str], backbones.Backbone]) -> None:
    """On the meta device, too, where nothing is exchanged."""
    path = saved("llama").path
    whole = load(path).traits
    for size, num_kv_heads in ((2, 1), (4, 1), (1, 2)):
        for device in (CPU, torch.device("meta")):
            decoder = load(path, Unconnected(Place(size - 1, size)), device=device)
            expected = replace(
                whole,
                kv_shapes=tuple(replace(shape, num_kv_heads=num_kv_heads) for shape in whole.kv_shapes),
                flops_per_token=whole.flops_per_token // size,
                has_graphs=has_kernels(device),
            )
            assert decoder.traits == expected
    logits = decoder.logits(torch.empty(3, 64, device="meta"))
    assert logits.shape == (3, whole.vocab_size)


def test_one_rank_is_the_whole(saved: Callable[[str], backbones.Backbone]) -> None:
    path = saved("starcoder2").path
    one, whole = load(path, Unconnected(Place(0, 1))), load(path)
    assert torch.equal(compute_steps(one).prompt, compute_steps(whole).prompt)
    shapes = [[tensor.shape for tensor in decoder.weights.tensors()] for decoder in (one, whole)]
    assert shapes[0] == shapes[1]


def test_heads_that_cannot_be_divided_are_refused(saved: Callable[[str], backbones.Backbone]) -> None:
    with pytest.raises(ConfigError, match=re.escape("tp=3: 4 query heads and 2 KV heads of size 16")):
        load(saved("llama").path, Unconnected(Place(0, 3)))


def exchange(number: str, folder: str, *paths: str) -> None:
    """Compute as one of four ranks, and if it is one of the first two, as one of two."""
    rank = int(number)
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=4)
    for size in (4, 2):
        group = distributed.new_group(list(range(size)))
        if not isinstance(group, distributed.ProcessGroup):
            continue
        for index, path in enumerate(paths):
            found = compute_steps(load(Path(path), TorchRanks(group)))
            torch.save(tuple(found), f"{folder}/{size}_{index}_{rank}.pt")
    distributed.destroy_process_group()


def test_processes_compute_what_the_whole_computes(saved: Callable[[str], backbones.Backbone], tmp_path: Path) -> None:
    """All ranks the same bits."""
    paths = [saved(name).path for name in ("llama", "olmo2", "gemma2", "qwen2-moe")]
    run_forked_ranks(exchange, 4, str(tmp_path), *map(str, paths))
    for index, path in enumerate(paths):
        whole = compute_steps(load(path))
        for size in (2, 4):
            first, *others = (Steps(*torch.load(tmp_path / f"{size}_{index}_{rank}.pt")) for rank in range(size))
            torch.testing.assert_close(first, whole, atol=3e-4 * float(whole.prompt.std()), rtol=1e-4)
            assert all(torch.equal(mine, yours) for other in others for mine, yours in zip(first, other, strict=True))
