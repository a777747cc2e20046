"""The weights of every family's decoder, divided among two ranks, are together those of one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from enrolment import BACKBONES, COMPOSED
from family_contract import load_family

from seesay.checkpoint.loading import WeightGroup, load_weights
from seesay.checkpoint.parts import INPUTS, OUTPUTS, Weight
from seesay.device.linear.linear import Shard
from seesay.llm.models.composed_decoder import ComposedDecoder
from seesay.vl.family import Family

CPU = torch.device("cpu")
DIVIDED = {
    "qkv_proj": OUTPUTS,
    "gate_up_proj": OUTPUTS,
    "gate_proj": OUTPUTS,
    "up_proj": OUTPUTS,
    "lm_head": OUTPUTS,
    "o_proj": INPUTS,
    "down_proj": INPUTS,
}


def find_divided_axis(path: str) -> int | None:
    """The axis along which the linear layer at `path` is divided; None for one that all ranks have as it is: the first
    matrix of what is added to layers whose outputs are divided, and the second one where inputs are."""
    module, last = path.split(".")[-2:] if "." in path else ("", path)
    if last not in ("lora_a", "lora_b"):
        return DIVIDED[last]
    dim = DIVIDED[module]
    return dim if (last == "lora_b") == (dim == OUTPUTS) else None


def load(family: Family, weights: dict[tuple[str, str], Weight], others: list[Weight]) -> None:
    load_weights(
        [WeightGroup(weights=(weight,)) for weight in (*weights.values(), *others)],
        family.checkpoint,
        name_of=family.weights.decoder_name,
        device=CPU,
        dtype=torch.float32,
    )


@pytest.mark.parametrize("name", [*BACKBONES, *COMPOSED])
def test_two_halves_are_the_whole(name: str, tiny_checkpoint: Callable[[str], Path]) -> None:
    family, _ = load_family(tiny_checkpoint(name))
    backbone = family.backbone()
    config = backbone.decoder_config(session_len=256)
    decoder = ComposedDecoder(config, device=CPU, dtype=torch.float32)
    paths = [path for path in decoder.linears if not (path == "lm_head" and config.tied_embeddings)]
    if any(".experts." in path for path in paths):
        pytest.skip("experts are not divided among ranks")
    dims = {path: find_divided_axis(path) for path in paths}
    assert {OUTPUTS, INPUTS} <= set(dims.values())

    def list_weights(rank: int | None) -> dict[tuple[str, str], Weight]:
        found: dict[tuple[str, str], Weight] = {}
        for path, dim in dims.items():
            shard = None if rank is None or dim is None else Shard(rank, 2, dim)
            weights, bias = decoder.linears[path].list_weights(path, shard)
            found |= {(path, name): weight for name, weight in weights.items()}
            if bias is not None:
                found[path, "bias"] = bias
        return found

    wholes, *halves = map(list_weights, (None, 0, 1))
    for weights in (wholes, *halves):
        load(family, weights, decoder.plain_weights)
    for key, whole in wholes.items():
        first, second = (half[key] for half in halves)
        if dims[key[0]] is None or (len(whole.shape) == 1 and dims[key[0]] == INPUTS):
            assert torch.equal(first.data, whole.data) and torch.equal(second.data, whole.data)
        elif dims[key[0]] == INPUTS:
            assert torch.equal(torch.cat([first.data, second.data], dim=1), whole.data)
        else:
            upper, lower = ([place for _, place in half.places()] for half in (first, second))
            assert len(upper) == len(lower) == (3 if "qkv" in key[0] else 2 if "gate_up" in key[0] else 1)
            pieces = [half for pair in zip(upper, lower, strict=True) for half in pair]
            assert torch.equal(torch.cat(pieces), whole.data) and all(map(len, pieces))
