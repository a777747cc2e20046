"""The configurations: frozen, and validated when they are built. A wrong value raises `ConfigError` and names the
option.

Names and most defaults are LMDeploy's, so that its users only change the import. An accepted option has an effect; an
unsupported one is refused by name.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from seesay.config import foreign as foreign_options
from seesay.config.checks import accept_defaults, check_types
from seesay.errors import ConfigError

_MOST_TOKENS, _MOST_ROWS = 1 << 24, 1 << 16
"""Upper limit of token and row counts. Larger values are typing errors."""

_LONGEST_STEP_MS = 1 << 20
"""No stream waits longer than some minutes for its next token."""

DTypeName = Literal["auto", "float16", "bfloat16", "float32"]
Transparency = Literal["white", "drop"]


def _require(condition: bool, option: str, value: object, need: str) -> None:
    if not condition:
        raise ConfigError(f"{option} {need}, got {value!r}")


def _refuse_unsupported(config: Any, allowed: Mapping[str, tuple[object, ...]]) -> None:
    """Raise `ConfigError` for the first option in `allowed` whose value is not listed there."""
    for name, values in allowed.items():
        value = getattr(config, name)
        if not any(value is v or value == v for v in values):
            raise ConfigError(f"{type(config).__name__}.{name}={value!r} is not supported, only {values[0]!r}")


@accept_defaults(foreign_options.PYTORCH_ENGINE)
@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Options of the language engine. LMDeploy's users know it as `PytorchEngineConfig`.

    dtype: dtype of weights, activations and KV cache. 'auto': the checkpoint's on a GPU (float16 for a float32
        checkpoint), float32 on the CPU.
    session_len: longest prompt and answer together, in tokens; None takes the model's context length.
    max_batch_size: largest number of sequences in a step; None is 512 on a GPU, 32 on the CPU.
    cache_max_entry_count: share (0, 1] for the KV cache of the memory that weights and activations leave free.
    block_size: tokens in a KV block.
    num_cpu_blocks: KV blocks in host memory (pinned, for a GPU), for cached blocks that are evicted from the device; 0
        turns this off.
    num_gpu_blocks: number of KV blocks; 0 sizes the cache by `cache_max_entry_count`.
    max_prefill_token_num: token budget of a step; longer prompts are computed in chunks.
    max_step_ms: longest step, in milliseconds, beside answers that are streamed: steps have as many prompt tokens as
        their predicted duration allows, fewer while no prompt has waited long. None: a fixed number of prompt tokens.
    enable_prefix_caching: keep and reuse the KV blocks of equal prompt prefixes, pictures included.
    device_type: 'auto', 'cuda', 'cuda:N' or 'cpu'.
    eager_mode: never capture CUDA graphs, neither for decoding nor for the vision tower.
    engine_process: run the engine in a process of its own, so that it never waits for this one's GIL; None does not.
        `logits_processors` are functions of this process and need it to be off.
    step_timeout_s: a step, or a call of the vision tower, that takes longer is taken to hang: its requests end with an
        error, and an engine process is started again. None is 120 on a GPU and 3600 on the CPU.
    async_scheduling: launch each step while the previous one is being computed; None turns it on on a GPU.
    download_dir: folder for downloads from the hub. revision: branch, tag or commit of a hub model.
    quantization: 'fp8' quantizes the linear layers of the language model, but for its head, while they are loaded; None
        takes the checkpoint as it is, which may be quantized itself.
    hf_overrides: values that replace those in the checkpoint's config.json, nested by key.
    disable_vision_encoder: do not load the vision tower; requests with pictures are refused.
    trust_remote_code: run code from the checkpoint (tokenizers only). Set it only if you trust the checkpoint.
    """

    dtype: DTypeName = "auto"
    tp: int = 1
    session_len: int | None = None
    max_batch_size: int | None = None
    cache_max_entry_count: float = 0.8
    prefill_interval: int = 16
    block_size: int = 64
    num_cpu_blocks: int = 0
    num_gpu_blocks: int = 0
    adapters: Mapping[str, str] | None = None
    max_prefill_token_num: int = 8192
    max_step_ms: int | None = None
    thread_safe: bool = True
    enable_prefix_caching: bool = True
    device_type: str = "auto"
    eager_mode: bool = False
    async_scheduling: bool | None = None
    engine_process: bool | None = None
    step_timeout_s: float | None = None
    download_dir: str | os.PathLike[str] | None = None
    revision: str | None = None
    quant_policy: int = 0
    quantization: Literal["fp8"] | None = None
    hf_overrides: Mapping[str, Any] | None = None
    disable_vision_encoder: bool = False
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        check_types(self)
        for name, most in (("session_len", _MOST_TOKENS), ("max_batch_size", _MOST_ROWS)):
            value = getattr(self, name)
            _require(value is None or 1 <= value <= most, name, value, f"must be in [1, {most}], or None")
        _require(
            self.step_timeout_s is None or self.step_timeout_s > 0,
            "step_timeout_s",
            self.step_timeout_s,
            "must be above 0, or None",
        )
        _require(
            0 < self.cache_max_entry_count <= 1,
            "cache_max_entry_count",
            self.cache_max_entry_count,
            "must be in (0, 1]",
        )
        _require(1 <= self.block_size <= 1024, "block_size", self.block_size, "must be in [1, 1024]")
        for name in ("num_cpu_blocks", "num_gpu_blocks"):
            _require(getattr(self, name) >= 0, name, getattr(self, name), "must be at least 0")
        _require(
            self.enable_prefix_caching or not self.num_cpu_blocks,
            "num_cpu_blocks",
            self.num_cpu_blocks,
            "must be 0 without enable_prefix_caching",
        )
        budget = self.max_prefill_token_num
        _require(1 <= budget <= _MOST_TOKENS, "max_prefill_token_num", budget, f"must be in [1, {_MOST_TOKENS}]")
        step_ms = self.max_step_ms
        _require(
            step_ms is None or 1 <= step_ms <= _LONGEST_STEP_MS,
            "max_step_ms",
            step_ms,
            f"must be in [1, {_LONGEST_STEP_MS}], or None",
        )
        _refuse_unsupported(
            self,
            {
                "tp": (1,),
                "prefill_interval": (16,),
                "adapters": (None, {}),
                "quant_policy": (0,),
            },
        )


@accept_defaults(foreign_options.TURBOMIND_ENGINE)
@dataclass(frozen=True, kw_only=True)
class TurbomindEngineConfig:
    """LMDeploy's other engine configuration. `to_engine_config` translates it."""

    dtype: DTypeName = "auto"
    model_format: str | None = None
    tp: int = 1
    session_len: int | None = None
    max_batch_size: int | None = None
    cache_max_entry_count: float = 0.8
    cache_chunk_size: int = -1
    cache_block_seq_len: int = 64
    enable_prefix_caching: bool = True
    quant_policy: int = 0
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
        _refuse_unsupported(
            self,
            {
                "model_format": (None, "hf"),
                "cache_chunk_size": (-1,),
                "rope_scaling_factor": (0.0,),
                "use_logn_attn": (False,),
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
            download_dir=self.download_dir,
            revision=self.revision,
            max_prefill_token_num=self.num_tokens_per_iter or self.max_prefill_token_num,
            hf_overrides=self.hf_overrides,
        )


_MEDIA_THREADS = min(16, max(4, os.cpu_count() or 4))


@accept_defaults(foreign_options.VISION)
@dataclass(frozen=True, kw_only=True)
class VisionConfig:
    """Options of the vision encoder and of media preprocessing.

    max_batch_size: largest number of pictures or videos in one call of the vision tower.
    max_batch_tokens: largest number of input patches in one call; a larger item gets a call of its own.
    embedding_cache_bytes: size of the cache of embeddings; 0 turns it off.
    feature_cache_bytes: size of the cache of preprocessed pictures; 0 turns it off.
    thread_num: threads that decode and preprocess media; by default one per processor core, between 4 and 16.
    transparency: "white" puts transparent parts of pictures on white; "drop" ignores the alpha channel, as
        Transformers' processors do. The option `transparency` of a media item takes precedence.
    """

    max_batch_size: int = 8
    max_batch_tokens: int = 65536
    embedding_cache_bytes: int = 1 << 30
    feature_cache_bytes: int = 256 << 20
    thread_num: int = _MEDIA_THREADS
    transparency: Transparency = "white"

    def __post_init__(self) -> None:
        check_types(self)
        for name, most in (("max_batch_size", _MOST_ROWS), ("max_batch_tokens", 1 << 62), ("thread_num", 1024)):
            _require(1 <= getattr(self, name) <= most, name, getattr(self, name), f"must be in [1, {most}]")
        for name in ("embedding_cache_bytes", "feature_cache_bytes"):
            _require(getattr(self, name) >= 0, name, getattr(self, name), "must be at least 0")


@accept_defaults(foreign_options.GENERATION)
@dataclass(frozen=True, kw_only=True)
class GenerationConfig:
    """Options of sampling and of the end of an answer.

    do_sample: sample by temperature, top-k (0: off), top-p and min-p, in this order. Without it, decoding is greedy.
    random_seed: makes sampling repeatable.
    logprobs: number of alternatives to report per token.
    presence_penalty, frequency_penalty: -2 to 2, subtracted from the logit of each token in the answer so far: once, or
        once per occurrence.
    logit_bias: maps token ids to -100 … 100, added to their logits.
    ignore_eos: continue after the model's EOS, and after the special tokens that end a turn of the chat template.
    min_new_tokens: tokens to generate before a stop word or EOS may end the answer.
    output_logits, output_last_hidden_state: None, 'generation', or 'all' (the prompt too).
    logits_processors: called as f(token_ids [T], logits [V]) -> logits [V], one sequence at a time.
    """

    n: int = 1
    max_new_tokens: int = 512
    do_sample: bool = False
    top_p: float = 1.0
    top_k: int = 50
    min_p: float = 0.0
    temperature: float = 0.8
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = None
    ignore_eos: bool = False
    random_seed: int | None = None
    stop_words: Sequence[str] | None = None
    bad_words: Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    bad_token_ids: Sequence[int] | None = None
    min_new_tokens: int | None = None
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    logprobs: int | None = None
    response_format: Mapping[str, Any] | None = None
    logits_processors: Sequence[Callable[[Any, Any], Any]] | None = None
    output_logits: Literal["all", "generation"] | None = None
    output_last_hidden_state: Literal["all", "generation"] | None = None
    include_stop_str_in_output: bool = False

    def __post_init__(self) -> None:
        check_types(self)
        _refuse_unsupported(self, {"n": (1,), "response_format": (None,)})
        _require(self.max_new_tokens >= 1, "max_new_tokens", self.max_new_tokens, "must be at least 1")
        _require(0 < self.top_p <= 1, "top_p", self.top_p, "must be in (0, 1]")
        _require(self.top_k >= 0, "top_k", self.top_k, "must be at least 0 (0 turns it off)")
        _require(0 <= self.min_p <= 1, "min_p", self.min_p, "must be in [0, 1]")
        _require(self.temperature >= 0, "temperature", self.temperature, "must be at least 0 (0 is greedy)")
        _require(
            0.01 <= self.repetition_penalty <= 100,
            "repetition_penalty",
            self.repetition_penalty,
            "must be in [0.01, 100]",
        )
        for name in ("presence_penalty", "frequency_penalty"):
            _require(-2 <= getattr(self, name) <= 2, name, getattr(self, name), "must be in [-2, 2]")
        biases = (self.logit_bias or {}).items()
        is_bias = all(token_id >= 0 and -100 <= bias <= 100 for token_id, bias in biases)
        _require(is_bias, "logit_bias", self.logit_bias, "must map token ids to numbers in [-100, 100]")
        for name in ("stop_words", "bad_words"):
            words = getattr(self, name) or ()
            _require(all(words), name, words, "must be a list of non-empty strings")
        for name in ("stop_token_ids", "bad_token_ids"):
            ids = getattr(self, name) or ()
            _require(all(token_id >= 0 for token_id in ids), name, ids, "must be a list of token ids")
        _require(
            self.min_new_tokens is None or self.min_new_tokens >= 0,
            "min_new_tokens",
            self.min_new_tokens,
            "must be at least 0",
        )
        _require(self.logprobs is None or 0 <= self.logprobs <= 1024, "logprobs", self.logprobs, "must be in [0, 1024]")


@dataclass(frozen=True)
class ChatTemplateConfig:
    """The chat template to use, and changes of its pieces.

    model_name: name of a built-in template (see `seesay.templates.names()`). A new name defines a template from the
        pieces given here:
        {system}{meta_instruction}{eosys}{user}{content}{eoh}{assistant}{content}{eoa}{separator}{user}…
    Other fields: pieces of the template. None keeps the built-in value.
    """

    model_name: str
    model_path: str | os.PathLike[str] | None = None
    system: str | None = None
    meta_instruction: str | None = None
    eosys: str | None = None
    user: str | None = None
    eoh: str | None = None
    assistant: str | None = None
    eoa: str | None = None
    tool: str | None = None
    eotool: str | None = None
    separator: str | None = None
    capability: Literal["completion", "infilling", "chat", "python"] | None = None
    stop_words: Sequence[str] | None = None

    def __post_init__(self) -> None:
        check_types(self)

    @classmethod
    def from_json(cls, file_or_string: str | os.PathLike[str]) -> ChatTemplateConfig:
        """Read JSON from a file, or from the string itself. Unknown keys raise `ConfigError`."""
        text = str(file_or_string)
        try:
            if not text.lstrip().startswith("{"):
                text = Path(text).read_text(encoding="utf-8")
            data = json.loads(text)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"chat template {str(file_or_string)[:200]!r} is neither a JSON file nor JSON text: {error}"
            ) from None
        known = {f.name for f in fields(cls)}
        if not isinstance(data, dict) or not set(data) <= known or "model_name" not in data:
            extra = sorted(set(data) - known) if isinstance(data, dict) else data
            raise ConfigError(
                f"a chat template must be a JSON object with model_name and any of {sorted(known)}, got {extra!r}"
            )
        return cls(**data)

    def to_json(self) -> str:
        """Return the JSON that `from_json` reads."""
        return json.dumps(
            {f.name: getattr(self, f.name) for f in fields(self)}, ensure_ascii=False, indent=2, default=os.fspath
        )


_HOST = re.compile(r"(\*\.)?[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*")


@dataclass(frozen=True, kw_only=True)
class MediaLimits:
    """Limits on the size and the sources of a request's media. They are checked before anything is decoded.

    Sources:
    allow_local_paths: read local paths and file:// URLs. For scripts; servers turn it off.
    allowed_local_media_path: a folder. Only files in it are read, after symbolic links are resolved; replaces
        `allow_local_paths`.
    allow_private_hosts: fetch from addresses that are not globally routable.
    allowed_media_domains: the only hosts of http(s) URLs and of their redirects. "example.com" is that host only,
        "*.example.com" all of its subdomains.

    One picture or video: `max_bytes` as sent, `max_pixels` in a picture or frame, `max_frames` taken from a video of at
    most `max_duration_s`. Frames with more than `max_clip_pixels` in total are scaled down while they are decoded.

    One request: `max_items` pictures and videos, `max_total_bytes` as sent, `max_total_pixels` as decoded, and
    `timeout_s` seconds until all of them are fetched, including redirects.
    """

    max_bytes: int = 256 << 20
    max_pixels: int = 178_956_970
    max_clip_pixels: int = 4 * 178_956_970
    max_frames: int = 768
    max_duration_s: float = 3600.0
    max_items: int = 1024
    max_total_bytes: int = 1 << 30
    max_total_pixels: int = 8 * 178_956_970
    timeout_s: float = 30.0
    max_redirects: int = 3
    allow_local_paths: bool = True
    allowed_local_media_path: str | os.PathLike[str] | None = None
    allow_private_hosts: bool = False
    allowed_media_domains: Sequence[str] | None = None

    @classmethod
    def for_server(cls, **changes: Any) -> MediaLimits:
        """Return the default limits of a server: no local files, and lower limits. `changes` replace fields."""
        return cls(
            **{
                "allow_local_paths": False,
                "max_bytes": 64 << 20,
                "max_pixels": 64_000_000,
                "max_clip_pixels": 256_000_000,
                "max_items": 64,
                "max_total_bytes": 128 << 20,
                "max_total_pixels": 512_000_000,
                **changes,
            }
        )

    def __post_init__(self) -> None:
        check_types(self)
        for name in (
            "max_bytes", "max_pixels", "max_clip_pixels", "max_frames", "max_items", "max_total_bytes",
            "max_total_pixels",
        ):  # fmt: skip
            _require(getattr(self, name) >= 1, name, getattr(self, name), "must be at least 1")
        for name in ("max_duration_s", "timeout_s"):
            _require(getattr(self, name) > 0, name, getattr(self, name), "must be above 0")
        _require(self.max_redirects >= 0, "max_redirects", self.max_redirects, "must be at least 0")
        folder = self.allowed_local_media_path
        is_folder = folder is None or (bool(folder) and Path(folder).is_dir())
        _require(is_folder, "allowed_local_media_path", folder, "must be an existing folder")
        domains = self.allowed_media_domains
        is_list = domains is None or all(map(_is_host, domains))
        need = "must be a list of host names such as 'example.com' or '*.example.com', without scheme, port or path"
        _require(is_list, "allowed_media_domains", domains, need)


def _is_host(name: str) -> bool:
    """Return whether `name` is a host name, with an optional `*.` prefix, or an IP address."""
    if _HOST.fullmatch(name.lower().rstrip(".")):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings from environment variables. Each is read once, where it is needed."""

    log_level: str = "WARNING"

    @classmethod
    def from_env(cls) -> Settings:
        return cls(log_level=os.environ.get("SEESAY_LOG_LEVEL", "WARNING").upper())
