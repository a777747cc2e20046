"""`seesay demo`: a tour of the built-in model."""

from __future__ import annotations

import argparse
from pathlib import Path

from seesay.commands.arguments.options import add_model, add_plugins, integer
from seesay.commands.command import Command

_EXAMPLES = """\
  seesay demo                              see the built-in model at work, nothing to download
  seesay demo --seed 7 --out pictures      other pictures, saved in the folder pictures
  seesay demo --html demo.html             save the tour as a web page
  seesay demo Qwen/Qwen2.5-VL-3B-Instruct  ask another model the same questions
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("--seed", type=integer, default=0, metavar="N", help="seed of the drawn pictures (default: 0)")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="folder for scene.png, pair.png and clip.gif, which are replaced there (default: ./seesay-demo-files, or "
        "a temporary folder where that cannot be written)",
    )
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="also save pictures, answers and timelines as a web page"
    )
    parser.add_argument("--device", default="auto", help="a device of docs/devices.md (default: auto)")
    add_plugins(parser)


def _run(arguments: argparse.Namespace) -> int:
    from seesay.demo.tour import run_tour

    return run_tour(
        arguments.model_path,
        seed=arguments.seed,
        out=arguments.out,
        device=arguments.device,
        html=arguments.html,
        plugins=arguments.plugin,
    )


COMMAND = Command(
    name="demo",
    summary="draw pictures, ask a model about them, and show where the time goes",
    add_arguments=_add_arguments,
    run=_run,
    usage="[OPTIONS] [MODEL]",
    examples=_EXAMPLES,
)
