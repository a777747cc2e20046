"""`seesay plan MODEL --gpus 8x80GB`: on how many GPUs a model fits, and with how much room for texts."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from seesay.commands.arguments import engine_options, options
from seesay.commands.command import Command
from seesay.errors import ConfigError

if TYPE_CHECKING:
    from seesay.engine.capacity import Capacity, Share

_GPUS = re.compile(r"(?:(\d{1,3})[x*])?(\d{1,4}(?:\.\d+)?)\s*(GB|GiB|G)?", re.IGNORECASE)
_HEADER = ("tp", "replicas", "weights per GPU", "KV cache per GPU", "tokens at once", "texts at once")
_GIB = 1 << 30


def _read_gpus(text: str) -> tuple[int, int]:
    """Return (how many GPUs, bytes of each)."""
    found = _GPUS.fullmatch(text.strip())
    count, size = (int(found[1] or 1), float(found[2])) if found else (0, 0.0)
    if found is None or not count or not size:
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
    from seesay.engine.capacity import Capacity
    from seesay.engine.opened_model import open_model

    config = engine_options.make_engine_config(arguments)
    folder = resolve_checkpoint(arguments.model_path, revision=config.revision, download_dir=config.download_dir)
    model = open_model(folder, config)
    with model.checkpoint.blamed():
        has_tower = engine_options.make_vision_config(arguments).device is None
        capacity = Capacity(model, config, has_tower=has_tower)
        num_gpus, gpu_bytes = arguments.gpus
        shares = _measure(capacity, num_gpus) if config.tp == 1 else [capacity.measure(config.tp)]
    kv = shares[0].kv_bytes_per_token / 1024
    dtype = str(capacity.resolved.dtype).removeprefix("torch.")
    sys.stdout.write(
        f"{model.checkpoint.architecture}: {capacity.num_parameters / 1e9:.2f} billion stored numbers, {dtype}, "
        f"{kv:.1f} KiB of keys and values per token\n\n"
    )
    rows = [_describe(share, num_gpus, gpu_bytes, config.cache_max_entry_count, capacity) for share in shares]
    _print_table((_HEADER, *rows))
    sys.stdout.write(f"\n{_advise(shares, num_gpus, gpu_bytes, config.cache_max_entry_count)}\n")
    return 0


def _measure(capacity: Capacity, num_gpus: int) -> list[Share]:
    """Return the shares of the numbers of GPUs, among those there are, that the model can be divided among."""
    shares = []
    for tp in (1 << power for power in range(num_gpus.bit_length())):
        try:
            shares.append(capacity.measure(tp))
        except ConfigError:
            if tp == 1:
                raise
    return shares


def _describe(share: Share, num_gpus: int, gpu_bytes: int, part: float, capacity: Capacity) -> tuple[str, ...]:
    tokens = share.count_tokens(gpu_bytes, part)
    first = (str(share.tp), str(num_gpus // share.tp), f"{share.weight_bytes / _GIB:.1f} GiB")
    if not tokens:
        return (*first, "does not fit", "", "")
    longest = tokens // capacity.resolved.session_len
    size = f"{tokens * share.kv_bytes_per_token / _GIB:.1f} GiB"
    return (*first, size, f"{tokens:,}", f"{longest:,} of {capacity.resolved.session_len:,} tokens")


def _print_table(rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        sys.stdout.write("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() + "\n")


def _advise(shares: Sequence[Share], num_gpus: int, gpu_bytes: int, part: float) -> str:
    """Return what to choose."""
    fitting = [share for share in shares if share.count_tokens(gpu_bytes, part)]
    if not fitting:
        return "It does not fit: take more or larger GPUs, or fewer bits (--quantization fp8, docs/quantization.md)."
    least = fitting[0].tp
    if num_gpus == least:
        return f"Start it with --tp {least}." if least > 1 else "It fits one GPU."
    most = f"{num_gpus // least} times with --tp {least}" if least > 1 else f"once on each of {num_gpus} GPUs"
    return (
        f"It answers most requests per second when it runs {most}, and a single request fastest with "
        f"--tp {fitting[-1].tp} (docs/several_gpus.md)."
    )


COMMAND = Command(
    name="plan",
    summary="say on how many GPUs a model fits, and with how much room for texts",
    add_arguments=_add_arguments,
    run=_run,
    usage="[OPTIONS] MODEL",
    examples="  seesay plan Qwen/Qwen2.5-VL-72B-Instruct --gpus 8x80GB --session-len 32768\n",
)
