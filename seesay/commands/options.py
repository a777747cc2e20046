"""Options that several commands share, and the configurations built from them. Names are LMDeploy's."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from seesay.errors import ConfigError

if TYPE_CHECKING:
    from seesay.config import ChatTemplateConfig, EngineConfig, GenerationConfig, VisionConfig

DEMO_MODEL = "seesay-demo"
LOG_LEVELS = ("CRITICAL", "ERROR", "WARNING", "INFO", "DEBUG")
_MODEL_HELP = f"folder or hub id (default: {DEMO_MODEL}, the built-in checkpoint)"


def number(text: str) -> float:
    """Parse a finite number (a `type` for argparse)."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"must be a finite number, got {text!r}")
    return value


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """Return a `type` for argparse that parses an integer in a range."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be an integer, got {text!r}") from None
        if value < least or (most is not None and value > most):
            limits = f"at least {least}" if most is None else f"from {least} to {most}"
            raise argparse.ArgumentTypeError(f"must be {limits}, got {value}")
        return value

    return parse


port = whole(0, 65535)


def add_model(parser: argparse.ArgumentParser, *, metavar: str = "MODEL", help: str = _MODEL_HELP) -> None:
    """Add the model, an optional positional argument."""
    parser.add_argument("model_path", nargs="?", default=DEMO_MODEL, metavar=metavar, help=help)


# --- the engine ------------------------------------------------------------------------------------------------------


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for loading and running the model."""
    group = parser.add_argument_group("engine")
    group.add_argument("--device", default="auto", metavar="NAME", help="auto, cpu, cuda or cuda:N (default: auto)")
    group.add_argument(
        "--dtype",
        choices=("auto", "float16", "bfloat16", "float32"),
        default="auto",
        help="dtype of the weights (default: auto, the checkpoint's)",
    )
    group.add_argument("--tp", type=int, default=1, metavar="N", help="GPUs for one model; only 1 is supported")
    group.add_argument(
        "--session-len",
        type=whole(1),
        metavar="TOKENS",
        help="longest prompt and answer together (default: the model's limit)",
    )
    group.add_argument(
        "--max-batch-size",
        type=whole(1),
        metavar="N",
        help="largest number of sequences in a step (default: 512 on a GPU, 32 on the CPU)",
    )
    group.add_argument(
        "--cache-max-entry-count",
        type=number,
        default=0.8,
        metavar="SHARE",
        help="share of free memory for the KV cache (default: 0.8)",
    )
    group.add_argument(
        "--num-cpu-blocks",
        type=whole(0),
        default=0,
        metavar="N",
        help="KV blocks in host memory, for blocks evicted from the GPU (default: 0)",
    )
    group.add_argument(
        "--cache-block-seq-len", type=whole(1), default=64, metavar="TOKENS", help="tokens in a KV block (default: 64)"
    )
    group.add_argument(
        "--max-prefill-token-num",
        type=whole(1),
        default=8192,
        metavar="TOKENS",
        help="token budget of a step (default: 8192)",
    )
    group.add_argument(
        "--max-step-ms",
        type=whole(1),
        metavar="MS",
        help="longest step beside streamed answers, sized by its predicted duration (default: a fixed number of prompt "
        "tokens)",
    )
    group.add_argument(
        "--enable-prefix-caching",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="reuse the KV cache of equal prompt prefixes, pictures included (default: on)",
    )
    group.add_argument("--eager-mode", action="store_true", help="never capture CUDA graphs")
    group.add_argument(
        "--engine-process",
        action=argparse.BooleanOptionalAction,
        help="run the engine in a process of its own (default: off)",
    )
    group.add_argument(
        "--step-timeout",
        type=number,
        metavar="S",
        help="after so long a step is taken to hang (default: 120 on a GPU, 3600 on the CPU)",
    )
    group.add_argument(
        "--quant-policy", type=int, default=0, metavar="N", help="KV cache quantization; only 0 is supported"
    )
    group.add_argument("--adapters", nargs="*", metavar="NAME=PATH", help="not supported yet")
    group.add_argument(
        "--vision-max-batch-size",
        type=whole(1),
        default=8,
        metavar="N",
        help="largest number of pictures in one call of the vision tower (default: 8)",
    )
    group.add_argument(
        "--transparency",
        choices=("white", "drop"),
        default="white",
        help="transparent pictures: put them on white, or drop the alpha channel (default: white)",
    )
    group.add_argument(
        "--disable-vision-encoder", action="store_true", help="do not load the vision tower; pictures are refused"
    )
    group.add_argument("--revision", metavar="NAME", help="branch, tag or commit of a hub model")
    group.add_argument("--download-dir", metavar="FOLDER", help="folder for downloads from the hub")
    group.add_argument(
        "--hf-overrides", metavar="JSON", help="values that replace those in the checkpoint's config.json"
    )
    group.add_argument(
        "--trust-remote-code", action="store_true", help="run the checkpoint's own tokenizer code; only if you trust it"
    )
    group.add_argument(
        "--backend",
        choices=("pytorch", "turbomind"),
        default="pytorch",
        help="accepted for LMDeploy's users; both names select the same engine",
    )
    group.add_argument(
        "--chat-template",
        metavar="NAME_OR_FILE",
        help="name of a built-in template (`seesay list`), a JSON file with template pieces, or a .jinja file",
    )


def make_engine_config(arguments: argparse.Namespace) -> EngineConfig:
    """Return the engine's configuration. Raises ConfigError that names the option."""
    from seesay.config import EngineConfig

    return EngineConfig(
        dtype=arguments.dtype,
        tp=arguments.tp,
        session_len=arguments.session_len,
        max_batch_size=arguments.max_batch_size,
        cache_max_entry_count=arguments.cache_max_entry_count,
        block_size=arguments.cache_block_seq_len,
        num_cpu_blocks=arguments.num_cpu_blocks,
        adapters=_adapters(arguments.adapters),
        max_prefill_token_num=arguments.max_prefill_token_num,
        enable_prefix_caching=arguments.enable_prefix_caching,
        device_type=arguments.device,
        eager_mode=arguments.eager_mode,
        engine_process=arguments.engine_process,
        step_timeout_s=arguments.step_timeout,
        download_dir=arguments.download_dir,
        revision=arguments.revision,
        quant_policy=arguments.quant_policy,
        hf_overrides=_json_object("--hf-overrides", arguments.hf_overrides),
        disable_vision_encoder=arguments.disable_vision_encoder,
        trust_remote_code=arguments.trust_remote_code,
        **({} if arguments.max_step_ms is None else {"max_step_ms": arguments.max_step_ms}),
    )


def make_vision_config(arguments: argparse.Namespace) -> VisionConfig:
    """Return the vision configuration."""
    from seesay.config import VisionConfig

    return VisionConfig(max_batch_size=arguments.vision_max_batch_size, transparency=arguments.transparency)


def make_chat_template_config(arguments: argparse.Namespace) -> ChatTemplateConfig | None:
    """Return the configuration of the chosen chat template, or None for the checkpoint's own."""
    from seesay.templates import as_config

    return None if arguments.chat_template is None else as_config(arguments.chat_template)


def _adapters(pairs: Sequence[str] | None) -> dict[str, str] | None:
    adapters = {}
    for pair in pairs or ():
        name, equals, path = pair.partition("=")
        adapters[name if equals else "default"] = path if equals else pair
    return adapters or None


def _json_object(option: str, text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{option} must be valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ConfigError(f'{option} must be a JSON object, such as {{"rope_theta": 10000.0}}, got {text!r:.80}')
    return value


# --- pictures and videos ----------------------------------------------------------------------------------------------


def add_media_options(group: argparse._ArgumentGroup, *, max_bytes: str, max_pixels: str, max_items: str) -> None:
    """Add the options that limit the size and the sources of media. The arguments are the defaults that help prints."""
    group.add_argument("--allow-private-hosts", action="store_true", help="also fetch media from private addresses")
    group.add_argument(
        "--media-timeout", type=number, metavar="S", help="longest time to fetch a file, in seconds (default: 30)"
    )
    group.add_argument("--max-media-bytes", type=whole(1), metavar="N", help=f"largest file (default: {max_bytes})")
    group.add_argument(
        "--max-media-pixels", type=whole(1), metavar="N", help=f"most pixels in a picture (default: {max_pixels})"
    )
    group.add_argument(
        "--max-media-items", type=whole(1), metavar="N", help=f"most media in a request (default: {max_items})"
    )


def read_media_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the given fields of `MediaLimits`."""
    given = {
        "timeout_s": arguments.media_timeout,
        "max_bytes": arguments.max_media_bytes,
        "max_pixels": arguments.max_media_pixels,
        "max_items": arguments.max_media_items,
        "allow_private_hosts": arguments.allow_private_hosts or None,
    }
    return {name: value for name, value in given.items() if value is not None}


# --- answers ---------------------------------------------------------------------------------------------------------


def add_generation_options(parser: argparse.ArgumentParser) -> None:
    """Add the sampling options."""
    group = parser.add_argument_group("answers")
    group.add_argument(
        "--max-new-tokens", type=whole(1), default=512, metavar="N", help="longest answer in tokens (default: 512)"
    )
    group.add_argument(
        "--temperature", type=number, default=0.0, metavar="T", help="0 always takes the most likely token (default: 0)"
    )
    group.add_argument(
        "--top-p",
        type=number,
        default=1.0,
        metavar="P",
        help="sample from the most likely tokens up to this total probability (default: 1)",
    )
    group.add_argument(
        "--top-k",
        type=whole(0),
        default=50,
        metavar="K",
        help="sample from this many most likely tokens; 0 is all (default: 50)",
    )
    group.add_argument(
        "--repetition-penalty",
        type=number,
        default=1.0,
        metavar="X",
        help="values above 1 reduce repetition (default: 1)",
    )
    group.add_argument("--seed", type=whole(0), metavar="N", help="seed of sampling, for repeatable answers")


def make_generation_config(arguments: argparse.Namespace) -> GenerationConfig:
    """Return the sampling options for the engine."""
    from seesay.config import GenerationConfig

    return GenerationConfig(
        max_new_tokens=arguments.max_new_tokens,
        do_sample=arguments.temperature > 0,
        temperature=arguments.temperature,
        top_p=arguments.top_p,
        top_k=arguments.top_k,
        repetition_penalty=arguments.repetition_penalty,
        random_seed=arguments.seed,
    )


def make_request_fields(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the sampling options as fields of a chat completion request. All are given: a server's defaults may
    differ."""
    fields = {
        "max_tokens": arguments.max_new_tokens,
        "temperature": arguments.temperature,
        "repetition_penalty": arguments.repetition_penalty,
    }
    if arguments.temperature > 0:
        fields |= {"top_p": arguments.top_p, "top_k": arguments.top_k, "min_p": 0.0, "seed": arguments.seed}
    return fields


# --- logging ---------------------------------------------------------------------------------------------------------


def add_log_options(parser: argparse.ArgumentParser, *, default: str) -> None:
    """Add the logging options."""
    group = parser.add_argument_group("logging")
    group.add_argument(
        "--log-level",
        type=str.upper,
        choices=LOG_LEVELS,
        default=default,
        metavar="LEVEL",
        help=f"{', '.join(LOG_LEVELS)}; INFO logs prompts, cut short (default: {default})",
    )
    group.add_argument(
        "--max-log-len", type=whole(0), metavar="N", help="longest part of a prompt in the log, in characters"
    )
