"""Layers in which text attends to pictures: what they cost a text alone, and what adapters are told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from family_contract import load_family

from seesay.errors import ConfigError
from seesay.llm.models.composed_decoder import ComposedDecoder
from seesay.llm.models.decoder import MediaAttention, SeenMedia
from seesay.llm.models.media_layer import MediaLayer
from seesay.llm.models.mixers.attention import AttentionStep


@pytest.fixture
def decoder(tiny_checkpoint: Callable[[str], Path]) -> ComposedDecoder:
    family, _ = load_family(tiny_checkpoint("mllama"))
    found = family.backbone().load_decoder(
        family.checkpoint, session_len=64, device=torch.device("cpu"), dtype=torch.float32
    )
    assert isinstance(found, ComposedDecoder)
    return found


def make_step(media: MediaAttention | None) -> AttentionStep:
    none: Any = None
    return AttentionStep((), none, None, none, media=media)


def test_a_text_alone_has_no_blocks_of_these_layers_and_passes_unchanged(decoder: ComposedDecoder) -> None:
    layers = [layer for layer in decoder._layers if isinstance(layer, MediaLayer)]
    assert len(layers) == 2 and len(decoder.traits.kv_shapes) == decoder.config.num_layers - 2
    for linear in layers[0].linears.values():
        linear.forward = lambda *_: pytest.fail("a product was computed")
    residual, delta = torch.randn(3, 64), torch.randn(3, 64)
    found = layers[0].run(delta, residual, cast("Any", None), make_step(None))
    assert found[0] is delta and found[1] is residual
    kept, wanted = layers[0].run(delta, residual, cast("Any", None), make_step(None), torch.tensor([2]))
    assert kept is not None and torch.equal(kept, delta[2:]) and torch.equal(wanted, residual[2:])


def test_only_tokens_that_see_a_picture_change(decoder: ComposedDecoder) -> None:
    layer = next(layer for layer in decoder._layers if isinstance(layer, MediaLayer))
    size = decoder.traits.embedding_size
    first, second = torch.randn(5, size), torch.randn(4, size)
    before = torch.randn(6, 64)

    def compute(*seen: SeenMedia) -> torch.Tensor:
        rows = torch.tensor([1, 4, 5])
        delta, residual = layer.run(None, before.clone(), cast("Any", None), make_step(MediaAttention(rows, seen)))
        assert delta is None
        return residual

    apart = compute(SeenMedia(0, 1, (first,)), SeenMedia(1, 3, (first, second)))
    assert torch.equal(apart[[0, 2, 3]], before[[0, 2, 3]]) and (apart != before).any(dim=1).sum() == 3
    joined = compute(SeenMedia(0, 1, (first,)), SeenMedia(1, 3, (torch.cat((first, second)),)))
    torch.testing.assert_close(apart, joined)
    alone = compute(SeenMedia(0, 3, (first,)))
    torch.testing.assert_close(alone[1], apart[1])
    assert (alone[4] - apart[4]).abs().max() > 1e-4


def test_adapters_are_refused(decoder: ComposedDecoder) -> None:
    with pytest.raises(ConfigError, match="adapters: a decoder that attends to pictures beside the text"):
        decoder.make_adapters(num_slots=1, max_rank=8)
