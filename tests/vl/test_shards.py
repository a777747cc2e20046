"""Every family's decoder, divided among ranks, computes what the whole computes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from decoder_steps import Steps, compute_steps
from enrolment import BACKBONES, COMPOSED, WITH_STATES
from family_contract import load_family
from pairs import parametrize_sweep
from thread_ranks import run_ranks

from seesay.device.ranks import Place, Ranks, Unconnected
from seesay.errors import CheckpointError, ConfigError
from seesay.llm.models.composed_decoder import ComposedDecoder

CPU = torch.device("cpu")


def load(path: Path, ranks: Ranks | None = None) -> ComposedDecoder:
    family, _ = load_family(path)
    decoder = family.backbone().load_decoder(
        family.checkpoint, session_len=256, device=CPU, dtype=torch.float32, ranks=ranks
    )
    assert isinstance(decoder, ComposedDecoder)
    return decoder


_DIVIDED = [name for name in (*BACKBONES, *COMPOSED) if name not in (*WITH_STATES, "mllama")]


@parametrize_sweep(name=_DIVIDED, size=[4, 2])
def test_ranks_compute_what_the_whole_computes(name: str, size: int, tiny_checkpoint: Callable[[str], Path]) -> None:
    path = tiny_checkpoint(name)
    whole = load(path)
    if whole.config.num_heads % size:
        pytest.skip("its heads cannot be divided")
    expected = compute_steps(whole)

    def compute(ranks: Ranks) -> Steps:
        return compute_steps(load(path, ranks))

    assert expected.prompt.std() > 0
    for found in run_ranks(size, compute):
        torch.testing.assert_close(found, expected, atol=3e-4 * float(expected.prompt.std()), rtol=1e-4)


def test_decoders_that_attend_to_pictures_are_not_divided(tiny_checkpoint: Callable[[str], Path]) -> None:
    family, _ = load_family(tiny_checkpoint("mllama"))
    with pytest.raises(ConfigError, match="attends to pictures beside the text is not divided here; use tp=1"):
        family.backbone().load_decoder(
            family.checkpoint, session_len=64, device=CPU, dtype=torch.float32, ranks=Unconnected(Place(0, 2))
        )


def test_modules_of_transformers_are_not_divided(tiny_checkpoint: Callable[[str], Path]) -> None:
    family, _ = load_family(tiny_checkpoint("aria"))
    with pytest.raises(CheckpointError, match="computed as modules of Transformers, which cannot be divided; use tp=1"):
        family.backbone().load_decoder(
            family.checkpoint, session_len=64, device=CPU, dtype=torch.float32, ranks=Unconnected(Place(0, 2))
        )
