"""Regions of tensors as data: what is read, how it is divided among ranks, and what cannot be."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from seesay.checkpoint import Checkpoint, TensorSlices
from seesay.checkpoint.loading import WeightGroup, load_weights
from seesay.checkpoint.parts import INPUTS, NEITHER, OUTPUTS, Axis, Source, TensorLayout, Weight, plain_weight
from seesay.errors import CheckpointError

CPU = torch.device("cpu")
PLAIN = TensorLayout(name="weight", axes=((OUTPUTS, 1), (INPUTS, 1)))
BIAS = TensorLayout(name="bias", axes=((OUTPUTS, 1),))
# The layouts that published formats have, with their tensors of small integers here.
AWQ = TensorLayout(name="qweight", axes=((INPUTS, 1), (OUTPUTS, 8)), dtypes=("I32",), dtype=torch.int32)
AWQ_ZEROS = TensorLayout(name="qzeros", axes=((INPUTS, 4), (OUTPUTS, 8)), dtypes=("I32",), dtype=torch.int32)
GPTQ = TensorLayout(name="qweight", axes=((INPUTS, 8), (OUTPUTS, 1)), dtypes=("I32",), dtype=torch.int32)
GROUPS = TensorLayout(name="scales", axes=((INPUTS, 4), (OUTPUTS, 1)))
BLOCKS = TensorLayout(name="weight_scale_inv", axes=((OUTPUTS, 8), (INPUTS, 4)))
CHANNELS = TensorLayout(name="weight_scale", axes=((OUTPUTS, 1), (NEITHER, 1)))
NUMBER = TensorLayout(name="input_scale", axes=())


def save(folder: Path, tensors: dict[str, torch.Tensor]) -> Checkpoint:
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    save_file(tensors, folder / "model.safetensors")
    return Checkpoint.load(folder)


def load(checkpoint: Checkpoint, *weights: Weight) -> list[torch.Tensor]:
    groups = [WeightGroup(weights=(weight,)) for weight in weights]
    load_weights(groups, checkpoint, name_of=lambda name: name, device=CPU, dtype=torch.float32)
    return [weight.data for weight in weights]


def test_several_tensors_become_one(tmp_path: Path) -> None:
    q, k = torch.randn(8, 4), torch.randn(2, 4)
    checkpoint = save(tmp_path, {"q.weight": q, "k.weight": k, "q.bias": q[:, 0].clone(), "k.bias": k[:, 0].clone()})
    sources = [Source(module="q", num_outputs=8), Source(module="k", num_outputs=2)]
    weight, bias = load(checkpoint, PLAIN.weight(sources, 4), BIAS.weight(sources, 4))
    assert torch.equal(weight, torch.cat([q, k])) and torch.equal(bias, torch.cat([q, k])[:, 0])


def test_groups_of_heads_are_put_in_order(tmp_path: Path) -> None:
    """InternLM2's wqkv has for each key-value head its query heads, its key and its value."""
    heads, dim, hidden = 2, 3, 4  # two groups of two query heads
    stored = torch.randn(heads, 2 + 2, dim, hidden)
    checkpoint = save(tmp_path, {"wqkv.weight": stored.reshape(-1, hidden)})
    group = 4 * dim
    starts = range(0, heads * group, group)
    picks = {
        "q": tuple(range(start, start + 2 * dim) for start in starts),
        "k": tuple(range(start + 2 * dim, start + 3 * dim) for start in starts),
        "v": tuple(range(start + 3 * dim, start + 4 * dim) for start in starts),
    }
    sources = [Source(module="wqkv", num_outputs=heads * group, picks=pick) for pick in picks.values()]
    whole = PLAIN.weight(sources, hidden)
    expected = torch.cat([stored[:, :2].reshape(-1, 4), stored[:, 2].reshape(-1, 4), stored[:, 3].reshape(-1, 4)])
    assert torch.equal(load(checkpoint, whole)[0], expected)
    first, second = (
        PLAIN.weight([Source(module="wqkv", num_outputs=heads * group, picks=(pick[i],)) for pick in picks.values()], 4)
        for i in range(heads)
    )
    halves = load(checkpoint, first)[0], load(checkpoint, second)[0]
    own = [torch.cat([stored[i, :2].reshape(-1, 4), stored[i, 2], stored[i, 3]]) for i in range(2)]
    assert all(torch.equal(half, rows) for half, rows in zip(halves, own, strict=True))


def test_interleaved_rows_are_put_in_order(tmp_path: Path) -> None:
    stored = torch.randn(6, 2)
    source = Source(module="q", num_outputs=6, picks=(range(0, 6, 2), range(1, 6, 2)))
    [data] = load(save(tmp_path, {"q.weight": stored}), PLAIN.weight([source], 2))
    assert torch.equal(data, torch.cat([stored[::2], stored[1::2]]))


@pytest.mark.parametrize("layout", [PLAIN, BIAS, AWQ, AWQ_ZEROS, GPTQ, GROUPS, BLOCKS, CHANNELS, NUMBER])
@pytest.mark.parametrize("dim", [OUTPUTS, INPUTS])
def test_slices_together_are_the_whole(tmp_path: Path, layout: TensorLayout, dim: int) -> None:
    """Each of two sources is divided, in every published layout: packed, by groups, by blocks, by channel, one number.
    What has no such axis stays whole."""
    sources = [Source(module="a", num_outputs=32), Source(module="b", num_outputs=16)]
    num_inputs = 64
    whole = layout.weight(sources, num_inputs)
    tensors = {}
    for index, part in enumerate(whole.parts):
        values = torch.arange(max(1, torch.Size(part.stored_shape).numel())).view(part.stored_shape) + 10_000 * index
        tensors[part.tensor] = values.to(layout.dtype or torch.float32)
    checkpoint = save(tmp_path, tensors)
    [everything] = load(checkpoint, whole)
    stored = list(tensors.values())
    axis = next((i for i, (own, _) in enumerate(layout.axes) if own == OUTPUTS), None)
    assert torch.equal(everything, torch.stack(stored) if axis is None else torch.cat(stored, axis))
    shards = []
    for rank in range(2):
        outputs = [replace(each, picks=_halve(each.num_outputs, rank)) if dim == OUTPUTS else each for each in sources]
        inputs = _halve(num_inputs, rank)[0] if dim == INPUTS else None
        shards += load(checkpoint, layout.weight(outputs, num_inputs, inputs))
    cut = next((i for i, (own, _) in enumerate(layout.axes) if own == dim), None)
    if cut is None:
        assert all(torch.equal(shard, everything) for shard in shards)
        return
    pieces = [tensor.chunk(2, cut) for tensor in stored]
    for rank, shard in enumerate(shards):
        own = [piece[rank] for piece in pieces]
        assert torch.equal(shard, torch.stack(own) if axis is None else torch.cat(own, axis))


def _halve(size: int, rank: int) -> tuple[range, ...]:
    return (range(rank * size // 2, (rank + 1) * size // 2),)


def test_only_the_slices_needed_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = save(tmp_path, {"a.weight": torch.randn(8, 6)})
    read, sizes = TensorSlices.read, []

    def watch(self: TensorSlices, picks: tuple[range, ...]) -> torch.Tensor:
        tensor = read(self, picks)
        sizes.append(tensor.numel())
        return tensor

    monkeypatch.setattr(TensorSlices, "read", watch)
    load(checkpoint, PLAIN.weight([Source(module="a", num_outputs=8, picks=(range(2, 4),))], 6))
    load(checkpoint, PLAIN.weight([Source(module="a", num_outputs=8)], 6, range(3)))
    assert sizes == [2 * 6, 8 * 3]


def test_what_is_stored_together_is_not_cut() -> None:
    groups = GROUPS.weight([Source(module="layers.0.q_proj", num_outputs=24)], 64, range(6))
    with pytest.raises(
        CheckpointError, match=r"'layers.0.q_proj.scales' cannot be divided .*: elements 0 to 6 cut groups"
    ):
        _ = groups.shape
    cut = AWQ.weight([Source(module="qkv", num_outputs=24, picks=(range(4, 12),))], 64)
    with pytest.raises(
        CheckpointError, match=r"'qkv.qweight' cannot .*: elements 4 to 12 cut groups of 8 apart; use tp=1"
    ):
        _ = cut.shape


def test_uneven_blocks_end_with_the_matrix(tmp_path: Path) -> None:
    sources = [Source(module="a", num_outputs=20), Source(module="b", num_outputs=9)]
    weight = BLOCKS.weight(sources, 6)
    assert weight.shape == (3 + 2, 2)
    a, b = torch.randn(3, 2), torch.randn(2, 2)
    [data] = load(save(tmp_path, {"a.weight_scale_inv": a, "b.weight_scale_inv": b}), weight)
    assert torch.equal(data, torch.cat([a, b]))


def test_types_and_shapes_are_checked_by_name(tmp_path: Path) -> None:
    checkpoint = save(tmp_path, {"a.weight": torch.ones(3, 2, dtype=torch.int64), "n": torch.ones(2, 2, 2)})
    with pytest.raises(CheckpointError, match=r"tensor 'a.weight' is stored as I64, it must be BF16 or F16 or F32"):
        load(checkpoint, plain_weight("a.weight", 3, 2), plain_weight("n", 2, 4))
    with pytest.raises(CheckpointError, match=r"unexpected tensor 'a.weight'"):
        load(checkpoint, plain_weight("n", 2, 4))
    checkpoint = save(tmp_path, {"n": torch.ones(2, 2, 2)})
    with pytest.raises(CheckpointError, match=r"tensor 'n' has shape \[2, 2, 2\], the config says \[4, 2\]"):
        load(checkpoint, plain_weight("n", 4, 2))


def test_a_group_is_finished_when_all_of_it_is_there(tmp_path: Path) -> None:
    checkpoint = save(tmp_path, {name: torch.ones(2) for name in "abc"})
    weights = [plain_weight(name, 2) for name in "abc"]
    done: list[object] = []
    groups = [
        WeightGroup(
            weights=(weights[0], weights[2]), finish=lambda: done.append([hasattr(w, "data") for w in weights])
        ),
        WeightGroup(weights=(weights[1],), finish=lambda: done.append("second")),
    ]
    load_weights(groups, checkpoint, name_of=lambda name: name, device=CPU, dtype=torch.float32)
    assert done == [[True, False, True], "second"]


def test_packed_outputs_that_are_reordered_later_are_taken_whole() -> None:
    """Two heads of 8 outputs, of which the first 4 lie turn by turn; a word has 4 outputs."""
    picks = (range(0, 4, 2), range(1, 4, 2), range(4, 8), range(8, 12, 2), range(9, 12, 2), range(12, 16))
    axis = Axis(dim=OUTPUTS, size=16, per=4, picks=picks, is_reordered_later=True)
    assert axis.stored_picks() == (range(4),)
    assert axis.order() == picks
    half = Axis(dim=OUTPUTS, size=16, per=4, picks=picks[3:], is_reordered_later=True)
    assert half.stored_picks() == (range(2, 4),)
    assert half.order() == (range(0, 4, 2), range(1, 4, 2), range(4, 8))
    in_order = Axis(dim=OUTPUTS, size=16, per=4, picks=(range(4, 8), range(12, 16)), is_reordered_later=True)
    assert in_order.stored_picks() == (range(1, 2), range(3, 4)) and in_order.order() is None
    for wrong in ((range(0, 4, 2),), (range(0, 2), range(2, 6))):
        with pytest.raises(ValueError):
            Axis(dim=OUTPUTS, size=16, per=4, picks=wrong, is_reordered_later=True).stored_picks()
    with pytest.raises(ValueError, match="cut groups of 4 apart"):
        Axis(dim=OUTPUTS, size=16, per=4, picks=picks).stored_picks()
