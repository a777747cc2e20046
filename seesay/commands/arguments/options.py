"""Options that several commands share, and the configurations built from them. Names are LMDeploy's."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from seesay.config import GenerationConfig

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


def integer(text: str) -> int:
    """Parse an integer (a `type` for argparse)."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be an integer, got {text!r}") from None


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """Return a `type` for argparse that parses an integer in a range."""

    def parse(text: str) -> int:
        value = integer(text)
        if value < least or (most is not None and value > most):
            limits = f"at least {least}" if most is None else f"from {least} to {most}"
            raise argparse.ArgumentTypeError(f"must be {limits}, got {value}")
        return value

    return parse


def or_none(parse: Callable[[str], int]) -> Callable[[str], int | None]:
    """Return a `type` for argparse that takes what `parse` takes, and 'none' or 0 for None."""
    return lambda text: None if text.lower() in ("none", "0") else parse(text)


port = whole(0, 65535)


def add_model(parser: argparse.ArgumentParser, *, metavar: str = "MODEL", help: str = _MODEL_HELP) -> None:
    """Add the model, an optional positional argument."""
    parser.add_argument("model_path", nargs="?", default=DEMO_MODEL, metavar=metavar, help=help)


def add_plugins(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add the option that names files and modules with model families, as a list."""
    parser.add_argument(
        "--plugin",
        action="append",
        default=[],
        metavar="FILE",
        help="a Python file, or the name of a module, with model families; may be given several times. Its code is run",
    )


# --- pictures and videos ----------------------------------------------------------------------------------------------


def add_other_server(parser: argparse.ArgumentParser) -> None:
    """Let a server answer in place of a model in this process."""
    parser.add_argument("--base-url", metavar="URL", help="ask this OpenAI-compatible server instead of a model here")
    parser.add_argument(
        "--api-key",
        metavar="KEY",
        help="the server's key; set SEESAY_API_KEY instead to keep it out of the process list",
    )


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


def add_generation_options(parser: argparse.ArgumentParser, *, max_new_tokens: int = 512) -> None:
    """Add the sampling options."""
    group = parser.add_argument_group("answers")
    group.add_argument(
        "--max-new-tokens",
        type=whole(1),
        default=max_new_tokens,
        metavar="N",
        help="longest answer in tokens (default: %(default)s)",
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
