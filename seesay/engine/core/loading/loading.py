"""Builds a core: loads the weights, sizes the KV cache by trial, warms up what steps will use."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from seesay.device.backends import has_kernels
from seesay.device.host_memory import bound_allocators
from seesay.device.query import is_same_device, pick_device
from seesay.device.ranks import Place, Ranks, Stages, Unconnected
from seesay.engine.core.adapters import AdapterControl, AdapterStore, load_adapters, make_slots
from seesay.engine.core.grammars.jumps import JumpRule
from seesay.engine.core.loading.deterministic import (
    check_products,
    encode_alone,
    fix_decoder,
    refuse_not_deterministic,
)
from seesay.engine.core.loading.encoder_loading import load_encoder, try_encoder
from seesay.engine.core.loading.length_warning import warn_beyond_training
from seesay.engine.core.loading.resolved_config import ResolvedConfig, resolve
from seesay.engine.core.loading.runner_loading import load_runner
from seesay.engine.core.loading.start_memory import told_of_memory
from seesay.engine.core.loading.start_speculation import (
    MOST_VERIFIED,
    load_draft,
    make_speculation,
    make_text_rounds,
    with_default_speculation,
)
from seesay.engine.core.loading.states import build_states
from seesay.engine.core.loop import EngineLoop
from seesay.engine.core.model_weights import ModelWeights
from seesay.engine.core.processor_imports import ProcessorImports
from seesay.engine.core.rank_parts import RankParts
from seesay.engine.watchdog import hang_limit_s
from seesay.grammars.bad_words import CompiledBadWords
from seesay.grammars.masks import CompiledGrammars
from seesay.llm.plans.step_times import StepTimes
from seesay.llm.scheduling.pools.block_pool import BlockPool
from seesay.llm.scheduling.scheduler import Scheduler
from seesay.llm.scheduling.scheduler_config import SchedulerConfig, find_max_step_tokens
from seesay.llm.scheduling.step_policy import TimedSteps

if TYPE_CHECKING:
    import torch

    from seesay.config import EngineConfig, VisionConfig
    from seesay.encoders.encoder import Encoder, LoadedEncoder
    from seesay.engine.core.rank_parts import JoinRanks, MakeRunner, OpenRemote
    from seesay.engine.core.speculation.speculation import Speculation
    from seesay.engine.opened_model import OpenedModel
    from seesay.kernels.compile_log import CompileLog
    from seesay.llm.plans.step_times import StepCosts
    from seesay.llm.running.runner import ModelRunner
    from seesay.llm.scheduling.step_policy import StepPolicy


logger = logging.getLogger("seesay")

_STREAMED_TOKENS = 368
"""Most tokens of prompts in a step in which streamed answers go on: about 8 ms of a 7B model on a large GPU. On a CPU,
where steps take longer, one person's long prompt would halt the answers of all others."""
_ENCODING_TOKENS = 1024
"""Most tokens of prompts in a step while pictures are encoded: shorter ones let tower and decoder go hand in hand."""


def _nothing() -> None:
    pass


class _Parts(NamedTuple):
    """The parts of a core that compute, and the durations of its steps where they are needed. tower: the encoder whose
    weights are in this process."""

    encoder: Encoder | None
    tower: LoadedEncoder | None
    runner: ModelRunner
    step_costs: StepCosts | None
    speculation: Speculation | None = None


def load_core(
    model: OpenedModel,
    config: EngineConfig,
    vision_config: VisionConfig,
    *,
    is_watched: bool = False,
    wait_for_kernels: Callable[[], None] = _nothing,
    make_runner: MakeRunner | None = None,
    join_ranks: JoinRanks | None = None,
    open_remote: OpenRemote | None = None,
) -> EngineLoop:
    """Load the weights of `model` and build the core that computes with them; it is not started. What a frontend must
    know of it is in `EngineLoop.facts`. Where it `is_watched` by another process, it does not watch itself. Once the
    weights are loaded, `wait_for_kernels` is called. make_runner: makes the runner, in place of `ModelRunner`.
    join_ranks: of a model that several ranks compute; this core is rank 0. open_remote: makes the encoder, in place of
    `build_encoder`. Raises `CheckpointError` or `ConfigError`."""
    bound_allocators()
    with model.checkpoint.blamed():
        device = None if join_ranks is None else join_ranks.pick_device()
        resolved = resolve(config, model.checkpoint, model.backbone, device)
        warn_beyond_training(config, model.backbone)
        ranks = None if join_ranks is None else join_ranks.join(resolved.device)
        compile_log = _listen_to_compiler(resolved.device)
        with told_of_memory(model.checkpoint.path, resolved.device):
            parts, scheduler, adapters = _load_parts(
                model, config, vision_config, resolved, wait_for_kernels, make_runner, ranks, open_remote
            )
    if compile_log is not None:
        logger.info("%d kernels were compiled by the start itself", compile_log.end_start())
    jumps = None
    make_weights = ModelWeights if ranks is None else ranks.make_weights
    is_cpu = resolved.device.type == "cpu"
    if is_cpu if config.jump_ahead is None else config.jump_ahead:
        jumps = JumpRule(session_len=scheduler.config.session_len, has_graphs=parts.runner.has_graphs)
    return EngineLoop(
        scheduler=scheduler,
        runner=parts.runner,
        encoder=parts.encoder,
        vision_config=encode_alone(vision_config, config),
        weights=None if open_remote else make_weights(model, config, parts.runner.decoder.weights, parts.tower),
        grammars=CompiledGrammars(model.grammar_tokens, encode=model.tokenizer.encode),
        bad_words=CompiledBadWords(model.text_tokens),
        imports=ProcessorImports(config.logits_processor_pattern),
        spell=model.tokenizer.spelling.spell,
        is_ahead=_is_ahead(config, resolved.device),
        jumps=jumps,
        hang_limit_s=None if is_watched else hang_limit_s(config.step_timeout_s, str(resolved.device)),
        adapters=adapters,
        speculation=parts.speculation,
    )


def _load_parts(
    model: OpenedModel,
    config: EngineConfig,
    vision_config: VisionConfig,
    resolved: ResolvedConfig,
    wait_for_kernels: Callable[[], None],
    make_runner: MakeRunner | None,
    ranks: RankParts | None,
    open_remote: OpenRemote | None,
) -> tuple[_Parts, Scheduler, AdapterControl]:
    """Load and build what takes memory of the device."""
    name = vision_config.device
    encoder_device = pick_device(name, "VisionConfig.device") if name else resolved.device
    parts = _build_parts(
        model,
        config,
        resolved,
        wait_for_kernels,
        make_runner,
        encoder_device=encoder_device,
        open_remote=open_remote,
        ranks=ranks,
    )
    scheduler = _build_scheduler(parts, config, resolved)
    return parts, scheduler, _load_adapters(parts, scheduler, ranks, config, model.checkpoint.tensor_names())


def _is_ahead(config: EngineConfig, device: torch.device) -> bool:
    """Return whether each step is launched while the one before is computed: None means yes on a GPU, and for
    stages."""
    if config.async_scheduling is not None:
        return config.async_scheduling
    return device.type != "cpu" or config.pp > 1


def _load_adapters(
    parts: _Parts, scheduler: Scheduler, ranks: RankParts | None, config: EngineConfig, stored: Container[str]
) -> AdapterControl:
    make_store = AdapterStore if ranks is None else ranks.make_adapter_store
    store = make_store(parts.runner, parts.tower, stored)
    control = AdapterControl(store, scheduler, max_in_memory=config.max_cpu_adapters)
    load_adapters(control, config.adapters or {})
    return control


def _listen_to_compiler(device: torch.device) -> CompileLog | None:
    if not has_kernels(device):
        return None
    from seesay.kernels.compile_log import CompileLog

    return CompileLog()


def rehearse(model: OpenedModel, config: EngineConfig) -> tuple[ModelRunner, LoadedEncoder | None]:
    """Do on the meta device what `load_core` does on a GPU: nothing is read or computed, but all kernels of a start are
    called as they will be (see `seesay.kernels.absent_gpu`). Returns runner and tower, ready for steps and
    pictures without values."""
    import torch

    resolved = resolve(config, model.checkpoint, model.backbone, torch.device("meta"))
    longest = -(-resolved.session_len // config.block_size)
    config = replace(config, num_gpu_blocks=config.num_gpu_blocks or longest, num_cpu_blocks=0)
    parts = _build_parts(
        model, config, resolved, _nothing, encoder_device=resolved.device, ranks=_rehearse_ranks(config)
    )
    return parts.runner, parts.tower


def _rehearse_ranks(config: EngineConfig) -> RankParts | None:
    """Return what makes one of several ranks, without the others."""
    from seesay.llm.running.runner import ModelRunner

    if config.num_ranks == 1:
        return None
    place = Place(0, config.num_ranks)
    return RankParts(
        ranks=Stages(place) if config.pp > 1 else Unconnected(place),
        make_runner=ModelRunner,
        make_weights=ModelWeights,
        make_adapter_store=AdapterStore,
        wait_until_loaded=_nothing,
    )


@contextmanager
def _timed(stage: str) -> Iterator[None]:
    """Log how long a stage of the start takes."""
    started_s = time.perf_counter()
    yield
    logger.info("%s: %.1f s", stage, time.perf_counter() - started_s)


def load_follower(
    model: OpenedModel, config: EngineConfig, device: torch.device, make_runner: MakeRunner, ranks: Ranks | Stages
) -> ModelRunner:
    """Load the slice of a rank that follows, on `device`. Raises `CheckpointError` or `ConfigError`."""
    with model.checkpoint.blamed(), _timed("loading a slice of the decoder"):
        resolved = resolve(config, model.checkpoint, model.backbone, device)
        with told_of_memory(model.checkpoint.path, device):
            return _load_runner(model, config, resolved, make_runner, ranks)


def _load_first(
    model: OpenedModel,
    config: EngineConfig,
    resolved: ResolvedConfig,
    make_runner: MakeRunner | None,
    ranks: RankParts | None,
) -> ModelRunner:
    """Load the decoder, or its first slice while the other ranks load theirs."""
    if ranks is None:
        return _load_runner(model, config, resolved, make_runner)
    loaded = _load_runner(model, config, resolved, ranks.make_runner, ranks.ranks)
    ranks.wait_until_loaded()
    return loaded


def _load_runner(
    model: OpenedModel,
    config: EngineConfig,
    resolved: ResolvedConfig,
    make_runner: MakeRunner | None,
    ranks: Ranks | Stages | None = None,
) -> ModelRunner:
    max_step_tokens = find_max_step_tokens(
        config.max_prefill_token_num,
        session_len=resolved.session_len,
        media_run=model.backbone.media_run,
        is_prefix_lm=model.backbone.is_prefix_lm,
    )
    sizes = {"max_step_tokens": max_step_tokens, "block_size": config.block_size}
    runner = load_runner(model, resolved, **sizes, make_runner=make_runner, ranks=ranks)
    if config.speculation is not None:
        runner.limits = replace(runner.limits, max_verified_tokens=MOST_VERIFIED)
    make_slots(runner, config)
    return runner


def _build_parts(
    model: OpenedModel,
    config: EngineConfig,
    resolved: ResolvedConfig,
    wait_for_kernels: Callable[[], None],
    make_runner: MakeRunner | None = None,
    *,
    encoder_device: torch.device,
    open_remote: OpenRemote | None = None,
    ranks: RankParts | None = None,
) -> _Parts:
    """Load tower and decoder, size the KV cache after the largest prefill and the largest encode were tried, and get
    ready for steps."""
    with _timed("loading the vision tower"):
        encoder, tower = load_encoder(model, config, open_remote, device=encoder_device, dtype=resolved.dtype)
    with _timed("loading the decoder"), fix_decoder(config, resolved.dtype):
        runner = _load_first(model, config, resolved, make_runner, ranks)
    refuse_not_deterministic(runner.decoder, config, resolved.device)
    config = with_default_speculation(config, runner)
    is_gpu = resolved.device.type != "cpu"
    draft = load_draft(model, config, resolved, runner)
    if is_gpu:
        with _timed("waiting for kernels"):
            wait_for_kernels()
    check_products(runner.decoder, config)
    records_graphs = is_gpu and not config.eager_mode and runner.decoder.traits.has_graphs
    with _timed("measuring the largest prefill"):
        reserved = runner.profile(records_graphs=records_graphs)
    if tower is not None and tower.device.type != "cpu":
        with _timed("measuring the largest encode"):
            peak = try_encoder(tower, model.family)
        reserved += peak if is_same_device(tower.device, resolved.device) else 0
    runner.allocate_cache(
        num_blocks=config.num_gpu_blocks,
        share=config.cache_max_entry_count,
        reserved_bytes=reserved,
        num_host_slots=config.num_cpu_blocks,
    )
    text_rounds = make_text_rounds(config, runner, vocab_size=model.vocab_size)
    if is_gpu:
        with _timed("compiling and loading kernels"):
            runner.warm_up()
    if records_graphs:
        with _timed("recording graphs"):
            runner.record_graphs()
    step_costs = None
    if resolved.max_step_ms is not None:
        with _timed("measuring step times"):
            step_costs = runner.measure_step_costs()
    speculation = make_speculation(config.speculation, draft, text_rounds, vocab_size=model.vocab_size)
    return _Parts(encoder, tower, runner, step_costs, speculation)


def _build_scheduler(parts: _Parts, config: EngineConfig, resolved: ResolvedConfig) -> Scheduler:
    runner = parts.runner
    where = f"{runner.num_blocks} blocks of {config.block_size} tokens on {resolved.device}"
    logger.info("KV cache: %s, %d more in host memory", where, config.num_cpu_blocks)
    session_len = resolved.session_len
    if runner.limits.session_len < session_len:
        session_len = runner.limits.session_len
        logger.warning("the KV cache holds %d tokens: session_len is lowered to that", session_len)
    pool = BlockPool(runner.num_blocks, config.block_size, config.enable_prefix_caching, config.num_cpu_blocks)
    scheduler_config = SchedulerConfig(
        max_batch_size=resolved.max_batch_size,
        max_prefill_token_num=config.max_prefill_token_num,
        max_streamed_tokens=_STREAMED_TOKENS,
        max_encoding_tokens=_ENCODING_TOKENS if resolved.device.type != "cpu" else None,
        session_len=session_len,
        length_scaling=runner.decoder.traits.length_scaling,
        num_adapter_slots=runner.limits.num_adapter_slots,
        media_run=runner.decoder.traits.media_run,
        attends_media=runner.decoder.traits.attends_media,
        is_prefix_lm=runner.decoder.traits.is_prefix_lm,
        num_micro_batches=config.pp,
    )
    policy: StepPolicy | None = None  # the scheduler's own
    if parts.step_costs is not None and resolved.max_step_ms is not None:
        policy = TimedSteps(times=StepTimes(parts.step_costs), max_step_s=resolved.max_step_ms / 1e3)
    states = build_states(runner, config)
    return Scheduler(scheduler_config, pool, policy=policy, states=states)
