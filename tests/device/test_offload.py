"""Tensors whose memory is elsewhere for a while."""

from __future__ import annotations

import torch

from seesay.device.offload import Offloaded

CPU = torch.device("cpu")


def test_contents_come_back_to_the_same_tensors() -> None:
    """Views of one memory are moved once; whoever refers to a tensor finds its content again."""
    base = torch.randn(30, 7)
    half, number = torch.randn(5).half(), torch.tensor(3)
    tensors = [base, base.t(), base[3:], half, number]
    copies = [tensor.clone() for tensor in tensors]
    moved = Offloaded(tensors, CPU)
    assert moved.num_bytes == base.nbytes + half.nbytes + number.nbytes
    assert all(tensor.untyped_storage().nbytes() == 0 for tensor in tensors)
    moved.restore()
    assert all(torch.equal(tensor, copy) for tensor, copy in zip(tensors, copies, strict=True))
    assert moved.num_bytes == 0


def test_a_restore_that_fails_can_be_repeated(monkeypatch: object) -> None:
    tensors = [torch.randn(8), torch.randn(9)]
    copies = [tensor.clone() for tensor in tensors]
    moved = Offloaded(tensors, CPU)
    tensor, moved._copies[1].tensor = moved._copies[1].tensor, torch.empty(10**15, device="meta", dtype=torch.uint8)
    try:
        moved.restore()
    except (RuntimeError, MemoryError):
        pass
    else:
        raise AssertionError("there is no such memory")
    assert all(t.untyped_storage().nbytes() == 0 for t in tensors)
    moved._copies[1].tensor = tensor
    moved.restore()
    assert all(torch.equal(t, copy) for t, copy in zip(tensors, copies, strict=True))


def test_nothing_to_move() -> None:
    empty = torch.empty(0)
    Offloaded([empty], CPU).restore()
    assert not len(empty)
