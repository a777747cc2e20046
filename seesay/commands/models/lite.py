"""`seesay lite …`: quantize a checkpoint. Options are LMDeploy's."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from seesay.commands.arguments.options import add_plugins, integer, number, whole
from seesay.commands.command import Command

if TYPE_CHECKING:
    from seesay.lite.report import Report

_AddOptions = Callable[[argparse._ArgumentGroup], None]
_ON_OR_OFF: dict[str, Any] = {"action": argparse.BooleanOptionalAction, "default": argparse.SUPPRESS}


def _add_arguments(parser: argparse.ArgumentParser, add_options: _AddOptions | None) -> None:
    parser.add_argument("model", metavar="MODEL", help="folder, hub id, or seesay-demo, the built-in checkpoint")
    parser.add_argument(
        "--work-dir", default="./work_dir", metavar="FOLDER", help="for the result (default: ./work_dir)"
    )
    if add_options is not None:
        add_options(parser.add_argument_group("weights"))
    group = parser.add_argument_group("calibration")
    group.add_argument(
        "--calib-dataset",
        default=argparse.SUPPRESS,
        metavar="PATH",
        help="a .txt or .jsonl file, a folder with texts and pictures, or ptb, wikitext2, c4, pileval with the package "
        "datasets (default: built-in, texts and pictures that come with seesay; for the built-in model its scenes)",
    )
    for name, least, text in (
        ("--calib-samples", 2, "number of prompts (default: 128)"),
        ("--calib-seqlen", 8, "longest prompt in tokens (default: 2048, or what the model takes)"),
        ("--batch-size", 1, "prompts that are computed together (default: 1)"),
    ):
        group.add_argument(name, type=whole(least), default=argparse.SUPPRESS, metavar="N", help=text)
    group = parser.add_argument_group("model")
    group.add_argument(
        "--dtype",
        choices=("auto", "float16", "bfloat16", "float32"),
        default=argparse.SUPPRESS,
        help="dtype of activations (default: auto, the checkpoint's on a GPU, float32 on the CPU)",
    )
    group.add_argument(
        "--device", default=argparse.SUPPRESS, metavar="NAME", help="a device of docs/devices.md (default: auto)"
    )
    group.add_argument(
        "--revision", default=argparse.SUPPRESS, metavar="NAME", help="branch, tag or commit of a hub model"
    )
    group.add_argument(
        "--download-dir", default=argparse.SUPPRESS, metavar="FOLDER", help="folder for downloads from the hub"
    )
    add_plugins(group)


def _add_group_size(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--w-group-size",
        type=integer,
        default=argparse.SUPPRESS,
        metavar="N",
        help="inputs that share a scale: 32, 64, 128, or -1 for all (default: 128)",
    )


def _add_search(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--search-scale", **_ON_OR_OFF, help="choose each layer's scales by the error of its output (default: on)"
    )


def _add_vision(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--vision", action="store_true", default=argparse.SUPPRESS, help="quantize the vision tower, too"
    )


def _add_awq(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--w-bits", type=integer, default=argparse.SUPPRESS, metavar="N", help="4 (default: 4)")
    group.add_argument("--w-sym", **_ON_OR_OFF, help="one zero point for all groups, the middle (default: off)")
    _add_group_size(group)
    _add_search(group)
    _add_vision(group)


def _add_gptq(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--w-bits", type=integer, default=argparse.SUPPRESS, metavar="N", help="4 or 8 (default: 4)")
    group.add_argument("--w-sym", **_ON_OR_OFF, help="one zero point for all groups, the middle (default: on)")
    _add_group_size(group)
    group.add_argument(
        "--desc-act", **_ON_OR_OFF, help="quantize the columns with the largest inputs first (default: off)"
    )
    group.add_argument(
        "--static-groups",
        **_ON_OR_OFF,
        help="with --desc-act: columns that share a scale stay side by side, as other engines want them (default: off)",
    )
    group.add_argument(
        "--damp-percent",
        type=number,
        default=argparse.SUPPRESS,
        metavar="SHARE",
        help="damping of the Hessian, relative to its mean (default: 0.01)",
    )
    _add_vision(group)


def _add_smooth(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--quant-dtype",
        choices=("int8", "fp8"),
        default=argparse.SUPPRESS,
        help="of weights and activations (default: int8)",
    )
    group.add_argument("--w-bits", type=integer, default=argparse.SUPPRESS, metavar="N", help="8 (default: 8)")
    _add_search(group)
    _add_vision(group)


def _run(name: str, arguments: argparse.Namespace) -> int:
    from seesay import lite

    others = ("run", "parser", "debug", "config", "model", "plugin")
    known = {key: value for key, value in vars(arguments).items() if key not in others}
    result: Report | dict[str, Any] = getattr(lite, name)(arguments.model, plugins=arguments.plugin, **known)
    if isinstance(result, dict):
        text = f"statistics of {result['tokens']} tokens, {len(result['modules'])} modules\n"
    else:
        text = result.table()
    sys.stdout.write(f"{text}written to {arguments.work_dir}\n")
    return 0


def _add_merge_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="folder or hub id of the plain base model")
    parser.add_argument("adapter", metavar="ADAPTER", help="folder or hub id of the adapter")
    parser.add_argument(
        "--work-dir", default="./work_dir", metavar="FOLDER", help="for the result (default: ./work_dir)"
    )


def _run_merge(arguments: argparse.Namespace) -> int:
    from seesay import lite

    folder = lite.merge(arguments.model, arguments.adapter, arguments.work_dir)
    sys.stdout.write(f"written to {folder}\n")
    return 0


def _add_extract_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="folder or hub id of InternLM-XComposer2.5")
    parser.add_argument(
        "--work-dir", default="./work_dir", metavar="FOLDER", help="for a folder per task (default: ./work_dir)"
    )


def _run_extract(arguments: argparse.Namespace) -> int:
    from seesay import lite

    for folder in lite.extract_tasks(arguments.model, arguments.work_dir):
        sys.stdout.write(f"written to {folder}\n")
    return 0


def _make(name: str, summary: str, add_options: _AddOptions | None, example: str) -> Command:
    return Command(
        name=name,
        summary=summary,
        add_arguments=lambda parser: _add_arguments(parser, add_options),
        run=partial(_run, name),
        usage="MODEL [OPTIONS]",
        examples=f"  seesay lite {name} {example}\n",
    )


COMMAND = Command(
    name="lite",
    summary="quantize a checkpoint (int4 by AWQ or GPTQ, int8 by SmoothQuant, FP8), or merge an adapter into one",
    children=(
        _make(
            "auto_awq",
            "quantize to 4 bits with AWQ",
            _add_awq,
            "Qwen/Qwen2.5-VL-7B-Instruct --work-dir qwen2.5-vl-7b-awq",
        ),
        _make(
            "auto_gptq",
            "quantize to 4 or 8 bits with GPTQ",
            _add_gptq,
            "Qwen/Qwen2.5-VL-7B-Instruct --work-dir qwen2.5-vl-7b-gptq",
        ),
        _make(
            "smooth_quant",
            "quantize weights and activations to int8 or FP8 with SmoothQuant",
            _add_smooth,
            "Qwen/Qwen2.5-VL-7B-Instruct --quant-dtype int8 --work-dir qwen2.5-vl-7b-int8",
        ),
        _make(
            "fp8",
            "quantize weights and activations to FP8, without calibration",
            _add_vision,
            "Qwen/Qwen2.5-VL-7B-Instruct --work-dir qwen2.5-vl-7b-fp8",
        ),
        _make(
            "calibrate",
            "write statistics of the inputs of linear layers",
            None,
            "Qwen/Qwen2.5-VL-7B-Instruct --work-dir statistics",
        ),
        Command(
            name="merge",
            summary="merge a LoRA adapter into its base model",
            add_arguments=_add_merge_arguments,
            run=_run_merge,
            usage="MODEL ADAPTER [OPTIONS]",
            examples="  seesay lite merge Qwen/Qwen2.5-VL-7B-Instruct adapters/polite --work-dir qwen2.5-vl-polite\n",
        ),
        Command(
            name="extract_tasks",
            summary="write the adapters web and write that are in InternLM-XComposer2.5's checkpoint",
            add_arguments=_add_extract_arguments,
            run=_run_extract,
            usage="MODEL [OPTIONS]",
            examples="""\
  seesay lite extract_tasks internlm/internlm-xcomposer2d5-7b --work-dir tasks
  seesay lite merge internlm/internlm-xcomposer2d5-7b tasks/web --work-dir internlm-xcomposer2d5-7b-web
""",
        ),
    ),
    examples="""\
  seesay lite auto_awq seesay-demo --work-dir seesay-demo-awq
  seesay chat seesay-demo-awq
""",
)
