"""The `seesay` command. A subcommand is one `Command`; its code is imported when it runs, so that help is instant."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from seesay.version import __version__

_EXAMPLES = """\
examples:
  seesay demo                              see the built-in model at work, nothing to download
  seesay demo --seed 7 --out scene.png     another picture, saved where you want it
  seesay demo --model Qwen/Qwen2.5-VL-3B-Instruct
                                           the same questions to a real model
"""

EXIT_ERROR = 1
EXIT_INTERRUPTED = 130


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A subcommand: `add_arguments` fills its parser, `run` does the work and returns the exit status."""

    name: str
    summary: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def _add_demo_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="seesay-demo", help="folder or hub id (default: the built-in checkpoint)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="which pictures are drawn (default: 0)")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="where the sample picture is saved (default: ./seesay-demo.png)"
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: auto)")


def _run_demo(arguments: argparse.Namespace) -> int:
    from seesay.demo.tour import run_tour

    return run_tour(arguments.model, seed=arguments.seed, out=arguments.out, device=arguments.device)


COMMANDS: tuple[Command, ...] = (
    Command(
        name="demo",
        summary="draw pictures, ask a model about them, show where the time goes",
        add_arguments=_add_demo_arguments,
        run=_run_demo,
    ),
)


def make_parser() -> argparse.ArgumentParser:
    """The parser of the whole command."""
    common = argparse.ArgumentParser(add_help=False)
    # SUPPRESS: a subcommand's default must not undo what was given before its name.
    common.add_argument(
        "--debug", action="store_true", default=argparse.SUPPRESS, help="show the traceback of an error"
    )
    parser = argparse.ArgumentParser(
        prog="seesay",
        description="See images and video, say text: serve vision-language models.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[common],
    )
    parser.add_argument("--version", action="version", version=f"seesay {__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    for command in COMMANDS:
        subparser = subparsers.add_parser(
            command.name,
            help=command.summary,
            description=command.summary.capitalize() + ".",
            parents=[common],
        )
        command.add_arguments(subparser)
        subparser.set_defaults(run=command.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. Errors become one line on stderr; returns the exit status."""
    parser = make_parser()
    arguments = parser.parse_args(argv)
    if arguments.command is None:
        parser.print_help()
        return 0
    try:
        status: int = arguments.run(arguments)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        print("\nseesay: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output left (`seesay demo | head`): not an error, and nothing more can be written.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        return _report(error, is_debug=getattr(arguments, "debug", False))


def _report(error: Exception, *, is_debug: bool) -> int:
    from seesay.errors import SeesayError

    if is_debug:
        traceback.print_exception(error)
        return EXIT_ERROR
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, SeesayError):
        print(f"seesay: error: {text}", file=sys.stderr)
    else:
        print(f"seesay: error: {type(error).__name__}: {text} (--debug shows where)", file=sys.stderr)
    return EXIT_ERROR
