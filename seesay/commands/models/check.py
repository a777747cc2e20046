"""`seesay check MODEL`: compare logits with those of Transformers' own forward pass on the same weights."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from seesay.commands.arguments import engine_options, options
from seesay.commands.command import Command
from seesay.errors import CheckpointError

if TYPE_CHECKING:
    import torch

    from seesay.checkpoint import Checkpoint
    from seesay.offline.pipeline import Pipeline

_TEXTS = ("The game is in the frame, and the answer is 42.", "Was ist das?\n", "x")
_LIMITS = {"float32": 1e-3}
_ROUGH_LIMIT = 0.1
"""Largest difference of logits, relative to their size, in float32 and in types of 16 bits."""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_model(parser)
    engine_options.add_engine_options(parser)
    options.add_log_options(parser, default="WARNING")


def _run(arguments: argparse.Namespace) -> int:
    from seesay.offline.pipeline import pipeline

    config = engine_options.make_engine_config(arguments)
    with pipeline(
        arguments.model_path,
        config,
        None,
        arguments.log_level,
        vision_config=engine_options.make_vision_config(arguments),
    ) as pipe:
        checkpoint, facts = pipe.engine.checkpoint, pipe.engine.core.facts
        found = [_compute(pipe, text) for text in _TEXTS]
    model = _load_transformers(checkpoint, facts.dtype)
    limit = _LIMITS.get(facts.dtype, _ROUGH_LIMIT)
    worst = 0.0
    for ids, logits in found:
        largest, relative = _compare(logits, _compute_transformers(model, ids))
        worst = max(worst, relative)
        sys.stdout.write(
            f"{len(ids)} positions: largest difference of logits {largest:.3g}, {relative:.2g} of their size\n"
        )
    verdict = "agrees" if worst <= limit else "DOES NOT AGREE"
    sys.stdout.write(f"{checkpoint.architecture} {verdict} with Transformers (limit {limit:g} in {facts.dtype})\n")
    return int(worst > limit)


def _compute(pipe: Pipeline, text: str) -> tuple[list[int], torch.Tensor]:
    """Return the tokens of a text, and our logits float32 [T, vocab]."""
    from seesay.config import GenerationConfig

    ids = pipe.engine.tokenize_text(text)
    config = GenerationConfig(max_new_tokens=1, output_logits="all")
    answer = pipe(text, gen_config=config, do_preprocess=False)
    assert answer.logits is not None
    return ids, answer.logits[: len(ids)].float()


def _load_transformers(checkpoint: Checkpoint, dtype: str) -> torch.nn.Module:
    """Return Transformers' own model on the CPU. Raises `CheckpointError` where it has none of this architecture."""
    import torch
    import transformers

    from seesay.vl.modules.module_family import is_known_to_transformers
    from seesay.vl.modules.module_vision import takes_media

    name = checkpoint.architecture
    if takes_media(name):
        maker = transformers.AutoModelForMultimodalLM
    elif is_known_to_transformers(name):
        maker = transformers.AutoModelForCausalLM
    else:
        raise CheckpointError(f"{checkpoint.path}: Transformers has no model {name} to compare with")
    model: torch.nn.Module = maker.from_pretrained(
        str(checkpoint.path), dtype=getattr(torch, dtype), local_files_only=True, use_safetensors=True
    )
    return model.eval()


def _compute_transformers(model: torch.nn.Module, ids: list[int]) -> torch.Tensor:
    import torch

    with torch.inference_mode():
        logits: torch.Tensor = model(input_ids=torch.tensor([ids])).logits[0].float()
    return logits


def _compare(ours: torch.Tensor, theirs: torch.Tensor) -> tuple[float, float]:
    """Return the largest difference, and the size of all differences relative to that of Transformers' logits."""
    difference = ours - theirs
    return float(difference.abs().max()), float(difference.norm() / theirs.norm().clamp(min=1e-9))


COMMAND = Command(
    name="check",
    summary="compare a model's logits with those of Transformers on the same weights",
    add_arguments=_add_arguments,
    run=_run,
    usage="[OPTIONS] MODEL",
)
