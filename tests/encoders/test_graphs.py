from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest
import torch
from encoders.towers.test_packed_vit import make_config, make_tower
from gpu_work import keep_gpu_busy, make_gpu_event, make_gpu_stream
from torch import Tensor

from seesay.encoders import graphs
from seesay.encoders.graphs import GraphedTower


class Tower:
    """Adds the shape's number to x. `calls` are those in which the host did it; `before` is what plans were told."""

    def __init__(self) -> None:
        self.calls: list[int] = []
        self.before: list[int] = []

    def plan(self, number: int, *, num_before: int) -> Callable[[Tensor], Tensor]:
        self.before.append(num_before)
        table = torch.full((1,), float(number), device=None if not torch.cuda.is_available() else "cuda")

        def compute(x: Tensor) -> Tensor:
            self.calls.append(number)
            return x + table.to(x.dtype)

        return compute


def test_on_the_cpu_nothing_is_recorded() -> None:
    seen = []

    def plan(number: int, *, num_before: int) -> Callable[[Tensor], Tensor]:
        seen.append((number, num_before))
        return lambda x: x + number

    graphed = GraphedTower(plan)
    for number in (4, 4, 5, 4, 5):
        assert graphed(torch.ones(3, 2), number, torch.float64).tolist() == [[1.0 + number] * 2] * 3
    assert seen == [(4, 0), (4, 1), (5, 0), (4, 2), (5, 1)]
    assert not graphed.num_graphs


def test_without_graphs_all_calls_of_a_shape_are_alike() -> None:
    """A tower may compute a shape that repeats in another way, with other roundings."""
    seen = []

    def plan(number: int, *, num_before: int) -> Callable[[torch.Tensor], torch.Tensor]:
        seen.append(num_before)
        return lambda x: x + number

    graphed = GraphedTower(plan)
    graphed.records_graphs = False
    for _ in range(graphs.CALLS_BEFORE + 2):
        graphed(torch.ones(3, 2), 4, torch.float64)
    assert seen == [0] * (graphs.CALLS_BEFORE + 2)


@pytest.fixture
def stream() -> Iterator[torch.cuda.Stream]:
    stream = make_gpu_stream()
    with torch.inference_mode(), torch.cuda.stream(stream):
        yield stream


@pytest.mark.gpu
def test_shapes_that_come_again_are_recorded_and_computed_the_same(stream: torch.cuda.Stream) -> None:
    tower = Tower()
    graphed = GraphedTower(tower.plan)
    for _ in range(graphs.CALLS_BEFORE):
        graphed(torch.ones(3, 2, device="cuda"), 4, torch.bfloat16)
    num_before = graphed.num_graphs
    graphed(torch.ones(3, 2, device="cuda"), 4, torch.bfloat16)
    assert (num_before, graphed.num_graphs) == (0, 1)
    tower.calls.clear()
    garbage = [torch.full((3, 2), float("nan"), device="cuda") for _ in range(50)]
    results = [graphed(torch.full((3, 2), float(n), device="cuda"), 4, torch.bfloat16) for n in range(5)]
    assert [torch.unique(result).tolist() for result in results] == [[n + 4.0] for n in range(5)]
    assert results[0].dtype == torch.bfloat16 and not tower.calls
    assert graphed(torch.ones(2, 2, device="cuda"), 5, torch.bfloat16).tolist() == [[6.0] * 2] * 2
    assert tower.calls == [5] and len(garbage) == 50


@pytest.mark.gpu
def test_the_graphs_kept_are_those_used_last(stream: torch.cuda.Stream) -> None:
    tower = Tower()
    graphed = GraphedTower(tower.plan, max_graphs=2)
    x = torch.ones(3, 2, device="cuda")

    def call(number: int, times: int) -> bool:
        """Whether the last call was a graph's."""
        for _ in range(times):
            tower.calls.clear()
            assert torch.unique(graphed(x, number, torch.float32)).tolist() == [1 + number]
        return not tower.calls

    often = graphs.CALLS_BEFORE + 5
    assert call(1, often) and call(2, often) and call(1, 1)
    assert not call(3, often), "a shape took the place of one that came as often"
    assert call(1, 1) and call(2, 1) and call(1, 1)
    assert call(3, often) and graphed.num_graphs == 2
    assert call(1, 1) and not call(2, 1)


@pytest.mark.gpu
def test_graphs_are_replaced_while_their_replays_are_queued(stream: torch.cuda.Stream) -> None:
    """Twenty shapes of pictures come again and again, more than there are graphs; nobody waits for the GPU, which is
    kept behind. Worth running under compute-sanitizer, too."""
    config = make_config(hidden_size=64)
    tower = make_tower(config).cuda()
    graphed = GraphedTower(tower.plan)
    shapes = [((1, 2 * (1 + n % 5), 2 * (2 + n // 5)),) for n in range(20)]
    generator = torch.Generator("cuda").manual_seed(0)
    inputs = [torch.randn(t * h * w, config.patch_dim, device="cuda", generator=generator) for [(t, h, w)] in shapes]
    expected = [tower(x, shape) for x, shape in zip(inputs, shapes, strict=True)]
    recorded: list[object] = []
    rng, results = random.Random(0), []
    for call in range(600):
        if call % 50 == 0:
            keep_gpu_busy(20_000_000)
        number = rng.randrange(20)
        before = set(graphed._graphs)
        results.append((number, graphed(inputs[number], shapes[number], torch.float32)))
        recorded += set(graphed._graphs) - before
    assert len(recorded) > graphs.MAX_GRAPHS + 4 and graphed.num_graphs == graphs.MAX_GRAPHS
    for number, result in results:
        torch.testing.assert_close(result, expected[number], atol=1e-3, rtol=1e-3)


@pytest.mark.gpu
def test_no_graphs_when_disabled_too_large_or_elsewhere(stream: torch.cuda.Stream) -> None:
    x = torch.ones(3, 2, device="cuda")
    disabled, plain = GraphedTower(Tower().plan), GraphedTower(Tower().plan)
    large = GraphedTower(Tower().plan, max_rows=2)
    disabled.records_graphs = False
    for _ in range(graphs.CALLS_BEFORE + 2):
        disabled(x, 1, torch.float32)
        with torch.cuda.stream(torch.cuda.default_stream()):
            plain(x, 1, torch.float32)
        large(x, 1, torch.float32)
    assert not disabled.num_graphs and not plain.num_graphs and not large.num_graphs


@pytest.mark.gpu
def test_a_graph_is_recorded_while_other_streams_work(stream: torch.cuda.Stream) -> None:
    graphed = GraphedTower(Tower().plan)
    x = torch.ones(3, 2, device="cuda")
    busy = make_gpu_event()
    with torch.cuda.stream(make_gpu_stream()):
        keep_gpu_busy(4_000_000_000)
        busy.record()
    for _ in range(graphs.CALLS_BEFORE + 2):
        graphed(x, 1, torch.float32)
    stream.synchronize()
    assert graphed.num_graphs and not busy.query()
    torch.cuda.synchronize()
