"""`seesay demo`: the tour of the built-in model."""

from __future__ import annotations

import argparse
from pathlib import Path

from seesay.commands.command import Command
from seesay.commands.options import add_model

_EXAMPLES = """\
  seesay demo                              see the built-in model at work, nothing to download
  seesay demo --seed 7 --out scene.png     another picture, saved where you want it
  seesay demo --html demo.html             a page to look at, or to show
  seesay demo Qwen/Qwen2.5-VL-3B-Instruct  the same questions to a real model
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="which pictures are drawn (default: 0)")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="where the sample picture is saved (default: ./seesay-demo.png)"
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="save pictures, answers and timelines as a page, too")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: auto)")


def _run(arguments: argparse.Namespace) -> int:
    from seesay.demo.tour import run_tour

    return run_tour(
        arguments.model_path,
        seed=arguments.seed,
        out=arguments.out,
        device=arguments.device,
        html=arguments.html,
    )


COMMAND = Command(
    name="demo",
    summary="draw pictures, ask a model about them, show where the time goes",
    add_arguments=_add_arguments,
    run=_run,
    usage="[OPTIONS] [MODEL]",
    examples=_EXAMPLES,
)
