"""What tests of quantized checkpoints share, whatever the format: logits against Transformers, and refusals."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from llm import backbones
from quantized_folders import Form, edit_tensors, write_quantized

from seesay.errors import CheckpointError
from seesay.llm.plans.sampling_params import SamplingParams

TOLERANCE = 1e-3
ALL_LOGITS = SamplingParams(output_logits="all", max_new_tokens=1)


def load(path: Path, dtype: torch.dtype = torch.float32) -> Any:
    return backbones.load_runner(backbones.Backbone(model=None, path=path), dtype=dtype)


def logits_of(path: Path, prompt: Any) -> torch.Tensor:
    _, [logits] = backbones.Driver(load(path)).generate([prompt], [ALL_LOGITS])
    return logits


def check_logits(source: backbones.Backbone, folder: Path, form: Form) -> None:
    """Compare the logits of the quantized model with those of Transformers with the same weights multiplied out."""
    quantized, plain = write_quantized(source.path, folder, form)
    reference = backbones.Backbone(model=type(source.model).from_pretrained(plain).eval(), path=plain)
    prompt = backbones.make_prompt(source, 23, seed=3)
    expected = reference.logits(prompt.token_ids, prompt.positions)
    torch.testing.assert_close(logits_of(quantized, prompt), expected, atol=TOLERANCE, rtol=0)
    change = (expected - source.logits(prompt.token_ids, prompt.positions)).abs().max()
    assert change > 10 * TOLERANCE, "the weights were not quantized"


def check_refusal(
    source: backbones.Backbone, folder: Path, form: Form, edit: Callable[[Any], Any], message: str
) -> None:
    """Edit the tensors of the quantized model, which cannot be loaded then."""
    quantized, _ = write_quantized(source.path, folder, form)
    edit_tensors(quantized, edit)
    with pytest.raises(CheckpointError, match=re.escape(message)):
        load(quantized)
