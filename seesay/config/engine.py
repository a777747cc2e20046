"""Options of the language engine: ours, and LMDeploy's other engine, which is translated."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from seesay.config import foreign as foreign_options
from seesay.config.checks import accept_defaults, check_instance, check_types, refuse_unsupported, require
from seesay.config.speculative import SpeculativeConfig, make_speculative
from seesay.errors import ConfigError

_MOST_TOKENS, _MOST_ROWS = 1 << 24, 1 << 16
"""Upper limit of token and row counts. Larger values are typing errors."""
_LARGEST_RANK = 512

_MOST_RANKS, _MOST_STAGES = 64, 2
_LONGEST_STEP_MS = 1 << 20
"""No stream waits longer than some minutes for its next token."""

DTypeName = Literal["auto", "float16", "bfloat16", "float32"]
ModelFormat = Literal["hf", "awq", "gptq", "compressed-tensors", "fp8"]
KVCacheDType = Literal["auto", "fp8", "fp8_e4m3", "int8", "int4"]
QuantPolicy = Literal[0, 4, 8]
ExecutorBackend = Literal["uni", "mp", "ray"]
_LARGEST_FACTOR = 1024
_NEED_OF_FACTOR = f"must be 0 (off) or in [1, {_LARGEST_FACTOR}]"
_NEED_OF_QUANTIZATION = (
    "must be 'fp8', 'int8' or None (weights of 4 bits need calibration: `seesay lite auto_awq` or `auto_gptq` writes a "
    "checkpoint, which is loaded without this option)"
)
_DTYPE_OF_POLICY: Mapping[int, KVCacheDType] = {0: "auto", 4: "int4", 8: "int8"}


def _check_pattern(pattern: str | None) -> None:
    try:
        re.compile(pattern or "")
    except (re.error, RecursionError, OverflowError) as error:
        raise ConfigError(f"logits_processor_pattern must be a regular expression, got {pattern!r}: {error}") from error


@accept_defaults(foreign_options.PYTORCH_ENGINE)
@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Options of the language engine. LMDeploy's users know it as `PytorchEngineConfig`.

    dtype: dtype of weights, activations and KV cache. 'auto': the checkpoint's on a GPU (float16 for a float32
        checkpoint), float32 on the CPU.
    tp: GPUs that compute one model together, each with a slice of its weights and of the KV cache: those from
        `device_type` on. The sizes of the model must allow it. On the CPU, processes. See docs/several_gpus.md.
    pp: 2 divides the layers among two GPUs (stages), which compute different sequences at a time and exchange less than
        those of `tp`: for GPUs without fast links, or on different machines. Not with `tp`, nor with adapters.
    distributed_executor_backend: where the processes of `tp` or `pp` run: 'mp', as None, starts them on this machine,
        'ray' where Ray places them in a cluster (extra `ray`; see docs/ray.md). 'uni' is for one process.
    expert_parallel: with tp, each GPU has some of a layer's experts whole, and not a slice of every one.
    session_len: longest prompt and answer together, in tokens; None takes the model's context length.
    rope_scaling_factor: dynamic NTK with this factor (1 or more) for prompts that are longer than the model was trained
        for, instead of the checkpoint's own rotary scaling; 0 leaves that as it is. See docs/long_context.md.
    use_logn_attn: multiply the queries of tokens beyond the trained length by the logarithm of their place to the base
        of that length. A checkpoint with `use_logn_attn` does it anyway.
    max_batch_size: largest number of sequences in a step; None is 512 on a GPU, 32 on the CPU.
    cache_max_entry_count: share (0, 1] for the KV cache of the memory that weights and activations leave free.
    prefill_interval: LMDeploy's option. Only its default is accepted: every step may hold prompts and answers.
    block_size: tokens in a KV block.
    num_cpu_blocks: KV blocks in host memory (pinned, for a GPU), for cached blocks that are evicted from the device; 0
        turns this off.
    num_gpu_blocks: number of KV blocks; 0 sizes the cache by `cache_max_entry_count`.
    adapters: LoRA adapters by name: folders as PEFT writes them.
    max_adapters: adapters that may be in use at a time, each with a slot in the memory of the device. Sequences of more
        wait; those adapters are in host memory meanwhile. 0: as many as `adapters` has.
    max_cpu_adapters: adapters in host memory, at least `max_adapters`. Others are in their files, and are read again
        when requests come for them. 0: all.
    max_adapter_rank: the largest rank of an adapter, for which slots have room. 0: that of `adapters`, or 16 where
        there are none.
    max_prefill_token_num: token budget of a step; longer prompts are computed in chunks. Where the rows of a picture
        see each other (Gemma 3), one picture may go beyond it. Where all tokens of a prompt see each other (PaliGemma),
        a prompt of more tokens is refused.
    max_step_ms: longest step, in milliseconds, beside answers that are streamed: steps have as many prompt tokens as
        their predicted duration allows, fewer while no prompt has waited long. None: a fixed number of prompt tokens.
        'auto' is 40 on a GPU, None on the CPU.
    thread_safe: LMDeploy's option. The engine is thread-safe with either value.
    enable_prefix_caching: keep and reuse the KV blocks of equal prompt prefixes, pictures included.
    device_type: 'auto', or 'cuda', 'rocm', 'ascend' ('npu'), 'xpu', 'mps' or 'cpu', or what a package adds; 'cuda:1' is
        the second one. 'auto' is the first of these that is there, but not 'mps'. See docs/devices.md.
    eager_mode: never capture CUDA graphs, neither for decoding nor for the vision tower.
    engine_process: run the engine in a process of its own, so that it never waits for this one's GIL; None does so on
        a GPU.
        `logits_processors` that are functions of this process need it to be off; names do not.
    logits_processor_pattern: a regular expression for the whole names ('package.module:function') of logits
        processors that requests may have imported; importing runs their code. None: none may.
    step_timeout_s: a step, or a call of the vision tower, that takes longer is treated as hung: its requests end with
        an error, and an engine process is started again. None is 120 on a GPU and 3600 on the CPU.
    async_scheduling: launch each step while the previous one is being computed; None turns it on on a GPU, and with
        `pp`.
    jump_ahead: compute text that a grammar leaves no choice about several tokens at a time, cut into tokens as the
        tokenizer cuts it; False lets the model cut it, token by token. None turns it on on the CPU.
    deterministic: compute the same bits of logits, tokens and log-probabilities, whatever the batch, the order, chunks
        of prompts, hits in the caches and preemption; steps take longer. Not with `tp`, `pp` or adapters. See
        docs/deterministic.md.
    speculative: propose tokens, and compute several of them in one step; None: by `ngram` where CUDA graphs of one GPU
        compute the steps, else none. Answers are the same. See docs/speculation.md.
    record: a file to which each request that was computed is appended, with its answer, as a line that `seesay replay`
        repeats. Prompts and answers are in it as token ids. See docs/replay.md.
    record_media: keep the pictures and videos of those requests, too, in a folder beside the file. Without it there are
        their hashes.
    download_dir: folder for downloads from the hub.
    revision: branch, tag or commit of a hub model.
    kv_cache_dtype: keys and values in the KV cache. 'int8' and 'int4' have a scale and a zero point per head and token,
        'fp8' (or 'fp8_e4m3') has a scale. Latent rows are not kept in 'int4'. 'auto' takes what the checkpoint asks for
        (`kv_cache_scheme`), else `dtype`.
    quant_policy: LMDeploy's name for the same: 8 is 'int8', 4 is 'int4', 0 leaves it to `kv_cache_dtype`.
    quantization: 'fp8' or 'int8' quantizes the linear layers of the language model, but for its head, while they are
        loaded; None takes the checkpoint as it is, which may be quantized itself. Weights of 4 bits need calibration:
        `seesay lite auto_awq` and `auto_gptq` write such checkpoints.
    unpacked_copy: keep packed weights (AWQ, GPTQ, pack-quantized) multiplied out, too, at the expense of the KV cache.
        Steps of many rows, such as those of prompts, then take the time of plain weights. None does so on a GPU where
        the copy takes at most an eighth of the memory.
    model_format: the format of the weights in the checkpoint: 'hf' for plain ones, else the `quant_method` of its
        config.json. It is checked, and changes nothing; None accepts any.
    hf_overrides: values that replace those in the checkpoint's config.json, nested by key. Those of the text model may
        also stand at the root, or in `text_config`, whichever of them config.json has. Unknown fields are refused.
    disable_vision_encoder: do not load the vision tower; requests with pictures are refused.
    plugins: Python files or names of modules with model families, which outrank those of this package. Their code runs
        in this process and in that of the engine. See docs/plugins.md.
    custom_module_map: LMDeploy's name for the same by architecture: {architecture: 'package.module.Class'}, or a Python
        file with such a dict MODULE_MAP, whose classes may be in the file. The classes are model families, as those of
        `plugins`.
    trust_remote_code: run Python from the checkpoint, in this process and in that of the engine: its tokenizer, and its
        model and processor where neither this package nor Transformers has the model. Set it only if you trust the
        checkpoint.
    """

    dtype: DTypeName = "auto"
    tp: int = 1
    pp: int = 1
    distributed_executor_backend: ExecutorBackend | None = None
    expert_parallel: bool = False
    session_len: int | None = None
    max_batch_size: int | None = None
    cache_max_entry_count: float = 0.8
    prefill_interval: int = 16
    block_size: int = 64
    num_cpu_blocks: int = 0
    num_gpu_blocks: int = 0
    adapters: Mapping[str, str] | None = None
    max_adapters: int = 0
    max_cpu_adapters: int = 0
    max_adapter_rank: int = 0
    max_prefill_token_num: int = 8192
    max_step_ms: int | Literal["auto"] | None = "auto"
    thread_safe: bool = True
    enable_prefix_caching: bool = True
    device_type: str = "auto"
    eager_mode: bool = False
    async_scheduling: bool | None = None
    jump_ahead: bool | None = None
    deterministic: bool = False
    speculative: SpeculativeConfig | Mapping[str, Any] | None = None
    record: str | os.PathLike[str] | None = None
    record_media: bool = False
    engine_process: bool | None = None
    step_timeout_s: float | None = None
    logits_processor_pattern: str | None = None
    download_dir: str | os.PathLike[str] | None = None
    revision: str | None = None
    kv_cache_dtype: KVCacheDType = "auto"
    quant_policy: QuantPolicy = 0
    quantization: Literal["fp8", "int8"] | None = None
    unpacked_copy: bool | None = None
    model_format: ModelFormat | None = None
    hf_overrides: Mapping[str, Any] | None = None
    disable_vision_encoder: bool = False
    plugins: Sequence[str | os.PathLike[str]] = ()
    custom_module_map: Mapping[str, str] | str | os.PathLike[str] | None = None
    trust_remote_code: bool = False
    rope_scaling_factor: float = 0.0
    use_logn_attn: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.quantization, str):
            require(self.quantization in ("fp8", "int8"), "quantization", self.quantization, _NEED_OF_QUANTIZATION)
        check_types(self)
        make_speculative(self.speculative)
        for name, most in (("session_len", _MOST_TOKENS), ("max_batch_size", _MOST_ROWS)):
            value = getattr(self, name)
            require(value is None or 1 <= value <= most, name, value, f"must be in [1, {most}], or None")
        require(
            self.step_timeout_s is None or self.step_timeout_s > 0,
            "step_timeout_s",
            self.step_timeout_s,
            "must be above 0, or None",
        )
        require(
            0 < self.cache_max_entry_count <= 1,
            "cache_max_entry_count",
            self.cache_max_entry_count,
            "must be in (0, 1]",
        )
        factor = self.rope_scaling_factor
        require(factor == 0 or 1 <= factor <= _LARGEST_FACTOR, "rope_scaling_factor", factor, _NEED_OF_FACTOR)
        require(1 <= self.block_size <= 1024, "block_size", self.block_size, "must be in [1, 1024]")
        for name in ("num_cpu_blocks", "num_gpu_blocks"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "must be at least 0")
        require(
            self.enable_prefix_caching or not self.num_cpu_blocks,
            "num_cpu_blocks",
            self.num_cpu_blocks,
            "must be 0 without enable_prefix_caching",
        )
        budget = self.max_prefill_token_num
        require(1 <= budget <= _MOST_TOKENS, "max_prefill_token_num", budget, f"must be in [1, {_MOST_TOKENS}]")
        require(1 <= self.tp <= _MOST_RANKS, "tp", self.tp, f"must be in [1, {_MOST_RANKS}]")
        self._check_ranks()
        self._check_adapters()
        self._check_record()
        self._check_deterministic()
        _check_pattern(self.logits_processor_pattern)
        step_ms = self.max_step_ms
        require(
            step_ms is None or step_ms == "auto" or 1 <= step_ms <= _LONGEST_STEP_MS,
            "max_step_ms",
            step_ms,
            f"must be in [1, {_LONGEST_STEP_MS}], 'auto' or None",
        )
        self._check_kv_format()
        refuse_unsupported(
            self,
            {
                "prefill_interval": (16,),
            },
        )

    def _check_adapters(self) -> None:
        for name, most in (("max_adapters", _MOST_ROWS), ("max_adapter_rank", _LARGEST_RANK)):
            require(0 <= getattr(self, name) <= most, name, getattr(self, name), f"must be in [0, {most}]")
        most_there = self.max_cpu_adapters
        is_valid = most_there == 0 or most_there >= max(1, self.max_adapters)
        require(is_valid, "max_cpu_adapters", most_there, f"must be 0 or at least max_adapters={self.max_adapters}")

    def _check_record(self) -> None:
        require(
            self.record is not None or not self.record_media,
            "record_media",
            self.record_media,
            "needs EngineConfig.record",
        )

    def _check_deterministic(self) -> None:
        for name, only in (("tp", 1), ("pp", 1), ("adapters", None), ("max_adapters", 0)):
            value = getattr(self, name)
            is_off = not self.deterministic or value == only or value == {}
            require(is_off, name, value, f"must be {only} with deterministic=True: sums would depend on the batch")

    def _check_kv_format(self) -> None:
        named = _DTYPE_OF_POLICY[self.quant_policy]
        require(
            "auto" in (named, self.kv_cache_dtype) or named == self.kv_cache_dtype,
            "kv_cache_dtype",
            self.kv_cache_dtype,
            f"must be {named!r} or 'auto' with quant_policy={self.quant_policy}",
        )

    def _check_ranks(self) -> None:
        require(self.pp in (1, _MOST_STAGES), "pp", self.pp, f"must be 1 or {_MOST_STAGES}")
        require(self.pp == 1 or self.tp == 1, "pp", self.pp, f"must be 1 with tp={self.tp}: take one of them")
        has_adapters = bool(self.adapters or self.max_adapters)
        require(self.pp == 1 or not has_adapters, "pp", self.pp, "must be 1 with adapters and max_adapters")
        count, backend = self.num_ranks, self.distributed_executor_backend
        require(
            count == 1 or self.engine_process is not False,
            "engine_process",
            self.engine_process,
            f"must be True or None with {count} ranks: each is a process",
        )
        require(
            backend in (None, "mp") or (backend == "uni") == (count == 1),
            "distributed_executor_backend",
            backend,
            f"must be {'uni, mp or None' if count == 1 else 'mp, ray or None'} with {count} rank{'s' * (count > 1)}",
        )

    @property
    def num_ranks(self) -> int:
        """The processes that compute the model together."""
        return self.tp * self.pp

    @property
    def speculation(self) -> SpeculativeConfig | None:
        """The options of `speculative`; None where nothing is to propose."""
        found = make_speculative(self.speculative)
        return None if found is None or found.method == "none" else found

    @property
    def kv_format(self) -> Literal["int8", "int4", "fp8"] | None:
        """The format of quantized keys and values; None leaves it to the checkpoint."""
        chosen = _DTYPE_OF_POLICY[self.quant_policy] if self.kv_cache_dtype == "auto" else self.kv_cache_dtype
        if chosen == "auto":
            return None
        return "fp8" if chosen == "fp8_e4m3" else chosen


@accept_defaults(foreign_options.TURBOMIND_ENGINE)
@dataclass(frozen=True, kw_only=True)
class TurbomindEngineConfig:
    """LMDeploy's other engine configuration. `to_engine_config` translates it."""

    dtype: DTypeName = "auto"
    model_format: ModelFormat | None = None
    tp: int = 1
    session_len: int | None = None
    max_batch_size: int | None = None
    cache_max_entry_count: float = 0.8
    cache_chunk_size: int = -1
    cache_block_seq_len: int = 64
    enable_prefix_caching: bool = True
    quant_policy: QuantPolicy = 0
    rope_scaling_factor: float = 0.0
    use_logn_attn: bool = False
    download_dir: str | os.PathLike[str] | None = None
    revision: str | None = None
    max_prefill_token_num: int = 8192
    num_tokens_per_iter: int = 0
    max_prefill_iters: int = 1
    hf_overrides: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        check_types(self)
        refuse_unsupported(
            self,
            {
                "cache_chunk_size": (-1,),
                "max_prefill_iters": (1,),
            },
        )

    def to_engine_config(self) -> EngineConfig:
        """Return the same settings as an `EngineConfig`. An integer `cache_max_entry_count` above 1 is a number of
        blocks."""
        entries = self.cache_max_entry_count
        is_count = isinstance(entries, int) and not isinstance(entries, bool) and entries >= 1
        return EngineConfig(
            dtype=self.dtype,
            tp=self.tp,
            session_len=self.session_len,
            max_batch_size=self.max_batch_size,
            cache_max_entry_count=0.8 if is_count else entries,
            num_gpu_blocks=int(entries) if is_count else 0,
            block_size=self.cache_block_seq_len,
            enable_prefix_caching=self.enable_prefix_caching,
            quant_policy=self.quant_policy,
            model_format=self.model_format,
            download_dir=self.download_dir,
            revision=self.revision,
            max_prefill_token_num=self.num_tokens_per_iter or self.max_prefill_token_num,
            hf_overrides=self.hf_overrides,
            rope_scaling_factor=self.rope_scaling_factor,
            use_logn_attn=self.use_logn_attn,
        )


def with_speculation(
    config: EngineConfig | TurbomindEngineConfig | None, speculative: SpeculativeConfig | Mapping[str, Any]
) -> EngineConfig:
    """Return a configuration with other options of speculation. Raises `ConfigError` where it has some already."""
    check_instance("backend_config", config, EngineConfig, TurbomindEngineConfig)
    if isinstance(config, TurbomindEngineConfig):
        config = config.to_engine_config()
    config = config or EngineConfig()
    if config.speculative is not None:
        raise ConfigError(f"speculative_config={speculative!r}: backend_config has speculative={config.speculative!r}")
    return replace(config, speculative=speculative)
