"""`seesay plan MODEL --gpus 8x80GB`: on how many GPUs a model fits, and with how much room for texts."""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from seesay.commands.arguments import engine_options, options
from seesay.commands.command import Command
from seesay.errors import ConfigError

if TYPE_CHECKING:
    from seesay.config import EngineConfig
    from seesay.engine.capacity import Capacity, Share

_GPUS = re.compile(r"(?:(\d{1,3})[x*])?(\d{1,4}(?:\.\d+)?)\s*(GB|GiB|G)?", re.IGNORECASE)
_HEADER = ("tp", "pp", "replicas", "weights per GPU", "KV cache per GPU", "tokens at once", "texts at once")
_GIB, _MIB = 1 << 30, 1 << 20
_STAGES = 2


def _read_gpus(text: str) -> tuple[int, int]:
    """Return (how many GPUs, bytes of each)."""
    found = _GPUS.fullmatch(text.strip())
    count, size = (int(found[1] or 1), float(found[2])) if found else (0, 0.0)
    if found is None or not count or not size or not (found[1] or found[3]):  # a number alone may mean either
        raise argparse.ArgumentTypeError(f"must be like 8x80GB or 24GB, got {text[:40]!r}")
    return count, int(size * (_GIB if (found[3] or "").lower() == "gib" else 10**9))


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_model(parser)
    parser.add_argument(
        "--gpus", type=_read_gpus, default=(1, 80 * 10**9), metavar="NxGB", help="number and memory (default: 1x80GB)"
    )
    engine_options.add_engine_options(parser)
    options.add_log_options(parser, default="WARNING")


def _run(arguments: argparse.Namespace) -> int:
    from seesay.checkpoint import resolve_checkpoint
    from seesay.engine.capacity import Capacity, Share
    from seesay.engine.opened_model import open_model

    config = engine_options.make_engine_config(arguments)
    folder = resolve_checkpoint(arguments.model_path, revision=config.revision, download_dir=config.download_dir)
    model = open_model(folder, config)
    with model.checkpoint.blamed():
        has_tower = engine_options.make_vision_config(arguments).device is None
        capacity = Capacity(model, config, has_tower=has_tower)
        num_gpus, gpu_bytes = arguments.gpus
        count = partial(Share.count_tokens, gpu_bytes=gpu_bytes, share=config.cache_max_entry_count)
        shares = _measure(capacity, config, num_gpus, count)
        whole = capacity.measure(1)
    dtype = str(capacity.resolved.dtype).removeprefix("torch.")
    sys.stdout.write(
        f"{model.checkpoint.architecture}: {capacity.num_parameters / 1e9:.2f} billion stored numbers, {dtype}, "
        f"{whole.kv_bytes_per_token / 1024:.1f} KiB of keys and values per token"
        f"{f', {whole.state_bytes / _MIB:.1f} MiB of state per text' if whole.state_bytes else ''}\n\n"
    )
    _print_table((_HEADER, *(_describe(share, num_gpus, count(share), capacity) for share in shares)))
    sys.stdout.write(f"\n{_advise([share for share in shares if count(share)], num_gpus)}\n")
    return 0


def _measure(capacity: Capacity, config: EngineConfig, num_gpus: int, count: Callable[[Share], int]) -> list[Share]:
    """Return the shares of `tp` or `pp` if they are given, else of the numbers of GPUs, among those there are, that the
    model can be divided among, and of two stages. count: returns the tokens that the GPU with a share has room for."""
    if config.num_ranks > num_gpus:
        raise ConfigError(f"--gpus: tp={config.tp} and pp={config.pp} take {config.num_ranks} GPUs, got {num_gpus}")
    if config.pp > 1:
        return [_find_fullest(capacity, config.pp, count)]
    if config.tp > 1:
        return [capacity.measure(config.tp)]
    shares = [capacity.measure(1)]
    for tp in range(2, num_gpus + 1):
        with contextlib.suppress(ConfigError):
            shares.append(capacity.measure(tp))
    if num_gpus >= _STAGES:
        with contextlib.suppress(ConfigError):
            shares.append(_find_fullest(capacity, _STAGES, count))
    return shares


def _find_fullest(capacity: Capacity, pp: int, count: Callable[[Share], int]) -> Share:
    """Return the share of the stage that has room for the fewest tokens."""
    return min(capacity.measure_stages(pp), key=count)


def _describe(share: Share, num_gpus: int, tokens: int, capacity: Capacity) -> tuple[str, ...]:
    replicas = num_gpus // share.num_gpus
    first = (str(share.tp), str(share.pp), str(replicas), f"{share.weight_bytes / _GIB:.1f} GiB")
    if not tokens:
        return (*first, "does not fit", "", "")
    longest = tokens // capacity.resolved.session_len
    size = f"{tokens * share.kv_bytes_per_token / _GIB:.1f} GiB"
    return (*first, size, f"{tokens:,}", f"{longest:,} of {capacity.resolved.session_len:,} tokens")


def _print_table(rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        sys.stdout.write("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() + "\n")


def _advise(fitting: Sequence[Share], num_gpus: int) -> str:
    """Return what to choose of what fits."""
    if not fitting:
        return "It does not fit: take more or larger GPUs, or fewer bits (--quantization fp8, docs/quantization.md)."
    least = min(fitting, key=lambda share: share.num_gpus)
    if num_gpus == least.num_gpus:
        return f"Start it with {_name(least)}." if num_gpus > 1 else "It fits one GPU."
    count = num_gpus // least.num_gpus
    most = f"{count} times with {_name(least)}" if least.num_gpus > 1 else f"once on each of {num_gpus} GPUs"
    fastest = max(fitting, key=lambda share: share.tp)
    return (
        f"It answers most requests per second when it runs {most}, and a single request fastest with "
        f"{_name(fastest)} (docs/several_gpus.md)."
    )


def _name(share: Share) -> str:
    return f"--pp {share.pp}" if share.pp > 1 else f"--tp {share.tp}"


COMMAND = Command(
    name="plan",
    summary="say on how many GPUs a model fits, and with how much room for texts",
    add_arguments=_add_arguments,
    run=_run,
    usage="[OPTIONS] MODEL",
    examples="  seesay plan Qwen/Qwen2.5-VL-72B-Instruct --gpus 8x80GB --session-len 32768\n",
)
