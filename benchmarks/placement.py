"""The options `--tp` and `--encoder-device` of benchmarks: on which devices the engine computes."""

from __future__ import annotations

import argparse
from typing import Any


def add_placement_options(parser: argparse.ArgumentParser) -> None:
    """Let the command line say how many GPUs the language model has, and where the vision encoder is."""
    parser.add_argument("--tp", type=int, help="as of EngineConfig")
    parser.add_argument("--encoder-device", metavar="NAME", help="as VisionConfig.device")


def engine_placement(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options of `EngineConfig` that were given."""
    return {} if args.tp is None else {"tp": args.tp}


def vision_placement(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options of `VisionConfig` that were given."""
    return {} if args.encoder_device is None else {"device": args.encoder_device}
