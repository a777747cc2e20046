"""Linear layers that compute rows of media otherwise, against Transformers' models whose linear layers do the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from llm import backbones
from safetensors.torch import load_file, save_file
from torch import nn

from seesay.checkpoint import Checkpoint
from seesay.llm.models.spec import MediaRowsSpec
from seesay.llm.plans.sampling_params import SamplingParams
from seesay.llm.plans.traits import DecoderTraits
from seesay.llm.running.blank_input import build_profile_inputs
from seesay.llm.running.runner import ModelRunner
from seesay.llm.running.runner_limits import RunnerLimits
from seesay.values import MediaItem, Modality, MultimodalInput

ALL_LOGITS = SamplingParams(output_logits="all", max_new_tokens=3)
SPECS: Mapping[str, tuple[str, MediaRowsSpec]] = {
    "own weights": ("llama", MediaRowsSpec(tokens="all_but_last", qkv_bias=True)),
    "own weights, joined": ("phi3", MediaRowsSpec()),
    "own weights, feed-forward": ("falcon-groups", MediaRowsSpec(reach="feed_forward")),
    "own weights, spans": ("llama", MediaRowsSpec(tokens="span")),
    "low rank": ("llama", MediaRowsSpec(rank=4, scale=0.5)),
    "low rank, joined": ("glm4", MediaRowsSpec(rank=3, tokens="all_but_last")),
    "low rank, grouped heads": ("falcon-groups", MediaRowsSpec(rank=5)),
}
ITEMS = ((4, 13), (13, 15), (20, 31))
"""Places of media, the second beside the first."""
LENGTH = 37


class SplitModule(nn.Module):
    """A linear layer of Transformers', and what computes rows of media."""

    is_media: torch.Tensor

    def __init__(self, text: nn.Linear, spec: MediaRowsSpec, *, bias: bool) -> None:
        super().__init__()
        self.text, self.spec = text, spec
        if spec.rank is None:
            self.own = nn.Linear(text.in_features, text.out_features, bias=bias)
        else:
            self.lora_a = nn.Linear(text.in_features, spec.rank, bias=False)
            self.lora_b = nn.Linear(spec.rank, text.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        is_media = SplitModule.is_media
        text = self.text(x)
        media = self.own(x) if self.spec.rank is None else text + self.spec.scale * self.lora_b(self.lora_a(x))
        chosen: torch.Tensor = torch.where(is_media[: x.shape[-2], None], media, text)
        return chosen

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in self.named_parameters():
            if not name.startswith("text."):
                yield name.removeprefix("own."), tensor.detach().clone()


@dataclass(frozen=True)
class Split:
    """A saved model with tensors for rows of media, and Transformers' model of it."""

    backbone: backbones.Backbone
    checkpoint: Checkpoint
    spec: MediaRowsSpec

    def expect(self, prompt: MultimodalInput, embeddings: Mapping[bytes, torch.Tensor]) -> torch.Tensor:
        """Return the logits [T, vocab] of a prompt."""
        model = self.backbone.model
        embedded = model.get_input_embeddings()(torch.tensor(prompt.token_ids)).clone()
        is_media = torch.zeros(len(prompt.token_ids), dtype=torch.bool)
        for item in prompt.items:
            embedded[torch.tensor(item.slots)] = embeddings[item.hash]
            if self.spec.tokens == "span":
                is_media[slice(*item.span)] = True
            else:
                is_media[item.slots[:-1] if self.spec.tokens == "all_but_last" else item.slots] = True
        SplitModule.is_media = is_media
        with torch.inference_mode():
            logits: torch.Tensor = model(inputs_embeds=embedded[None], use_cache=False).logits[0]
            return logits

    def load(self, **options: Any) -> ModelRunner:
        return backbones.load_runner(
            self.backbone, checkpoint=self.checkpoint, media_rows=self.spec, **options
        )  # fmt: skip


def make_split(name: str, folder: Path) -> Split:
    kind, spec = SPECS[name]
    backbone = backbones.make_backbone(kind, folder)
    torch.manual_seed(7)
    tensors = load_file(folder / "model.safetensors")
    found = [(path, module) for path, module in backbone.model.named_modules() if isinstance(module, nn.Linear)]
    for path, text in found:
        parent, _, last = path.rpartition(".")
        parts = path.split(".")
        is_attention = "self_attn" in path or "self_attention" in path
        if not path.startswith(("model.layers.", "transformer.h.")) or (is_attention and spec.reach != "layer"):
            continue
        is_qkv = last in ("q_proj", "k_proj", "v_proj", "qkv_proj", "query_key_value")
        split = SplitModule(text, spec, bias=spec.qkv_bias if is_qkv else text.bias is not None)
        for parameter in split.parameters():
            if not any(parameter is own for own in text.parameters()):
                nn.init.normal_(parameter, 0.0, 0.2)
        setattr(backbone.model.get_submodule(parent), last, split)
        front = ".".join((*parts[:3], "media", *parts[3:]))
        tensors |= {f"{front}.{key}": tensor for key, tensor in split.tensors()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return Split(backbone, Checkpoint.load(folder), spec)


@pytest.fixture(scope="module", params=SPECS)
def split(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Split:
    return make_split(request.param, tmp_path_factory.mktemp("split"))


def make_prompt(
    split: Split, items: tuple[tuple[int, int], ...] = ITEMS
) -> tuple[MultimodalInput, dict[bytes, torch.Tensor]]:
    """Where rows of media are those of spans, the first token of each takes no embedding."""
    num_before = int(split.spec.tokens == "span")
    rng = np.random.default_rng(5)
    prompt = MultimodalInput(
        token_ids=rng.integers(3, backbones.VOCAB, LENGTH),
        positions=np.arange(LENGTH),
        next_position=LENGTH,
        items=tuple(
            MediaItem(
                modality=Modality.IMAGE,
                span=span,
                slots=np.arange(*span)[num_before:],
                hash=bytes([number]) * 32,
                features={},
                num_units=1,
            )
            for number, span in enumerate(items)
        ),
    )
    generator = torch.Generator().manual_seed(3)
    embeddings = {item.hash: torch.randn(len(item.slots), 60, generator=generator) for item in prompt.items}
    return prompt, embeddings


@pytest.mark.parametrize("chunk", [LENGTH, 7, 1])
def test_logits_equal_those_of_linear_layers_that_choose_by_row(split: Split, chunk: int) -> None:
    prompt, embeddings = make_prompt(split)
    plain = MultimodalInput(token_ids=prompt.token_ids[:9], positions=np.arange(9), next_position=9)
    driver = backbones.Driver(split.load(), chunk=chunk)
    _, (found, text) = driver.generate([prompt, plain], [ALL_LOGITS] * 2, embeddings)
    expected = split.expect(prompt, embeddings)
    torch.testing.assert_close(found[:LENGTH], expected, atol=2e-4, rtol=0)
    torch.testing.assert_close(text[:9], split.expect(plain, {}), atol=2e-4, rtol=0)
    SplitModule.is_media = torch.zeros(LENGTH, dtype=torch.bool)
    as_text = split.expect(replace(prompt, items=()), {})
    assert (as_text - expected).abs().max() > 0.1


def test_the_last_token_may_be_of_media(split: Split) -> None:
    """Only its row is wanted of the last layer."""
    prompt, embeddings = make_prompt(split, ((30, LENGTH),))
    driver = backbones.Driver(split.load(), chunk=20)
    [tokens], _ = driver.generate([prompt], [SamplingParams(max_new_tokens=1)], embeddings)
    assert tokens == [int(split.expect(prompt, embeddings)[-1].argmax())]


def test_starts_try_rows_of_media(split: Split) -> None:
    runner = split.load()
    called = set()
    linears = backbones.composed(runner).linears
    for path, linear in linears.items():
        linear.extend(observe=lambda _, path=path: called.add(path))  # type: ignore[misc]
    runner.warm_up()
    kinds = {path.split(".", 2)[2] for path in called if path.startswith("layers.")}
    assert kinds == {path.split(".", 2)[2] for path in linears if path.startswith("layers.")}


def test_memory_is_measured_with_rows_of_media() -> None:
    limits = RunnerLimits(max_batch_size=4, max_step_tokens=32, session_len=64, block_size=4)
    traits = DecoderTraits(vocab_size=9, embedding_size=4, kv_shapes=(), flops_per_token=1, media_rows="all")
    splits = [
        inputs.media_rows
        for inputs, _ in build_profile_inputs(limits, traits=traits, device=torch.device("cpu"))
    ]  # fmt: skip
    assert [None if rows is None else (len(rows.media), len(rows.text)) for rows in splits] == [(32, 0), (32, 0), None]
