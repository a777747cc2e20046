"""Makes what proposes tokens, as the options of speculation say."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from seesay.config import SpeculativeConfig
from seesay.device.backends import has_float64, has_graphs
from seesay.engine.core.speculation.draft_model import DraftModel
from seesay.engine.core.speculation.layer_draft import LayerDraft
from seesay.engine.core.speculation.media_answers import MOST_OF_MEDIA
from seesay.engine.core.speculation.speculation import ModelSpeculation, SpeculationRule, TextSpeculation
from seesay.engine.core.speculation.text_rounds import TextRounds
from seesay.errors import ConfigError
from seesay.llm.plans.step_plan import MAX_DRAFTS

if TYPE_CHECKING:
    from seesay.config import EngineConfig
    from seesay.engine.core.loading.resolved_config import ResolvedConfig
    from seesay.engine.core.speculation.speculation import Speculation
    from seesay.engine.opened_model import OpenedModel
    from seesay.llm.models.composed_decoder import ComposedDecoder
    from seesay.llm.models.state_decoder import StateDecoder
    from seesay.llm.running.proposals.kept_states import KeptStates
    from seesay.llm.running.runner import ModelRunner

MOST_VERIFIED = 128
"""Most tokens of a step in which proposed tokens are computed: on a large GPU, more of them take longer."""
_LEAST_SAVED = 0.25
"""Steps that rows must be expected to save, each, by proposed tokens: the next step is not launched meanwhile."""
_NUM_ROUNDS, _FEW_ROWS = 8, 4
"""Rounds of a layer's proposals that are launched at a time for a few rows; for others half as many. Requests that come
meanwhile wait for all."""
_NUM_TEXT_ROUNDS, _FEW_TEXT_ROWS = 4, 8
"""The same of texts: more tokens of a round are right, and the host waits for as many rarely enough."""
_MOST_TEXT_TOKENS = 1 << 16
"""Tokens of a text on the device, 256 KiB: most of a prompt that are followed, of earlier answers, and an answer."""
_DRAFT_ROWS = MOST_VERIFIED // 2
_DRAFT_STEP_TOKENS = 2048
_DRAFT_CACHE_TOKENS = 1 << 16
"""Tokens of the cache of a model that proposes, unless one sequence may have more."""


_KEPT_STATES_BYTES = 512 << 20
"""Most hidden states that wait for a layer that predicts from them."""


def with_default_speculation(config: EngineConfig, runner: ModelRunner) -> EngineConfig:
    """Return the options with those of speculation that are taken where a user chose none: `ngram` where graphs compute
    the steps of `runner`, with proposals, too. Its limits, for which nothing is allocated yet, become those."""
    if config.speculative is not None or config.num_ranks > 1 or config.eager_mode:
        return config
    traits = runner.decoder.traits
    if traits.has_states or not (traits.has_graphs and has_graphs(runner.device) and has_float64(runner.device)):
        return config
    runner.limits = replace(runner.limits, max_verified_tokens=MOST_VERIFIED)
    return replace(config, speculative=SpeculativeConfig(method="ngram"))


def make_speculation(
    config: SpeculativeConfig | None, draft: DraftModel | None, rounds: TextRounds | None, *, vocab_size: int
) -> Speculation | None:
    """Return what proposes tokens, None where nothing does. draft: of `load_draft`. rounds: of `make_text_rounds`."""
    if config is None:
        return None
    rule = SpeculationRule(most=config.num_speculative_tokens, most_tokens=MOST_VERIFIED, least_saved=_LEAST_SAVED)
    if draft is None:
        return TextSpeculation(rule, vocab_size=vocab_size, rounds=rounds)
    return ModelSpeculation(rule, draft, vocab_size=vocab_size)


def make_text_rounds(config: EngineConfig, runner: ModelRunner, *, vocab_size: int) -> TextRounds | None:
    """Let steps of `runner`, whose cache is allocated, propose from texts by themselves, where the options ask for
    that, the model can go on behind tokens of which some were wrong, and the device has numbers of 64 bits, as the host
    counts the shares of right ones."""
    from seesay.llm.running.proposals.ngram_rounds import NgramProposer
    from seesay.llm.running.proposals.rounds import ProposalRounds

    speculation, traits = config.speculation, runner.decoder.traits
    if speculation is None or speculation.method != "ngram" or config.num_ranks > 1:
        return None
    if traits.has_states or traits.attends_media or not has_float64(runner.device):
        return None
    proposer = NgramProposer(
        runner.device,
        num_texts=MOST_VERIFIED // 2,
        width=min(_MOST_TEXT_TOKENS, runner.limits.session_len + MOST_OF_MEDIA + 1 + MAX_DRAFTS),
        most=speculation.num_speculative_tokens,
        most_tokens=MOST_VERIFIED,
        vocab_size=vocab_size,
    )
    runner.rounds = ProposalRounds(runner, proposer, num_rounds=_NUM_TEXT_ROUNDS, few_rows=_FEW_TEXT_ROWS)
    return TextRounds(runner.rounds, proposer)


def load_draft(
    model: OpenedModel, config: EngineConfig, resolved: ResolvedConfig, main: ModelRunner
) -> DraftModel | None:
    """Load what proposes tokens for `model`, on the same device, if the options name something that is loaded. `main`
    computes the model. Raises `ConfigError` for what does not fit, and `CheckpointError`."""
    speculation = config.speculation
    if speculation is None or resolved.device.type == "meta":
        return None
    if speculation.method in ("mtp", "eagle3"):
        return _load_layer(model, speculation, config, resolved, main)
    return _load_model(model, speculation.model, config, resolved) if speculation.model else None


def _load_model(model: OpenedModel, name: str, config: EngineConfig, resolved: ResolvedConfig) -> DraftModel:
    from seesay.checkpoint.model_path import resolve_checkpoint
    from seesay.engine.core.loading.runner_loading import load_runner
    from seesay.engine.opened_model import open_model

    own = replace(config, hf_overrides=None, model_format=None, speculative=None, adapters=None, quantization=None)
    opened = open_model(resolve_checkpoint(name), own)
    _check_vocabulary(model, opened, name)
    limits = replace(resolved, max_batch_size=_DRAFT_ROWS, kv_format="plain", unpacked_copy=False)
    with opened.checkpoint.blamed():
        runner = load_runner(
            opened, limits, max_step_tokens=_DRAFT_STEP_TOKENS, block_size=config.block_size, make_runner=None
        )
    if runner.decoder.traits.has_states:
        raise ConfigError(
            f"speculative.model={name!r} keeps states of whole texts, from which wrong tokens cannot be taken back: "
            f"name a model of attention alone, or use method='mtp'"
        )
    _start(runner, config)
    return DraftModel(runner)


def _load_layer(
    model: OpenedModel,
    speculation: SpeculativeConfig,
    config: EngineConfig,
    resolved: ResolvedConfig,
    main: ModelRunner,
) -> DraftModel:
    from seesay.llm.models.composed_decoder import ComposedDecoder
    from seesay.llm.running.proposals.chain import ProposalChain
    from seesay.llm.running.proposals.chain_rounds import ChainProposer
    from seesay.llm.running.proposals.rounds import ProposalRounds
    from seesay.llm.running.runner import ModelRunner
    from seesay.llm.running.runner_limits import RunnerLimits

    if config.num_ranks > 1 or not isinstance(main.decoder, ComposedDecoder):
        what = f"{config.num_ranks} ranks" if config.num_ranks > 1 else "a model that is computed by its own modules"
        raise ConfigError(f"speculative.method={speculation.method!r} is not supported with {what}: use another method")
    if speculation.method == "mtp":
        decoder, states = _load_own_layer(model, resolved, main.decoder)
    else:
        decoder, states = _load_head(speculation.model, resolved, main.decoder)
    decoder.reserve(_DRAFT_STEP_TOKENS)
    limits = RunnerLimits(
        max_batch_size=_DRAFT_ROWS,
        max_step_tokens=_DRAFT_STEP_TOKENS,
        session_len=resolved.session_len,
        block_size=config.block_size,
        kv_format="plain",
        max_verified_tokens=MOST_VERIFIED,
    )
    runner = ModelRunner(decoder, limits)
    _start(runner, config)
    main.kept_states = states
    chain = ProposalChain(runner, decoder, most=speculation.num_speculative_tokens, most_tokens=MOST_VERIFIED)
    if main.decoder.traits.has_states or main.decoder.traits.attends_media:
        return LayerDraft(runner, decoder, states, chain)
    proposer = ChainProposer(chain)
    main.rounds = ProposalRounds(main, proposer, num_rounds=_NUM_ROUNDS, few_rows=_FEW_ROWS)
    draft = LayerDraft(runner, decoder, states, chain, main.rounds)
    proposer.source = draft.rounds
    return draft


def _load_own_layer(
    model: OpenedModel, resolved: ResolvedConfig, main: ComposedDecoder
) -> tuple[StateDecoder, KeptStates]:
    from seesay.llm.models.predicting_decoder import (
        PredictingDecoder,
        find_layer,
        make_predicting_config,
        make_predicting_names,
    )
    from seesay.llm.running.proposals.kept_states import KeptStates

    checkpoint, name_of = model.checkpoint, model.backbone.decoder_name
    names = checkpoint.tensor_names()
    layer = find_layer(names, name_of, main.config)
    decoder = PredictingDecoder.load(
        checkpoint,
        make_predicting_config(main.config, layer, names),
        decoder_name=make_predicting_names(layer, name_of),
        device=resolved.device,
        dtype=resolved.dtype,
    )
    decoder.passes_normed = layer.passes_normed
    return decoder, KeptStates(_KEPT_STATES_BYTES)


def _load_head(name: str, resolved: ResolvedConfig, main: ComposedDecoder) -> tuple[StateDecoder, KeptStates]:
    from seesay.checkpoint import Checkpoint
    from seesay.checkpoint.model_path import resolve_checkpoint
    from seesay.llm.models.configs.eagle_config import open_head, read_head_config
    from seesay.llm.models.eagle_head import load_head
    from seesay.llm.running.proposals.kept_states import KeptStates

    checkpoint = open_head(Checkpoint.load(resolve_checkpoint(name)))
    with checkpoint.blamed():
        head = load_head(checkpoint, read_head_config(checkpoint, main.config, session_len=resolved.session_len), main)
    return head, KeptStates(_KEPT_STATES_BYTES, head.join)


def _start(runner: ModelRunner, config: EngineConfig) -> None:
    """Allocate the cache of what proposes, and get ready for its steps."""
    num_tokens = max(_DRAFT_CACHE_TOKENS, runner.limits.session_len)
    runner.allocate_cache(num_blocks=-(-num_tokens // config.block_size), share=1.0)
    if runner.device.type != "cpu":
        runner.warm_up()
        if runner.decoder.traits.has_graphs and not config.eager_mode:
            runner.record_graphs()


def _check_vocabulary(model: OpenedModel, draft: OpenedModel, name: str) -> None:
    for token_id, (token, other) in enumerate(zip(model.text_tokens(), draft.text_tokens(), strict=False)):
        if token and other and token != other:
            raise ConfigError(
                f"speculative.model={name!r} has another vocabulary: its token {token_id} is {other!r}, that of the "
                f"model is {token!r}"
            )
