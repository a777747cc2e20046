"""Tiny checkpoints of text models in the layouts of their authors have the names that the published code has."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from published_originals import list_published, read_published
from safetensors import safe_open

_ROTARY = {"transformer.rotary_pos_emb.inv_freq"}
_BIASES = {"model.layers.N.attention.wqkv.bias", "model.layers.N.attention.wo.bias"}


def without_numbers(names: Iterable[str]) -> set[str]:
    return {re.sub(r"\.\d+\.", ".N.", name) for name in names}


@pytest.mark.parametrize(
    ("name", "published", "optional"),
    [
        ("baichuan2_13b", "baichuan2_13b", set()),
        ("chatglm", "chatglm3", _ROTARY),  # older folders have this buffer, too
        ("internlm2", "internlm2", _BIASES),  # where `bias` is true
        ("mpt_original", "mpt_chat", set()),
        ("qwen", "qwen", set()),
    ],
)
def test_tensors_and_fields_are_the_published_ones(
    name: str, published: str, optional: set[str], tiny_checkpoint: Callable[[str], Path]
) -> None:
    path = tiny_checkpoint(name)
    with safe_open(path / "model.safetensors", "pt") as file:
        names = without_numbers(file.keys())
    assert names - optional == without_numbers(list_published(published))
    if name != "internlm2":  # which newer releases of Transformers wrote
        assert set(json.loads((path / "config.json").read_text())) <= set(read_published(published))
