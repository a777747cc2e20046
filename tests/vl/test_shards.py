"""The weights of every family's decoder, divided among two ranks, are together those of one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from family_contract import TEXT_BACKBONES, VISION_FAMILIES, load_family

from seesay.checkpoint.loading import WeightGroup, load_weights
from seesay.checkpoint.parts import INPUTS, OUTPUTS, Weight
from seesay.llm.models.decoder import Decoder
from seesay.llm.models.spec import DecoderConfig
from seesay.vl.family import Family

CPU = torch.device("cpu")
DIVIDED = {"qkv_proj": OUTPUTS, "gate_up_proj": OUTPUTS, "lm_head": OUTPUTS, "o_proj": INPUTS, "down_proj": INPUTS}


def load(family: Family, weights: dict[tuple[str, int], Weight], others: list[Weight]) -> None:
    load_weights(
        [WeightGroup(weights=(weight,)) for weight in (*weights.values(), *others)],
        family.checkpoint,
        name_of=family.weights.decoder_name,
        device=CPU,
        dtype=torch.float32,
    )


@pytest.mark.parametrize("name", [*TEXT_BACKBONES, *VISION_FAMILIES])
def test_two_halves_are_the_whole(name: str, tiny_checkpoint: Callable[[str], Path]) -> None:
    family, _ = load_family(tiny_checkpoint(name))
    backbone = family.backbone()
    config = DecoderConfig.from_hf(backbone.text_config, tied_embeddings=backbone.tie_word_embeddings)
    decoder = Decoder(config, device=CPU, dtype=torch.float32)
    wholes = {
        (path, index): weight
        for path, linear in decoder.linears.items()
        if not (path == "lm_head" and config.tied_embeddings)
        for index, weight in enumerate(linear.make_group(path).weights)
    }
    dims = {key: DIVIDED[key[0].rpartition(".")[2]] for key in wholes}
    assert set(dims.values()) == {OUTPUTS, INPUTS}
    halves = [{key: whole.shard(rank, 2, dims[key]) for key, whole in wholes.items()} for rank in range(2)]
    for weights in (wholes, *halves):
        load(family, weights, decoder.plain_weights)
    for key, whole in wholes.items():
        first, second = (half[key] for half in halves)
        if len(whole.shape) == 1 and dims[key] == INPUTS:
            assert torch.equal(first.data, whole.data) and torch.equal(second.data, whole.data)
        elif dims[key] == INPUTS:
            assert torch.equal(torch.cat([first.data, second.data], dim=1), whole.data)
        else:
            pieces = [weight.places() for weight in (whole, first, second)]
            assert len(pieces[0]) == (3 if "qkv" in key[0] else 2 if "gate_up" in key[0] else 1)
            for (_, everything), (_, upper), (_, lower) in zip(*pieces, strict=True):
                assert len(upper) == len(lower) > 0
                assert torch.equal(torch.cat([upper, lower]), everything)
