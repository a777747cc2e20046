"""Options that several commands share, and the configurations they make. Names are LMDeploy's."""

from __future__ import annotations

import argparse
import ipaddress
import json
import math
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from seesay.errors import ConfigError

if TYPE_CHECKING:
    from seesay.config import ChatTemplateConfig, EngineConfig, GenerationConfig, VisionConfig

DEMO_MODEL = "seesay-demo"
LOG_LEVELS = ("CRITICAL", "ERROR", "WARNING", "INFO", "DEBUG")
_MODEL_HELP = f"folder or hub id (default: {DEMO_MODEL}, the built-in checkpoint)"


def number(text: str) -> float:
    """An argparse type: a finite number."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """An argparse type: a whole number in a range."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if value < least or (most is not None and value > most):
            limits = f"at least {least}" if most is None else f"from {least} to {most}"
            raise argparse.ArgumentTypeError(f"{value} must be {limits}")
        return value

    return parse


port = whole(0, 65535)


def warn_of_strangers(host: str, served: str, advice: str) -> None:
    """Warn on standard error when what is served without a key can be reached from other machines."""
    try:
        is_local = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_local = False  # '' is all addresses
    if not is_local:
        print(
            f"seesay: warning: {served} at {host or '0.0.0.0'} asks for no key: "
            f"whoever reaches this machine can use it; {advice}",
            file=sys.stderr,
            flush=True,
        )


def add_model(parser: argparse.ArgumentParser, *, metavar: str = "MODEL", help: str = _MODEL_HELP) -> None:
    """The model, which may be left out."""
    parser.add_argument("model_path", nargs="?", default=DEMO_MODEL, metavar=metavar, help=help)


# --- the engine ------------------------------------------------------------------------------------------------------


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """How the model is loaded and run."""
    group = parser.add_argument_group("engine")
    group.add_argument("--device", default="auto", metavar="NAME", help="auto, cpu, cuda or cuda:N (default: auto)")
    group.add_argument(
        "--dtype",
        choices=("auto", "float16", "bfloat16", "float32"),
        default="auto",
        help="of the weights (default: auto, the checkpoint's)",
    )
    group.add_argument("--tp", type=int, default=1, metavar="N", help="GPUs for one model; only 1 is supported")
    group.add_argument(
        "--session-len",
        type=whole(1),
        metavar="TOKENS",
        help="longest prompt and answer together (default: the model's)",
    )
    group.add_argument(
        "--max-batch-size",
        type=whole(1),
        metavar="N",
        help="most sequences in one step (default: 512 on a GPU, 32 on the CPU)",
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
        help="KV blocks in host memory for what the cache has no room for (default: 0)",
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
        "--enable-prefix-caching",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="reuse equal prompt beginnings, pictures included (default: on)",
    )
    group.add_argument("--eager-mode", action="store_true", help="never capture CUDA graphs")
    group.add_argument("--quant-policy", type=int, default=0, metavar="N", help="of the KV cache; only 0 is supported")
    group.add_argument("--adapters", nargs="*", metavar="NAME=PATH", help="not supported yet")
    group.add_argument(
        "--vision-max-batch-size",
        type=whole(1),
        default=8,
        metavar="N",
        help="most pictures in one call of the vision tower (default: 8)",
    )
    group.add_argument(
        "--transparency",
        choices=("white", "drop"),
        default="white",
        help="transparent parts of pictures: put on white, or drop the alpha channel (default: white)",
    )
    group.add_argument(
        "--disable-vision-encoder", action="store_true", help="do not load the vision tower; pictures are refused"
    )
    group.add_argument("--revision", metavar="NAME", help="branch, tag or commit of a hub id")
    group.add_argument("--download-dir", metavar="FOLDER", help="where hub ids are stored")
    group.add_argument("--hf-overrides", metavar="JSON", help="values to change in the checkpoint's config.json")
    group.add_argument(
        "--trust-remote-code", action="store_true", help="run tokenizer code from the checkpoint; only if you trust it"
    )
    group.add_argument(
        "--backend",
        choices=("pytorch", "turbomind"),
        default="pytorch",
        help="LMDeploy's two engines; here both names mean the one there is",
    )
    group.add_argument(
        "--chat-template",
        metavar="NAME_OR_FILE",
        help="a built-in template's name (`seesay list`), a JSON file of its pieces, or a .jinja file",
    )


def make_engine_config(arguments: argparse.Namespace) -> EngineConfig:
    """The engine's configuration. Raises ConfigError that names the option."""
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
        download_dir=arguments.download_dir,
        revision=arguments.revision,
        quant_policy=arguments.quant_policy,
        hf_overrides=_json_object("--hf-overrides", arguments.hf_overrides),
        disable_vision_encoder=arguments.disable_vision_encoder,
        trust_remote_code=arguments.trust_remote_code,
    )


def make_vision_config(arguments: argparse.Namespace) -> VisionConfig:
    """How pictures are encoded."""
    from seesay.config import VisionConfig

    return VisionConfig(max_batch_size=arguments.vision_max_batch_size, transparency=arguments.transparency)


def make_chat_template_config(arguments: argparse.Namespace) -> ChatTemplateConfig | None:
    """The chat template that was asked for, if one was."""
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
        raise ConfigError(f"{option}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ConfigError(f'{option}: must be a JSON object, like {{"rope_theta": 10000.0}}')
    return value


# --- pictures and clips ----------------------------------------------------------------------------------------------


def add_media_options(group: argparse._ArgumentGroup, *, max_bytes: str, max_pixels: str, max_items: str) -> None:
    """What pictures and clips may cost, and where they may come from; with the defaults that help shows."""
    group.add_argument(
        "--allow-private-hosts", action="store_true", help="fetch from addresses that are not public, too"
    )
    group.add_argument("--media-timeout", type=number, metavar="S", help="longest time to fetch one (default: 30)")
    group.add_argument("--max-media-bytes", type=whole(1), metavar="N", help=f"largest one (default: {max_bytes})")
    group.add_argument(
        "--max-media-pixels", type=whole(1), metavar="N", help=f"most of one picture (default: {max_pixels})"
    )
    group.add_argument(
        "--max-media-items", type=whole(1), metavar="N", help=f"most in one request (default: {max_items})"
    )


def read_media_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of `MediaLimits` that were given."""
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
    """How answers are generated."""
    group = parser.add_argument_group("answers")
    group.add_argument(
        "--max-new-tokens", type=whole(1), default=512, metavar="N", help="longest answer (default: 512)"
    )
    group.add_argument(
        "--temperature", type=number, default=0.0, metavar="T", help="0 always takes the likeliest token (default: 0)"
    )
    group.add_argument(
        "--top-p",
        type=number,
        default=1.0,
        metavar="P",
        help="with a temperature: keep the likeliest tokens up to this sum (default: 1)",
    )
    group.add_argument(
        "--top-k",
        type=whole(0),
        default=50,
        metavar="K",
        help="with a temperature: keep this many tokens, 0 all (default: 50)",
    )
    group.add_argument(
        "--repetition-penalty", type=number, default=1.0, metavar="X", help="above 1 repeats less (default: 1)"
    )
    group.add_argument("--seed", type=whole(0), metavar="N", help="makes sampling repeatable")


def make_generation_config(arguments: argparse.Namespace) -> GenerationConfig:
    """How answers are generated, for the engine."""
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
    """Return the same as fields of a chat completion request, none left out: a server's defaults may differ."""
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
    """What is logged."""
    group = parser.add_argument_group("logging")
    group.add_argument(
        "--log-level",
        type=str.upper,
        choices=LOG_LEVELS,
        default=default,
        metavar="LEVEL",
        help=f"{', '.join(LOG_LEVELS)}; INFO logs prompts, cut short (default: {default})",
    )
    group.add_argument("--max-log-len", type=whole(0), metavar="N", help="most characters of a prompt in the log")
