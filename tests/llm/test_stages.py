"""Decoders divided into stages: the stream that one hands on is what the next one would have, in every format."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import torch
from decoder_steps import compute_steps
from fused_products import make_fused
from llm import backbones
from pairs import mark_after
from quantized_folders import FORMS, write_quantized

from seesay.checkpoint import Checkpoint
from seesay.device.linear import linear as linear_module
from seesay.device.ranks import Place
from seesay.errors import ConfigError
from seesay.llm.memory.kv_layout import LayerCache
from seesay.llm.models.composed_decoder import ComposedDecoder
from seesay.llm.models.configs.reading import read_decoder_config
from seesay.llm.models.decoder import ModelInput
from seesay.llm.models.spec import DecoderConfig
from seesay.llm.models.stage import LaterStage, split_layers

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], backbones.Backbone]:
    return backbones.make_saver(tmp_path_factory)


def read_config(path: Path) -> DecoderConfig:
    checkpoint = Checkpoint.load(path)
    is_tied = bool(checkpoint.model_config.tie_word_embeddings)
    return read_decoder_config(checkpoint.text_config, tied_embeddings=is_tied, session_len=256)


def load(path: Path, layers: range | None = None) -> ComposedDecoder:
    checkpoint = Checkpoint.load(path)
    kind = LaterStage if layers is not None and layers.start else ComposedDecoder
    return kind.load(
        checkpoint,
        read_config(path),
        decoder_name=backbones.names_of(checkpoint),
        device=CPU,
        dtype=torch.float32,
        layers=layers,
    )


class Chain:
    """Two stages as one decoder. They share nothing but what the first one sends, and what comes back."""

    def __init__(self, path: Path) -> None:
        config = read_config(path)
        self._stages = [load(path, split_layers(config, Place(rank, 2))) for rank in range(2)]
        self.device, self.dtype, self.config = CPU, torch.float32, config
        parts = [stage.traits.kv_shapes for stage in self._stages]
        self.counts = [*map(len, parts)]
        states = self._stages[0].traits.state_shapes + self._stages[1].traits.state_shapes
        self.traits = replace(self._stages[0].traits, kv_shapes=parts[0] + parts[1], state_shapes=states)
        self.logits = self._stages[0].logits

    def forward(
        self, inputs: ModelInput, caches: Sequence[LayerCache], wanted: torch.Tensor | None = None
    ) -> torch.Tensor:
        first, later = self._stages
        num_own = self.counts[0]
        stream = first.run_stage(first.embed(inputs), inputs, caches[:num_own])
        bare = replace(inputs, input_ids=torch.zeros_like(inputs.input_ids), splice_embeddings=None)
        return first.normalize(later.run_stage(stream.clone(), bare, caches[num_own:], wanted))


def check(path: Path) -> None:
    chain, whole = Chain(path), load(path)
    assert min(chain.counts) >= 1 and sum(chain.counts) == whole.config.num_layers
    for found, expected in zip(compute_steps(cast("ComposedDecoder", chain)), compute_steps(whole), strict=True):
        torch.testing.assert_close(found, expected, atol=0, rtol=0)


@pytest.mark.parametrize("name", mark_after(12, backbones.BACKBONES))
def test_stages_compute_what_the_whole_computes(name: str, saved: Callable[[str], backbones.Backbone]) -> None:
    check(saved(name).path)


@pytest.mark.parametrize("name", ["llama", "mixtral", "gemma2"])
def test_with_kernels_of_few_rows(
    name: str, saved: Callable[[str], backbones.Backbone], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear_module, "make_product", make_fused)
    check(saved(name).path)


@pytest.mark.parametrize("form", mark_after(2, FORMS))
def test_quantized_stages(form: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Their scales and zeros are those of the other stage, too, and not read there."""
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    sizes = {"hidden_size": 128, "head_dim": 128, "intermediate_size": 416, "num_hidden_layers": 2, **heads}
    plain = backbones.make_backbone("llama", tmp_path_factory.mktemp("wide"), **sizes, attention_bias=False).path
    path, _ = write_quantized(plain, tmp_path, FORMS[form])
    check(path)


def test_a_stage_reads_its_own_tensors_alone(saved: Callable[[str], backbones.Backbone]) -> None:
    path = saved("llama").path
    config = read_config(path)
    sizes = [
        sum(tensor.numel() for tensor in load(path, split_layers(config, Place(rank, 2))).weights.tensors())
        for rank in range(2)
    ]
    assert sum(sizes) == sum(tensor.numel() for tensor in load(path).weights.tensors())


def test_the_head_counts_as_layers(saved: Callable[[str], backbones.Backbone]) -> None:
    config = read_config(saved("llama").path)
    layers = config.layers[:1] * 32
    large = replace(config, layers=layers, vocab_size=64)
    assert [len(split_layers(large, Place(rank, 2))) for rank in range(2)] == [16, 16]
    per_layer = large.traits.flops_per_token // 64
    with_head = replace(large, vocab_size=4 * per_layer // config.hidden_size)
    assert [len(split_layers(with_head, Place(rank, 2))) for rank in range(2)] == [14, 18]
    assert split_layers(replace(with_head, num_deep_layers=15), Place(0, 2)) == range(15)
    with pytest.raises(ConfigError, match="pp=2: the model has 1 layer, and each stage needs one"):
        split_layers(replace(config, layers=layers[:1]), Place(0, 2))
