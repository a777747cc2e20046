"""What ranks exchange, over real processes."""

from __future__ import annotations

from pathlib import Path

import torch
from forked_ranks import run_forked_ranks
from torch import distributed

from seesay.device.ranks import TorchRanks

SIZE = 3


def exchange(number: str, folder: str) -> None:
    rank = int(number)
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=SIZE)
    assert distributed.group.WORLD is not None
    ranks = TorchRanks(distributed.group.WORLD)
    assert (ranks.place.rank, ranks.place.size) == (rank, SIZE)
    x = torch.arange(6.0).view(2, 3) + 10 * rank
    assert torch.equal(ranks.sum(x.clone()), 3 * torch.arange(6.0).view(2, 3) + 30)
    finish = ranks.begin_sum(x.clone())
    assert torch.equal(finish().close(), 3 * torch.arange(6.0).view(2, 3) + 30)
    residual = torch.ones(2, 3)
    ranks.sum_add(x.clone(), residual)
    assert torch.equal(residual, 3 * torch.arange(6.0).view(2, 3) + 31)
    whole = torch.cat([torch.arange(6.0).view(2, 3) + 10 * r for r in range(SIZE)], dim=1)
    assert torch.equal(ranks.gather(x), whole)
    ranks.broadcast(x)
    assert torch.equal(x, torch.arange(6.0).view(2, 3))
    distributed.destroy_process_group()


def test_all_ranks_get_the_same(tmp_path: Path) -> None:
    run_forked_ranks(exchange, SIZE, str(tmp_path))
