"""Makes what proposes tokens, as the options of speculation say."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from seesay.engine.core.draft_model import DraftModel
from seesay.engine.core.speculation import ModelSpeculation, SpeculationRule, TextSpeculation
from seesay.errors import ConfigError

if TYPE_CHECKING:
    from seesay.config import EngineConfig, SpeculativeConfig
    from seesay.engine.core.loading import ResolvedConfig
    from seesay.engine.core.speculation import Speculation
    from seesay.engine.opened_model import OpenedModel

MOST_VERIFIED = 128
"""Most tokens of a step in which proposed tokens are computed: on a large GPU, more of them take longer."""
_LEAST_SAVED = 0.25
"""Steps that rows must be expected to save, each, by proposed tokens: the next step is not launched meanwhile."""
_DRAFT_ROWS = MOST_VERIFIED // 2
_DRAFT_STEP_TOKENS = 2048
_DRAFT_CACHE_TOKENS = 1 << 16
"""Tokens of the cache of a model that proposes, unless one sequence may have more."""


def make_speculation(
    config: SpeculativeConfig | None, draft: DraftModel | None, *, vocab_size: int
) -> Speculation | None:
    """Return what proposes tokens, None where nothing does. draft: of `load_draft`."""
    if config is None:
        return None
    rule = SpeculationRule(most=config.num_speculative_tokens, most_tokens=MOST_VERIFIED, least_saved=_LEAST_SAVED)
    if draft is None:
        return TextSpeculation(rule, vocab_size=vocab_size)
    return ModelSpeculation(rule, draft, vocab_size=vocab_size)


def load_draft(model: OpenedModel, config: EngineConfig, resolved: ResolvedConfig) -> DraftModel | None:
    """Load the model that proposes tokens for `model`, on the same device, if the options name one. Raises
    `ConfigError` for one of another vocabulary, and `CheckpointError`."""
    from seesay.checkpoint.model_path import resolve_checkpoint
    from seesay.engine.core.loading import load_runner
    from seesay.engine.opened_model import open_model

    speculation = config.speculation
    if speculation is None or not speculation.model or resolved.device.type == "meta":
        return None
    own = replace(config, hf_overrides=None, model_format=None, speculative=None, adapters=None, quantization=None)
    opened = open_model(resolve_checkpoint(speculation.model), own)
    _check_vocabulary(model, opened, speculation.model)
    limits = replace(resolved, max_batch_size=_DRAFT_ROWS, kv_format="plain", unpacked_copy=False)
    with opened.checkpoint.blamed():
        runner = load_runner(
            opened, limits, max_step_tokens=_DRAFT_STEP_TOKENS, block_size=config.block_size, make_runner=None
        )
    num_tokens = max(_DRAFT_CACHE_TOKENS, resolved.session_len)
    runner.allocate_cache(num_blocks=-(-num_tokens // config.block_size), share=1.0)
    if resolved.device.type != "cpu":
        runner.warm_up()
        if runner.decoder.traits.has_graphs and not config.eager_mode:
            runner.record_graphs()
    return DraftModel(runner)


def _check_vocabulary(model: OpenedModel, draft: OpenedModel, name: str) -> None:
    for token_id, (token, other) in enumerate(zip(model.text_tokens(), draft.text_tokens(), strict=False)):
        if token and other and token != other:
            raise ConfigError(
                f"speculative.model={name!r} has another vocabulary: its token {token_id} is {other!r}, that of the "
                f"model is {token!r}"
            )
